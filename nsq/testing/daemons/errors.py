"""Errors of a daemon under test. Imports only the root of the hierarchy.

NsqError
└── DaemonFailed            it did not start, or not stop in time; the message carries the end of its log
    └── AddressTaken        another program has a port on which it should listen
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
    """A port the daemon was to listen on is in use."""
