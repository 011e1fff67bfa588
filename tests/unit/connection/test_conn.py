"""A connection over a scripted nsqd: what its threads do, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from nsq.connection import Conn
from nsq.errors import (
    AlreadyResponded,
    ConnectionLost,
    FinFailed,
    FrameError,
    InvalidMessage,
    NsqError,
    SubFailed,
    Unanswered,
    WireError,
)
from nsq.message import Message, finish_all
from nsq.transport import MemoryStream, MemoryTransport, WrappedStream
from nsq.wire.frames import CLOSE_WAIT, HEARTBEAT, encode_response

from ..scripted import (
    CLS,
    NOP,
    A,
    accept,
    fin,
    hear_identify,
    id_of,
    message,
    rdy,
    req,
    touch,
)
from .paired import PATIENCE, Pair


@pytest.fixture
def pairs() -> Iterator[Callable[..., Pair]]:
    with ExitStack() as ends:

        def make(*args: Any, **options: Any) -> Pair:
            pair = Pair(*args, **options)
            ends.callback(pair.end)
            return pair

        yield make


@pytest.fixture
def pair(pairs: Callable[..., Pair]) -> Pair:
    return pairs()


@pytest.fixture(params=[True, False], ids=["heeded", "unheeded"])
def either(pairs: Callable[..., Pair], request: pytest.FixtureRequest) -> Pair:
    """Whose delegate wants to hear of every FIN, or does not."""
    return pairs(heeded=request.param)


def all_in_threads(*calls: Callable[[], object]) -> None:
    """Let loose together; returns when all are done."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        start.wait(PATIENCE)
        call()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


class TestReading:
    def test_messages_arrive_in_flight(self, pair: Pair) -> None:
        nsqd = pair.connect()
        pair.conn.send_rdy(2)
        nsqd.expect(rdy(2))
        nsqd.deliver(1, 2)
        one, two = pair.delegate.wait_for_messages(2)
        assert (one.id, two.id) == (id_of(1), id_of(2))
        assert pair.conn.in_flight == 2
        assert pair.conn.holds(one)
        assert one.nsqd_address == A

    def test_what_came_with_the_handshake_is_read_first(self, pair: Pair) -> None:
        def shake() -> None:
            peer = pair.transport.accept()
            hear_identify(peer)
            peer.send(encode_response(b"{}"))
            peer.wait_until(lambda got: got.endswith(b"SUB orders billing\n"))
            peer.send(encode_response(b"OK") + encode_response(b"early"))

        nsqd = threading.Thread(target=shake)
        nsqd.start()
        pair.conn.connect(time.monotonic() + PATIENCE)
        nsqd.join(PATIENCE)
        assert pair.delegate.notes == []
        pair.conn.start()
        pair.delegate.wait_for_note("response", b"early")

    def test_heartbeats_are_answered(self, pair: Pair) -> None:
        nsqd = pair.connect()
        for _ in range(3):
            nsqd.heartbeat()
            nsqd.expect(NOP)
        pair.delegate.wait_for_note("heartbeat")

    def test_errors_that_are_not_fatal(self, pair: Pair) -> None:
        nsqd = pair.connect()
        nsqd.refuse("E_FIN_FAILED FIN 0 failed")
        pair.delegate.wait_for_note("error", FinFailed)
        nsqd.heartbeat()
        nsqd.expect(NOP)
        assert pair.conn.open

    def test_a_fatal_error_is_the_cause_of_the_end_that_follows(self, pair: Pair) -> None:
        nsqd = pair.connect()
        nsqd.refuse("E_SUB_FAILED channel is full")
        nsqd.peer.end()
        assert isinstance(pair.delegate.wait_for_close(), SubFailed)

    @pytest.mark.parametrize("chunk_size", [1, 7, 64])
    def test_any_cut_of_the_stream(self, pairs: Callable[..., Pair], chunk_size: int) -> None:
        pair = pairs(MemoryTransport(chunk_size=chunk_size))
        nsqd = pair.connect()
        pair.conn.send_rdy(3)
        nsqd.expect(rdy(3))
        nsqd.peer.send(message(1, b"x" * 100) + encode_response(HEARTBEAT) + message(2, b"") + message(3))
        bodies = [received.body for received in pair.delegate.wait_for_messages(3)]
        assert bodies == [b"x" * 100, b"", b"body"]
        nsqd.expect(NOP)


