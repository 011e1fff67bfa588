"""A message on its way through one channel, and where its id comes from."""

from __future__ import annotations

from collections.abc import Callable

_SEQUENCE_BITS = 12
_NODE_BITS = 10
_HEAD_MASK = (1 << 64 - _SEQUENCE_BITS) - 1
#: What the wire can hold; further deliveries are not counted.
MAX_ATTEMPTS = 0xFFFF


class Message:
    """One channel's copy: the body is shared between channels, the history is not."""

    __slots__ = ("attempts", "body", "deadline", "delivered_at", "due", "id", "timestamp")

    def __init__(self, message_id: bytes, body: bytes, timestamp: int, due: float = 0.0) -> None:
        self.id = message_id
        self.body = body
        self.timestamp = timestamp
        self.attempts = 0
        self.due = due  # not to be delivered before; 0 for at once
        self.delivered_at = 0.0
        self.deadline = 0.0

    def copy(self) -> Message:
        return Message(self.id, self.body, self.timestamp, self.due)


class MessageIds:
    """Ids of 16 hex digits, ascending, unique among nsqds of different node ids: time, node, sequence.

    Time counts in 2²⁰ ns. A sequence that is used up borrows from the next tick instead of waiting for it, so
    a burst runs ahead of the clock, never backwards and never twice over the same id; so does a clock set
    back.
    """

    def __init__(self, node_id: int, time_ns: Callable[[], int]) -> None:
        self._node = node_id
        self._time_ns = time_ns
        self._tick = 0
        # The sequence is an id's last digits. Appending them costs a third of writing out the number.
        self._digits = [b"%03x" % sequence for sequence in range(1 << _SEQUENCE_BITS)]
        self._used = 0

    def take(self, count: int) -> list[bytes]:
        current = self._time_ns() >> 20
        if current > self._tick:
            self._tick, self._used = current, 0
        ids: list[bytes] = []
        while len(ids) < count:
            if self._used == len(self._digits):
                self._tick, self._used = self._tick + 1, 0
            start, self._used = self._used, min(self._used + count - len(ids), len(self._digits))
            head = b"%013x" % ((self._tick << _NODE_BITS | self._node) & _HEAD_MASK)
            ids += [head + digits for digits in self._digits[start : self._used]]
        return ids
