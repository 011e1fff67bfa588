"""One nsqd of a producer's: it is dialed, published over, lost and dialed again, by two threads of its own.

The read thread dials and then runs the connection's read loop, the write thread its write loop. Both live as
long as the producer: at the end of a program, when Python starts no thread any more, none needs to be
started. The read thread writes all attributes, except where noted; other threads read them.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from nsq.config import Config
from nsq.connection.conn import Conn, ConnDelegate
from nsq.connection.handshake import describe
from nsq.discovery.directory import Pauses
from nsq.errors import (
    ConnectionFailed,
    ConnectionLost,
    DialFailed,
    MpubFailed,
    NsqError,
    ServerError,
    Unanswered,
    WireError,
)
from nsq.message import Message
from nsq.producer.publishes import Publish, Verdict, command_of, join, lost, refused
from nsq.producer.reports import ConnectionState, ConnectionStats

if TYPE_CHECKING:
    from nsq.producer.pool import Pool

log = logging.getLogger("nsq.producer")

#: Bytes that one turn of the write loop takes; what is not taken yet can go elsewhere or be cancelled.
_CHUNK = 512 * 1024
#: The longest pause, in seconds, when a publish waits and no nsqd is connected.
_URGENT_PAUSE = 1.0


class Backoff:
    """The pause before the next dial, and why it is made."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self.failures = 0  # since it last answered a publish
        self.failed_at = -math.inf
        self.pause = 0.0
        self.reason: NsqError | None = None
        self.final = False  # waiting does not change the reason: a wrong secret, no TLS, another protocol

    def failed(self, reason: NsqError, now: float, *, final: bool = False) -> None:
        """It could not be dialed, or it hung up before it answered anything, or cannot store."""
        self.failed_at = now
        self.reason = reason
        self.final = final
        self.pause = self._pauses.draw_late(self.failures)
        self.failures += 1

    def lost(self, reason: NsqError | None, now: float) -> None:
        """A connection that worked is gone. It may be back at once: nsqds restart, idle ones are cut."""
        self.failed_at = now
        self.reason = reason
        self.pause = 0.0
        self.final = False

    def succeeded(self) -> None:
        self.failures = 0
        self.pause = 0.0
        self.reason = None
        self.final = False

    def due_at(self, *, urgent: bool) -> float:
        """When it may be dialed; ``urgent``: a publish waits, and no other nsqd is connected."""
        return self.failed_at + (min(self.pause, _URGENT_PAUSE) if urgent else self.pause)


