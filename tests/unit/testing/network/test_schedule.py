from __future__ import annotations

from itertools import islice

import pytest

from nsq.errors import UsageError
from nsq.testing.network.faults import KINDS, checked
from nsq.testing.network.schedule import Schedule, Strike


def strikes(schedule: Schedule, count: int = 500) -> list[Strike]:
    return list(islice(schedule, count))


def test_a_seed_gives_the_same_schedule_each_time() -> None:
    schedule = Schedule(7)
    assert strikes(schedule) == strikes(schedule) == strikes(Schedule(7))
    assert strikes(schedule) != strikes(Schedule(8))


def test_every_strike_can_be_carried_out() -> None:
    drawn = strikes(Schedule("any", kinds=KINDS, pause=(0.1, 0.2), seconds=(1.0, 2.0)), 2000)
    assert {strike.fault.kind for strike in drawn} == set(KINDS)
    for strike in drawn:
        checked(strike.fault)
        assert 0.1 <= strike.after <= 0.2
        assert 1.0 <= strike.fault.seconds <= 2.0
        assert 0 <= strike.link < 1


def test_weights_are_kept_and_other_kinds_are_drawn_too() -> None:
    drawn = [strike.fault.kind for strike in strikes(Schedule(1, kinds={"cut": 9, "kill nsqd": 1}), 1000)]
    assert 60 < drawn.count("kill nsqd") < 140


def test_a_strike_hits_a_share_of_the_connections() -> None:
    (strike,) = strikes(Schedule(1), 1)
    chosen = {Strike(0, strike.fault, place / 100, None).one_of("abcd") for place in range(100)}
    assert chosen == set("abcd")
    with pytest.raises(UsageError, match="a strike needs a target"):
        strike.one_of([])


def test_usually_a_strike_hits_all_connections_or_one_and_flips_no_bits() -> None:
    drawn = strikes(Schedule(1), 2000)
    assert 600 < sum(strike.connection is None for strike in drawn) < 1400
    assert "corrupt" not in {strike.fault.kind for strike in drawn}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kinds": []}, "must name at least one"),
        ({"kinds": {"cut": 0}}, "weights above 0"),
        ({"pause": (2, 1)}, "pause is"),
        ({"seconds": (-1, 1)}, "seconds is"),
    ],
)
def test_wrong_bounds_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Schedule(1, **options)  # type: ignore[arg-type]
