"""One connection to one nsqd: one thread writes, one thread reads, and no other touches the socket.

    any thread    put(item) -> waiting
    write loop    waiting -> encode -> stream.write
    read loop     stream.read -> frames -> the delegate

A signal handler may interrupt a thread in ``put`` at any bytecode without harm to the connection. Callers and
loops share no lock: ``put`` is one append, and a wakeup when the write loop sleeps. The loops call the
delegate, which must neither block nor raise.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, NoReturn, cast

from nsq.config import Config
from nsq.connection.deliveries import Deliveries
from nsq.connection.handshake import dial
from nsq.connection.subscription import Subscription
from nsq.errors import (
    AlreadyResponded,
    ConnectionLost,
    InvalidMessage,
    NsqError,
    ServerError,
    Unanswered,
    WireError,
    server_error,
)
from nsq.log import Logger
from nsq.message import Message
from nsq.transport.base import Stream, Transport
from nsq.transport.layered import LayeredStream
from nsq.wire import commands
from nsq.wire.frames import CLOSE_WAIT, HEARTBEAT, OK_FRAME, OKAY, ErrorReply, FrameParser, Response
from nsq.wire.identify import IdentifyReply
from nsq.wire.layers import TlsContext

log = Logger("nsq.connection")

#: Seconds, when the connection ends, for the write loop to finish and for the layers to say goodbye.
_WRITER_GRACE = 1.0
_PIECE = 1024 * 1024  # the most bytes of one write: write_timeout then demands progress, not a fast link
#: The longest delay of a requeue in milliseconds, 292 years: Go's nsqd counts nanoseconds in 64 bits, and
#: ours disconnects a client that sends more digits. Both reduce this delay to --max-req-timeout.
_LONGEST_DELAY = 9_223_372_036_854

#: Takes items from the deque and returns them as bytes to send now; empty when there is nothing to send.
Encoder = Callable[[deque[Any]], bytes]


class ConnDelegate:
    """Receives a connection's events, from its loops except where noted; override what you need."""

    def on_messages(self, conn: Conn, messages: list[Message]) -> None:
        """Receive messages, which are in flight from now on."""

    def on_ok(self, conn: Conn, count: int) -> None:
        """Receive ``count`` OKs."""
        log.debug("nsqd %s says OK", conn.address)

    def on_response(self, conn: Conn, data: bytes) -> None:
        """Receive a response other than OK, a heartbeat or CLOSE_WAIT."""
        log.debug("nsqd %s says %r", conn.address, data)

    def on_error(self, conn: Conn, error: ServerError) -> None:
        """Receive an error frame. After a fatal error, ``on_close`` follows."""

    def on_heartbeat(self, conn: Conn) -> None: ...

    def on_close(self, conn: Conn, cause: NsqError | None) -> None:
        """Called once, as the read loop ends; no write follows. ``cause`` is None if we asked for the end."""

    def wants_answers(self) -> bool:
        """Whether ``on_finished`` must be called for each message of a batch that is finished together."""
        return True

    def on_finished(self, conn: Conn, message: Message, success: bool) -> bool:
        """Called by the answering thread, which has claimed the message. True: the delegate puts it later.
        ``success`` is False for a message that is given up.
        """
        return False

    def on_requeued(self, conn: Conn, message: Message, delay_ms: int, backoff: bool) -> bool:
        """Like ``on_finished``, for a requeue. The delegate puts a pair: the message and ``delay_ms``."""
        return False

    def on_timed_out(self, conn: Conn, message: Message) -> None:
        """Called by the thread that found the message timed out and has dropped it."""

    def requeue_delay(self, attempts: int) -> float:
        """Return the delay in seconds of a requeue for which the caller gave none."""
        return 0.0


