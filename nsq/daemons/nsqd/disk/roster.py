"""The topics and channels an nsqd had, as its nsqd.dat says. Pure: bytes in, bytes out.

Written in the very form of the Go nsqd; read in every form one has left behind: channels as plain names,
without ``paused``, a list that is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from nsq.wire.names import is_ephemeral, valid_channel, valid_topic


class ChannelEntry(NamedTuple):
    name: str
    paused: bool = False


class TopicEntry(NamedTuple):
    name: str
    paused: bool = False
    channels: tuple[ChannelEntry, ...] = ()


def encode(topics: Iterable[TopicEntry], version: str) -> bytes:
    """Leaves out what is ephemeral. Like Go's, an empty list is null."""
    entries = [_topic_json(topic) for topic in topics if not is_ephemeral(topic.name)]
    return json.dumps({"topics": entries or None, "version": version}, separators=(",", ":")).encode()


def decode(content: bytes) -> list[TopicEntry]:
    """Raises ValueError for what is no JSON object. Entries no nsqd could have are left out."""
    document = json.loads(content)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    topics = ((*_named(entry), _channels(entry)) for entry in _entries(document.get("topics")))
    return [TopicEntry(name, paused, channels) for name, paused, channels in topics if valid_topic(name)]


def _topic_json(topic: TopicEntry) -> dict[str, Any]:
    channels = [{"name": name, "paused": paused} for name, paused in topic.channels if not is_ephemeral(name)]
    return {"name": topic.name, "paused": topic.paused, "channels": channels or None}


def _channels(topic: dict[str, Any]) -> tuple[ChannelEntry, ...]:
    channels = (ChannelEntry(*_named(entry)) for entry in _entries(topic.get("channels")))
    return tuple(channel for channel in channels if valid_channel(channel.name))


def _entries(value: object) -> Iterator[dict[str, Any]]:
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, dict):
            yield entry
        elif isinstance(entry, str):
            yield {"name": entry}


def _named(entry: dict[str, Any]) -> tuple[str, bool]:
    name = entry.get("name")
    return name if isinstance(name, str) else "", entry.get("paused") is True
