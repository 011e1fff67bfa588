"""What was sent over one connection and is not answered yet: nsqd answers in the order of the commands.

Pure. ``add`` is called under the connection's lock, so that this order is that of the wire; whatever takes
from the head is called by the one thread that reads. A transaction whose caller has gone stays until its
answer comes, which would otherwise be taken for that of the next.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from nsq.errors import ConnectionLost, NsqError, ServerError
from nsq.producer.transaction import Holder, Transaction, unanswered


class Settled(NamedTuple):
    """Transactions that are off their connection, in its order. The callers of the ``forsaken`` have gone."""

    awaited: list[Transaction]
    forsaken: list[Transaction]


class Pending:
    """``retry_uncertain``: what may be stored may be tried elsewhere all the same."""

    def __init__(self, holder: Holder, *, retry_uncertain: bool) -> None:
        self._holder = holder
        self._retry_uncertain = retry_uncertain
        self.in_order: deque[Transaction] = deque()
        self._halted_by: ServerError | None = None
        # Counted before those who wait are woken: whoever has been told finds itself counted.
        self.published = 0  # messages
        self.failed = 0  # publishes

    def __len__(self) -> int:
        return len(self.in_order)

    def add(self, transaction: Transaction, now: float, ticket: int) -> bool:
        """False when it must not be sent."""
        if not transaction.place(self._holder, ticket, now):
            return False
        self.in_order.append(transaction)
        return True

    def remove(self, transaction: Transaction) -> bool:
        """Take out what is never sent; False when somebody has done so before."""
        try:
            self.in_order.remove(transaction)
        except ValueError:
            return False
        return True

    def oldest(self) -> Transaction | None:
        try:
            return self.in_order[0]
        except IndexError:
            return None

    # What nsqd says.

    def awaits(self, handed_over: int) -> bool:
        """Whether there is anything to answer: what has not been sent is not."""
        oldest = self.oldest()
        return oldest is not None and oldest.ticket <= handed_over

    def stored(self, handed_over: int, times: int = 1) -> Settled:
        """nsqd said OK to so many of the oldest. They are fewer when there is nothing it can have meant."""
        settled = Settled([], [])
        queue = self.in_order
        try:
            while times and queue[0].ticket <= handed_over:
                transaction = queue.popleft()
                self._halted_by = None  # it goes on after an error: a kind of nsqd we do not know
                self.published += transaction.request.messages
                (settled.awaited if transaction.answer(None) else settled.forsaken).append(transaction)
                times -= 1
        except IndexError:
            return settled  # there are no more; others may just have taken out what is never sent
        return settled

    def refused(self, error: ServerError, handed_over: int) -> Settled | None:
        """nsqd said no to the oldest."""
        transaction = self._take(handed_over)
        if error.fatal and type(error) is not ServerError:
            self._halted_by = error
        if transaction is None:
            return None
        self.failed += 1
        again = error.retry and (self._retry_uncertain or not error.maybe_stored)
        doubt = self._holder.address if error.maybe_stored else ""
        awaited = transaction.answer(error, again=again, doubt=doubt)
        return Settled([transaction], []) if awaited else Settled([], [transaction])

    def ended(self, cause: NsqError, handed_over: int) -> Settled:
        """The connection is gone. Only what was handed over, and not behind a fatal error, may be stored."""
        transactions = list(self.in_order)
        self.in_order.clear()
        settled = Settled([], [])
        for each in transactions:
            awaited = self._end(each, cause, handed_over)
            (settled.awaited if awaited else settled.forsaken).append(each)
        return settled

    def _end(self, transaction: Transaction, cause: NsqError, handed_over: int) -> bool:
        if transaction.ticket > handed_over or self._halted_by is not None:
            lost = ConnectionLost(f"{self._holder.address}: not executed: {cause}")
            lost.__cause__ = cause
            return transaction.answer(lost, again=True)
        address = self._holder.address
        doubt = unanswered(address, transaction.request.topic, str(cause))
        doubt.__cause__ = cause
        return transaction.answer(doubt, again=self._retry_uncertain, doubt=address)

    def _take(self, handed_over: int) -> Transaction | None:
        return self.in_order.popleft() if self.awaits(handed_over) else None