class TestAnswering:
    def test_finish(self, either: Pair) -> None:
        nsqd = either.connect()
        either.conn.send_rdy(1)
        nsqd.deliver(1)
        (one,) = either.delegate.wait_for_messages(1)
        one.finish()
        nsqd.expect(rdy(1), fin(1))
        assert one.responded
        assert either.delegate.notes == ([("finished", one)] if either.heeded else [])
        assert either.conn.session.finished == 1

    def test_finish_many_at_once(self, either: Pair) -> None:
        """What has been answered before is passed over."""
        nsqd = either.connect()
        either.conn.send_rdy(4)
        nsqd.deliver(1, 2, 3, 4)
        one, two, three, four = messages = either.delegate.wait_for_messages(4)
        two.finish()
        finish_all([one, two, three, one])
        finish_all([one, two, three])
        nsqd.expect(rdy(4), fin(2), fin(1), fin(3))
        assert [message.responded for message in messages] == [True, True, True, False]
        finished = [("finished", message) for message in (two, one, three)]
        assert either.delegate.notes == (finished if either.heeded else [])
        assert either.conn.session.finished == 3
        assert either.conn.in_flight == 1
        finish_all([four])
        nsqd.expect(fin(4))

    def test_the_last_of_many_end_the_connection(self, either: Pair) -> None:
        nsqd = either.connect()
        either.conn.send_rdy(3)
        nsqd.deliver(1, 2, 3)
        messages = either.delegate.wait_for_messages(3)
        either.conn.start_close()
        nsqd.expect(rdy(3), CLS)
        nsqd.close_wait()
        finish_all(messages)
        nsqd.expect(fin(1), fin(2), fin(3))
        nsqd.peer.wait_closed()
        finish_all(messages)  # nobody to tell, and nothing to raise

    @pytest.mark.parametrize(("delay", "sent"), [(None, 3000), (0, 0), (0.25, 250), (-1, 0), (0.0006, 1)])
    def test_requeue(self, pair: Pair, delay: float | None, sent: int) -> None:
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        nsqd.deliver(1, attempts=2)
        (one,) = pair.delegate.wait_for_messages(1)
        one.requeue(delay, backoff=False)
        nsqd.expect(rdy(1), req(1, sent))
        assert pair.delegate.notes == [("requeued", one, False)]

    @pytest.mark.parametrize("delay", [float("nan"), float("inf"), "soon"])
    def test_a_delay_that_is_none_leaves_the_message_in_flight(self, pair: Pair, delay: Any) -> None:
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        nsqd.deliver(1)
        (one,) = pair.delegate.wait_for_messages(1)
        if delay != delay:  # max() makes nothing of NaN
            one.requeue(delay)
            nsqd.expect(rdy(1), req(1, 0))
            return
        with pytest.raises(InvalidMessage, match="requeue delay"):
            one.requeue(delay)
        assert not one.responded
        one.finish()
        nsqd.expect(rdy(1), fin(1))

    def test_touch(self, pair: Pair) -> None:
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        nsqd.deliver(1)
        (one,) = pair.delegate.wait_for_messages(1)
        before = one.expires_at
        one.touch()
        nsqd.expect(rdy(1), touch(1))
        assert one.expires_at > before
        assert not one.responded

    def test_a_second_answer_is_refused_and_not_sent(self, either: Pair) -> None:
        nsqd = either.connect()
        either.conn.send_rdy(1)
        nsqd.deliver(1)
        (one,) = either.delegate.wait_for_messages(1)
        one.finish()
        for again in (one.finish, one.requeue, one.touch):
            with pytest.raises(AlreadyResponded):
                again()
        either.conn.send(b"NOP\n")
        nsqd.expect(rdy(1), fin(1), NOP)

    def test_of_many_answers_at_once_one_counts(self, either: Pair) -> None:
        nsqd = either.connect()
        either.conn.send_rdy(1)
        nsqd.expect(rdy(1))
        refusals: list[AlreadyResponded] = []
        for round_ in range(20):
            nsqd.deliver(round_)
            latest = either.delegate.wait_for_messages(round_ + 1)[-1]

            def answer(answered: Message = latest) -> None:
                try:
                    answered.finish()
                except AlreadyResponded as refusal:
                    refusals.append(refusal)

            all_in_threads(answer, answer, answer)
            nsqd.expect(fin(round_))
        assert len(refusals) == 40
        nsqd.expect_no_more()

    def test_the_delegate_hears_of_it_before_it_is_sent(self, pair: Pair) -> None:
        """So that an RDY which follows from it is on the wire before nsqd has room for another message."""
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        nsqd.deliver(1)
        (one,) = pair.delegate.wait_for_messages(1)
        pair.delegate.on_answer = lambda conn: conn.send_rdy(0)
        one.requeue(0)
        nsqd.expect(rdy(1), rdy(0), req(1, 0))

    def test_a_requeued_message_comes_back_as_another(self, either: Pair) -> None:
        nsqd = either.connect()
        either.conn.send_rdy(1)
        nsqd.deliver(1)
        (first,) = either.delegate.wait_for_messages(1)
        first.requeue(0)
        nsqd.deliver(1, attempts=2)
        second = either.delegate.wait_for_messages(2)[1]
        assert second.attempts == 2
        with pytest.raises(AlreadyResponded):
            first.finish()
        second.finish()
        nsqd.expect(rdy(1), req(1, 0), fin(1))

    def test_what_is_over_is_let_go_of(self, pair: Pair) -> None:
        nsqd = pair.connect()
        pair.conn.send_rdy(2)
        nsqd.deliver(1, 2)
        one, two = pair.delegate.wait_for_messages(2)
        one.expires_at = 0.0
        assert pair.conn.expire(time.monotonic()) == [one]
        assert not pair.conn.drop(one)
        assert pair.conn.drop(two)
        assert pair.conn.in_flight == 0
        assert pair.conn.session.timed_out == 2

    def test_answers_after_the_end_are_refused(self, either: Pair) -> None:
        nsqd = either.connect()
        either.conn.send_rdy(1)
        nsqd.deliver(1)
        (one,) = either.delegate.wait_for_messages(1)
        nsqd.peer.end()
        either.delegate.wait_for_close()
        assert one.expired
        for answer in (one.finish, one.requeue, one.touch):
            with pytest.raises(AlreadyResponded):
                answer()


