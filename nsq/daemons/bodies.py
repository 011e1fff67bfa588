"""The limit on unfinished bodies: what a daemon holds of them, over all clients together.

One client's body has a limit of its own; without one for all, a few hundred clients that stop midway fill the
memory. Knows no socket; the time is an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

#: While others wait, a client has to send this much within these seconds, or it is cut off.
PROGRESS_BYTES = 64 * 1024
STALL_SECONDS = 30.0
#: What a client that goes on may add before it is counted again.
CHUNK_BYTES = 256 * 1024


class Sender(Protocol):
    """A client in the middle of a body, which can be made to wait."""

    def wait_for_room(self) -> None:
        """Read nothing more until ``go_on``."""

    def go_on(self) -> None: ...

    def cut_off(self) -> None:
        """Others wait for room that this client holds and does not use."""


class _Body:
    """The bytes held of one sender's body, and since when they have hardly grown."""

    __slots__ = ("held", "marked", "since", "waiting")

    def __init__(self, since: float) -> None:
        self.held = self.marked = 0
        self.since = since
        self.waiting = False


class PendingBodies:
    """Above the limit only the sender that began first goes on, so that one always does."""

    def __init__(self, limit: int, now: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.total = 0
        self._now = now
        self._senders: dict[Sender, _Body] = {}  # in the order in which they began
        self._waiting = 0

    # HTTP: a body for which there is no room is refused.

    def take(self, size: int) -> bool:
        """Whether there is room for so many bytes more, which then count until they are given back."""
        if self.total + size > self.limit:
            return False
        self.total += size
        return True

    def give_back(self, size: int) -> None:
        self.total -= size
        self._wake()

    # TCP: the client waits.

    def count(self, sender: Sender, size: int) -> None:
        """Note that this sender's unfinished body takes so many bytes now; 0 when it has none."""
        body = self._senders.get(sender)
        if body is None:
            body = self._senders[sender] = _Body(self._now())
        grown = size > body.held
        self.total += size - body.held
        body.held = size
        if not size:
            del self._senders[sender]
            self._waiting -= body.waiting
        elif size < body.marked or size >= body.marked + PROGRESS_BYTES:
            body.marked, body.since = size, self._now()
        if grown and not body.waiting and self.total > self.limit and sender is not next(iter(self._senders)):
            body.waiting = True
            self._waiting += 1
            sender.wait_for_room()
        self._wake()

    def cut_off_the_idle(self) -> None:
        """Make room for those that wait: end senders that could go on and do not."""
        if self._waiting:
            late = self._now() - STALL_SECONDS
            for sender, body in list(self._senders.items()):
                if not body.waiting and body.since <= late:
                    sender.cut_off()

    def _wake(self) -> None:
        """Let as many go on as there is room for, and the first in any case."""
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
