"""The flow at work on connections that only note what they are told."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from nsq.consumer.backoff import Backoff, Outcome
from nsq.consumer.flow import Flow
from nsq.consumer.pacing import Pacing

PATIENCE = 20.0


class FakeConn:
    """What pacing knows of a connection; the RDY it is given is noted with everybody else's, in order."""

    def __init__(self, name: str, wire: list[tuple[str, int]], max_rdy: int = 2500) -> None:
        self.name = name
        self.session = SimpleNamespace(max_rdy=max_rdy)
        self.in_flight = 0
        self._wire = wire

    def send_rdy(self, count: int) -> None:
        self._wire.append((self.name, count))


class Desk:
    """A pacing, its connections, and all that was sent."""

    def __init__(self, max_in_flight: int, wait: float = 1000.0) -> None:
        self.wire: list[tuple[str, int]] = []
        self.moves = 0
        self.backoff = Backoff(lambda level: wait, 10_000.0)
        self.pacing = Pacing(Flow(max_in_flight, self.backoff, lambda keys: keys[0]), self._moved)

    def _moved(self) -> None:
        # Must come without the lock: whoever is told may ask.
        assert self.pacing.reason(self.conn("stranger")) == "not connected"
        self.moves += 1

    def conn(self, name: str) -> Any:
        return FakeConn(name, self.wire)

    def connect(self, name: str) -> Any:
        conn = self.conn(name)
        self.pacing.connected(conn)
        return conn


def test_connections_come_and_go() -> None:
    desk = Desk(10)
    a = desk.connect("a")
    b = desk.connect("b")
    desk.pacing.closing(a)
    desk.pacing.disconnected(a)
    assert desk.wire == [("a", 10), ("a", 5), ("b", 5), ("b", 10)]
    assert desk.pacing.reason(a) == "not connected"
    assert desk.pacing.reason(b) == "its share of max_in_flight 10"


def test_what_the_user_says() -> None:
    desk = Desk(10)
    desk.connect("a")
    desk.pacing.set_max_in_flight(3)
    desk.pacing.pause(True)
    assert desk.pacing.paused
    desk.pacing.pause(False)
    desk.pacing.expect(3)
    assert desk.wire == [("a", 10), ("a", 3), ("a", 0), ("a", 3), ("a", 1)]
    assert desk.pacing.max_in_flight == 3


def test_outcomes_move_the_backoff_and_whoever_times_it_is_told() -> None:
    desk = Desk(10, wait=0.0)
    desk.connect("a")
    desk.pacing.outcome(Outcome.SUCCESS)
    assert (desk.moves, desk.pacing.backoff_level) == (0, 0)
    desk.pacing.outcome(Outcome.FAILURE)
    assert (desk.moves, desk.pacing.backoff_level) == (1, 1)
    assert desk.pacing.backoff_until is not None
    desk.pacing.outcome(Outcome.FAILURE)
    assert desk.moves == 1
    desk.pacing.tick()
    desk.pacing.outcome(Outcome.SUCCESS)
    assert (desk.moves, desk.pacing.backoff_until) == (2, None)
    assert desk.wire == [("a", 10), ("a", 0), ("a", 1), ("a", 10)]


def test_what_is_in_flight_is_counted_when_shares_move() -> None:
    desk = Desk(10)
    a = desk.connect("a")
    a.in_flight = 8
    desk.connect("b")
    a.in_flight = 5
    desk.pacing.look_again()
    assert desk.wire == [("a", 10), ("a", 5), ("b", 2), ("b", 5)]


def test_a_message_from_an_idle_connection_brings_its_share_back() -> None:
    desk = Desk(10)
    a, b = desk.connect("a"), desk.connect("b")
    later = time.monotonic() + 100.0
    desk.pacing.received(a, later)
    assert desk.wire[-1] == ("b", 5)
    desk.pacing.received(b, later)
    assert desk.wire == [("a", 10), ("a", 5), ("b", 5)]


def test_what_is_sent_is_in_the_order_of_the_decisions() -> None:
    """The last word on the wire is the one that counts, whichever threads have been deciding."""
    desk = Desk(10)
    a = desk.connect("a")
    start = threading.Barrier(3)

    def decide(counts: range) -> None:
        start.wait(PATIENCE)
        for count in counts:
            desk.pacing.set_max_in_flight(count)
            desk.pacing.pause(count % 3 == 0)

    threads = [threading.Thread(target=decide, args=(range(first, 60, 3),)) for first in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert desk.wire[-1] == ("a", desk.pacing._flow.rdy(a))
    said = [count for _, count in desk.wire]
    assert all(one != next_ for one, next_ in pairwise(said))


def test_in_a_child_nothing_is_held_and_nobody_is_told() -> None:
    desk = Desk(10)
    a = desk.connect("a")
    desk.pacing._lock.acquire()  # by a thread that the child does not have
    desk.pacing.abandon()
    desk.pacing.set_max_in_flight(3)
    assert desk.wire == [("a", 10)]
    assert desk.pacing.reason(a)