class Conn:
    """A connection, and the delegate of its messages. ``connect`` blocks until the connection is ready; then
    two threads run ``write_loop`` and ``read_loop``. The write loop calls ``encode`` to turn the items given
    to ``put`` into bytes; by default these are commands and answers to messages.
    """

    def __init__(
        self,
        address: str,
        config: Config,
        delegate: ConnDelegate,
        *,
        transport: Transport,
        context: TlsContext | None = None,
        subscription: Subscription | None = None,
        encode: Encoder | None = None,
    ) -> None:
        self.address = address
        self.subscription = subscription
        self.key = address, None if subscription is None else subscription.key
        self.topic = "" if subscription is None else subscription.topic
        self.connected_at = 0.0
        self.last_message_at = 0.0
        # Items given to ``put`` and not written yet; the delegate drains it after the connection's end. Bytes
        # are commands: RDY, TOUCH, answers to heartbeats. All else is the delegate's, for ``encode``. One
        # queue keeps their order, and the write loop has to look at no other before it sleeps.
        self.waiting: deque[Any] = deque()
        self.closed = False  # whether writing has ended
        self.deliveries = Deliveries(IdentifyReply())
        self.reply = IdentifyReply()  # nsqd's answer to IDENTIFY, once connected
        self._config = config
        self._delegate = delegate
        self._dial = partial(dial, address, config, transport, context, subscription, opened=self._adopt)
        self._encode = encode or self._encode_answers
        self._reader = Subscription.reader if subscription is None else subscription.reader
        self._wakeup: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asleep = False  # the write loop waits on ``_wakeup``
        self._asked_to_close = False
        self._closing = False  # the write loop ends once ``waiting`` is empty
        self._causes: list[NsqError | None] = []  # why the connection ended; the first counts
        self._refusal: ServerError | None = None
        self._reading = False
        self._layered: LayeredStream | None = None  # set before the first byte
        self._writer_left = threading.Event()

    def __repr__(self) -> str:
        return f"<Conn {self.address}{'' if self.open else ' closed'}>"

    # Opening.

    def connect(self, deadline: float) -> None:
        """Dial and shake hands by ``deadline`` (monotonic), or raise the reason for the failure."""
        ready = self._dial(deadline=deadline)
        ready.stream.on_pending = self._wake
        # Without layers use the inner stream directly: it saves a call.
        self._layers = ready.stream if ready.stream.stack.layers else None
        self._stream: Stream = self._layers or ready.stream.stream
        silent = self._config.heartbeat_interval < 0  # then any silence is allowed
        self._stream.read_timeout = None if silent else self._config.read_timeout
        self.deliveries = Deliveries(ready.reply)
        self.reply = ready.reply
        self._parser: FrameParser[Message] = FrameParser(
            self._reader(self, 0.0, 0.0), max_frame=self._config.max_frame_size
        )
        self._rest = ready.rest
        self.connected_at = self.last_message_at = time.monotonic()

    def _adopt(self, stream: LayeredStream) -> None:
        self._layered = stream
        if self.closed:  # checked after the line above: ``close`` sees the stream, or we see ``closed``
            stream.close()

    @property
    def local_ip(self) -> str | None:
        """The IP address that the connection comes from, if the transport knows it."""
        return None if self._layered is None else getattr(self._layered.stream, "local_ip", None)

    @property
    def open(self) -> bool:
        """Whether items given to ``put`` will be written."""
        return not (self.closed or self._closing)

    # Queueing items for the write loop.

    def put(self, item: Any) -> None:
        """Queue an item. Look at ``closed`` afterwards: items put after closing are never written."""
        self.waiting.append(item)
        if self._asleep and self._wakeup.empty():  # ``_wake``, inlined on the hot path
            self._wakeup.put(None)

    def send_rdy(self, count: int) -> None:
        """Send RDY, unless the connection is about to end."""
        if not self.deliveries.closing and self.open:
            self.deliveries.set_rdy(count)
            self.put(commands.rdy(count))

    def send_cls(self) -> None:
        """Ask nsqd to send no more messages; the connection ends once the last one is answered."""
        self.deliveries.closing = True
        self.deliveries.rdy = 0
        self.put(commands.CLS)

    def _wake(self) -> None:
        """Wake the write loop if it sleeps. First make the change that it must see."""
        if self._asleep and self._wakeup.empty():
            self._wakeup.put(None)

    # The write loop.

    def write_loop(self) -> None:
        """Write the waiting items, all of them together each time, until the connection ends."""
        try:
            while self._write_what_waits():
                pass
        except NsqError as error:
            self._fail(error)
        except BaseException as error:  # SystemExit too, from a user's transport: the thread goes on
            log.exception("writing to %s failed, which is a bug of ours", self.address)
            self._fail(ConnectionLost(f"{self.address}: {error!r}"))
        try:
            assert self._layered is not None
            # Say goodbye only if the connection was not cut off.
            self._layered.close(farewell=None if self.closed else _WRITER_GRACE)
        except BaseException as error:  # from a user's transport
            log.exception("closing the connection to %s failed", self.address)
            self._fail(ConnectionLost(f"{self.address}: {error!r}"))
        finally:
            self._writer_left.set()

    def _write_what_waits(self) -> bool:
        """Write the waiting items, or sleep when there are none; return False when the connection ends."""
        if self.closed:
            return False
        data = self._encode(self.waiting)
        if not data:
            # Set the flag first, then look again: either we see the item that another thread puts, or that
            # thread sees the flag and wakes us. Each look is a method of the shared deque, set or lock, which
            # locks it: a bare ``len`` or ``bool`` could see an old state where there is no GIL.
            self._asleep = True
            if self.deliveries.close_wait and self.deliveries.drained:  # close_wait first: it saves a call
                self._asked_to_close = self._closing = True
            data = self._encode(self.waiting)
            if not data and self._closing:
                return False
            if not data:
                if self._layers is not None:
                    self._layers.flush_pending(self._config.write_timeout)
                self._wakeup.get()
            self._asleep = False
        for start in range(0, len(data), _PIECE):
            self._stream.write(data[start : start + _PIECE], self._config.write_timeout)
        if self._layers is not None and self._layers.has_pending:
            self._layers.flush_pending(self._config.write_timeout)
        return True

    def _encode_answers(self, waiting: deque[Any]) -> bytes:
        """Encode commands, as they are, and answers to messages; FINs in a row become one piece."""
        parts: list[bytes] = []
        answered: list[Message] = []
        deliveries = self.deliveries
        popleft = waiting.popleft  # no other thread removes items
        try:
            first = popleft()  # not ``len``: see ``_write_what_waits``
        except IndexError:
            items = []
        else:
            items = [first, *[popleft() for _ in range(len(waiting))]]
        for kind, row in groupby(items, type):
            if issubclass(kind, Message):
                done: list[Message] = list(row)
                parts.append(commands.fins([message.id for message in done]))
                answered += done
                deliveries.finished += len(done)
            elif kind is bytes:
                parts += row
            else:
                for message, delay_ms in row:
                    answered.append(message)
                    deliveries.requeued += 1
                    parts.append(commands.req(message.id, delay_ms))
        deliveries.written(answered)
        rdy = deliveries.rdy_refresh(bool(answered))
        if rdy:
            # After the answers, which make room for the messages that this RDY brings.
            parts.append(commands.rdy(rdy))
        return b"".join(parts)

    # The read loop.

    def read_loop(self) -> NsqError | None:
        """Read until the connection ends, release everything, return the cause as ``on_close`` gets it."""
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
        except BaseException as error:  # SystemExit too, from a user's transport: the thread goes on
            log.exception("reading from %s failed, which is a bug of ours", self.address)
            cause = ConnectionLost(f"{self.address}: {error!r}")
        return self._end(cause)

    def _receive(self, data: bytes) -> None:
        parser = self._parser
        if data == OK_FRAME and not parser.held:  # the usual reply to a blocking publish
            self._delegate.on_ok(self, 1)
            return
        now = time.monotonic()
        parser.message = self._reader(self, now, now + self.deliveries.msg_timeout)
        replies = parser.replies
        frames = parser.feed(data)
        if parser.replies == replies:
            if frames:
                self._on_messages(cast("list[Message]", frames), now)
            return
        messages = [frame for frame in frames if isinstance(frame, Message)]
        if messages:
            self._on_messages(messages, now)
        # Replies after messages: a CLOSE_WAIT must find the messages of the same chunk in flight.
        oks = frames.count(OKAY)
        if oks + len(messages) == len(frames):
            self._delegate.on_ok(self, oks)
        else:
            for frame in frames:
                if not isinstance(frame, Message):
                    self._on_reply(frame)

    def _on_messages(self, messages: list[Message], now: float) -> None:
        self.last_message_at = now
        self.deliveries.admit(messages, now)
        self._delegate.on_messages(self, messages)

    def _on_reply(self, frame: Response | ErrorReply) -> None:
        if frame is OKAY:
            self._delegate.on_ok(self, 1)
        elif isinstance(frame, ErrorReply):
            error = server_error(frame.data, exiting_not_stored=self.reply.exiting_not_stored)
            if error.fatal:
                self._refusal = error
            self._delegate.on_error(self, error)
        elif frame.data == HEARTBEAT:
            self.put(commands.NOP)
            self._delegate.on_heartbeat(self)
        elif frame.data == CLOSE_WAIT:
            # Without this check the end would look as if we had asked for it: nsqd is then dialed at once.
            if not self.deliveries.closing:
                raise WireError(f"{self.address} sent CLOSE_WAIT, although no CLS was sent")
            self.deliveries.close_wait = True
            self._wake()
        else:
            self._delegate.on_response(self, frame.data)

    # The end.

    def close(self, *, after_writing: bool = False) -> None:
        """End the connection, now or when all waiting items are written. Does not wait."""
        self._asked_to_close = True
        if after_writing:
            self._closing = True
            self._wakeup.put(None)
        else:
            self._fail(None)

    def _fail(self, cause: NsqError | None) -> None:
        """End the connection; the first cause counts. Wakes the read loop, which releases the connection."""
        self._causes.append(cause)
        self.closed = True
        self._wakeup.put(None)
        if self._layered is None:
            return
        try:
            if self._reading:
                self._layered.wake()
            else:
                self._layered.close()  # no read loop will do it
        except Exception:  # from a user's transport
            log.exception("closing the connection to %s failed", self.address)

    def _end(self, cause: NsqError | None) -> NsqError | None:
        """Release everything and tell the delegate, at the end of the read loop."""
        self._reading = False
        self._fail(cause)
        self.deliveries.release_all()
        # Wait for the write loop: closing the stream has ended a write that it was blocked in.
        self._writer_left.wait(_WRITER_GRACE + self._config.write_timeout)
        # A fatal error of nsqd's tells more than how the connection broke.
        cause = None if self._asked_to_close else self._refusal or self._causes[0]
        self._delegate.on_close(self, cause)
        return cause

    def abandon(self) -> None:
        """Forget the connection in a forked child: it belongs to the parent. Takes no lock."""
        self.closed = True
        self.waiting = deque()
        self._wakeup = queue.SimpleQueue()
        self._asleep = False
        self.deliveries.release_all()
        if self._layered is not None:
            self._layered.abandon()

    # Messages.

    def holds(self, message: Message) -> bool:
        return self.deliveries.holds(message)

    def finish(self, message: Message, success: bool = True) -> None:
        if self.closed or message.expires_at <= time.monotonic() or not self.deliveries.take(message):
            self._refuse(message)
        if not self._delegate.on_finished(self, message, success):
            self.waiting.append(message)  # ``put``, inlined on the hot path
            if self._asleep:
                self._wake()

    def finish_all(self, messages: list[Message]) -> None:
        """Finish the messages that still need an answer; skip the others."""
        now = time.monotonic()
        if self.closed or self._delegate.wants_answers() or any(one.expires_at <= now for one in messages):
            for message in messages:
                with suppress(AlreadyResponded):
                    self.finish(message)
            return
        take = self.deliveries.take
        self.waiting.extend([message for message in messages if take(message)])
        self._wake()

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        delay_ms = _milliseconds(self._delegate.requeue_delay(message.attempts) if delay is None else delay)
        if self.closed or message.expires_at <= time.monotonic() or not self.deliveries.take(message):
            self._refuse(message)
        if not self._delegate.on_requeued(self, message, delay_ms, backoff):
            self.put((message, delay_ms))

    def touch(self, message: Message) -> None:
        now = time.monotonic()
        if self.closed or message.expires_at <= now or not self.deliveries.touch(message, now):
            self._refuse(message)
        self.put(commands.touch(message.id))

    def touch_expiring(self, now: float, wanted: Callable[[Message], bool]) -> None:
        """Touch the wanted messages that are past half of their time."""
        for message in self.deliveries.expiring(now):
            if wanted(message):
                with suppress(AlreadyResponded):
                    self.touch(message)

    def _refuse(self, message: Message) -> NoReturn:
        why = "is not in flight: it was answered before, or it timed out"
        if message.expires_at <= time.monotonic() and self.time_out(message):
            why = "timed out before it was answered: nsqd delivers it again"
        elif self.closed:
            why = "cannot be answered: the connection is gone, nsqd has the message again"
        raise AlreadyResponded(f"{message!r} from {self.address} {why}")

    def time_out(self, message: Message) -> bool:
        """Drop a message, because nsqd has it again; return whether it was in flight. For any thread."""
        dropped = self.deliveries.drop(message)
        self._wake()  # it may have been the last in flight
        if dropped:
            self._delegate.on_timed_out(self, message)
        return dropped

    def expire(self, now: float) -> None:
        """Time out the messages whose time is up."""
        expired = self.deliveries.expire(now)
        self._wake()
        for message in expired:
            self._delegate.on_timed_out(self, message)


def _milliseconds(delay: float) -> int:
    """Convert seconds to what REQ takes. Raises InvalidMessage if the delay is not a number."""
    try:
        # ``delay`` first: max then keeps a NaN, which round refuses.
        return min(round(max(delay, 0.0) * 1000), _LONGEST_DELAY)
    except (TypeError, ValueError, OverflowError):
        raise InvalidMessage(f"a requeue delay of {delay!r}; it must be a number of seconds") from None
