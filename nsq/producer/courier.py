"""The thread that finds a connection for what nobody waits for: futures whose publish met no open
connection, or was refused by one nsqd and may go to another. It starts when it is first needed and ends
when it is stopped.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from nsq.producer.transaction import Transaction


class Courier:
    """``carry`` sends a transaction, waiting for a connection as long as its deadline allows."""

    def __init__(self, carry: Callable[[Transaction], None]) -> None:
        self._carry = carry
        self._queue: queue.SimpleQueue[Transaction | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards all below
        self._waiting = 0
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether somebody is to go first."""
        return self._waiting > 0

    def put(self, transaction: Transaction) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="nsq-producer-courier", daemon=True)
                thread.start()  # RuntimeError when there are no more threads: the next one tries again
                self._thread = thread
            self._waiting += 1
        self._queue.put(transaction)

    def stop(self, timeout: float) -> None:
        with self._lock:
            thread = self._thread
        self._queue.put(None)
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while (transaction := self._queue.get()) is not None:
            if not transaction.over:
                self._carry(transaction)
            with self._lock:
                self._waiting -= 1
