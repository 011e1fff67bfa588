"""What counts as one request to stop, for every program of this package and for ``Consumer.run``; and how the
programs hold signals back until they can handle them.

Signals often come in pairs: ``timeout`` signals its child and then the whole group, and a Ctrl-C reaches a
whole group, whose leader sends its children SIGTERM as well. So signals within a second of the first count as
one; a later signal ends the waiting.
"""

from __future__ import annotations

import math
import signal

#: The signals that programs of this package handle.
SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}

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


# Held back: what an entry point does first


_held: set[signal.Signals] = set()


def hold_signals() -> None:
    """Have the kernel keep the signals of a program until it calls ``release_signals``. Called first by every
    entry point: signals that come while modules are imported would end it in the wrong way.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    _held.update(SIGNALS)


def held_stop() -> int:
    """Return the number of a signal to stop that has come and is held back, or 0."""
    if not _held:
        return 0
    return next(iter(signal.sigpending() & {signal.SIGINT, signal.SIGTERM}), 0)


def release_signals() -> None:
    """Let signals that are held back come, as handlers for them are set. Does nothing in other programs."""
    if _held:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _held)
        _held.clear()
