"""When an AvailableNow run ends."""

from __future__ import annotations

import pytest

from nsq.spark.source.backlog import AvailableNowTarget, Backlog
from nsq.spark.source.options import SourceOptions


def target(rows: int | None = 10, *, taken: int = 0, **given: float) -> AvailableNowTarget:
    options = SourceOptions(topic="orders", channel="spark", wal="/wal", nsqd=("a:4150",), **given)  # type: ignore[arg-type]
    return AvailableNowTarget(rows, 0.0, options, taken)


def measured(began: float, **counts: int) -> Backlog:
    return Backlog(asked=1, began=began, **counts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("it", "now", "pending", "backlog", "reason"),
    [
        # All rows are taken, or there were none.
        (target(10, taken=10), 0.1, 5, Backlog(), "all 10 rows"),
        (target(0), 0.0, 0, Backlog(), "all 0 rows"),
        # Rows that have come are taken first.
        (target(), 100.0, 3, Backlog(), ""),
        # nsqd has messages for us.
        (target(), 60.0, 0, measured(59.0, depth=1), ""),
        (target(), 60.0, 0, measured(59.0, in_flight=1, deferred=1), ""),
        (target(wait_for_in_flight=False), 60.0, 0, measured(59.0, in_flight=1, deferred=1), "1 in flight"),
        (target(), 60.0, 0, measured(59.0, depth=5, paused=True), "the channel is paused"),
        # Receivers elsewhere would have brought them by now.
        (target(receivers=0), 1.9, 0, measured(0.5, depth=10), ""),
        (
            target(receivers=0), 2.0, 0, measured(0.5, depth=10),
            "10 did not come: nothing came for 2.0 s; nsqd has 10 waiting",
        ),
        # Without a measurement it ends when nothing comes.
        (target(), 2.0, 0, Backlog(), "no nsqd has reported"),
        (target(), 2.0, 0, Backlog(errors=("down",), began=1.0), "no nsqd has reported"),
        # A timeout ends it, whatever nsqd has.
        (target(available_now_timeout=20.0), 19.9, 0, measured(19.0, depth=5), ""),
        (target(available_now_timeout=20.0), 20.0, 0, measured(19.0, depth=5), "availableNowTimeout=20s"),
        (target(available_now_timeout=20.0), 20.0, 3, measured(19.0, depth=5), "availableNowTimeout=20s"),
    ],
)  # fmt: skip
def test_a_run_ends_with_a_reason_or_goes_on(
    it: AvailableNowTarget, now: float, pending: int, backlog: Backlog, reason: str
) -> None:
    found = it.verdict(now, pending, backlog)
    assert bool(found) is bool(reason)
    assert reason in found


def test_rows_that_another_consumer_took_are_not_waited_for() -> None:
    it = target(taken=7)
    it.note_rows(1.0, 0, True)
    assert it.verdict(2.9, 0, measured(2.0)) == ""
    assert "read 7 rows, 3 did not come" in it.verdict(3.0, 0, measured(2.0))


def test_a_run_without_a_number_of_rows_ends_when_nothing_comes() -> None:
    it = target(None, taken=7)
    assert it.left is None
    it.note_rows(1.0, 0, True)
    assert it.verdict(2.9, 0, Backlog()) == ""
    assert it.verdict(3.0, 0, Backlog()).startswith("read 7 rows: nothing came for 2.0 s")


def test_a_run_goes_on_while_rows_come() -> None:
    it = target()
    for second in range(1, 8):
        it.note_rows(float(second), second, True)
        assert it.verdict(second + 0.5, 0, measured(second + 0.1)) == ""


def test_an_old_measurement_does_not_end_a_run() -> None:
    it = target()
    it.note_rows(5.0, 1, True)
    assert it.verdict(60.0, 0, measured(4.9)) == ""
    assert it.verdict(60.0, 0, measured(5.1)) != ""


def test_nothing_is_missed_before_the_receivers_are_at_work() -> None:
    it = target()
    it.note_rows(30.0, 0, False)
    assert it.verdict(31.9, 0, Backlog()) == ""
    assert it.verdict(32.0, 0, Backlog()) != ""
