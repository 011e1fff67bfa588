"""One connection that is published over, and what is pending on it.

The callbacks run on the connection's read loop: they only hand over, to callers that wait or to queues.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from nsq.connection import Conn
from nsq.errors import ConnectionLost, NsqError, ServerError, Unanswered, WireError
from nsq.message import Message
from nsq.producer.pending import Pending, Settled
from nsq.producer.transaction import Transaction
from nsq.wire.frames import OK, Oks

if TYPE_CHECKING:
    from nsq.config import Config

#: More than this goes to the write loop even if nothing is pending: it may not fit into the socket's
#: buffer, and the caller's deadline may be shorter than what nsqd needs to take it.
_THROUGH_LIMIT = 16 * 1024
#: The same where the deadline is no shorter than what a write may take anyway: a batch of some hundred
#: messages saves its way over the write loop.
_PATIENT_THROUGH_LIMIT = 64 * 1024


class Watcher(Protocol):
    """Is told what becomes of the line, and of what was sent over it."""

    def proven(self, line: Line) -> None:
        """It has answered, for the first time, or again after it was overdue."""

    def lost(self, line: Line, cause: NsqError) -> None:
        """It is gone. What was pending on it is delivered after this."""

    def deliver(self, settled: Settled) -> None:
        """They were answered, or their connection is gone, or they are never sent: they are off this line."""


class Line:
    """A ConnDelegate. ``conn`` is to be given before anything else is called."""

    conn: Conn

    def __init__(self, address: str, config: Config, watcher: Watcher, clock: Callable[[], float]) -> None:
        self.address = address
        self.was_proven = False
        self.overdue = False
        self._patience = config.read_timeout
        self._write_timeout = config.write_timeout
        self._watcher = watcher
        self._clock = clock
        self._pending = Pending(self, retry_uncertain=config.retry_uncertain)
        self._fault: NsqError | None = None
        self._alone = False  # what was sent last was all that was under way

    def __repr__(self) -> str:
        return f"<Line {self.address}, {self.pending} pending>"

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def published(self) -> int:
        return self._pending.published

    @property
    def failed(self) -> int:
        return self._pending.failed

    @property
    def usable(self) -> bool:
        return self.conn.open

    # What callers do.

    def send(self, transaction: Transaction, *, through: bool) -> bool:
        """Place it here; False when the connection is closed. Nothing happens when nobody waits for it any
        more.

        ``through``: write at once if this is the only one under way, which is quickest for a single caller.
        With more of them what waits travels together.
        """
        now = self._clock()
        data = transaction.request.data
        left = transaction.deadline - now
        limit = _PATIENT_THROUGH_LIMIT if left >= self._write_timeout else _THROUGH_LIMIT
        pending = self._pending
        self._alone = through and not pending.in_order
        register = partial(pending.add, transaction, now)
        return self.conn.send(data, self._alone and len(data) <= limit, max(0.0, left), register)

    def read_along(self, transaction: Transaction) -> bool:
        """For its caller: read its answer here, where the read loop has left that to whoever waits. Whether
        it came.
        """
        return self.conn.read_along(transaction.off_line, transaction.deadline)

    def lends(self) -> bool:
        """Whether one caller publishes, and waits, and publishes again: it may as well read the answers."""
        return self._alone and not self._pending

    def withdraw(self, transaction: Transaction) -> bool:
        unsent = self.conn.withdraw(transaction.ticket)
        if unsent and self._pending.remove(transaction):
            self._watcher.deliver(Settled([], [transaction]))
        return unsent

    # What the read loop tells.

    def on_response(self, conn: Conn, data: bytes) -> None:
        if self._fault is not None and isinstance(self._fault, WireError):
            return  # what still comes answers nobody knows what
        if data != OK:
            self._break_over(repr(data[:80]))
            return
        times = data.times if isinstance(data, Oks) else 1
        if not self.was_proven and self._pending.awaits(conn.handed_over):
            self._watcher.proven(self)  # before the callers are told
        settled = self._pending.stored(conn.handed_over, times)
        answered = len(settled.awaited) + len(settled.forsaken)
        if answered:
            if self.overdue:  # looked at behind the answers: see ``Pool.suspect``
                self._watcher.proven(self)
            self._watcher.deliver(settled)
        if answered < times:
            self._break_over("an OK to nothing")

    def on_error(self, conn: Conn, error: ServerError) -> None:
        settled = self._pending.refused(error, conn.handed_over)
        if error.fatal and type(error) is not ServerError:
            # nsqd closes too, and executes nothing more. One with codes of its own may go on.
            self._break(error)
        if settled is not None:
            self._watcher.deliver(settled)

    def on_heartbeat(self, conn: Conn) -> None:
        """A sign of life is not an answer."""
        oldest = self._pending.oldest()
        if oldest is not None and self._clock() - oldest.placed_at > self._patience:
            self._break(
                Unanswered(f"{self.address} sends heartbeats, but has not answered for {self._patience:g} s")
            )

    def on_close(self, conn: Conn, cause: NsqError | None) -> None:
        fault = self._fault or cause or ConnectionLost(f"the connection to {self.address} was closed")
        self._pending.failed += len(self._pending)
        # First: whoever learns of it next looks for another line.
        self._watcher.lost(self, fault)
        settled = self._pending.ended(fault, conn.handed_over)
        if settled.awaited or settled.forsaken:
            self._watcher.deliver(settled)

    def on_messages(self, conn: Conn, messages: list[Message]) -> None:
        self._break(WireError(f"{self.address} sent messages to a connection that only publishes"))

    def on_finished(self, conn: Conn, message: Message) -> None:
        """There are no messages here."""

    def on_requeued(self, conn: Conn, message: Message, backoff: bool) -> None:
        """There are no messages here."""

    def _break_over(self, what: str) -> None:
        self._break(WireError(f"{self.address} answered with {what}: its answers cannot be told apart now"))

    def _break(self, fault: NsqError) -> None:
        self._fault = self._fault or fault
        self.conn.close()
