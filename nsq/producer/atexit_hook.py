"""Sends, when a program ends without closing its producers, what it has published without waiting."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsq.producer.pool import Pool

log = logging.getLogger("nsq.producer")

#: Seconds that the end of a program is held up at most, for each producer.
EXIT_TIMEOUT = 5.0


# Not weak: a producer that is forgotten has publishes under way all the same.
_running: set[Pool] = set()
_registered_in = 0  # the process


def register(pool: Pool) -> None:
    """Flush it at the end of the program, unless it is forgotten before. By a thread of the pool's own."""
    global _registered_in
    _running.add(pool)
    if _registered_in != os.getpid():
        _registered_in = os.getpid()
        atexit.register(_flush_all)
        # A process that multiprocessing has forked ends without that, and goes through a list of its own.
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:
            multiprocessing.Finalize(None, _flush_all, exitpriority=0)


def forget(pool: Pool) -> None:
    _running.discard(pool)


def _flush_all() -> None:
    for pool in _running.copy():
        if pool.pid != os.getpid():
            continue  # the parent's
        # Flushed, not closed: functions that atexit calls later may still publish, and wait for that.
        pool.exiting = True
        left = pool.flush(time.monotonic() + EXIT_TIMEOUT).unanswered
        if left:
            log.warning("the program ends with %d publishes unanswered", left, extra={"left": left})
