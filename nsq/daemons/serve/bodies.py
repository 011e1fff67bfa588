"""Limits how many bytes of unfinished bodies a daemon holds for all its clients together.

Each body has its own limit; without a common one, a few hundred clients that stop in the middle of a body
fill the memory. Knows no socket; the time is an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

#: While other clients wait, a client that sends less than this, or less than this share of what it has sent,
#: within these seconds is disconnected.
PROGRESS_BYTES = 64 * 1024
PROGRESS_SHARE = 8
STALL_SECONDS = 30.0
#: How many bytes a client may add before its body is counted again.
CHUNK_BYTES = 256 * 1024


class Sender(Protocol):
    """A client that is sending a body and can be paused."""

    def wait_for_room(self) -> None:
        """Stop reading until ``go_on`` is called."""

    def go_on(self) -> None: ...

    def cut_off(self) -> None:
        """Disconnect: the client makes no progress and holds room that others wait for."""


class _Body:
    """The size received of one sender's body, and the time of its last progress."""

    __slots__ = ("held", "marked", "since", "waiting")

    def __init__(self, since: float) -> None:
        self.held = self.marked = 0
        self.since = since
        self.waiting = False


class PendingBodies:
    """Pauses senders above the limit; the one that began first is never paused, so one always proceeds."""

    def __init__(self, limit: int, now: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.total = 0
        self._now = now
        self._senders: dict[Sender, _Body] = {}  # in the order in which they began
        self._waiting = 0

    # HTTP: a body without room is refused.

    def take(self, size: int) -> bool:
        """Reserve ``size`` bytes until ``give_back``. Returns False if there is no room."""
        if self.total + size > self.limit:
            return False
        self.total += size
        return True

    def give_back(self, size: int) -> None:
        self.total -= size
        self._wake()

    # TCP: a client without room is paused.

    def count(self, sender: Sender, size: int) -> None:
        """Record that this sender's unfinished body takes ``size`` bytes now; 0 if it has none."""
        body = self._senders.get(sender)
        if body is None:
            body = self._senders[sender] = _Body(self._now())
        grown = size > body.held
        self.total += size - body.held
        body.held = size
        if not size:
            del self._senders[sender]
            self._waiting -= body.waiting
        elif size < body.marked or size >= body.marked + max(PROGRESS_BYTES, body.marked // PROGRESS_SHARE):
            body.marked, body.since = size, self._now()
        if grown and not body.waiting and self.total > self.limit and sender is not next(iter(self._senders)):
            body.waiting = True
            self._waiting += 1
            sender.wait_for_room()
        self._wake()

    def cut_off_the_idle(self) -> None:
        """If senders are waiting, disconnect those that may send and made no progress lately."""
        if self._waiting:
            late = self._now() - STALL_SECONDS
            for sender, body in list(self._senders.items()):
                if not body.waiting and body.since <= late:
                    sender.cut_off()

    def _wake(self) -> None:
        """Resume as many senders as there is room for, and the first one in any case."""
        if not self._waiting:
            return
        room = max(0, self.limit - self.total) // CHUNK_BYTES
        awake: list[Sender] = []
        for place, (sender, body) in enumerate(self._senders.items()):
            if place and (not room or not self._waiting):
                break
            if body.waiting:
                body.waiting, body.since = False, self._now()
                self._waiting -= 1
                room = max(0, room - 1)
                awake.append(sender)
        for sender in awake:
            sender.go_on()
