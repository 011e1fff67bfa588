"""The thread that completes futures: what users attach to them never runs on a read loop.

It also keeps the deadlines of those publishes, as nobody else waits for them. It starts with the first of
them and ends when it is stopped.
"""

from __future__ import annotations

import heapq
import itertools
import math
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from nsq.producer.transaction import Transaction

THREAD_NAME = "nsq-producer-answers"

#: How many are completed in one go, before deadlines are looked at again.
_PORTION = 64


class _Deadlines:
    """Transactions by their deadline. Those that come in order, as nearly all do, cost next to nothing."""

    def __init__(self) -> None:
        self._in_order: deque[Transaction] = deque()
        self._others: list[tuple[float, int, Transaction]] = []
        self._numbers = itertools.count()
        self._compact_at = 1024

    def __len__(self) -> int:
        return len(self._in_order) + len(self._others)

    def add(self, transaction: Transaction) -> None:
        ordered = self._in_order
        if ordered and transaction.deadline < ordered[-1].deadline:
            heapq.heappush(self._others, (transaction.deadline, next(self._numbers), transaction))
        else:
            ordered.append(transaction)
        if len(ordered) + len(self._others) >= self._compact_at:
            self._compact()

    def _compact(self) -> None:
        """Those that ended before their deadline are of no interest any more."""
        self._in_order = deque(each for each in self._in_order if not each.ended)
        self._others = [each for each in self._others if not each[2].ended]
        heapq.heapify(self._others)
        self._compact_at = max(1024, 2 * len(self))

    def take(self, now: float) -> list[Transaction]:
        """What has reached its deadline, the earliest first."""
        expired = []
        while (transaction := self._first()) is not None and transaction.deadline <= now:
            expired.append(transaction)
            self._drop(transaction)
        return expired

    @property
    def next(self) -> float:
        first = self._first()
        return math.inf if first is None else first.deadline

    def _first(self) -> Transaction | None:
        """Of those that have not ended."""
        ordered, others = self._in_order, self._others
        while ordered and ordered[0].ended:
            ordered.popleft()
        while others and others[0][2].ended:
            heapq.heappop(others)
        if others and not (ordered and ordered[0].deadline <= others[0][0]):
            return others[0][2]
        return ordered[0] if ordered else None

    def _drop(self, first: Transaction) -> None:
        if self._in_order and self._in_order[0] is first:
            self._in_order.popleft()
        else:
            heapq.heappop(self._others)


class Answers:
    """``complete`` is called with what is answered, several at a time when they are there, ``expire`` with
    what has reached its deadline before that.
    """

    def __init__(
        self,
        complete: Callable[[list[Transaction]], None],
        expire: Callable[[Transaction], None],
        clock: Callable[[], float],
    ) -> None:
        self._complete = complete
        self._expire = expire
        self._clock = clock
        self._queue: queue.SimpleQueue[Transaction | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards all below
        self._watched = _Deadlines()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None
        self._stopping = False

    def put(self, transaction: Transaction) -> None:
        self._queue.put(transaction)

    def watch(self, transaction: Transaction) -> None:
        """See to it that it ends by its deadline."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
                thread.start()  # RuntimeError when there are no more threads: the next one tries again
                self._thread = thread
            self._watched.add(transaction)
            sooner = transaction.deadline < self._wakes_at
        if sooner:
            self._queue.put(None)

    @property
    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self, timeout: float) -> None:
        """Complete what is there, and end."""
        with self._lock:
            self._stopping = True
            thread = self._thread
        self._queue.put(None)
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            expired, seconds = self._due()
            for transaction in expired:
                self._expire(transaction)
            try:
                answered = self._queue.get(timeout=seconds)
            except queue.Empty:
                continue
            if answered is not None:
                self._complete(self._portion(answered))
            elif self._stopping and self._queue.empty():
                return

    def _portion(self, first: Transaction) -> list[Transaction]:
        """It and what is answered already behind it."""
        answered = [first]
        with suppress(queue.Empty):
            while len(answered) < _PORTION:
                following = self._queue.get_nowait()
                if following is None:
                    self._queue.put(None)  # a reason to wake up, for the next turn
                    break
                answered.append(following)
        return answered

    def _due(self) -> tuple[list[Transaction], float | None]:
        """What has expired, and the seconds until something does; None for never."""
        with self._lock:
            now = self._clock()
            expired = self._watched.take(now)
            # With nothing to wait for it stays as it is, if it is to come: waking up then for nothing is
            # cheaper than being woken by the next one, and the next.
            if self._watched or self._wakes_at <= now:
                self._wakes_at = self._watched.next
            return expired, max(0.0, self._wakes_at - now) if self._wakes_at < math.inf else None
