"""A connection over a scripted nsqd: what its loops do, what callers may do to it, and how it ends."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from nsq.connection.conn import Conn
from nsq.errors import (
    AlreadyResponded,
    ConnectionLost,
    FrameError,
    InvalidMessage,
    NotNsqd,
    NsqError,
    SubFailed,
    Unanswered,
    WireError,
    server_error,
)
from nsq.message import Message, finish_all
from nsq.transport import CHUNK, MemoryTransport, WrappedStream
from nsq.wire.frames import CLOSE_WAIT, OK, encode_response
from tests.fakes.connection import Pair
from tests.fakes.interrupts import each_line
from tests.fakes.nsqd import (
    CLS,
    NOP,
    A,
    Nsqd,
    fin,
    hear_identify,
    id_of,
    message,
    rdy,
    req,
    touch,
)
from tests.fakes.threads import PATIENCE, in_threads

MIB = 1024 * 1024
READER, WRITER = f"test-read-{A}", f"test-write-{A}"


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


def in_flight(pair: Pair, *numbers: int, **granted: Any) -> tuple[Nsqd, list[Message]]:
    """Connect, and have nsqd deliver these messages."""
    nsqd = pair.connect(**granted)
    pair.conn.send_rdy(len(numbers))
    nsqd.expect(rdy(len(numbers)))
    nsqd.deliver(*numbers)
    return nsqd, pair.delegate.wait_for_messages(len(numbers))


class Recording(WrappedStream):
    """Notes which thread reads, and of each write its thread, size and timeout. Fails on demand."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.readers: set[str] = set()
        self.writes: list[tuple[str, int, float]] = []
        self.failure: BaseException | None = None
        self.close_fails = False

    def wake(self) -> None:
        super().wake()
        if self.close_fails:
            raise RuntimeError("of the transport")

    def close(self) -> None:
        super().close()
        if self.close_fails:
            raise RuntimeError("of the transport")

    def read(self, limit: int = CHUNK) -> bytes:
        self.readers.add(threading.current_thread().name)
        data = super().read(limit)
        if self.failure is not None:
            raise self.failure
        return data

    def write(self, data: bytes, timeout: float) -> None:
        self.writes.append((threading.current_thread().name, len(data), timeout))
        if self.failure is not None:
            raise self.failure
        super().write(data, timeout)


class RecordingTransport:
    """A MemoryTransport that keeps its recording streams."""

    def __init__(self) -> None:
        self.memory = MemoryTransport()
        self.streams: list[Recording] = []

    def connect(self, address: str, *, timeout: float) -> Recording:
        self.streams.append(Recording(self.memory.connect(address, timeout=timeout)))
        return self.streams[-1]


def recorded(
    pairs: Callable[..., Pair], *, start: bool = True, **options: Any
) -> tuple[Pair, Nsqd, Recording]:
    """A running connection; the writes of its handshake are not in the record."""
    transport = RecordingTransport()
    pair = pairs(transport, transport.memory, **options)
    nsqd = pair.shake_hands()
    (stream,) = transport.streams
    stream.readers.clear()
    stream.writes.clear()
    if start:
        pair.start()
    return pair, nsqd, stream


