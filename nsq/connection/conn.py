"""One connection to one nsqd: a thread that writes and a thread that reads. No other touches the socket.

    any thread    put(item) -> waiting
    write loop    waiting -> encode -> stream.write
    read loop     stream.read -> frames -> the delegate

A thread in ``put`` may be interrupted at any bytecode: the connection does not notice. The two sides share
no lock; ``put`` is one append, and a ring when the write loop sleeps. What the delegate is told, it is told
by the loops: it must neither block nor raise.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, NoReturn, cast

from nsq.config import Config
from nsq.connection.handshake import dial
from nsq.connection.session import GONE, Session
from nsq.errors import (
    AlreadyResponded,
    ConnectionLost,
    InvalidMessage,
    NsqError,
    ServerError,
    Unanswered,
    server_error,
)
from nsq.message import Message
from nsq.transport.base import Stream, Transport
from nsq.transport.layered import LayeredStream
from nsq.waiting import join_threads
from nsq.wire import commands
from nsq.wire.frames import CLOSE_WAIT, HEARTBEAT, OK_FRAME, OKAY, ErrorReply, FrameParser, Response
from nsq.wire.identify import IdentifyReply
from nsq.wire.layers import TlsContext

log = logging.getLogger("nsq.connection")

#: Seconds for the write loop to leave by itself, when the connection ends, and for the layers to say goodbye.
_WRITER_GRACE = 1.0
#: Bytes of one write at most, so that write_timeout asks for progress and not for a fast link.
_PIECE = 1024 * 1024
#: Milliseconds that a requeue asks for at most, 292 years: Go's nsqd counts nanoseconds in 64 bits, and ours
#: cuts off a client that asks for more digits. Both make it --max-req-timeout.
_LONGEST_DELAY = 9_223_372_036_854

#: Takes what it wants to send now from the deque, and returns it as bytes; nothing when there is nothing.
Encoder = Callable[[deque[Any]], bytes]


class ConnDelegate:
    """Receives the events of a connection. The loops call these methods, except
    where a method says otherwise. A subclass overrides those that it needs.
    """

    def on_messages(self, conn: Conn, messages: list[Message]) -> None:
        """They are in flight now."""

    def on_ok(self, conn: Conn, count: int) -> None:
        """nsqd said OK that many times."""
        log.debug("nsqd %s says OK", conn.address)

    def on_response(self, conn: Conn, data: bytes) -> None:
        """Any other answer but a heartbeat or CLOSE_WAIT."""
        log.debug("nsqd %s says %r", conn.address, data)

    def on_error(self, conn: Conn, error: ServerError) -> None:
        """An error frame. A fatal one is followed by ``on_close``."""

    def on_heartbeat(self, conn: Conn) -> None: ...

    def on_close(self, conn: Conn, cause: NsqError | None) -> None:
        """Once, at the end of the read loop; None when it was closed as asked. Nothing more is written."""

    def wants_answers(self) -> bool:
        """Whether ``on_finished`` has to be called for each of many that are finished together."""
        return True

    def on_finished(self, conn: Conn, message: Message) -> bool:
        """By the thread that answers, when the message is out of flight. True: the delegate puts it later."""
        return False

    def on_requeued(self, conn: Conn, message: Message, delay_ms: int, backoff: bool) -> bool:
        """Like ``on_finished``, for a requeue. The delegate puts a pair: the message and ``delay_ms``."""
        return False

    def on_timed_out(self, conn: Conn, message: Message) -> None:
        """By the thread that has seen that it is too late to answer: the message is let go of."""

    def requeue_delay(self, attempts: int) -> float:
        """Seconds until a message is delivered again, unless its REQ says otherwise."""
        return 0.0


class Conn:
    """``connect`` blocks until the connection is ready, ``start`` starts its loops. Also the delegate of its
    messages.

    ``name`` begins the names of the threads. ``encode`` turns what was ``put`` into bytes, on the write loop;
    without one it is commands and answers to messages. A delegate that keeps threads of its own calls
    ``write_loop`` and ``read_loop`` there instead of ``start``.
    """

    def __init__(
        self,
        address: str,
        config: Config,
        delegate: ConnDelegate,
        *,
        transport: Transport,
        context: TlsContext | None = None,
        topic: str = "",
        channel: str = "",
        name: str = "nsq",
        encode: Encoder | None = None,
    ) -> None:
        self.address = address
        self.connected_at = 0.0
        self.last_message_at = 0.0
        self.waiting: deque[Any] = deque()
        """What was put and is not written yet. The delegate drains it when the connection has ended."""
        self.closed = False
        """Nothing is written any more."""
        self.session = Session(IdentifyReply())
        self._config = config
        self._delegate = delegate
        self._transport = transport
        self._context = context
        self._topic = topic
        self._channel = channel
        self._encode = encode or self._encode_answers
        self._name = name
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asleep = False  # the write loop waits for the bell
        self._asked_to_close = False
        self._closing = False  # the write loop ends when nothing waits
        self._causes: list[NsqError | None] = []  # of its end; the first one counts
        self._refusal: ServerError | None = None
        self._reading = False
        self._layered: LayeredStream | None = None  # from its first byte
        self._writer_left = threading.Event()
        self._threads: list[threading.Thread] = []

    def __repr__(self) -> str:
        return f"<Conn {self.address}{'' if self.open else ' closed'}>"

    # Opening.

    def connect(self, deadline: float) -> None:
        """Be ready by then (monotonic), or raise why not."""
        ready = dial(
            self.address,
            self._config,
            self._transport,
            self._context,
            topic=self._topic,
            channel=self._channel,
            deadline=deadline,
            opened=self._adopt,
        )
        ready.stream.on_pending = self._ring
        # Without a layer the stream inside does as well, for one call less.
        self._layers = ready.stream if ready.stream.stack.layers else None
        self._stream: Stream = self._layers or ready.stream.stream
        silent = self._config.heartbeat_interval < 0  # then no silence is too long
        self._stream.read_timeout = None if silent else self._config.read_timeout
        self.session = Session(ready.reply)
        self._parser: FrameParser[Message] = FrameParser(
            partial(Message, self, 0.0, 0.0), max_frame=self._config.max_frame_size
        )
        self._rest = ready.rest
        self.connected_at = self.last_message_at = time.monotonic()

    def _adopt(self, stream: LayeredStream) -> None:
        self._layered = stream
        if self.closed:  # looked at behind the line above: ``close`` sees the stream, or we see it here
            stream.close()

    def start(self) -> None:
        """Start the loops: from here on the delegate is called. ConnectionLost when no thread can be had."""
        try:
            for loop, job in ((self.write_loop, "write"), (self.read_loop, "read")):
                name = f"{self._name}-{job}-{self.address}"
                thread = threading.Thread(target=loop, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:
            self.close()
            raise ConnectionLost(f"{self.address}: no thread for the connection: {error}") from error

    @property
    def started(self) -> bool:
        return len(self._threads) > 1

    @property
    def open(self) -> bool:
        """Whether what is put will be written."""
        return not (self.closed or self._closing)

    # What may be put.

    def put(self, item: Any) -> None:
        """Have it written. Look at ``closed`` afterwards: items put after closing are never written."""
        self.waiting.append(item)
        if self._asleep and self._bell.empty():
            self._bell.put(None)

    def send_rdy(self, count: int) -> None:
        """Does nothing on a connection that is about to end."""
        if not self.session.closing and self.open:
            self.session.set_rdy(count)
            self.put(commands.rdy(count))

    def send_cls(self) -> None:
        """Ask nsqd to send nothing more; the connection ends by itself when the last message is answered."""
        self.session.closing = True
        self.session.rdy = 0
        self.put(commands.CLS)

    def _ring(self) -> None:
        """Have the write loop look again; it does so anyway while it is awake, or about to be."""
        if self._asleep and self._bell.empty():
            self._bell.put(None)

    # The write loop.

    def write_loop(self) -> None:
        """Write what waits, all of it together, until the connection ends."""
        try:
            while self._write_what_waits():
                pass
        except NsqError as error:
            self._fail(error)
        except Exception as error:
            log.exception("writing to %s failed, which is a bug of ours", self.address)
            self._fail(ConnectionLost(f"{self.address}: {error!r}"))
        try:
            assert self._layered is not None
            # A goodbye only where nothing was cut off.
            self._layered.close(farewell=None if self.closed else _WRITER_GRACE)
        except Exception as error:  # of a user's transport
            log.exception("closing the connection to %s failed", self.address)
            self._fail(ConnectionLost(f"{self.address}: {error!r}"))
        finally:
            self._writer_left.set()

    def _write_what_waits(self) -> bool:
        """Sleep when there is nothing; False when the connection ends."""
        if self.closed:
            return False
        data = self._encode(self.waiting)
        if not data:
            # Asleep first, then look again: what another thread puts is seen here, or that thread sees that
            # it must ring.
            self._asleep = True
            if self.session.close_wait and self.session.drained:  # the first for one call less
                self._asked_to_close = self._closing = True
            data = self._encode(self.waiting)
            if not data and self._closing:
                return False
            if not (data or (self._layers is not None and self._layers.has_pending)):
                self._bell.get()
            self._asleep = False
        for start in range(0, len(data), _PIECE):
            self._stream.write(data[start : start + _PIECE], self._config.write_timeout)
        if self._layers is not None and self._layers.has_pending:
            self._layers.flush_pending(self._config.write_timeout)
        return True

    def _encode_answers(self, waiting: deque[Any]) -> bytes:
        """Commands as they are, answers to messages; FINs in a row are one piece."""
        parts: list[bytes] = []
        answered: list[Message] = []
        session = self.session
        popleft = waiting.popleft  # no other thread takes out of it
        for kind, row in groupby([popleft() for _ in range(len(waiting))], type):
            if kind is Message:
                done: list[Message] = list(row)
                parts.append(commands.fins([message.id for message in done]))
                answered += done
                session.finished += len(done)
            elif kind is bytes:
                parts += row
            else:
                for message, delay_ms in row:
                    answered.append(message)
                    session.requeued += 1
                    parts.append(commands.req(message.id, delay_ms))
        session.written(answered)
        rdy = session.rdy_again(bool(answered))
        if rdy:
            # Behind the answers, which make room for what it brings.
            parts.append(commands.rdy(rdy))
        return b"".join(parts)

    # The read loop.

    def read_loop(self) -> None:
        """Read until the connection ends, then release it and tell the delegate."""
        cause: NsqError | None = None
        self._reading = True
        try:
            if self._rest:
                self._receive(self._rest)
            while data := self._stream.read():
                self._receive(data)
            cause = ConnectionLost(f"{self.address} closed the connection")
        except Unanswered as error:
            cause = Unanswered(
                f"{self.address} has been silent for {self._config.read_timeout:g} s, heartbeats too"
            )
            cause.__cause__ = error
        except NsqError as error:
            cause = error
        except Exception as error:
            log.exception("reading from %s failed, which is a bug of ours", self.address)
            cause = ConnectionLost(f"{self.address}: {error!r}")
        self._end(cause)

    def _receive(self, data: bytes) -> None:
        parser = self._parser
        if data == OK_FRAME and not parser.held:  # the usual reply to a blocking publish
            self._delegate.on_ok(self, 1)
            return
        now = time.monotonic()
        parser.message = partial(Message, self, now, now + self.session.msg_timeout)
        replies = parser.replies
        frames = parser.feed(data)
        if parser.replies == replies:
            if frames:
                self._on_messages(cast("list[Message]", frames), now)
            return
        messages = [frame for frame in frames if type(frame) is Message]
        if messages:
            self._on_messages(messages, now)
        # Behind the messages: a CLOSE_WAIT must find those in flight that came with it.
        oks = frames.count(OKAY)
        if oks + len(messages) == len(frames):
            self._delegate.on_ok(self, oks)
        else:
            for frame in frames:
                if not isinstance(frame, Message):
                    self._on_reply(frame)

    def _on_messages(self, messages: list[Message], now: float) -> None:
        self.last_message_at = now
        self.session.admit(messages, now)
        self._delegate.on_messages(self, messages)

    def _on_reply(self, frame: Response | ErrorReply) -> None:
        if frame is OKAY:
            self._delegate.on_ok(self, 1)
        elif isinstance(frame, ErrorReply):
            error = server_error(frame.data)
            if error.fatal:
                self._refusal = error
            self._delegate.on_error(self, error)
        elif frame.data == HEARTBEAT:
            self.put(commands.NOP)
            self._delegate.on_heartbeat(self)
        elif frame.data == CLOSE_WAIT:
            self.session.close_wait = True
            self._ring()
        else:
            self._delegate.on_response(self, frame.data)

    # The end.

    def close(self, *, after_writing: bool = False) -> None:
        """End it, now or when all that waits is written. Does not wait: ``join`` does."""
        self._asked_to_close = True
        if after_writing:
            self._closing = True
            self._bell.put(None)
        else:
            self._fail(None)

    def _fail(self, cause: NsqError | None) -> None:
        """The first to come says why. The read loop is woken to release the connection."""
        self._causes.append(cause)
        self.closed = True
        self._bell.put(None)
        if self._layered is not None:
            if self._reading:
                self._layered.wake()
            else:
                self._layered.close()  # no loop will do it

    def _end(self, cause: NsqError | None) -> None:
        """The read loop's last act."""
        self._reading = False
        self._fail(cause)
        self._release_messages()
        # Behind the write loop, which may be in the middle of a write: closing the stream has ended that.
        self._writer_left.wait(_WRITER_GRACE + self._config.write_timeout)
        # What nsqd has said against us tells more than how the connection broke.
        self._delegate.on_close(self, None if self._asked_to_close else self._refusal or self._causes[0])

    def join(self, deadline: float) -> bool:
        """Wait for both loops to end; whether they have."""
        return not join_threads(self._threads, deadline)

    def abandon(self) -> None:
        """Forget the connection in a forked child: it is the parent's. Takes no lock."""
        self.closed = True
        self.waiting = deque()
        self._bell = queue.SimpleQueue()
        self._asleep = False
        self._release_messages()
        if self._layered is not None:
            self._layered.abandon()

    def _release_messages(self) -> None:
        """nsqd has them again: answers are refused, and no handler needs to begin with one."""
        for message in self.session.release_all():
            message.expires_at = GONE

    # Messages.

    def holds(self, message: Message) -> bool:
        return self.session.holds(message)

    def finish(self, message: Message) -> None:
        if self.closed or message.expires_at <= time.monotonic() or not self.session.take(message):
            self._refuse(message)
        if not self._delegate.on_finished(self, message):
            self.waiting.append(message)  # as ``put``, without a call: the hot path
            if self._asleep and self._bell.empty():
                self._bell.put(None)

    def finish_all(self, messages: list[Message]) -> None:
        """Finish the messages that still need an answer; pass over the others."""
        now = time.monotonic()
        if self.closed or self._delegate.wants_answers() or any(one.expires_at <= now for one in messages):
            for message in messages:
                with suppress(AlreadyResponded):
                    self.finish(message)
            return
        take = self.session.take
        self.waiting.extend([message for message in messages if take(message)])
        self._ring()

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        delay_ms = _milliseconds(self._delegate.requeue_delay(message.attempts) if delay is None else delay)
        if self.closed or message.expires_at <= time.monotonic() or not self.session.take(message):
            self._refuse(message)
        if not self._delegate.on_requeued(self, message, delay_ms, backoff):
            self.put((message, delay_ms))

    def touch(self, message: Message) -> None:
        now = time.monotonic()
        if self.closed or message.expires_at <= now or not self.session.touch(message, now):
            self._refuse(message)
        self.put(commands.touch(message.id))

    def touch_expiring(self, now: float, working: Container[Message]) -> None:
        """Touch what has used up half of its time, unless its handler has left it to be answered later."""
        for message in self.session.expiring(now):
            if message.auto_response or message in working:
                with suppress(AlreadyResponded):
                    self.touch(message)

    def _refuse(self, message: Message) -> NoReturn:
        if message.expires_at <= time.monotonic() and self.time_out(message):
            raise AlreadyResponded(
                f"{message!r} from {self.address} timed out before it was answered: nsqd delivers it again"
            )
        if self.closed:
            raise AlreadyResponded(
                f"{message!r}: the connection to {self.address} is gone, nsqd has the message again"
            )
        raise AlreadyResponded(
            f"{message!r} from {self.address} is not in flight: it was answered before, or it timed out"
        )

    def time_out(self, message: Message) -> bool:
        """Let go of a message without an answer, because nsqd has it again; whether it was in flight.

        Any thread may call it.
        """
        dropped = self.session.drop(message)
        self._ring()  # it may have been the last
        if dropped:
            self._delegate.on_timed_out(self, message)
        return dropped

    def expire(self, now: float) -> list[Message]:
        """Let go of all whose time is up."""
        expired = self.session.expire(now)
        self._ring()
        return expired


def _milliseconds(delay: float) -> int:
    """Convert seconds to what REQ takes. Raises InvalidMessage if the delay is not a number."""
    try:
        # In this order, as NaN is smaller than nothing: round refuses it.
        return min(round(max(delay, 0.0) * 1000), _LONGEST_DELAY)
    except (TypeError, ValueError, OverflowError):
        raise InvalidMessage(f"a requeue delay of {delay!r}; it must be a number of seconds") from None
