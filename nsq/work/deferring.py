"""Defers a message for longer than nsqd's --max-defer-timeout allows at once, by hops.

A hop is a deferred publish that nsqd has confirmed, and then the FIN of the message before. A requeue would
raise ``attempts``, and nsqd would cut its delay. Every hop needs a consumer; one that comes late only delays
the message. If the process dies between publish and FIN, the message arrives twice.
"""

from __future__ import annotations

from typing import Protocol

from nsq.message import Message
from nsq.wire.deferred import unwrap, wrap


class Publisher(Protocol):
    """A ``Producer``, or another object with its ``publish``."""

    def publish(self, topic: str, body: bytes, *, defer: float | None = ...) -> object: ...


def publish_at(
    producer: Publisher, topic: str, body: bytes, due: float, *, now: float, longest: float
) -> None:
    """Publish a message that consumers get at ``due``. Both times are in seconds since the epoch; ``longest``
    is the longest deferral that nsqd takes. The consumers of the topic must call ``hop``.
    """
    left = due - now
    if left > longest:
        producer.publish(topic, wrap(body, round(due * 1000)), defer=longest)
    else:
        producer.publish(topic, body, defer=left if left > 0 else None)


def hop(
    producer: Publisher,
    message: Message,
    topic: str,
    *,
    now: float,
    longest: float,
    body: bytes | None = None,
) -> bool:
    """Send a message on its way if it was deferred beyond nsqd's limit; return whether it was.

    Each channel of a topic gets the message, so where there are several, ``topic`` must be one that only this
    consumer reads. ``body`` replaces the message's own. Raises what ``publish`` raises; the message is then
    not answered.
    """
    deferred = unwrap(message.body)
    if deferred is None:
        return False
    own, due_ms = deferred
    publish_at(producer, topic, own if body is None else body, due_ms / 1000, now=now, longest=longest)
    message.finish()
    return True
