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

    def __init__(self, reason: str, log: str = "") -> None:
        tail = log[-LOG_TAIL:].rstrip()
        super().__init__(f"{reason}\n--- its log ---\n{tail}" if tail else f"{reason} (it logged nothing)")


class AddressTaken(DaemonFailed):
    """A port that the daemon should listen on is in use."""
