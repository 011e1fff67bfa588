"""Short-lived threads for what blocks: each does one thing, and what comes of it is delivered as an event."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from nsq.errors import NsqError

log = logging.getLogger("nsq.consumer")

T = TypeVar("T")

Event = Callable[[], None]


class Errands:
    """Belongs to one thread, which calls ``run``; ``deliver`` is called by the errands' own."""

    def __init__(self, name: str, deliver: Callable[[Event], None]) -> None:
        self._name = name
        self._deliver = deliver
        self._threads: list[threading.Thread] = []

    def run(
        self, job: str, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[NsqError], None]
    ) -> None:
        """Have a thread call ``work`` and deliver ``done`` with its result, or ``failed`` with its error.

        One of them is delivered in any case: whoever ordered the errand waits for it.
        """

        def errand() -> None:
            try:
                event = partial(done, work())
            except NsqError as fault:
                event = partial(failed, fault)
            except Exception as fault:
                log.exception("%s-%s failed by a fault of ours", self._name, job)
                event = partial(failed, NsqError(f"{type(fault).__name__}, a fault of ours; see the log"))
            self._deliver(event)

        thread = threading.Thread(target=errand, name=f"{self._name}-{job}", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        try:
            thread.start()
        except RuntimeError as fault:  # no more threads, or the interpreter is ending
            self._deliver(partial(failed, NsqError(f"no thread for {job}: {fault}")))
        else:
            self._threads.append(thread)

    def join(self, deadline: float) -> bool:
        """Wait for all errands, whose owner has ended; whether they have by then (monotonic)."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)
