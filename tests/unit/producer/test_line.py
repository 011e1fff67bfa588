from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nsq.config import Config
from nsq.connection import Conn
from nsq.errors import NsqError, PublishUncertain, Unanswered
from nsq.producer.line import Line
from nsq.producer.pending import Settled
from nsq.producer.transaction import State, Transaction
from nsq.transport import MemoryTransport
from nsq.wire.frames import OK, encode_response

from .scripted import PATIENCE, A, Nsqd, accept, in_thread
from .transactions import transaction

FOREVER = 1e8
CONFIG = Config(write_timeout=3 * PATIENCE)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Watching:
    """A Watcher that notes what it is told."""

    def __init__(self) -> None:
        self.causes: list[NsqError] = []
        self.settled: list[Settled] = []
        self.settled_before_the_end = 0
        self.proofs = 0

    def proven(self, line: Line) -> None:
        line.was_proven, line.overdue = True, False
        self.proofs += 1

    def lost(self, line: Line, cause: NsqError) -> None:
        self.causes.append(cause)
        self.settled_before_the_end = len(self.settled)

    def deliver(self, settled: Settled) -> None:
        self.settled.append(settled)


@contextmanager
def connected(clock: Clock) -> Iterator[tuple[Line, Nsqd, Watching]]:
    transport, watcher = MemoryTransport(), Watching()
    line = Line(A, CONFIG, watcher, clock)
    line.conn = Conn(A, CONFIG, line, transport=transport)
    ready = in_thread(lambda: line.conn.connect(FOREVER))
    nsqd = accept(transport)
    ready.result(PATIENCE)
    line.conn.start()
    try:
        yield line, nsqd, watcher
    finally:
        line.conn.close()
        assert line.conn.join(FOREVER)


def placed(line: Line, body: bytes = b"body", *, deadline: float = 1000.0) -> Transaction:
    tx = transaction(body, deadline=deadline)
    assert line.send(tx, through=True)
    return tx


def test_a_sign_of_life_is_not_an_answer() -> None:
    clock = Clock()
    with connected(clock) as (line, nsqd, watcher):
        tx = placed(line)
        clock.now = CONFIG.read_timeout
        nsqd.expect(b"body")
        nsqd.heartbeat()
        assert line.usable

        clock.now += 0.1
        nsqd.say(b"_heartbeat_")
        assert tx.wait(PATIENCE)
        nsqd.peer.wait_closed()

    assert isinstance(tx.error, PublishUncertain)
    (cause,) = watcher.causes
    assert isinstance(cause, Unanswered)
    assert "heartbeats, but has not answered for 60 s" in str(cause)


def test_without_anything_pending_silence_is_peace() -> None:
    clock = Clock()
    with connected(clock) as (line, nsqd, _):
        clock.now = 3600.0
        nsqd.heartbeat()
        assert line.usable


@pytest.mark.parametrize(("size", "deadline"), [(20_000, CONFIG.write_timeout - 0.1), (70_000, 1000.0)])
def test_a_large_message_goes_by_the_write_loop_so_that_its_caller_can_give_up(
    size: int, deadline: float
) -> None:
    """Large is what takes the caller's whole time, or more than any write should."""
    with connected(Clock()) as (line, nsqd, _):
        nsqd.peer.stall(after=1)
        large = placed(line, b"x" * size, deadline=deadline)  # returns although nothing is taken
        nsqd.peer.wait_until(lambda got: got.endswith(b"P"))
        small = placed(line, b"small")
        assert line.pending == 2

        assert not line.withdraw(large)
        small.give_up()
        assert line.withdraw(small)
        assert line.pending == 1


def test_what_is_withdrawn_is_off_the_line_once() -> None:
    with connected(Clock()) as (line, nsqd, watcher):
        nsqd.peer.stall(after=1)
        placed(line, b"x" * 70_000)
        nsqd.peer.wait_until(lambda got: got.endswith(b"P"))
        tx = placed(line)
        tx.give_up()

        assert line.withdraw(tx)
        assert line.withdraw(tx)

        assert watcher.settled == [([], [tx])]
    assert sum(each.forsaken.count(tx) for each in watcher.settled) == 1


def test_a_closed_line_takes_nothing() -> None:
    with connected(Clock()) as (line, nsqd, watcher):
        nsqd.hang_up()
        assert line.conn.join(FOREVER)
        tx = transaction()

        assert not line.send(tx, through=True)
        assert tx.state is State.WAITING
        assert not watcher.settled


def test_the_end_is_told_before_what_was_pending_so_that_it_goes_elsewhere() -> None:
    with connected(Clock()) as (line, nsqd, watcher):
        answered, pending = placed(line, b"answered"), placed(line, b"pending")
        nsqd.answer(b"answered")
        assert answered.wait(PATIENCE)
        nsqd.expect(b"pending")
        nsqd.hang_up()
        assert line.conn.join(FOREVER)

    assert watcher.settled == [([answered], []), ([pending], [])]
    assert watcher.settled_before_the_end == 1
    assert line.failed == 1


def test_it_proves_itself_with_its_first_answer_and_whenever_it_was_overdue() -> None:
    with connected(Clock()) as (line, nsqd, watcher):
        for body in (b"1", b"2", b"3"):
            if body == b"3":
                line.overdue = True
            tx = placed(line, body)
            nsqd.answer(body)
            assert tx.wait(PATIENCE)
        _drain(line)
    assert watcher.proofs == 2
    assert line.published == 3


def test_several_answers_at_once() -> None:
    with connected(Clock()) as (line, nsqd, watcher):
        first, given_up, last = (placed(line, body) for body in (b"1", b"2", b"3"))
        given_up.give_up()
        for body in (b"1", b"2", b"3"):
            nsqd.expect(body)
        nsqd.peer.send(encode_response(OK) * 3)
        assert last.wait(PATIENCE)
        _drain(line)

    assert watcher.settled == [([first, last], [given_up])]
    assert line.published == 3


def test_more_answers_than_questions_end_the_connection() -> None:
    with connected(Clock()) as (line, nsqd, watcher):
        tx = placed(line)
        nsqd.expect(b"body")
        nsqd.peer.send(encode_response(OK) * 2)
        assert tx.wait(PATIENCE)
        nsqd.peer.wait_closed()
        assert line.conn.join(FOREVER)

    assert tx.error is None
    assert watcher.settled == [([tx], [])]
    (cause,) = watcher.causes
    assert "an OK to nothing" in str(cause)


def _drain(line: Line) -> None:
    """The read loop tells after it has woken the caller: let it finish."""
    line.conn.close()
    assert line.conn.join(FOREVER)
