"""What counts as one request to stop, for every program of this package and for ``Consumer.run``.

Signals often come in pairs: ``timeout`` signals its child and then the whole group, and a Ctrl-C reaches a
whole group, whose leader sends its children SIGTERM as well. So signals within a second of the first count as
one; a later signal ends the waiting.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager

#: The signals that nsqd, nsqlookupd and nsqadmin handle.
DAEMON_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}

#: Seconds after the first signal within which others repeat it.
SAME_REQUEST_SECONDS = 1.0


class StopSignals:
    """Remembers when the first signal came."""

    def __init__(self) -> None:
        self.first_at: float | None = None

    def repeats(self, now: float) -> bool:
        """Record a signal; return whether it only repeats the first."""
        if self.first_at is None:
            self.first_at = now
            return False
        return now < self.until

    @property
    def until(self) -> float:
        """When a signal counts anew."""
        return -math.inf if self.first_at is None else self.first_at + SAME_REQUEST_SECONDS


@contextmanager
def daemon_signals_blocked(*, for_good: bool) -> Iterator[None]:
    """Have the kernel keep a daemon's signals until the daemon has handlers and unblocks them.

    ``for_good`` is for a program, which ends after the block: it leaves the signals blocked, because their
    default action would replace the exit status.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, DAEMON_SIGNALS)
    try:
        yield
    finally:
        if not for_good:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
