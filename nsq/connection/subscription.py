"""What a consumer's connection subscribes to, and how it reads the messages that come."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from nsq.message import Message
from nsq.wire import commands


@dataclass(frozen=True)
class Subscription:
    """A topic and a channel. A subclass subscribes to a part of a topic, or reads other messages."""

    topic: str
    channel: str

    #: Makes a message. Called as ``Message`` is: with the connection, received_at, expires_at, timestamp,
    #: attempts, id, and the rest of the frame.
    decode: ClassVar[Callable[..., Message]] = Message

    @property
    def key(self) -> Hashable:
        """Distinguishes the connections of one consumer to one nsqd."""
        return None

    @property
    def identify(self) -> Mapping[str, object]:
        """Fields to add to IDENTIFY."""
        return {}

    def command(self) -> bytes:
        """Return the command that subscribes."""
        return commands.sub(self.topic, self.channel)
