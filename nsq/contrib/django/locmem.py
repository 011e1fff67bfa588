"""A backend for tests: keeps messages in ``outbox`` instead of sending them.

NSQ = {"BACKEND": "nsq.contrib.django.locmem"}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nsq.contrib.django.publishing import checked_body
from nsq.wire.names import check_topic


class Published(NamedTuple):
    topic: str
    body: bytes
    defer: float | None = None


#: The messages so far, the oldest first. ``outbox.clear()`` empties it.
outbox: list[Published] = []


def publish(
    topic: str,
    body: bytes,
    *,
    defer: float | None = None,
    timeout: float | None = None,  # noqa: ARG001 - nothing here takes time
) -> None:
    outbox.append(Published(check_topic(topic), checked_body(body), defer))


def multi_publish(
    topic: str,
    bodies: Iterable[bytes],
    *,
    timeout: float | None = None,  # noqa: ARG001
) -> None:
    outbox.extend([Published(check_topic(topic), checked_body(body)) for body in bodies])
