"""A thread that calls something when it is due, and can be told to look again earlier."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

log = logging.getLogger("nsq.consumer")


class Timer:
    """``next_due(now)`` is asked after every call, and after every ``poke``."""

    def __init__(self, name: str, call: Callable[[], None], next_due: Callable[[float], float]) -> None:
        self._call = call
        self._next_due = next_due
        self._condition = threading.Condition()
        self._stopped = False
        self._poked = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def poke(self) -> None:
        with self._condition:
            self._poked = True
            self._condition.notify()

    def stop(self) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify()

    def join(self, deadline: float) -> bool:
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        due = self._next_due(time.monotonic())
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._stopped or self._poked, max(0.0, due - time.monotonic())
                )
                if self._stopped:
                    return
                self._poked = False
            # A poke only ever makes it earlier: else enough of them would put it off for ever.
            if time.monotonic() >= due:
                self._guarded_call()
                due = math.inf
            due = min(due, self._next_due(time.monotonic()))

    def _guarded_call(self) -> None:
        try:
            self._call()
        except Exception:
            # A timer that died would leave the consumer without RDY for good.
            log.exception("the timer %s failed; it goes on", self._thread.name)
