from __future__ import annotations

import math

import pytest

from nsq.errors import UsageError
from nsq.testing.network.faults import Fault, checked


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
