"""At the end of a program, producers that were not closed send the publishes that are pending."""

from __future__ import annotations

import atexit
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from nsq.log import Logger
from nsq.threads.stop_signals import SAME_REQUEST_SECONDS
from nsq.threads.waiters import in_main_interpreter

if TYPE_CHECKING:
    from nsq.producer.pool import Pool

log = Logger("nsq.producer")

_EXIT_TIMEOUT = 5.0  # the most seconds by which each producer delays the end of the program

# The pools to flush. Not weak: the publishes of a garbage-collected producer must be sent too.
running: set[Pool] = set()
_registered_in = 0  # the process


def flush_at_exit(pool: Pool) -> None:
    """Have the pool flushed at exit, unless it is closed before. Runs on the pool's thread."""
    global _registered_in
    running.add(pool)
    if _registered_in != os.getpid():
        _registered_in = os.getpid()
        atexit.register(_flush_all)
        # A process forked by multiprocessing skips atexit and runs the finalizers of that module instead.
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:
            finalize = partial(multiprocessing.Finalize, None, exitpriority=0)
            finalize(_flush_all)
            # A fork server's worker imports the main module, which may publish, then drops all finalizers.
            multiprocessing.register_after_fork(_flush_all, finalize)


def _flush_all() -> None:
    began = time.monotonic()
    close = not in_main_interpreter()
    for pool in running.copy():
        if pool.pid != os.getpid():
            continue  # belongs to the parent
        # Flush, do not close: functions that atexit calls later may still publish, and wait for that. But a
        # thread that outlives an interpreter beside the main one aborts the process.
        pool.exiting = True
        deadline = time.monotonic() + _EXIT_TIMEOUT
        try:
            left = (pool.close(_EXIT_TIMEOUT) if close else pool.flush(deadline)).unanswered
        except BaseException:
            # A signal that repeats the first, as gunicorn and terminals send it, must not end the flush.
            if time.monotonic() >= began + SAME_REQUEST_SECONDS:
                raise
            left = pool.flush(deadline).unanswered
        if left:
            log.warning("the program ends with %d publishes unanswered", left, extra={"left": left})
