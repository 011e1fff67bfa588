"""How many messages wait, asking for that, and when an AvailableNow run ends."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nsq.http.nsqd import ChannelStats, NsqdStats, TopicStats
from nsq.spark.source.backlog import (
    AvailableNowTarget,
    Backlog,
    Poller,
    added,
    counts,
    measure,
    next_port,
)
from nsq.spark.source.options import SourceOptions


def channel(
    name: str, depth: int = 0, in_flight: int = 0, deferred: int = 0, paused: bool = False
) -> ChannelStats:
    return {
        "channel_name": name,
        "depth": depth,
        "backend_depth": 0,
        "in_flight_count": in_flight,
        "deferred_count": deferred,
        "message_count": 0,
        "requeue_count": 0,
        "timeout_count": 0,
        "paused": paused,
        "clients": [],
    }


def topic(name: str, *channels: ChannelStats, depth: int = 0, paused: bool = False) -> TopicStats:
    return {
        "topic_name": name,
        "channels": list(channels),
        "depth": depth,
        "backend_depth": 0,
        "message_count": 0,
        "paused": paused,
    }


def stats(*topics: TopicStats) -> NsqdStats:
    return {"version": "1.3.0", "health": "OK", "topics": list(topics)}


def test_the_backlog_counts_the_channel_and_what_its_topic_still_holds() -> None:
    counted = stats(
        topic("other", channel("mine", 9)),
        topic("orders", channel("else", 8), channel("mine", 5, 3, 2), depth=1),
    )
    assert counts(counted, "orders".__eq__, "mine") == Backlog(depth=6, in_flight=3, deferred=2, asked=1)


def test_the_backlog_of_a_channel_that_is_not_created_yet_is_that_of_its_topic() -> None:
    assert counts(stats(topic("orders", depth=7)), "orders".__eq__, "mine") == Backlog(depth=7, asked=1)


def test_a_topic_that_does_not_exist_has_no_backlog() -> None:
    assert counts(stats(), "orders".__eq__, "mine") == Backlog(asked=1)


def test_a_paused_topic_pauses_its_channels() -> None:
    assert counts(stats(topic("orders", channel("mine"), paused=True)), "orders".__eq__, "mine").paused
    assert counts(stats(topic("orders", channel("mine", paused=True))), "orders".__eq__, "mine").paused


def test_the_backlogs_of_several_nsqds_are_added_up() -> None:
    one, other = Backlog(1, 2, 3, asked=1, paused=True), Backlog(10, 20, 30, asked=1)
    assert added([one, other]) == Backlog(11, 22, 33, False, 2)
    assert added([one]).paused
    assert added([]) == Backlog()


def test_messages_received_since_the_measurement_are_not_expected() -> None:
    asked = Backlog(depth=90, in_flight=10, deferred=5, asked=1, received=1000)
    assert [asked.unreceived(now) for now in (1000, 1060, 1100, 5000)] == [100, 40, 0, 0]


def test_a_run_waits_for_depth_and_on_request_for_messages_in_flight() -> None:
    backlog = Backlog(1, 20, 300)
    assert (backlog.waiting(True), backlog.waiting(False)) == (321, 1)


@pytest.mark.parametrize(
    ("tcp", "http"), [("host:4150", "host:4151"), ("[::1]:4150", "[::1]:4151"), ("host", "host")]
)
def test_http_is_a_port_further(tcp: str, http: str) -> None:
    assert next_port(tcp) == http


@pytest.mark.parametrize(("topics", "lookups"), [(10, 10), (11, 0)])
def test_many_topics_are_not_looked_up_one_by_one(
    topics: int, lookups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with trigger(availableNow=True) measures the backlog twice a second."""

    def places(lookupds: object, config: object, asked_for: Collection[str]) -> tuple[list[Any], list[Any]]:
        assert len(asked_for) == lookups  # none: all nsqds
        return [], []

    monkeypatch.setattr("nsq.spark.lookups.places", places)
    names = tuple(f"orders-{number}" for number in range(topics))
    options = SourceOptions(topics=names, channel="spark", wal="/wal", lookupd=("lookup:4161",))
    assert measure(options, 7).received == 7


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


LONG = 60.0


class Source:
    """A function for a poller; it answers on request."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answers = threading.Semaphore(0)
        self.count = 0
        self.failing = False

    def __call__(self) -> int:
        self.asked.release()
        assert self.answers.acquire(timeout=LONG)
        self.count += 1
        if self.failing:
            raise ValueError("no answer")
        return self.count


@contextmanager
def gauging(source: Source, pause: float = 0.0) -> Iterator[Poller[int]]:
    gauge = Poller("test", source, pause)
    try:
        yield gauge
    finally:
        for _ in range(9):
            source.answers.release()
        gauge.stop()


def test_a_poller_asks_nothing_before_it_is_first_read() -> None:
    source = Source()
    with gauging(source):
        assert not source.asked.acquire(blocking=False)


def test_reading_the_last_answer_does_not_wait() -> None:
    source = Source()
    with gauging(source) as gauge:
        assert gauge.last_answer() is None
        assert source.asked.acquire(timeout=LONG)
        assert gauge.last_answer() is None  # it has not answered yet


def test_a_poller_asks_only_as_often_as_its_answer_is_read() -> None:
    source = Source()
    with gauging(source) as gauge:
        source.answers.release()
        gauge.last_answer(LONG)
        assert source.asked.acquire(timeout=LONG)
        assert not source.asked.acquire(timeout=0.05)
        gauge.last_answer()
        assert source.asked.acquire(timeout=LONG)


def test_an_old_answer_is_not_recent_and_a_new_one_is_waited_for() -> None:
    source = Source()
    with gauging(source) as gauge:
        source.answers.release()
        assert gauge.recent_answer(LONG, LONG) == 1
        assert gauge.recent_answer(LONG, 0.0) == 1  # it is young enough
        assert gauge.recent_answer(0.0, 0.0) is None
        for _ in range(3):
            source.answers.release()
        assert (gauge.recent_answer(0.0, LONG) or 0) > 1


def test_a_question_that_fails_leaves_the_last_answer(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    with gauging(source) as gauge:
        source.answers.release()
        gauge.last_answer(LONG)
        source.asked.acquire(timeout=LONG)
        source.failing = True
        gauge.last_answer()
        assert source.asked.acquire(timeout=LONG)
        source.answers.release()
        gauge.last_answer()
        assert source.asked.acquire(timeout=LONG)  # it goes on
        assert gauge.last_answer() == 1
    assert "cannot measure the test" in caplog.text


def test_stopping_ends_the_thread_and_a_pause() -> None:
    source = Source()
    with gauging(source, pause=LONG * 9) as gauge:
        source.answers.release()
        gauge.last_answer(LONG)
        gauge.stop()
        assert not any(thread.name == "nsq-spark-test" for thread in threading.enumerate())
        assert gauge.last_answer() == 1