class OneAtATime(WrappedStream):
    """Complains when two threads write at once."""

    def __init__(self, stream: MemoryStream) -> None:
        super().__init__(stream)
        self._lock = threading.Lock()
        self.collisions = 0

    def write(self, data: bytes, timeout: float) -> None:
        if not self._lock.acquire(blocking=False):
            self.collisions += 1
            return
        try:
            super().write(data, timeout)
        finally:
            self._lock.release()


class Watched:
    """A transport whose streams complain."""

    def __init__(self, memory: MemoryTransport) -> None:
        self._memory = memory
        self.streams: list[OneAtATime] = []

    def connect(self, address: str, *, timeout: float) -> OneAtATime:
        self.streams.append(OneAtATime(self._memory.connect(address, timeout=timeout)))
        return self.streams[-1]


class TestSending:
    def test_many_threads_at_once(self, pairs: Callable[..., Pair]) -> None:
        """Nothing is lost, all is sent in the order of the tickets, and one thread writes at a time."""
        memory = MemoryTransport()
        watched = Watched(memory)
        pair = pairs(watched, memory)
        nsqd = pair.connect()
        order: list[tuple[int, bytes]] = []

        def sender(name: int) -> Callable[[], None]:
            def send() -> None:
                for count in range(100):
                    line = b"%d:%d" % (name, count)

                    def register(ticket: int, line: bytes = line) -> bool:
                        order.append((ticket, line))
                        return True

                    pair.conn.send(line + b"\n", through=(count + name) % 3 == 0, register=register)

            return send

        all_in_threads(*[sender(name) for name in range(4)])
        assert [ticket for ticket, _ in order] == list(range(1, 401))
        nsqd.expect(*[line for _, line in order])
        assert watched.streams[0].collisions == 0
        assert pair.conn.handed_over == 400

    def test_a_close_behind_many_senders_loses_nothing(self, pairs: Callable[..., Pair]) -> None:
        pair = pairs()
        nsqd = pair.connect()
        accepted: list[bytes] = []

        def send() -> None:
            for count in range(200):
                line = b"%d" % count
                if not pair.conn.send(line + b"\n", through=count % 2 == 0):
                    return
                accepted.append(line)

        all_in_threads(send, pair.conn.finish_sending)
        nsqd.peer.wait_closed()
        assert nsqd.commands == accepted
        assert pair.delegate.wait_for_close() is None

    def test_who_is_not_registered_is_not_sent(self, pair: Pair) -> None:
        nsqd = pair.connect()
        pair.conn.send(b"no\n", register=lambda ticket: False)
        pair.conn.send(b"yes\n")
        nsqd.expect(b"yes")

    def test_what_waits_behind_a_stalled_peer_can_be_withdrawn(self, pair: Pair) -> None:
        nsqd = pair.connect()
        tickets: list[int] = []

        def register(ticket: int) -> bool:
            tickets.append(ticket)
            return True

        nsqd.peer.stall(after=3)
        pair.conn.send(b"first\n")
        nsqd.peer.wait_until(lambda got: got.endswith(b"fir"))
        for line in (b"second\n", b"third\n"):
            pair.conn.send(line, register=register)
        assert pair.conn.withdraw(tickets[0])
        assert not pair.conn.withdraw(1)
        nsqd.peer.resume()
        nsqd.expect(b"first", b"third")

    def test_nothing_can_be_sent_after_the_end(self, pair: Pair) -> None:
        nsqd = pair.connect()
        nsqd.peer.end()
        pair.delegate.wait_for_close()
        assert not pair.conn.send(b"NOP\n")
        pair.conn.send_rdy(1)
        assert nsqd.commands == []

    def test_a_peer_that_takes_nothing_is_given_up(self, pairs: Callable[..., Pair]) -> None:
        pair = pairs(write_timeout=0.1)
        nsqd = pair.connect()
        nsqd.peer.stall()
        pair.conn.send(b"NOP\n")
        assert isinstance(pair.delegate.wait_for_close(), Unanswered)
        assert nsqd.peer.closed

    @pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
    def test_a_write_that_is_interrupted_ends_the_connection(
        self, pairs: Callable[..., Pair], interruption: type[BaseException]
    ) -> None:
        """The exception of a signal (Ctrl-C, Celery's soft time limit) comes up in whoever writes through."""

        class Interrupted(OneAtATime):
            def write(self, data: bytes, timeout: float) -> None:
                if data == b"PUB\n":
                    raise interruption
                super().write(data, timeout)

        memory = MemoryTransport()
        watched = Watched(memory)
        pair = pairs(watched, memory)
        watched.connect = lambda address, timeout: Interrupted(  # type: ignore[method-assign]
            memory.connect(address, timeout=timeout)
        )
        pair.connect()
        with pytest.raises(interruption):
            pair.conn.send(b"PUB\n", through=True)
        cause = pair.delegate.wait_for_close()
        assert isinstance(cause, ConnectionLost)
        assert "interrupted" in str(cause)
        assert pair.conn.join(time.monotonic() + PATIENCE)