class TestReading:
    def test_messages_arrive_in_flight_and_their_time_runs_from_then(self, pair: Pair) -> None:
        before = time.monotonic()
        _, (one, two) = in_flight(pair, 1, 2, msg_timeout=30_000)
        assert (one.id, two.id) == (id_of(1), id_of(2))
        assert pair.conn.deliveries.in_flight == 2
        assert pair.conn.holds(one)
        assert one.nsqd_address == A
        assert before <= pair.conn.last_message_at == one.received_at <= time.monotonic()
        assert one.expires_at == one.received_at + 30.0

    def test_what_came_with_the_handshake_is_read_first(self, pair: Pair) -> None:
        with pair.connecting():
            peer = pair.transport.accept()
            hear_identify(peer)
            peer.send(encode_response(b"{}"))
            peer.wait_until(lambda got: got.endswith(b"SUB orders billing\n"))
            peer.send(encode_response(b"OK") + encode_response(b"early"))
        assert pair.delegate.notes == []
        pair.start()
        pair.delegate.wait_for_note("response", b"early")

    def test_oks_are_counted_however_the_stream_is_cut(self, pair: Pair) -> None:
        nsqd = pair.connect()
        ok, said = encode_response(OK), encode_response(b"said")
        nsqd.peer.send(ok + said + 3 * ok + ok[:4])
        nsqd.peer.send(ok[4:] + encode_response(b"over"))
        pair.delegate.wait_for_note("response", b"over")
        notes = pair.delegate.notes
        assert [note for note in notes if note[0] == "response"] == [
            ("response", b"said"),
            ("response", b"over"),
        ]
        before = notes[: notes.index(("response", b"said"))]
        assert sum(note[1] for note in before) == 1
        assert sum(note[1] for note in notes if note[0] == "ok") == 5

    def test_the_rest_of_a_frame_is_not_taken_for_an_ok(self, pair: Pair) -> None:
        nsqd = pair.connect()
        nsqd.peer.chunk_size = len(encode_response(OK))
        data = b"xx" + encode_response(OK)
        nsqd.say(data)
        pair.delegate.wait_for_note("response", data)
        assert pair.delegate.notes == [("response", data)]

    @pytest.mark.parametrize(
        ("text", "fatal", "cause"),
        [
            ("E_FIN_FAILED FIN 0 failed", False, ConnectionLost),
            ("E_OF_ANOTHER_SERVER it goes on", False, ConnectionLost),
            ("E_SUB_FAILED channel is full", True, SubFailed),
        ],
    )
    def test_only_a_fatal_error_is_the_cause_of_the_end_that_follows(
        self, pair: Pair, text: str, fatal: bool, cause: type[NsqError]
    ) -> None:
        nsqd = pair.connect()
        nsqd.refuse(text)
        pair.delegate.wait_for_note("error", type(server_error(text.encode())))
        if not fatal:
            nsqd.heartbeat()
            nsqd.expect(NOP)
        nsqd.peer.end()
        assert isinstance(pair.delegate.wait_for_close(), cause)


