"""One connection to one nsqd, driven by a thread that reads and a thread that writes.

The read loop turns bytes into callbacks and never waits for anybody: it neither sends nor runs user code, so
nothing a handler does can cost a heartbeat. For moments it leaves the reading to a thread that waits for
nothing else; see ``Lending``. Whoever sends either writes through or leaves it to the write
loop; see ``Outbox``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from nsq.config import Config
from nsq.connection.delegates import ConnDelegate
from nsq.connection.dialing import dial
from nsq.connection.handshake import Granted
from nsq.connection.lending import LEASE, Lending
from nsq.connection.outbox import Outbox
from nsq.connection.session import Session
from nsq.errors import (
    AlreadyResponded,
    ConnectionLost,
    InvalidMessage,
    NsqError,
    Unanswered,
    server_error,
)
from nsq.message import Message
from nsq.transport.base import Transport
from nsq.transport.layered import LayeredStream
from nsq.wire import commands
from nsq.wire.frames import CLOSE_WAIT, HEARTBEAT, OK, OKAY, ErrorReply, Response
from nsq.wire.identify import IdentifyReply
from nsq.wire.layers import TlsContext

log = logging.getLogger("nsq.connection")

#: For the write loop, to leave by itself, when the connection ends.
_WRITER_GRACE = 1.0


class Conn:
    """``connect`` blocks until the connection is ready, ``start`` starts its threads. Also the delegate of
    its messages.

    ``name`` begins the names of the threads: what for is this connection. ``heeded`` tells whether the
    delegate has a use for ``on_finished`` at the moment; when it has not, it is not called. Asked under a
    lock, for every FIN: it must be quick and take none. ``lends`` tells whether the next thing to be read is
    likely to be waited for by one thread, which then may read it by ``read_along``.
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
        requeue_delay: Callable[[int], float] = lambda _: 0.0,
        heeded: Callable[[], bool] = lambda: True,
        lends: Callable[[], bool] = lambda: False,
    ) -> None:
        self.address = address
        self.granted: Granted | None = None
        self.connected_at = 0.0
        self.last_message_at = 0.0
        self.cause: NsqError | None = None
        self._config = config
        self._write_timeout = config.write_timeout
        self._delegate = delegate
        self._transport = transport
        self._context = context
        self._topic = topic
        self._channel = channel
        self._requeue_delay = requeue_delay
        self._heeded = heeded
        self._lends = lends
        self._lending = Lending()
        self._names = (f"{name}-read-{address}", f"{name}-write-{address}")
        self._lock = threading.Lock()  # guards session, outbox and cause
        self._wakeup = threading.Lock()  # held while the write loop may sleep; released to wake it
        self._wakeup.acquire()
        self._outbox = Outbox()
        self._session = Session(IdentifyReply(), self, max_frame=config.max_frame_size)
        self._dialled: LayeredStream | None = None  # from its first moment; ``_stream`` once it is ready
        self._reader: threading.Thread | None = None
        self._writer: threading.Thread | None = None
        self._asked_to_close = False

    def __repr__(self) -> str:
        return f"<Conn {self.address}{'' if self.open else ' closed'}>"

    # Beginning and end.

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
        self._stream: LayeredStream = ready.stream
        self._stream.on_pending = self._speak_for_the_layers
        self.granted = ready.granted
        self._session = Session(ready.granted.reply, self, max_frame=self._config.max_frame_size)
        self.connected_at = self.last_message_at = time.monotonic()
        self._patience = self._config.read_timeout if self._config.heartbeat_interval > 0 else None
        self._stream.read_timeout = self._patience
        self._rest = ready.rest

    def _adopt(self, stream: LayeredStream) -> None:
        with self._lock:
            self._dialled = stream
            unwanted = self._asked_to_close
        if unwanted:
            stream.close()

    def start(self) -> None:
        """Start the loops: from here on the delegate is called. ConnectionLost when there is no thread to be
        had: then it never was.
        """
        writer = threading.Thread(target=self._write_loop, name=self._names[1], daemon=True)
        reader = threading.Thread(target=self._read_loop, name=self._names[0], daemon=True)
        try:
            writer.start()
            self._writer = writer
            reader.start()
            self._reader = reader
        except RuntimeError as fault:
            self.close()
            self.discard()
            raise ConnectionLost(f"{self.address}: no thread for the connection: {fault}") from fault

    def discard(self) -> None:
        """End a connection that was never started, also while ``connect`` is at work: from any thread."""
        with self._lock:
            self._asked_to_close = True
            stream = self._dialled
        if stream is not None:
            stream.close()

    @property
    def started(self) -> bool:
        return self._reader is not None

    @property
    def open(self) -> bool:
        """Whether commands can be sent."""
        return self._outbox.open

    def start_close(self) -> None:
        """Ask nsqd to send nothing more; the connection ends by itself when the last message is answered."""
        with self._lock:
            self._session.closing = True
            self._session.rdy = 0
        self.send(commands.CLS)

    def finish_sending(self) -> None:
        """Send what waits, then close."""
        self._asked_to_close = True
        with self._lock:
            wake = self._outbox.close()
        if wake:
            self._wakeup.release()
        self._lending.recall()

    def close(self) -> None:
        """End it now. Does not wait: ``join`` does."""
        self._asked_to_close = True
        self._fail(None)

    def join(self, deadline: float) -> bool:
        """Wait for both threads to end; whether they have."""
        threads = [thread for thread in (self._reader, self._writer) if thread is not None]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(t.is_alive() for t in threads if t is not threading.current_thread())

    def abandon(self) -> None:
        """In a forked child: forget the connection, which is the parent's. Takes no lock of the parent's."""
        self._lock = threading.Lock()
        self._outbox = Outbox()
        self._outbox.kill()
        self._lending = Lending()
        # An answer of the child's is refused at once, before it comes to the locks of our delegate.
        self._session.release_all()
        if self._dialled is not None:
            self._dialled.abandon()

    # Sending.

    def send(
        self,
        data: bytes,
        through: bool = False,
        timeout: float = math.inf,
        register: Callable[[int], bool] | None = None,
    ) -> bool:
        """Have it sent; False when nothing can be sent any more.

        ``through``: at once, if possible; ``timeout`` shortens write_timeout for that. ``register`` is called
        with the ticket of the data just before it gets its place on the wire, in the order of the wire, under
        a lock: it must be quick. When it returns False nothing is sent.
        """
        with self._lock:
            outbox = self._outbox
            if outbox.closing or outbox.dead:
                return False
            if register is not None and not register(outbox.next_ticket):
                return True
            mine = through and outbox.may_write_through()
            wake = not mine and outbox.add(data)
        if mine:
            self._write(data, timeout)
        else:
            if wake:
                self._wakeup.release()
            self._lending.recall()
        return True

    @property
    def handed_over(self) -> int:
        """What has a ticket beyond this has not been sent, and once the connection is closed never will."""
        return self._outbox.handed_over

    def withdraw(self, ticket: int) -> bool:
        """Take back what is not being sent yet; whether that was possible."""
        with self._lock:
            return self._outbox.withdraw(ticket)

    def send_rdy(self, count: int) -> None:
        """Does nothing on a connection that is about to end."""
        with self._lock:
            if self._session.closing or not self._outbox.open:
                return
            self._session.set_rdy(count)
            wake = self._outbox.add(commands.rdy(count))
        if wake:
            self._wakeup.release()

    def _write(self, data: bytes, timeout: float = math.inf) -> None:
        """With the baton in hand."""
        try:
            longest = self._write_timeout
            self._stream.write(data, timeout if timeout < longest else longest)
        except NsqError as fault:
            self._fail(fault)
        except BaseException as fault:
            # A signal's exception (Ctrl-C, a soft time limit) hits whoever writes through in the main thread.
            # Part of the data may have left, and a baton that is not put down would silence everybody.
            self._fail(ConnectionLost(f"{self.address}: a write was interrupted by {fault!r}"))
            raise
        finally:
            with self._lock:
                wake = self._outbox.written()
            if wake:
                self._wakeup.release()

    def _write_loop(self) -> None:
        while True:
            with self._lock:
                outbox = self._outbox
                data = outbox.take()
                if data is None:
                    if outbox.dead or (outbox.closing and not outbox.writing):
                        break
                    outbox.idle = True
            if data is None:
                self._wakeup.acquire()
            else:
                self._write(data)
        # A goodbye only where nobody else can be writing and nothing was cut off.
        self._stream.close(farewell=None if outbox.dead else _WRITER_GRACE)

    # Reading.

    def _read_loop(self) -> None:
        cause: NsqError | None = None
        try:
            self._take(self._rest)
            lent = False
            while True:
                with self._lending.baton:
                    if lent:
                        self._stream.read_timeout = self._patience
                    data = self._stream.read()
                    if not data:
                        break
                    self._take(data)
                    lent = self._may_lend()
                    if lent:
                        self._stream.read_timeout = LEASE
                if lent:
                    self._lending.lend(self._may_lend)
            cause = ConnectionLost(f"{self.address} closed the connection")
        except Unanswered as fault:
            cause = Unanswered(
                f"{self.address} has been silent for {self._config.read_timeout:g} s, heartbeats too"
            )
            cause.__cause__ = fault
        except NsqError as fault:
            cause = fault
        except Exception as fault:
            log.exception("the connection to %s fails by a fault of ours", self.address)
            cause = ConnectionLost(f"{self.address}: {fault!r}")
        self._end(cause)

    def _may_lend(self) -> bool:
        # The end of a connection is the read loop's.
        return self._outbox.open and self._lends()

    def read_along(self, over: Callable[[], bool], deadline: float) -> bool:
        """For a thread that waits for what is to be read: read it here, until ``over`` or the deadline, if
        the read loop has left that to others; otherwise the read loop does. Whether it is over.
        """
        lending = self._lending
        if not lending.borrow():
            lending.recall()
            return False
        try:
            if over():
                return True
            while self._read_for_a_while():
                if over():
                    return True
                if time.monotonic() >= deadline:
                    break
            lending.recall()
            return over()
        finally:
            lending.give_back()

    def _read_for_a_while(self) -> bool:
        """False when there is nothing more to come."""
        try:
            data = self._stream.read()
            if data:
                self._take(data)
        except Unanswered:
            return True
        except NsqError as fault:
            self._fail(fault)
            return False
        except BaseException as fault:
            # As with a write: part of an answer may be lost with it, and everything after that.
            self._fail(ConnectionLost(f"{self.address}: a read was interrupted by {fault!r}"))
            raise
        return bool(data)

    def _take(self, data: bytes) -> None:
        now = time.monotonic()
        messages, others = self._session.parse(data, now)
        if messages:
            self.last_message_at = now
            with self._lock:
                self._session.admit(messages, now)
            self._delegate.on_messages(self, messages)
        # Behind the messages: a CLOSE_WAIT must find those in flight that came with it.
        for other in others:
            self._understand(other)

    def _speak_for_the_layers(self) -> None:
        """TLS has something to say while it reads: it goes out in turn with everything else."""
        self.send(b"")

    def _understand(self, frame: Response | ErrorReply) -> None:
        if frame is OKAY:  # the usual one first
            self._delegate.on_response(self, OK)
        elif isinstance(frame, ErrorReply):
            error = server_error(frame.data)
            if error.fatal:
                self.cause = self.cause or error
            self._delegate.on_error(self, error)
        elif frame.data == HEARTBEAT:
            self.send(commands.NOP)
            self._delegate.on_heartbeat(self)
        elif frame.data == CLOSE_WAIT:
            with self._lock:
                self._session.close_wait = True
            self._close_if_drained()
        else:
            self._delegate.on_response(self, frame.data)

    def _fail(self, cause: NsqError | None) -> None:
        """Whatever ends it first is the cause. The read loop is woken to bury the connection."""
        with self._lock:
            if not self._outbox.dead:  # else it ended before, and a write that fails now fails of that
                self.cause = self.cause or cause
            wake = self._outbox.kill()
            stream = self._dialled
        if wake:
            self._wakeup.release()
        if stream is not None:
            stream.wake()
        self._lending.recall()

    def _end(self, cause: NsqError | None) -> None:
        """The read loop's last act."""
        if self._asked_to_close:
            cause = None
        with self._lock:
            if not self._outbox.dead:
                self.cause = self.cause or cause
            wake = self._outbox.kill()
            for message in self._session.release_all():
                message.expires_at = 0.0  # nsqd has it again: whoever holds it may as well stop
        if wake:
            self._wakeup.release()
        self._stream.close()
        if self._writer is not None:
            self._writer.join(_WRITER_GRACE)
        self._delegate.on_close(self, self.cause)

    # Messages.

    @property
    def in_flight(self) -> int:
        return self._session.in_flight

    @property
    def rdy(self) -> int:
        return self._session.rdy

    @property
    def session(self) -> Session:
        """For reading its counters."""
        return self._session

    def holds(self, message: Message) -> bool:
        return self._session.holds(message)

    def finish(self, message: Message) -> None:
        """The hot path: where nothing follows from it, one lock serves for the release and for the FIN."""
        fin = commands.fin(message.id)
        with self._lock:
            session, outbox = self._session, self._outbox
            if outbox.closing or outbox.dead:
                raise self._gone(message)
            last = not session.release(message)
            session.finished += 1
            heeded = self._heeded()
            if heeded:
                session.unsent += 1
            else:
                mine = last and outbox.may_write_through()
                wake = not mine and outbox.add(fin)
        if heeded:
            # Before the FIN goes out, which makes room for another message: an RDY may follow from it.
            self._delegate.on_finished(self, message)
            self._answer(fin, last)
            return
        if mine:
            self._write(fin)
        elif wake:
            self._wakeup.release()
        if session.close_wait:
            self._close_if_drained()

    def finish_all(self, messages: list[Message]) -> None:
        """As one by one; where nothing follows from it, for one lock and in one piece."""
        with self._lock:
            session, outbox = self._session, self._outbox
            if outbox.closing or outbox.dead:
                return
            heeded = self._heeded()
            finished = [] if heeded else session.release_those_held(messages)
            session.finished += len(finished)
            mine = wake = False
            if finished:
                fins = commands.fins([message.id for message in finished])
                mine = not session.in_flight and outbox.may_write_through()
                wake = not mine and outbox.add(fins)
        if mine:
            self._write(fins)
        elif wake:
            self._wakeup.release()
        for message in messages if heeded else ():
            with suppress(AlreadyResponded):
                self.finish(message)
        if session.close_wait:
            self._close_if_drained()

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        if delay is None:
            delay = self._requeue_delay(message.attempts)
        answer = commands.req(message.id, _milliseconds(delay))
        with self._lock:
            session = self._session
            if not self._outbox.open:
                raise self._gone(message)
            last = not session.release(message)
            session.requeued += 1
            session.unsent += 1
        # In between: an RDY that follows goes out before the answer, which makes room for another message.
        self._delegate.on_requeued(self, message, backoff)
        self._answer(answer, last)

    def _gone(self, message: Message) -> AlreadyResponded:
        return AlreadyResponded(f"{message!r}: the connection to {self.address} is gone, nsqd has it again")

    def _answer(self, data: bytes, last: bool) -> None:
        """One message at a time is answered straight away; with many in flight, answers travel together."""
        self.send(data, through=last, register=self._session.answered)
        # Not before: the last answer of one thread must not end a connection another's is on its way to.
        if self._session.close_wait:
            self._close_if_drained()

    def touch(self, message: Message) -> None:
        with self._lock:
            self._session.touch(message, time.monotonic())
        self.send(commands.touch(message.id))

    def drop(self, message: Message) -> bool:
        """Let go of it without an answer, as nsqd has done too; whether it was in flight."""
        try:
            with self._lock:
                self._session.release(message)
                self._session.timed_out += 1
        except NsqError:
            return False
        self._close_if_drained()
        return True

    def expire(self, now: float) -> list[Message]:
        """Let go of all whose time is up."""
        with self._lock:
            expired = self._session.expire(now)
        self._close_if_drained()
        return expired

    def _close_if_drained(self) -> None:
        with self._lock:
            drained = self._session.drained
        if drained:
            self.finish_sending()


def _milliseconds(delay: float) -> int:
    """As REQ takes it; InvalidMessage for what is no delay."""
    try:
        return round(max(0.0, delay) * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidMessage(f"a requeue delay of {delay!r}; it must be a number of seconds") from None
