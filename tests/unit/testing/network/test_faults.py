from __future__ import annotations

import math

import pytest

from nsq.errors import UsageError
from nsq.testing.network.faults import CLIENT, KINDS, SERVER, Fault, ListenerVerbs, checked


class Remembering(ListenerVerbs):
    def __init__(self) -> None:
        self.inflicted: list[Fault] = []

    def inflict(self, fault: Fault) -> int:
        self.inflicted.append(checked(fault))
        return 1


def test_every_kind_of_fault_has_a_verb() -> None:
    verbs = Remembering()
    verbs.cut()
    verbs.reset()
    verbs.half_close()
    verbs.half_open()
    verbs.corrupt(3, CLIENT)
    verbs.truncate(100)
    verbs.stall(2.0)
    verbs.delay(0.1, seconds=3.0)
    verbs.throttle(1000)
    verbs.refuse()
    verbs.ignore(1.0)
    verbs.swallow(1.0)
    assert [fault.kind for fault in verbs.inflicted] == list(KINDS)
    verbs.heal()
    assert verbs.inflicted[2:6] == [
        Fault("half-close", CLIENT),
        Fault("half-open", SERVER),
        Fault("corrupt", CLIENT, math.inf, 3),
        Fault("truncate", amount=100),
    ]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("stal"), "no fault is called 'stal'; did you mean 'stall'?"),
        (Fault("earthquake"), "no fault is called 'earthquake'; there are cut, reset"),
        (Fault("cut", "north"), "cut towards 'north'"),
        (Fault("half-close"), "half-close towards 'both'"),
        (Fault("stall", seconds=0), "stall for 0 seconds"),
        (Fault("stall", seconds=math.nan), "stall for nan seconds"),
        (Fault("throttle"), "throttle by 0.0; it must be more than 0"),
        (Fault("delay", amount=-1), "delay by -1"),
    ],
)
def test_an_impossible_fault_is_refused(fault: Fault, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("?", r"\?")):
        checked(fault)


def test_refuse_cannot_be_a_fault_of_one_connection() -> None:
    with pytest.raises(UsageError, match="refuse is a fault of a link"):
        checked(Fault("refuse"), listening=False)
