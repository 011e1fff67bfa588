"""For the tests of your project: the published messages, and a way to call a handler without nsqd."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.test import override_settings

from nsq import Message
from nsq.contrib.django import locmem
from nsq.contrib.django.connections import synchronous
from nsq.errors import AlreadyResponded


class NsqTestMixin:
    """For a test case of Django: messages stay in ``self.outbox``, which each test begins with empty.

        class OrderTests(NsqTestMixin, TestCase):
            def test_an_order_is_published(self):
                with self.captureOnCommitCallbacks(execute=True):
                    self.client.post("/orders")
                self.assertPublished("orders", b"17")

    A ``TestCase`` never commits: messages that wait for a commit are published only at the end of a block
    ``captureOnCommitCallbacks(execute=True)``.
    """

    outbox = locmem.outbox

    @classmethod
    def setUpClass(cls) -> None:
        # Before setUpTestData, which may publish too.
        cls.enterClassContext(override_settings(NSQ={"BACKEND": "nsq.contrib.django.locmem"}))  # type: ignore[attr-defined]
        super().setUpClass()  # type: ignore[misc]

    def setUp(self) -> None:
        locmem.outbox.clear()
        super().setUp()  # type: ignore[misc]

    def assertPublished(self, topic: str, body: bytes | None = None, *, count: int | None = None) -> None:  # noqa: N802
        """Fail unless messages for the topic, with this body if given, were published: ``count`` of them, or
        at least one.
        """
        assert_published(topic, body, count=count)


def assert_published(topic: str, body: bytes | None = None, *, count: int | None = None) -> None:
    """Do the same outside of a test case, for pytest."""
    found = sum(each.topic == topic and body in (None, each.body) for each in locmem.outbox)
    wanted = "at least one" if count is None else str(count)
    if found != count if count is not None else not found:
        what = f"messages for {topic}" + (f" with the body {body!r}" if body is not None else "")
        there = ", ".join(_shown()) or "nothing"
        raise AssertionError(f"{found} {what} were published, not {wanted}; in the outbox: {there}")


def _shown() -> Iterator[Any]:
    for topic, body, _ in locmem.outbox:
        yield f"{topic}: {body[:80]!r}"


def handle(
    handler: Callable[[Message], Any], body: bytes, *, topic: str = "test", attempts: int = 1
) -> Message:
    """Call a handler with a message, on this thread and in its transaction; return the message.

    What the handler raises is raised here. Afterwards ``message.responded`` tells whether the handler has
    answered the message itself.
    """
    now = time.monotonic()
    message = Message(_Delegate(topic), now, math.inf, time.time_ns(), attempts, b"0123456789abcdef", body)
    synchronous(handler)(message)
    return message


class _Delegate:
    """Stands for the connection of a message."""

    address = "127.0.0.1:0"

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._answered = False

    def holds(self, message: Message) -> bool:
        return not self._answered

    def time_out(self, message: Message) -> bool:
        return not self._answered

    def finish(self, message: Message, success: bool = True) -> None:
        self._answer()

    def finish_all(self, messages: list[Message]) -> None:
        self._answered = True

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        self._answer()

    def touch(self, message: Message) -> None:
        if self._answered:
            raise AlreadyResponded("the message has been answered")

    def _answer(self) -> None:
        if self._answered:
            raise AlreadyResponded("the message has been answered")
        self._answered = True