class TestAnswering:
    @pytest.mark.parametrize("wanted", [True, False])
    def test_many_messages_are_finished_at_once(
        self, pair: Pair, wanted: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What has been answered before is passed over; the delegate hears of each, if it wants to."""
        monkeypatch.setattr(pair.delegate, "wants_answers", lambda: wanted)
        nsqd, messages = in_flight(pair, 1, 2, 3, 4)
        one, two, three, four = messages
        two.finish()
        finish_all([one, two, three, one])
        finish_all([one, two, three])
        nsqd.expect(fin(2), fin(1), fin(3))
        assert [each.responded for each in messages] == [True, True, True, False]
        heard_of = (two, one, three) if wanted else (two,)
        assert pair.delegate.notes == [("finished", each) for each in heard_of]
        assert pair.conn.deliveries.finished == 3
        assert pair.conn.deliveries.in_flight == 1
        finish_all([four])
        nsqd.expect(fin(4))

    def test_the_last_of_many_answers_end_the_connection(self, pair: Pair) -> None:
        nsqd, messages = in_flight(pair, 1, 2, 3)
        pair.conn.send_cls()
        nsqd.expect(CLS)
        nsqd.close_wait()
        finish_all(messages)
        nsqd.expect(fin(1), fin(2), fin(3))
        nsqd.peer.wait_closed()
        finish_all(messages)  # raises nothing

    @pytest.mark.parametrize(
        ("delay", "sent"),
        [(None, 3000), (0, 0), (0.25, 250), (-1, 0), (0.0006, 1), (1e300, 9_223_372_036_854)],
    )
    def test_requeue_sends_the_delay_in_milliseconds(
        self, pair: Pair, delay: float | None, sent: int
    ) -> None:
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        nsqd.deliver(1, attempts=2)
        (one,) = pair.delegate.wait_for_messages(1)
        one.requeue(delay, backoff=False)
        nsqd.expect(rdy(1), req(1, sent))
        assert pair.delegate.notes == [("requeued", one, False)]
        assert pair.conn.deliveries.requeued == 1

    @pytest.mark.parametrize("delay", [float("inf"), float("nan"), "soon"])
    def test_an_impossible_delay_leaves_the_message_in_flight(self, pair: Pair, delay: Any) -> None:
        nsqd, (one,) = in_flight(pair, 1)
        with pytest.raises(InvalidMessage, match="requeue delay"):
            one.requeue(delay)
        assert not one.responded
        one.finish()
        nsqd.expect(fin(1))

    def test_a_touch_leaves_the_message_more_time(self, pair: Pair) -> None:
        nsqd, (one,) = in_flight(pair, 1)
        before = one.expires_at
        one.touch()
        nsqd.expect(touch(1))
        assert one.expires_at > before
        assert not one.responded

    def test_a_second_answer_is_refused_and_not_sent(self, pair: Pair) -> None:
        nsqd, (one,) = in_flight(pair, 1)
        one.finish()
        for again in (one.finish, one.requeue, one.touch):
            with pytest.raises(AlreadyResponded):
                again()
        pair.conn.put(b"NOP\n")
        nsqd.expect(fin(1), NOP)

    def test_of_many_answers_at_once_one_counts(self, pair: Pair) -> None:
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        nsqd.expect(rdy(1))
        refusals: list[AlreadyResponded] = []
        for round_ in range(20):
            nsqd.deliver(round_)
            latest = pair.delegate.wait_for_messages(round_ + 1)[-1]

            def answer(answered: Message = latest) -> None:
                try:
                    answered.finish()
                except AlreadyResponded as refusal:
                    refusals.append(refusal)

            in_threads(answer, answer, answer)
            nsqd.expect(fin(round_))
        assert len(refusals) == 40
        nsqd.expect_no_more()

    def test_a_requeued_message_comes_back_as_another(self, pair: Pair) -> None:
        nsqd, (first,) = in_flight(pair, 1)
        first.requeue(0)
        nsqd.deliver(1, attempts=2)
        second = pair.delegate.wait_for_messages(2)[1]
        assert second.attempts == 2
        with pytest.raises(AlreadyResponded):
            first.finish()
        second.finish()
        nsqd.expect(req(1, 0), fin(1))

    def test_messages_whose_time_is_up_are_let_go(self, pair: Pair) -> None:
        _, (one, two) = in_flight(pair, 1, 2)
        one.expires_at = 0.0
        pair.conn.expire(time.monotonic())
        assert not pair.conn.time_out(one)
        assert pair.conn.time_out(two)
        assert pair.delegate.notes == [("timed out", one), ("timed out", two)]
        assert pair.conn.deliveries.in_flight == 0
        assert pair.conn.deliveries.timed_out == 2

    def test_an_answer_that_was_interrupted_blocks_the_end_until_its_time_is_up(self, pair: Pair) -> None:
        """Its thread has claimed the message and may be about to put the FIN."""
        nsqd, (one,) = in_flight(pair, 1)

        def interrupt(conn: Conn) -> None:
            raise KeyboardInterrupt

        pair.delegate.on_answer = interrupt
        with pytest.raises(KeyboardInterrupt):
            one.finish()
        with pytest.raises(AlreadyResponded):
            one.requeue()
        pair.conn.send_cls()
        nsqd.expect(CLS)
        nsqd.peer.send(encode_response(CLOSE_WAIT) + encode_response(b"behind it"))
        pair.delegate.wait_for_note("response", b"behind it")
        assert not pair.conn.deliveries.drained
        one.expires_at = 0.0
        pair.conn.expire(time.monotonic())
        nsqd.peer.wait_closed()
        assert pair.delegate.wait_for_close() is None


class Looks:
    """Encodes lines, and counts how often the write loop has looked in vain since it wrote last.

    It sleeps behind its second such look.
    """

    def __init__(self) -> None:
        self.in_vain = 0
        self.at_look: Callable[[int], None] = lambda count: None

    def __call__(self, waiting: deque[Any]) -> bytes:
        data = b"".join(waiting)
        waiting.clear()
        self.in_vain = 0 if data else self.in_vain + 1
        self.at_look(self.in_vain)
        return data


class TestWriting:
    @pytest.mark.parametrize("look", [1, 2])
    def test_what_is_put_while_it_goes_to_sleep_is_written(
        self, pairs: Callable[..., Pair], look: int
    ) -> None:
        """It was put right behind a look that found nothing."""
        looks = Looks()
        pair = pairs(encode=looks)
        late = [b"late\n"]

        def put_late(in_vain: int) -> None:
            if in_vain == look and late:
                pair.conn.put(late.pop())

        looks.at_look = put_late
        pair.connect().expect(b"late")

    def test_what_many_threads_put_is_written_once_and_in_order(self, pair: Pair) -> None:
        """Nothing is lost or doubled, and what one thread puts keeps its order."""
        nsqd = pair.connect()
        lines = {name: [b"%d:%d" % (name, count) for count in range(200)] for name in range(4)}

        def putting(name: int) -> Callable[[], None]:
            def put() -> None:
                for line in lines[name]:
                    pair.conn.put(line + b"\n")

            return put

        in_threads(*map(putting, lines))
        nsqd.expect_in_any_order(*[line for several in lines.values() for line in several])
        for name, several in lines.items():
            assert [line for line in nsqd.commands if line.startswith(b"%d:" % name)] == several

    def test_what_waits_is_written_together_and_in_order(self, pair: Pair) -> None:
        nsqd, (one, two, three, four) = in_flight(pair, 1, 2, 3, 4)
        nsqd.peer.stall(after=1)
        pair.conn.put(b"NOP\n")
        nsqd.peer.wait_until(lambda got: got.endswith(b"N"))
        one.finish()
        two.finish()
        pair.conn.send_rdy(2)
        three.requeue(0)
        four.finish()
        nsqd.peer.resume()
        nsqd.expect(NOP, fin(1), fin(2), rdy(2), req(3, 0), fin(4))
        assert nsqd.peer.writes[-1].count(b"\n") == 5
        assert (pair.conn.deliveries.finished, pair.conn.deliveries.requeued) == (3, 1)

    def test_the_encoder_may_leave_some_for_later(self, pairs: Callable[..., Pair]) -> None:
        pair, nsqd, stream = recorded(pairs, encode=lambda waiting: waiting.popleft() if waiting else b"")
        nsqd.peer.stall(after=1)
        for line in (b"one\n", b"other\n", b"third\n"):
            pair.conn.put(line)
        nsqd.peer.resume()
        nsqd.expect(b"one", b"other", b"third")
        assert [size for _, size, _ in stream.writes] == [4, 6, 6]

    @pytest.mark.parametrize(
        ("size", "pieces"),
        [(MIB, [MIB]), (MIB + 1, [MIB, 1]), (5 * MIB // 2, [MIB, MIB, MIB // 2])],
    )
    def test_large_data_is_written_in_pieces(
        self, pairs: Callable[..., Pair], size: int, pieces: list[int]
    ) -> None:
        """Each piece has the whole write_timeout: progress is asked for, not a fast link."""
        pair, nsqd, stream = recorded(pairs, write_timeout=7.0)
        pair.conn.put(b"x" * (size - 1) + b"\n")
        nsqd.expect(b"x" * (size - 1))
        assert stream.writes == [(WRITER, piece, 7.0) for piece in pieces]

    def test_only_the_loops_touch_the_stream(self, pairs: Callable[..., Pair]) -> None:
        pair, nsqd, stream = recorded(pairs)
        pair.conn.send_rdy(3)
        nsqd.expect(rdy(3))
        nsqd.deliver(1, 2, 3)
        one, two, three = pair.delegate.wait_for_messages(3)
        nsqd.heartbeat()
        nsqd.expect(NOP)
        in_threads(one.finish, two.requeue, three.touch)
        nsqd.peer.wait_until(lambda got: b"FIN" in got and b"REQ" in got and b"TOUCH" in got)
        in_threads(pair.conn.close, lambda: pair.conn.close(after_writing=True))
        pair.join()
        assert stream.readers == {READER}
        assert {name for name, _, _ in stream.writes} == {WRITER}

    def test_a_caller_that_is_interrupted_costs_the_connection_nothing(self, pair: Pair) -> None:
        nsqd, (last, *messages) = in_flight(pair, *range(200))
        for line in each_line():
            with line:
                pair.conn.put(b"interrupted\n")
        for line in each_line():
            with line:
                messages.pop().finish()
        last.finish()
        nsqd.peer.wait_until(lambda got: fin(0) + b"\n" in got)
        assert set(nsqd.commands[1:]) <= {b"interrupted", *map(fin, range(200))}
        assert pair.conn.open

    @pytest.mark.parametrize("reads", [True, False])
    @pytest.mark.parametrize("failure", [Unanswered("nothing was taken"), SystemExit(1)])
    def test_a_transport_that_raises_anything_costs_the_connection(
        self, pairs: Callable[..., Pair], reads: bool, failure: BaseException
    ) -> None:
        pair, nsqd, stream = recorded(pairs)
        stream.failure = failure
        if reads:
            nsqd.heartbeat()
        else:
            pair.conn.put(b"NOP\n")
        expected = ConnectionLost if isinstance(failure, SystemExit) else Unanswered
        assert type(pair.delegate.wait_for_close()) is expected
        assert nsqd.peer.closed

    @pytest.mark.parametrize("started", [True, False])
    def test_a_transport_whose_close_raises_is_closed_all_the_same(
        self, pairs: Callable[..., Pair], caplog: pytest.LogCaptureFixture, started: bool
    ) -> None:
        pair, nsqd, stream = recorded(pairs, start=started)
        stream.close_fails = True
        pair.conn.close()
        nsqd.peer.wait_closed()
        pair.join()
        assert pair.delegate.causes == [None] * started
        assert f"closing the connection to {A} failed" in caplog.text

    def test_an_encoder_that_raises_costs_the_connection_and_says_so(
        self, pairs: Callable[..., Pair], caplog: pytest.LogCaptureFixture
    ) -> None:
        def encode(waiting: deque[Any]) -> bytes:
            return b"".join([waiting.popleft().missing]) if waiting else b""

        pair = pairs(encode=encode)
        pair.connect()
        pair.conn.put(b"NOP\n")
        assert isinstance(pair.delegate.wait_for_close(), ConnectionLost)
        assert f"writing to {A} failed, which is a bug of ours" in caplog.text

    def test_what_is_put_after_the_end_stays_in_waiting(self, pair: Pair) -> None:
        nsqd = pair.connect()
        nsqd.peer.end()
        pair.delegate.wait_for_close()
        pair.conn.put(b"NOP\n")
        assert pair.conn.closed
        assert list(pair.conn.waiting) == [b"NOP\n"]
        pair.conn.send_rdy(1)
        assert len(pair.conn.waiting) == 1
        assert nsqd.commands == []

    @pytest.mark.parametrize(
        "end",
        [
            lambda pair, nsqd: pair.conn.close(),
            lambda pair, nsqd: pair.conn.close(after_writing=True),
            lambda pair, nsqd: nsqd.peer.end(),
        ],
        ids=["close", "close after writing", "the peer hangs up"],
    )
    def test_what_is_put_while_it_ends_is_taken_or_found_in_waiting(
        self, pairs: Callable[..., Pair], end: Callable[[Pair, Nsqd], None]
    ) -> None:
        """By its caller, who looks at ``closed`` behind the put, or by the delegate at the end."""
        for _ in range(5):
            taken: list[bytes] = []
            found: list[bytes] = []

            def encode(waiting: deque[Any], taken: list[bytes] = taken) -> bytes:
                parts = []
                with suppress(IndexError):
                    while True:
                        parts.append(waiting.popleft())
                taken += parts
                return b"".join(parts)

            def drain(conn: Conn, found: list[bytes] = found) -> None:
                with suppress(IndexError):
                    while True:
                        found.append(conn.waiting.popleft())

            pair = pairs(encode=encode)
            pair.delegate.on_end = drain
            nsqd = pair.connect()

            def putting(
                name: int, conn: Conn = pair.conn, drain: Callable[[Conn], None] = drain
            ) -> Callable[[], None]:
                def put() -> None:
                    for count in range(100):
                        conn.put(b"%d:%d\n" % (name, count))
                        if conn.closed:
                            drain(conn)

                return put

            in_threads(putting(1), putting(2), lambda pair=pair, nsqd=nsqd: end(pair, nsqd))
            pair.join()
            everything = [b"%d:%d\n" % (name, count) for name in (1, 2) for count in range(100)]
            assert sorted(taken + found) == sorted(everything)


class TestEnds:
    def test_a_message_that_comes_with_close_wait_is_still_answered(self, pair: Pair) -> None:
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        pair.conn.send_cls()
        nsqd.expect(rdy(1), CLS)
        nsqd.peer.send(message(1) + encode_response(CLOSE_WAIT))
        (one,) = pair.delegate.wait_for_messages(1)
        assert not nsqd.peer.closed
        one.finish()
        nsqd.expect(fin(1))
        nsqd.peer.wait_closed()

    def test_an_answer_on_its_way_keeps_a_drained_connection(self, pair: Pair) -> None:
        """CLOSE_WAIT arrives when a message is out of flight, and its FIN not yet on the wire."""
        nsqd, (one,) = in_flight(pair, 1)
        pair.conn.send_cls()
        nsqd.expect(CLS)

        def close_wait_now(conn: Conn) -> None:
            nsqd.peer.send(encode_response(CLOSE_WAIT) + encode_response(b"behind it"))
            pair.delegate.wait_for_note("response", b"behind it")

        pair.delegate.on_answer = close_wait_now
        one.finish()
        nsqd.expect(fin(1))
        nsqd.peer.wait_closed()

    @pytest.mark.parametrize(
        "let_go",
        [
            lambda conn, message: conn.time_out(message),
            lambda conn, message: setattr(message, "expires_at", 0.0) or conn.expire(time.monotonic()),
        ],
        ids=["drop", "expire"],
    )
    def test_a_closing_connection_ends_when_its_last_message_times_out(
        self, pair: Pair, let_go: Callable[[Conn, Message], object]
    ) -> None:
        nsqd, (one,) = in_flight(pair, 1)
        pair.conn.send_cls()
        nsqd.expect(CLS)
        nsqd.peer.send(encode_response(CLOSE_WAIT) + encode_response(b"behind it"))
        pair.delegate.wait_for_note("response", b"behind it")
        assert not nsqd.peer.closed
        let_go(pair.conn, one)
        nsqd.peer.wait_closed()
        assert pair.delegate.wait_for_close() is None

    @pytest.mark.parametrize(
        ("sent", "error"),
        [
            (b"", ConnectionLost),
            (b"HTTP/1.1 200 OK\r\n\r\n", NotNsqd),
            (b"\xff\xff\xff\xff\x00\x00\x00\x00", FrameError),
            (encode_response(b"x" * 2000), FrameError),
            (message(1) + message(2) + message(3), WireError),
            (encode_response(CLOSE_WAIT), WireError),
        ],
        ids=["an end", "another protocol", "garbage", "above max_frame_size", "above RDY", "no CLS was sent"],
    )
    def test_what_breaks_the_protocol_ends_the_connection(
        self, pairs: Callable[..., Pair], sent: bytes, error: type[NsqError]
    ) -> None:
        pair = pairs(max_frame_size=1024)
        nsqd = pair.connect()
        pair.conn.send_rdy(1)
        nsqd.expect(rdy(1))
        nsqd.peer.send(sent) if sent else nsqd.peer.end()
        assert type(pair.delegate.wait_for_close()) is error
        assert nsqd.peer.closed
        assert not pair.conn.open
        assert pair.delegate.messages == []

    def test_closes_and_the_peers_end_at_once_are_one_end(self, pairs: Callable[..., Pair]) -> None:
        for _ in range(10):
            pair = pairs()
            nsqd, (one,) = in_flight(pair, 1)
            close = pair.conn.close
            in_threads(close, close, nsqd.peer.end, lambda close=close: close(after_writing=True))
            pair.join()
            assert pair.delegate.causes == [None]
            assert one.responded
            assert one.expired

    def test_a_delegate_that_raises_costs_the_connection_and_says_so(
        self, pair: Pair, caplog: pytest.LogCaptureFixture
    ) -> None:
        nsqd = pair.connect()
        pair.delegate.on_heartbeat = None  # type: ignore[assignment, method-assign]
        nsqd.heartbeat()
        assert isinstance(pair.delegate.wait_for_close(), ConnectionLost)
        assert f"reading from {A} failed, which is a bug of ours" in caplog.text

    def test_a_stalled_write_does_not_outlive_a_close(self, pair: Pair) -> None:
        """Its failure is not the cause of the end."""
        nsqd = pair.connect()
        nsqd.peer.stall(after=1)
        pair.conn.put(b"NOP\n")
        nsqd.peer.wait_until(lambda got: got.endswith(b"N"))
        pair.conn.close()
        pair.join()
        assert pair.delegate.causes == [None]


class Talkative:
    """A layer that changes nothing, but answers "?" on its own and says goodbye."""

    more = False
    peer_closed = False

    def __init__(self) -> None:
        self._pending = b""

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def wrap(self, data: bytes) -> bytes:
        return self.pending() + data

    def unwrap(self, data: bytes) -> bytes:
        self._pending += b"answer\n" * data.count(b"?")
        return data.replace(b"?", b"")

    def pending(self) -> bytes:
        data, self._pending = self._pending, b""
        return data

    def close(self) -> bytes:
        return b"goodbye\n"


class TestLayers:
    @pytest.fixture
    def pair(self, pairs: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> Pair:
        """Its layer talks, and its loops run."""
        monkeypatch.setattr("nsq.connection.handshake.Snappy", Talkative)
        pair = pairs(snappy=True)
        with pair.connecting():
            peer = pair.transport.accept()
            hear_identify(peer)
            peer.send(encode_response(b'{"snappy": true}') + encode_response(OK))
            peer.expect(b"SUB orders billing\n")
            peer.send(encode_response(OK))
        pair.start()
        return pair

    def test_what_a_layer_wants_sent_is_written_by_the_write_loop(self, pair: Pair) -> None:
        (peer,) = pair.transport.peers
        for _ in range(3):
            peer.send(b"?")
            peer.expect(b"answer\n")
        pair.conn.put(b"NOP\n")
        peer.expect(b"NOP\n")

    def test_a_layer_says_goodbye_behind_the_last_command(self, pair: Pair) -> None:
        (peer,) = pair.transport.peers
        pair.conn.put(b"NOP\n")
        pair.conn.close(after_writing=True)
        peer.expect(b"NOP\ngoodbye\n")
        peer.wait_closed()

    def test_there_is_no_goodbye_when_it_is_cut_off(self, pair: Pair) -> None:
        (peer,) = pair.transport.peers
        pair.conn.close()
        pair.join()
        assert not peer.received.endswith(b"goodbye\n")


class TestBeginnings:
    def test_a_connection_can_be_closed_before_its_loops_start(self, pair: Pair) -> None:
        nsqd = pair.shake_hands()
        pair.conn.close()
        pair.conn.close()
        assert nsqd.peer.closed
        assert pair.delegate.causes == []

    def test_a_connection_that_was_closed_before_does_not_connect(self, pair: Pair) -> None:
        pair.conn.close()
        with pytest.raises(ConnectionLost):
            pair.conn.connect(time.monotonic() + PATIENCE)
        (peer,) = pair.transport.peers
        assert peer.closed
        assert peer.received == b""

    def test_the_repr_names_the_address_and_says_whether_it_is_closed(self, pair: Pair) -> None:
        pair.connect()
        assert repr(pair.conn) == "<Conn nsqd-a:4150>"
        pair.conn.close()
        assert repr(pair.conn) == "<Conn nsqd-a:4150 closed>"


class TestInAChild:
    def test_an_abandoned_connection_sends_nothing_and_refuses_answers(self, pair: Pair) -> None:
        """What a fork leaves to the child, seen without a fork, and while nsqd takes nothing."""
        nsqd, (one,) = in_flight(pair, 1)
        nsqd.peer.stall(after=1)
        pair.conn.put(b"NOP\n")
        nsqd.peer.wait_until(lambda got: got.endswith(b"N"))
        pair.conn.abandon()
        assert not pair.conn.open
        assert nsqd.peer.abandoned
        with pytest.raises(AlreadyResponded):
            one.finish()
        pair.conn.put(b"NOP\n")
        pair.join()
        nsqd.expect_no_more()
        assert pair.delegate.notes == []