class TestEnds:
    def test_as_asked(self, either: Pair) -> None:
        """CLS, CLOSE_WAIT, the messages in flight are answered, and then nobody has to say anything."""
        nsqd = either.connect()
        either.conn.send_rdy(2)
        nsqd.deliver(1, 2)
        one, two = either.delegate.wait_for_messages(2)
        either.conn.start_close()
        nsqd.expect(rdy(2), CLS)
        nsqd.close_wait()
        either.conn.send_rdy(5)
        one.finish()
        nsqd.expect(fin(1))
        assert not nsqd.peer.closed
        two.requeue(0)
        nsqd.expect(req(2, 0))
        nsqd.peer.wait_closed()
        assert either.delegate.wait_for_close() is None
        nsqd.expect_no_more()
        assert either.conn.join(time.monotonic() + PATIENCE)

    def test_with_nothing_in_flight(self, pair: Pair) -> None:
        nsqd = pair.connect()
        pair.conn.start_close()
        nsqd.see_off()
        assert pair.delegate.wait_for_close() is None

    def test_a_message_that_comes_with_close_wait_is_still_answered(self, either: Pair) -> None:
        nsqd = either.connect()
        either.conn.send_rdy(1)
        either.conn.start_close()
        nsqd.expect(rdy(1), CLS)
        nsqd.peer.send(message(1) + encode_response(CLOSE_WAIT))
        (one,) = either.delegate.wait_for_messages(1)
        assert not nsqd.peer.closed
        one.finish()
        nsqd.expect(fin(1))
        nsqd.peer.wait_closed()

    def test_the_last_answers_of_several_threads_all_arrive(self, pairs: Callable[..., Pair]) -> None:
        """The one that empties the connection must not close it on one that is still on its way."""
        for round_ in range(20):
            pair = pairs(heeded=round_ % 2 == 0)
            nsqd = pair.connect()
            pair.conn.send_rdy(4)
            nsqd.deliver(1, 2, 3, 4)
            messages = pair.delegate.wait_for_messages(4)
            pair.conn.start_close()
            nsqd.expect(rdy(4), CLS)
            all_in_threads(nsqd.close_wait, *[each.finish for each in messages])
            nsqd.expect_in_any_order(fin(1), fin(2), fin(3), fin(4))
            nsqd.peer.wait_closed()
            assert pair.delegate.wait_for_close() is None

    def test_an_answer_on_its_way_keeps_a_drained_connection(self, pair: Pair) -> None:
        """CLOSE_WAIT arrives when a message is out of flight, and its FIN not yet on the wire."""
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        nsqd.deliver(1)
        (one,) = pair.delegate.wait_for_messages(1)
        pair.conn.start_close()
        nsqd.expect(rdy(1), CLS)

        def close_wait_now(conn: Conn) -> None:
            nsqd.peer.send(encode_response(CLOSE_WAIT) + encode_response(b"behind it"))
            pair.delegate.wait_for_note("response", b"behind it")

        pair.delegate.on_answer = close_wait_now
        one.finish()
        nsqd.expect(fin(1))
        nsqd.peer.wait_closed()

    def test_expiry_of_the_last_message_ends_it_too(self, pair: Pair) -> None:
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        nsqd.deliver(1)
        (one,) = pair.delegate.wait_for_messages(1)
        pair.conn.start_close()
        nsqd.expect(rdy(1), CLS)
        nsqd.peer.send(encode_response(CLOSE_WAIT) + encode_response(b"behind it"))
        pair.delegate.wait_for_note("response", b"behind it")
        one.expires_at = 0.0
        pair.conn.expire(time.monotonic())
        nsqd.peer.wait_closed()
        assert pair.delegate.wait_for_close() is None

    def test_the_peer_hangs_up(self, pair: Pair) -> None:
        nsqd = pair.connect()
        nsqd.peer.end()
        cause = pair.delegate.wait_for_close()
        assert isinstance(cause, ConnectionLost)
        assert str(cause) == "nsqd-a:4150 closed the connection"
        assert not pair.conn.open

    def test_the_connection_breaks(self, pair: Pair) -> None:
        nsqd = pair.connect()
        fault = ConnectionLost("reset by peer")
        nsqd.peer.fail(fault)
        assert pair.delegate.wait_for_close() is fault
        assert nsqd.peer.closed

    def test_silence(self, pair: Pair) -> None:
        pair.connect()
        stream = pair.conn._stream
        assert stream.read_timeout == 60.0
        stream.read_timeout = 0.01
        pair.transport.peers[0].send(encode_response(b"the read after this one has a timeout"))
        cause = pair.delegate.wait_for_close()
        assert isinstance(cause, Unanswered)
        assert "has been silent for 60 s" in str(cause)

    def test_garbage(self, pair: Pair) -> None:
        nsqd = pair.connect()
        nsqd.peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        assert isinstance(pair.delegate.wait_for_close(), FrameError)

    def test_far_more_than_was_asked_for(self, pair: Pair) -> None:
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        nsqd.expect(rdy(1))
        nsqd.deliver(1, 2, 3)
        assert isinstance(pair.delegate.wait_for_close(), WireError)
        assert pair.delegate.messages == []
        assert pair.conn.in_flight == 0

    def test_close_is_final_at_once_and_from_any_number_of_threads(self, pair: Pair) -> None:
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        nsqd.deliver(1)
        (one,) = pair.delegate.wait_for_messages(1)
        all_in_threads(*[pair.conn.close] * 4)
        assert pair.conn.join(time.monotonic() + PATIENCE)
        assert pair.delegate.causes == [None]
        assert one.responded
        assert one.expired

    def test_close_and_the_peers_end_at_once_are_one_end(self, pairs: Callable[..., Pair]) -> None:
        for _ in range(10):
            pair = pairs()
            nsqd = pair.connect()
            all_in_threads(pair.conn.close, nsqd.peer.end, pair.conn.finish_sending)
            assert pair.conn.join(time.monotonic() + PATIENCE)
            assert len(pair.delegate.causes) == 1

    def test_a_delegate_that_raises_costs_the_connection_and_says_so(
        self, pair: Pair, caplog: pytest.LogCaptureFixture
    ) -> None:
        nsqd = pair.connect()
        pair.delegate.on_heartbeat = None  # type: ignore[assignment, method-assign]
        nsqd.heartbeat()
        assert isinstance(pair.delegate.wait_for_close(), ConnectionLost)
        assert "by a fault of ours" in caplog.text

    def test_a_stalled_write_does_not_outlive_a_close(self, pair: Pair) -> None:
        """Nor is that it fails then the cause of anything."""
        nsqd = pair.connect()
        nsqd.peer.stall(after=1)
        pair.conn.send(b"NOP\n")
        nsqd.peer.wait_until(lambda got: got.endswith(b"N"))
        pair.conn.close()
        assert pair.conn.join(time.monotonic() + PATIENCE)
        assert pair.delegate.causes == [None]


