"""One consumer's place in a channel: how many messages it wants, which ones it has."""

from __future__ import annotations

from typing import Protocol

from nsq.daemons.nsqd.core.message import MAX_ATTEMPTS, Message

#: How near a consumer is to this nsqd, nearest first. While nobody asks for that, all are ANYWHERE.
ZONE_LOCAL, REGION_LOCAL, ANYWHERE = range(3)


class Sink(Protocol):
    """Where a subscriber's messages go: a client's session."""

    @property
    def full(self) -> bool:
        """Whether the client reads too slowly to be given more for now."""

    def deliver(self, messages: list[Message]) -> None:
        """Take them; they need not leave before ``flush``."""

    def flush(self) -> None: ...

    def channel_closed(self) -> None:
        """The channel is gone, and with it the reason for this connection."""


class Subscriber:
    """What a channel knows of a consumer. ``in_flight`` is in the order of delivery, which is that of
    deadlines.
    """

    __slots__ = (
        "closing",
        "deadlines_mixed",
        "finish_count",
        "in_flight",
        "locality",
        "max_msg_timeout",
        "message_count",
        "msg_timeout",
        "rdy",
        "requeue_count",
        "sample_rate",
        "sink",
    )

    def __init__(
        self,
        sink: Sink,
        *,
        msg_timeout: float,
        max_msg_timeout: float,
        sample_rate: int = 0,
        locality: int = ANYWHERE,
    ) -> None:
        self.sink = sink
        self.msg_timeout = msg_timeout
        self.max_msg_timeout = max_msg_timeout
        self.sample_rate = sample_rate
        self.locality = locality
        self.rdy = 0
        self.closing = False
        self.in_flight: dict[bytes, Message] = {}
        self.deadlines_mixed = False
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def room(self) -> int:
        """How many messages it can be given now."""
        if self.closing or self.sink.full:
            return 0
        return max(0, self.rdy - len(self.in_flight))

    def hand_over(self, messages: list[Message], now: float) -> None:
        """Put the messages in flight and send them."""
        deadline = now + self.msg_timeout
        in_flight = self.in_flight
        for message in messages:
            if message.attempts < MAX_ATTEMPTS:
                message.attempts += 1
            message.delivered_at = now
            message.deadline = deadline
            in_flight[message.id] = message
        self.message_count += len(messages)
        self.sink.deliver(messages)

    def touch(self, message: Message, now: float) -> None:
        """Start the message's time again, up to the most a delivery may take."""
        limit = message.delivered_at + self.max_msg_timeout
        message.deadline = min(now + self.msg_timeout, limit)
        if message.deadline == limit:
            self.deadlines_mixed = True
        # Last in line again, so that the first is always the next to expire.
        self.in_flight[message.id] = self.in_flight.pop(message.id)

    def next_deadline(self) -> float:
        if not self.in_flight:
            self.deadlines_mixed = False
            return float("inf")
        if self.deadlines_mixed:
            return min(message.deadline for message in self.in_flight.values())
        return next(iter(self.in_flight.values())).deadline

    def take_expired(self, now: float) -> list[Message]:
        """Remove and return the messages whose time is up."""
        expired = []
        for message in self.in_flight.values():
            if message.deadline <= now:
                expired.append(message)
            elif not self.deadlines_mixed:
                break
        for message in expired:
            del self.in_flight[message.id]
        return expired
