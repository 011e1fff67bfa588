"""Who reads: the read loop, or for moments whoever waits for what is read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from nsq.connection import lending
from nsq.connection.lending import Lending
from nsq.errors import ConnectionLost
from nsq.wire.frames import HEARTBEAT, encode_response

from ..scripted import CLS, NOP, Nsqd, fin, id_of, message, rdy
from .paired import PATIENCE, Pair


class Telling(Lending):
    """Tells when it is lent."""

    def __init__(self) -> None:
        super().__init__()
        self.lent = threading.Event()

    def lend(self, worthwhile: Callable[[], bool]) -> None:
        def told() -> bool:  # asked when it is lent already
            self.lent.set()
            return worthwhile()

        super().lend(told)


class TestLending:
    @contextmanager
    def lent(self, subject: Telling) -> Iterator[threading.Thread]:
        """As its read loop; ends with it."""
        thread = threading.Thread(target=subject.lend, args=(lambda: True,))
        thread.start()
        assert subject.lent.wait(PATIENCE)
        yield thread
        subject.recall()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    def test_nobody_borrows_what_is_not_lent(self) -> None:
        assert not Lending().borrow()

    def test_one_at_a_time_borrows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lending, "LEASE", PATIENCE)
        subject = Telling()
        with self.lent(subject):
            assert subject.borrow()
            assert not subject.borrow()
            subject.give_back()
            assert subject.borrow()
            subject.give_back()

    def test_it_comes_back_when_called(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lending, "LEASE", PATIENCE)
        subject = Telling()
        with self.lent(subject) as thread:
            subject.recall()
            thread.join(PATIENCE / 2)
            assert not thread.is_alive()
        assert not subject.borrow()

    def test_it_comes_back_when_nobody_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lending, "LEASE", 0.001)
        subject = Telling()
        with self.lent(subject) as thread:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def test_what_is_not_worthwhile_is_not_lent(self) -> None:
        subject = Lending()
        subject.lend(lambda: False)
        assert not subject.borrow()

    def test_a_call_for_nothing_does_not_count_later(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lending, "LEASE", PATIENCE)
        subject = Telling()
        subject.recall()
        with self.lent(subject) as thread:
            assert thread.is_alive()
            assert subject.borrow()
            subject.give_back()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as ends:
        made = Pair(lends=True)
        made.conn._lending = Telling()
        ends.callback(made.end)
        yield made


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read loop stays away until it is called."""
    monkeypatch.setattr(lending, "LEASE", PATIENCE)


def connected(pair: Pair) -> Nsqd:
    """It has sent the first message, and the read loop has lent."""
    nsqd = pair.connect()
    pair.conn.send_rdy(10)
    nsqd.expect(rdy(10))
    nsqd.peer.send(message(1))
    pair.delegate.wait_for_messages(1)
    assert pair.conn._lending.lent.wait(PATIENCE)  # type: ignore[attr-defined]
    return nsqd


def read_along(pair: Pair, over: Callable[[], bool], seconds: float = PATIENCE) -> None:
    pair.conn.read_along(over, time.monotonic() + seconds)


def test_who_waits_reads_for_itself(pair: Pair, patient: None) -> None:
    nsqd = connected(pair)
    readers: list[str] = []
    heard = pair.delegate.on_messages

    def on_messages(conn: object, messages: list[object]) -> None:
        readers.append(threading.current_thread().name)
        heard(conn, messages)  # type: ignore[arg-type]

    pair.delegate.on_messages = on_messages  # type: ignore[method-assign, assignment]
    nsqd.peer.send(message(2))

    read_along(pair, lambda: len(pair.delegate.messages) == 2)

    assert readers == [threading.current_thread().name]
    assert [each.id for each in pair.delegate.messages] == [id_of(1), id_of(2)]
    assert pair.conn.in_flight == 2


def test_what_is_not_waited_for_is_read_as_well(pair: Pair) -> None:
    """Nobody borrows: the read loop comes back by itself."""
    nsqd = pair.connect()
    pair.conn.send_rdy(10)
    nsqd.expect(rdy(10))
    for number in range(1, 4):
        nsqd.peer.send(message(number))
        pair.delegate.wait_for_messages(number)
    nsqd.peer.send(encode_response(HEARTBEAT))
    nsqd.expect(NOP)


def test_a_borrower_answers_heartbeats(pair: Pair, patient: None) -> None:
    nsqd = connected(pair)
    nsqd.peer.send(encode_response(HEARTBEAT) + message(2))

    read_along(pair, lambda: len(pair.delegate.messages) == 2)

    nsqd.expect(NOP)


def test_a_borrower_waits_no_longer_than_it_said(
    pair: Pair, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsq.connection.conn.LEASE", 0.01)
    nsqd = connected(pair)

    read_along(pair, lambda: False, seconds=0.02)

    nsqd.peer.send(message(2))  # the read loop has been called
    pair.delegate.wait_for_messages(2)


def test_who_comes_too_late_to_borrow_calls_the_read_loop(pair: Pair, patient: None) -> None:
    nsqd = connected(pair)
    assert pair.conn._lending.borrow()  # somebody else

    read_along(pair, lambda: False)
    pair.conn._lending.give_back()

    nsqd.peer.send(message(2))
    pair.delegate.wait_for_messages(2)


def test_what_is_queued_by_others_calls_the_read_loop(pair: Pair, patient: None) -> None:
    """They wait for an answer, and do not read."""
    nsqd = connected(pair)

    pair.conn.send(b"PUB orders\n")

    nsqd.expect(b"PUB orders")
    nsqd.peer.send(encode_response(b"OK"))
    pair.delegate.wait_for_note("response", b"OK")


def test_the_end_that_a_borrower_finds_is_told_once(pair: Pair, patient: None) -> None:
    nsqd = connected(pair)
    nsqd.peer.end()

    read_along(pair, lambda: False)

    assert isinstance(pair.delegate.wait_for_close(), ConnectionLost)
    assert pair.conn.join(time.monotonic() + PATIENCE)
    assert len(pair.delegate.causes) == 1


def test_an_error_that_a_borrower_meets_is_the_cause(pair: Pair, patient: None) -> None:
    nsqd = connected(pair)
    nsqd.peer.fail(ConnectionLost("reset by peer"))

    read_along(pair, lambda: False)

    assert str(pair.delegate.wait_for_close()) == "reset by peer"


def test_a_borrower_that_is_interrupted_costs_the_connection(pair: Pair, patient: None) -> None:
    """Half an answer may be lost with it: what follows could not be understood."""
    nsqd = connected(pair)

    def interrupted(conn: object, messages: list[object]) -> None:
        raise KeyboardInterrupt

    pair.delegate.on_messages = interrupted  # type: ignore[method-assign, assignment]
    nsqd.peer.send(message(2))
    with pytest.raises(KeyboardInterrupt):
        read_along(pair, lambda: False)

    assert "a read was interrupted by KeyboardInterrupt()" in str(pair.delegate.wait_for_close())


def test_closing_does_not_wait_for_a_lease(pair: Pair, patient: None) -> None:
    connected(pair)

    pair.conn.close()

    assert pair.conn.join(time.monotonic() + PATIENCE / 2)


def test_neither_does_draining(pair: Pair, patient: None) -> None:
    nsqd = connected(pair)
    (held,) = pair.delegate.messages
    pair.conn.start_close()
    nsqd.expect(CLS)
    nsqd.peer.send(encode_response(b"CLOSE_WAIT"))

    held.finish()

    nsqd.expect(fin(1))
    nsqd.peer.end()
    assert pair.delegate.wait_for_close() is None
