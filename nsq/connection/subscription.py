"""What a consumer's connection subscribes to, and how it reads the messages that come."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from nsq.message import Message
from nsq.wire import commands


@dataclass(frozen=True)
class Subscription:
    """A topic and a channel. A subclass subscribes to a part of a topic, or reads other messages."""

    topic: str
    channel: str

    #: Called once for all that comes together, with the connection, received_at and expires_at. Returns what
    #: makes each message of its timestamp, attempts, id, and the rest of the frame.
    reader: ClassVar[Callable[..., Callable[..., Message]]] = staticmethod(partial(partial, Message))

    @property
    def key(self) -> Hashable:
        """Distinguishes the connections of one consumer to one nsqd."""
        return None

    @property
    def identify(self) -> Mapping[str, object]:
        """Fields to add to IDENTIFY."""
        return {}

    def command(self) -> bytes:
        return commands.sub(self.topic, self.channel)
