from __future__ import annotations

from nsq.daemons.nsqd.core.message import MAX_ATTEMPTS, Message
from tests.unit.daemons.nsqd.core.consumer import Consumer


def test_attempts_stop_at_what_the_wire_can_hold() -> None:
    message = Message(b"i" * 16, b"", 0)
    message.attempts = MAX_ATTEMPTS - 1
    attempts = []
    for _ in range(3):
        Consumer().subscriber.hand_over([message], 0.0)
        attempts.append(message.attempts)
    assert attempts == [0xFFFF, 0xFFFF, 0xFFFF]
