"""Errors of a daemon under test. Imports only the root of the hierarchy.

NsqError
└── DaemonFailed            a daemon did not start or stop in time; the message has the end of its log
    └── AddressTaken        another program uses a port that the daemon should listen on
"""

from __future__ import annotations

from nsq.errors import NsqError

LOG_TAIL = 4000


class DaemonFailed(NsqError):
    """A daemon did not start, died early, or did not stop in time."""

    def __init__(self, reason: str, log: str | None = None) -> None:
        if log is not None:
            tail = log[-LOG_TAIL:].rstrip()
            reason += f"\n--- its log ---\n{tail}" if tail else " (it logged nothing)"
        super().__init__(reason)


class AddressTaken(DaemonFailed):
    """A port that the daemon should listen on is in use."""
