"""What waits to be sent over one connection, and whose turn it is to send. State only: the owner's lock
guards it.

There is one writer at a time. A sender who finds nothing waiting and nobody writing may write through: that
saves a hand-over to the write loop, which is what one request after the other is made of. Everyone else
queues, and the write loop takes all that waits in one piece: with many senders that is several times faster.
"""

from __future__ import annotations


class Outbox:
    """``writing`` is the baton: whoever set it writes, then calls ``written``."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self.next_ticket = 1
        """Of what is queued or written through next: they count in the order of the wire."""
        self.handed_over = 0  # all up to this ticket has gone to the stream, or is going
        self.writing = False
        self.idle = False  # the write loop sleeps
        self.closing = False  # nothing is added any more; what waits is still sent
        self.dead = False  # nothing is sent any more

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def open(self) -> bool:
        return not (self.closing or self.dead)

    def may_write_through(self) -> bool:
        """Take the baton if it lies there and nobody is in line."""
        if self.writing or self._waiting or self.dead:
            return False
        self.writing = True
        self.handed_over = self.next_ticket
        self.next_ticket += 1
        return True

    def add(self, data: bytes) -> bool:
        """Queue; whether the write loop must be woken."""
        self.next_ticket += 1
        self._waiting.append(data)
        return self.idle and self._rouse()

    def take(self) -> bytes | None:
        """All that waits, and the baton with it; None, without the baton, when there is nothing to do."""
        if self.writing or self.dead or not self._waiting:
            return None
        self.writing = True
        waiting, self._waiting = self._waiting, []
        self.handed_over = self.next_ticket - 1
        return waiting[0] if len(waiting) == 1 else b"".join(waiting)

    def withdraw(self, ticket: int) -> bool:
        """Take back what is queued still; whether it is certain now that it is never sent."""
        place = ticket - self.handed_over - 1
        if place < 0:
            return False
        if not self.dead:
            self._waiting[place] = b""
        return True

    def written(self) -> bool:
        """Put the baton down; whether the write loop must be woken for what came meanwhile."""
        self.writing = False
        return bool(self._waiting or self.closing) and self._rouse()

    def close(self) -> bool:
        """No more after what waits; whether the write loop must be woken."""
        self.closing = True
        return self._rouse()

    def kill(self) -> bool:
        self.dead = True
        self._waiting.clear()
        return self._rouse()

    def _rouse(self) -> bool:
        """Whoever gets True wakes the write loop, exactly once for each time it went to sleep."""
        if self.idle and (self.dead or not self.writing):
            self.idle = False
            return True
        return False
