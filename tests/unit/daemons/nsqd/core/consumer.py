"""A subscriber as the core sees it; it records its messages."""

from __future__ import annotations

from nsq.daemons.nsqd.core.backlog import Message
from nsq.daemons.nsqd.core.channel import Subscriber


class Consumer:
    """A sink and its subscriber. ``delivered`` only grows: a message once for every delivery."""

    def __init__(
        self,
        *,
        rdy: int = 0,
        msg_timeout: float = 60.0,
        max_msg_timeout: float = 900.0,
        sample_rate: int = 0,
    ) -> None:
        self.full = False
        self.delivered: list[Message] = []
        self.flushed = 0
        self.closed = 0
        self.subscriber = Subscriber(
            self, msg_timeout=msg_timeout, max_msg_timeout=max_msg_timeout, sample_rate=sample_rate
        )
        self.subscriber.rdy = rdy

    def deliver(self, messages: list[Message]) -> None:
        assert messages
        self.delivered += messages

    def flush(self) -> None:
        self.flushed = len(self.delivered)

    def channel_closed(self) -> None:
        self.closed += 1

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.delivered]

    @property
    def held(self) -> list[bytes]:
        """The bodies in flight, in the order of delivery."""
        return [message.body for message in self.subscriber.in_flight.values()]

    def id_of(self, body: bytes) -> bytes:
        return next(message.id for message in reversed(self.delivered) if message.body == body)
