"""A message on its way through one channel, and where its id comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

_SEQUENCE_BITS = 12
_NODE_BITS = 10
_MAX_ATTEMPTS = 0xFFFF


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

    def count_attempt(self) -> None:
        if self.attempts < _MAX_ATTEMPTS:
            self.attempts += 1


def message_ids(node_id: int, time_ns: Callable[[], int]) -> Iterator[bytes]:
    """Ids of 16 hex digits, ascending, unique among nsqds of different node ids: time, node, sequence.

    Time counts in 2²⁰ ns. A sequence that is used up borrows from the next tick instead of waiting for it, so
    a burst runs ahead of the clock, never backwards and never twice over the same id; so does a clock set
    back.
    """
    node = node_id << _SEQUENCE_BITS
    tick = sequence = 0
    while True:
        current = time_ns() >> 20
        if current > tick:
            tick, sequence = current, 0
        elif sequence >> _SEQUENCE_BITS:
            tick, sequence = tick + 1, 0
        yield b"%016x" % ((tick << (_NODE_BITS + _SEQUENCE_BITS) | node | sequence) & 0xFFFF_FFFF_FFFF_FFFF)
        sequence += 1