class TestBeginnings:
    def test_its_threads_say_what_they_are_for(self, pair: Pair) -> None:
        pair.connect()
        names = {thread.name for thread in threading.enumerate()}
        assert {"test-read-nsqd-a:4150", "test-write-nsqd-a:4150"} <= names

    def test_it_can_be_thrown_away_before_it_starts(self, pair: Pair) -> None:
        connecting = threading.Thread(target=pair.conn.connect, args=(time.monotonic() + PATIENCE,))
        connecting.start()
        nsqd = accept(pair.transport)
        connecting.join(PATIENCE)
        pair.conn.discard()
        pair.conn.discard()
        assert nsqd.peer.closed
        assert pair.delegate.causes == []

    def test_its_making_can_be_ended_from_elsewhere(self, pair: Pair) -> None:
        faults: list[NsqError] = []

        def connect() -> None:
            try:
                pair.conn.connect(time.monotonic() + 60.0)
            except NsqError as fault:
                faults.append(fault)

        connecting = threading.Thread(target=connect)
        connecting.start()
        peer = pair.transport.accept()
        hear_identify(peer)
        pair.conn.discard()
        connecting.join(PATIENCE)
        assert isinstance(faults[0], ConnectionLost)
        assert peer.closed

    def test_what_is_thrown_away_before_it_is_made_is_not_made(self, pair: Pair) -> None:
        pair.conn.discard()
        with pytest.raises(ConnectionLost):
            pair.conn.connect(time.monotonic() + PATIENCE)
        assert pair.transport.peers[0].closed

    def test_no_thread_to_be_had(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        connecting = threading.Thread(target=pair.conn.connect, args=(time.monotonic() + PATIENCE,))
        connecting.start()
        nsqd = accept(pair.transport)
        connecting.join(PATIENCE)
        start = threading.Thread.start

        def refuse_readers(thread: threading.Thread) -> None:
            if "-read-" in thread.name:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse_readers)
        with pytest.raises(ConnectionLost, match="no thread"):
            pair.conn.start()
        assert nsqd.peer.closed
        assert pair.conn.join(time.monotonic() + PATIENCE)

    def test_its_repr(self, pair: Pair) -> None:
        pair.connect()
        assert repr(pair.conn) == "<Conn nsqd-a:4150>"
        pair.conn.close()
        assert repr(pair.conn) == "<Conn nsqd-a:4150 closed>"


class TestInAChild:
    def test_what_is_inherited_is_inert(self, pair: Pair) -> None:
        """What ``abandon`` leaves, seen without a fork: nothing is said, nothing can be."""
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        nsqd.expect(rdy(1))
        nsqd.deliver(1)
        (one,) = pair.delegate.wait_for_messages(1)
        pair.conn.abandon()
        assert not pair.conn.open
        assert nsqd.peer.abandoned
        with pytest.raises(AlreadyResponded):
            one.finish()
        assert not pair.conn.send(b"NOP\n")
        nsqd.expect_no_more()
        assert pair.delegate.notes == []
        pair.conn._wakeup.release()  # a child has no write loop; this one has to find out