class Endpoint(ConnDelegate):
    """It dials as soon as it is given an ``address``, by ``assign``."""

    def __init__(
        self, pool: Pool, config: Config, clock: Callable[[], float], chance: Callable[[], float]
    ) -> None:
        self.address = ""
        self.conn: Conn | None = None  # the latest, which may still be dialed
        self.dialing = False
        self.overdue = False
        """A publish waited in vain for its answer. Set by the pool's thread; others are preferred meanwhile.
        """
        self.wanted = True
        """Whether nsqlookupd lists it. Set by the pool's thread."""
        self.backoff = Backoff(Pauses(config.reconnect_initial, config.reconnect_max, chance))
        self.published = 0  # messages
        self.failed = 0  # publishes
        self._pool = pool
        self._config = config
        self._clock = clock
        self._sent: deque[list[Publish]] = deque()  # batches without an answer, in the order of the wire
        self._asked_at = 0.0  # when the oldest of ``_sent`` was sent, or later
        self._proven = False  # this connection has stored something
        self._error: NsqError | None = None  # why we closed this connection
        self._halted = False  # nsqd executes nothing more on this connection
        self._mistake = False  # of a caller's: nsqd closes the connection, and nothing is wrong with it
        self._again: deque[Publish] = deque()  # goes elsewhere when the connection has ended
        self._largest = config.max_body_size if config.coalesce else 0  # bytes of what is joined
        self._stopped = False
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._to_write: queue.SimpleQueue[Conn | None] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []

    def __repr__(self) -> str:
        return f"<Endpoint {self.address}, {self.pending} pending>"

    # Its two threads. The methods down to the next heading are called by the pool's thread.

    def start(self) -> None:
        """RuntimeError when no thread can be had."""
        try:
            for run, name in ((self._write, "nsq-producer-write"), (self._run, "nsq-producer-read")):
                thread = threading.Thread(target=run, name=name, daemon=True)
                thread.start()
                self.threads.append(thread)
        except RuntimeError:
            self._to_write.put(None)
            raise

    def assign(self, address: str) -> None:
        self.dialing = True
        self.address = address  # the read thread waits for it
        for thread in self.threads:
            thread.name = f"{thread.name}-{address}"
        self.ring()

    def ring(self) -> None:
        """Have it look again whether it should dial."""
        self._bell.put(None)

    def stop(self) -> None:
        """End the dial, or the connection once all is written, and both threads. Does not wait."""
        self._stopped = True
        self.ring()
        if self.conn is not None:
            self.conn.close(after_writing=not self.dialing)

    def cut_off(self) -> None:
        """End the connection at once."""
        if self.conn is not None:
            self.conn.close()

    def _run(self) -> None:
        while not (self.address or self._stopped):
            self._bell.get()
        while not self._stopped:
            try:
                self._dial()
            except Exception as error:
                log.exception("the connection to %s failed, which is a bug of ours", self.address)
                self._dial_failed(ConnectionLost(f"{self.address}: {error!r}"))
            self._pause()
        self._to_write.put(None)
        self._pool.look()

    def _write(self) -> None:
        while (conn := self._to_write.get()) is not None:
            try:
                conn.write_loop()
            except Exception:
                log.exception("writing to %s failed, which is a bug of ours", self.address)

    def _pause(self) -> None:
        self._pool.look()
        while not self._stopped:
            due = self.backoff.due_at(urgent=self._pool.urgent) if self.wanted else math.inf
            left = due - self._clock()
            if left <= 0:
                break
            with suppress(queue.Empty):
                self._bell.get(timeout=min(left, 3600.0))

    def _dial(self) -> None:
        """Dial once, and see the connection through to its end."""
        self.dialing = True
        # New ones: a write loop that ends late must not touch those of the next connection.
        self._sent, self._again = deque(), deque()
        self._error, self._proven, self._halted, self._mistake = None, False, False, False
        self.overdue = False
        self.conn = conn = Conn(
            self.address,
            self._config,
            self,
            transport=self._pool.transport,
            context=self._pool.context,
            encode=partial(self._encode, sent=self._sent),
        )
        try:
            # Behind the lines above: either ``stop`` sees the connection, or this sees that it was called.
            if self._stopped:
                conn.close()
            conn.connect(self._clock() + self._config.handshake_timeout)
        except NsqError as error:
            self._dial_failed(error)
        except Exception as error:  # a user's transport
            log.exception("dialing %s failed", self.address, extra=self._fields())
            self._dial_failed(DialFailed(f"{self.address}: {error!r}"))
        else:
            self._to_write.put(conn)
            self.dialing = False
            log.info("connected to %s", self.address, extra=self._fields())
            self._pool.look()
            conn.read_loop()

    def _dial_failed(self, error: NsqError) -> None:
        self.cut_off()  # what is not closed passes for open
        self.backoff.failed(error, self._clock(), final=not error.retry)
        self.dialing = False
        if not self._stopped:
            log.log(
                logging.WARNING if self.backoff.failures == 1 else logging.INFO,
                "no connection to %s, next try in %.1f s or when it is needed: %s",
                self.address,
                self.backoff.pause,
                error,
                extra=self._fields(),
            )

    # What is sent: the write thread.

    def _encode(self, waiting: deque[Any], sent: deque[list[Publish]]) -> bytes:
        """Take what waits, join it to commands, and note in which order they must be answered."""
        taken: list[Publish] = []
        parts: list[bytes] = []
        size = 0
        try:
            while size < _CHUNK:
                item = waiting.popleft()
                if type(item) is bytes:  # the answer to a heartbeat
                    parts.append(item)
                    continue
                item.sent = True  # before the claim: where it is unset, the publish was surely not sent
                if item.claim.acquire(False):
                    taken.append(item)
                    size += item.size
        except IndexError:
            pass
        if taken:
            if not sent:
                self._asked_at = self._clock()
            batches = [taken] if len(taken) == 1 else join(taken, self._largest)
            sent.extend(batches)
            parts.extend(map(command_of, batches))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # What is answered: the read thread, by the connection's read loop.

    def on_ok(self, conn: Conn, count: int) -> None:
        if isinstance(self._error, WireError):
            return  # replies can no longer be matched to requests
        answered: list[Publish] = []
        try:
            for _ in range(count):
                answered += self._sent.popleft()
        except IndexError:
            self._break_over("an OK to nothing")
        if not answered:
            return
        self._halted = False  # it goes on after an error: a server that we do not know
        self._asked_at = self._clock()
        for publish in answered:
            self.published += publish.messages
        if not self._proven or self.overdue:
            self._proven, self.overdue = True, False
            self._largest = self._config.max_body_size if self._config.coalesce else 0
            self.backoff.succeeded()
            self._pool.look()
        self._pool.settled(answered, None)

    def on_response(self, conn: Conn, data: bytes) -> None:
        self._break_over(repr(data[:80]))

    def on_error(self, conn: Conn, error: ServerError) -> None:
        if isinstance(self._error, WireError):
            return
        batch = self._sent.popleft() if self._sent else []
        verdicts = refused(batch, error, self.address, self._config.retry_uncertain)
        if isinstance(error, MpubFailed):
            self._largest = 0  # alone each of them can be refused, and go elsewhere
        if error.fatal:  # nsqd closes too, and executes nothing more
            self._halted, self._mistake = True, bool(batch) and not error.retry
            self._break(error)
        self.failed += sum(not (each.again and each.publish.alone) for each in verdicts)
        self._carry_out(verdicts)
        if self._again and self._error is None:  # the connection goes on
            again, self._again = self._again, deque()
            self._pool.take_back(again)

    def on_heartbeat(self, conn: Conn) -> None:
        """Close the connection if publishes stay unanswered despite heartbeats."""
        patience = self._config.read_timeout
        if self._sent and self._clock() - self._asked_at > patience:
            self._break(
                Unanswered(f"{self.address} sends heartbeats, but has not answered for {patience:g} s")
            )

    def on_messages(self, conn: Conn, messages: list[Message]) -> None:
        self._break(WireError(f"{self.address} sent messages to a connection that only publishes"))

    def on_close(self, conn: Conn, cause: NsqError | None) -> None:
        cause = self._error or cause or ConnectionLost(f"the connection to {self.address} was closed")
        self._judge(cause)
        verdicts: list[Verdict] = []
        while self._sent:
            verdicts += lost(
                self._sent.popleft(),
                cause,
                self.address,
                executed=not self._halted,
                retry_uncertain=self._config.retry_uncertain,
            )
        self.failed += 0 if self._halted else len(verdicts)
        self._carry_out(verdicts)
        # Together, so that it stays in order: what was refused, what was sent behind it, what was not.
        self._pool.take_back(self._again, conn.waiting)
        if not self._stopped:
            log.warning("the connection to %s is lost: %s", self.address, cause, extra=self._fields())

    def _judge(self, cause: NsqError) -> None:
        """Whether to dial again at once."""
        now = self._clock()
        if self._mistake:
            self.backoff.lost(None, now)
        elif self._proven and isinstance(cause, ConnectionFailed):
            self.backoff.lost(cause, now)
        else:
            self.backoff.failed(cause, now)

    def _carry_out(self, verdicts: list[Verdict]) -> None:
        for publish, error, retry in verdicts:
            if retry and not publish.done():
                publish.try_again()
                self._again.append(publish)
            else:
                self._pool.settled([publish], error)

    def _break_over(self, what: str) -> None:
        self._break(WireError(f"{self.address} answered with {what}: its answers cannot be matched any more"))

    def _break(self, error: NsqError) -> None:
        self._error = self._error or error
        self.cut_off()

    # What there is to know.

    @property
    def open(self) -> Conn | None:
        """The connection, if it takes publishes. Read once: another may replace it at any moment."""
        conn = self.conn
        return conn if conn is not None and not self.dialing and conn.open else None

    @property
    def pending(self) -> int:
        """Publishes that wait here or are not answered; also those whose caller has given up."""
        waiting = len(self.conn.waiting) if self.conn is not None else 0
        return waiting + sum(map(len, self._sent.copy()))

    def hopeless(self, since: float) -> bool:
        """Whether what it last said, after ``since`` or a moment ago, does not change by waiting."""
        backoff = self.backoff
        if not backoff.final:
            return False
        return backoff.failed_at >= since or (
            not self.dialing and self._clock() < backoff.due_at(urgent=True)
        )

    @property
    def state(self) -> ConnectionState:
        if self.open:
            return "overdue" if self.overdue else "open"
        if self.dialing:
            return "dialing"
        return "paused" if self._clock() < self.backoff.due_at(urgent=False) else "idle"

    @property
    def reason(self) -> str:
        """The reason why this nsqd has no connection; names its address."""
        reason = self.backoff.reason
        if reason is None:
            return f"{self.address}: {'still being dialed' if self.dialing else 'not reached yet'}"
        return describe(self.address, reason)

    def stats(self) -> ConnectionStats:
        return ConnectionStats(
            address=self.address,
            state=self.state,
            pending=self.pending,
            published=self.published,
            failed=self.failed,
            reason=str(self.backoff.reason or ""),
        )

    def _fields(self) -> dict[str, str]:
        """Return the fields of a structured log line."""
        return {"nsqd_address": self.address}

    def abandon(self) -> None:
        """Let go of the connection in a forked child: it is the parent's."""
        if self.conn is not None:
            self.conn.abandon()
