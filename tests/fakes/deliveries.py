"""Deliveries of an ordered partition."""

from __future__ import annotations

from typing import Any

from nsq.message import Message
from tests.fakes.messages import Delegate

NOW = 1000.0
TIMEOUT = 60.0


class Delivery(Message):
    """The delivery of message ``number``, which has the offset 100 × ``number``."""

    __slots__ = ("internal_id", "offset")

    internal_id: int
    offset: int

    def __repr__(self) -> str:
        return f"<{self.internal_id}>"


def delivery(number: int, *, delegate: Any = None, now: float = NOW, attempts: int = 1) -> Delivery:
    message_id = number.to_bytes(16, "big")
    message = Delivery(delegate or Delegate(), now, now + TIMEOUT, 0, attempts, message_id, b"body")
    message.internal_id, message.offset = number, 100 * number
    return message
