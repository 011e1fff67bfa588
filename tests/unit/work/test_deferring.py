"""Deferring beyond nsqd's limit, by hops."""

from __future__ import annotations

import pytest

from nsq.errors import PublishFailed
from nsq.message import Message
from nsq.wire.deferred import wrap
from nsq.work.deferring import hop, publish_at
from tests.fakes.messages import Delegate


class Log(Delegate):
    """Notes publishes and answers in their order; ``broken`` makes publishes fail."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.broken = broken

    def publish(self, topic: str, body: bytes, *, defer: float | None = None) -> None:
        if self.broken:
            raise PublishFailed("no nsqd")
        self._note(topic, body, defer)


def message(log: Log, body: bytes) -> Message:
    return Message(log, 0.0, 60.0, 0, 1, b"0123456789abcdef", body)


@pytest.mark.parametrize(
    ("due", "published"),
    [
        (90.0, ("t", b"body", None)),
        (100.0, ("t", b"body", None)),
        (130.0, ("t", b"body", 30.0)),
        (160.0, ("t", b"body", 60.0)),
        (161.5, ("t", wrap(b"body", 161_500), 60.0)),
    ],
)
def test_a_message_travels_in_an_envelope_only_beyond_the_limit(due: float, published: object) -> None:
    log = Log()
    publish_at(log, "t", b"body", due, now=100.0, longest=60.0)
    assert log.notes == [published]


@pytest.mark.parametrize(
    ("due_ms", "published"),
    [
        (300_000, ("t", wrap(b"body", 300_000), 60.0)),
        (200_000, ("t", b"body", 40.0)),  # the last one takes the envelope off
    ],
)
def test_a_hop_is_a_publish_and_then_a_finish(due_ms: int, published: object) -> None:
    log = Log()
    delivered = message(log, wrap(b"body", due_ms))
    assert hop(log, delivered, "t", now=160.0, longest=60.0)
    assert log.notes == [published, ("finish", delivered)]


def test_a_hop_that_cannot_be_published_leaves_the_message_unanswered() -> None:
    log = Log(broken=True)
    with pytest.raises(PublishFailed):
        hop(log, message(log, wrap(b"body", 300_000)), "t", now=160.0, longest=60.0)
    assert log.notes == []


def test_a_message_without_an_envelope_is_left_to_the_handler() -> None:
    log = Log()
    assert not hop(log, message(log, b"body"), "t", now=160.0, longest=60.0)
    assert log.notes == []
