from __future__ import annotations

from nsq.spark.source.backlog import AvailableNowTarget, Backlog
from nsq.spark.source.options import SourceOptions


def target(
    rows: int | None = 10, timeout: float = 0.0, with_held: bool = True, receivers: int = 1
) -> AvailableNowTarget:
    options = SourceOptions(
        topic="orders",
        channel="spark",
        wal="/wal",
        nsqd=("a:4150",),
        available_now_timeout=timeout,
        wait_for_in_flight=with_held,
        receivers=receivers,
    )
    return AvailableNowTarget(rows, 0.0, options)


def test_a_target_is_reached_when_its_rows_are_taken() -> None:
    it = target(10)
    it.taken = 10
    assert it.left == 0
    assert "all 10 rows" in it.verdict(0.1, 5, Backlog())


def test_nothing_to_read_is_reached_at_once() -> None:
    assert target(0).verdict(0.0, 0, Backlog())


def test_rows_that_have_come_are_taken_first() -> None:
    assert target(10).verdict(100.0, 3, Backlog()) == ""


def test_rows_that_another_consumer_took_are_not_waited_for() -> None:
    it = target(10)
    it.taken = 7
    it.note_rows(1.0, 0, True)
    emptied = Backlog(asked=1, began=2.0)
    assert it.verdict(2.9, 0, emptied) == ""
    reason = it.verdict(3.0, 0, emptied)
    assert "read 7 rows, 3 did not come" in reason
    assert "0 waiting" in reason


def test_a_run_without_a_number_of_rows_ends_when_nothing_comes() -> None:
    it = target(None)
    it.taken = 7
    assert it.left is None
    it.note_rows(1.0, 0, True)
    assert it.verdict(2.9, 0, Backlog()) == ""
    assert it.verdict(3.0, 0, Backlog()).startswith("read 7 rows: nothing came for 2.0 s")


def test_a_run_goes_on_while_rows_come() -> None:
    it = target(10)
    for second in range(1, 8):
        it.note_rows(float(second), second, True)
        assert it.verdict(second + 0.5, 0, Backlog(asked=1, began=second + 0.1)) == ""


def test_a_run_waits_for_messages_that_nsqd_has() -> None:
    it = target(10)
    it.note_rows(0.0, 0, True)
    assert it.verdict(60.0, 0, Backlog(depth=1, asked=1, began=59.0)) == ""


def test_a_run_without_receivers_does_not_wait_for_messages_in_nsqd() -> None:
    it = target(10, receivers=0)
    waiting = Backlog(depth=10, asked=1, began=0.5)
    assert it.verdict(1.9, 0, waiting) == ""
    assert "10 did not come: nothing came for 2.0 s; nsqd has 10 waiting" in it.verdict(2.0, 0, waiting)


def test_messages_in_flight_elsewhere_are_waited_for_on_request() -> None:
    held = Backlog(in_flight=1, deferred=1, asked=1, began=59.0)
    assert target().verdict(60.0, 0, held) == ""
    assert target(with_held=False).verdict(60.0, 0, held) != ""


def test_a_paused_channel_is_not_waited_for() -> None:
    assert "paused" in target().verdict(60.0, 0, Backlog(depth=5, paused=True, asked=1, began=59.0))


def test_an_old_measurement_does_not_end_a_run() -> None:
    it = target()
    it.note_rows(5.0, 1, True)
    assert it.verdict(60.0, 0, Backlog(asked=1, began=4.9)) == ""
    assert it.verdict(60.0, 0, Backlog(asked=1, began=5.1)) != ""


def test_a_run_without_a_measurement_ends_when_nothing_comes() -> None:
    assert "no nsqd has reported" in target().verdict(2.0, 0, Backlog())
    assert "no nsqd has reported" in target().verdict(2.0, 0, Backlog(errors=("down",), began=1.0))


def test_nothing_is_missed_before_the_receivers_are_at_work() -> None:
    it = target()
    it.note_rows(30.0, 0, False)
    assert it.verdict(31.9, 0, Backlog()) == ""
    assert it.verdict(32.0, 0, Backlog()) != ""


def test_a_timeout_ends_it_whatever_nsqd_has() -> None:
    it = target(timeout=20.0)
    assert it.verdict(19.9, 0, Backlog(depth=5, asked=1, began=19.0)) == ""
    assert "availableNowTimeout=20s" in it.verdict(20.0, 0, Backlog(depth=5, asked=1, began=19.0))
    assert "availableNowTimeout=20s" in it.verdict(20.0, 3, Backlog(depth=5, asked=1, began=19.0))
