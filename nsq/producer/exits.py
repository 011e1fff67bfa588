"""What a program has published without waiting is still sent when it ends without closing its producers."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import Protocol

log = logging.getLogger("nsq.producer")

#: How long the end of a program is held up at most, for each producer.
EXIT_TIMEOUT = 5.0


class Pending(Protocol):
    pid: int

    def close(self, seconds: float) -> int: ...


# Not weak: a producer that is forgotten has publishes under way all the same.
_pending: set[Pending] = set()
_registered_in = 0  # the process


def close_at_exit(owner: Pending) -> None:
    """Unless it is forgotten before."""
    global _registered_in
    _pending.add(owner)
    if _registered_in != os.getpid():
        _registered_in = os.getpid()
        _register()


def _register() -> None:
    atexit.register(_close_all)
    # A process that multiprocessing has forked ends without that, and goes through a list of its own.
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        multiprocessing.Finalize(None, _close_all, exitpriority=0)


def forget(owner: Pending) -> None:
    _pending.discard(owner)


def _close_all() -> None:
    for owner in list(_pending):
        if owner.pid != os.getpid():
            continue  # the parent's
        left = owner.close(EXIT_TIMEOUT)
        if left:
            log.warning("the program ends with %d publishes unanswered", left, extra={"left": left})
