"""The list of topics and channels, ``nsqd.dat``: read at a start, written at every change and at a stop.

Its format is that of Go's nsqd. Topics and channels with #ephemeral names are not in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.disk.layout import Log
from nsq.daemons.nsqd.disk.syncing import Replacement, SyncJob
from nsq.errors import ConfigError
from nsq.wire.names import is_ephemeral, valid_channel, valid_topic

NAME = "nsqd.dat"
_OLD_NAME = re.compile(r"nsqd\.[0-9]+\.dat").fullmatch  # before version 1.0 the node's id was in the name


class Roster:
    """The list in a data directory, and whether the broker's topics have changed since it was written."""

    def __init__(self, directory: Path, log: Log) -> None:
        self._directory = directory
        self._log = log
        self._broker: Broker | None = None
        self._changed = False

    def restore(self, broker: Broker) -> None:
        """Make the topics and channels of the last run."""
        self._broker = broker
        for entry in self.read():
            topic = broker.topic(entry.name)
            topic.pause(True)  # waiting messages are for all of its channels, which come next
            for name, paused in entry.channels:
                topic.channel(name).pause(paused)
            topic.pause(entry.paused)

    def read(self) -> list[TopicEntry]:
        """Read the topics and channels of the last run; an empty list in a new directory."""
        path = self._path()
        if path is None:
            return []
        try:
            return decode(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{str(path)!r}, the list of topics and channels, cannot be read ({error}): repair it, or "
                "move it away to start without topics (a topic made again gets its messages back)"
            ) from error

    def _path(self) -> Path | None:
        path = self._directory / NAME
        if path.exists():
            return path
        old = sorted(each for each in self._directory.glob("nsqd.*.dat") if _OLD_NAME(each.name))
        if len(old) > 1:
            self._log.warning("%d files like %s, reading the first", len(old), old[0])
        return old[0] if old else None

    def changed(self) -> None:
        self._changed = True

    def job_if_changed(self) -> SyncJob | None:
        """Return a job that writes the list, if it has changed since the last job. After a failure, call
        ``changed`` again.
        """
        if not self._changed:
            return None
        self._changed = False
        return self.job()

    def job(self) -> SyncJob:
        """Return a job that writes the list. If it fails, the old list stays, also after a power cut."""
        topics = self._broker.topics.values() if self._broker is not None else ()
        content = encode(
            [
                TopicEntry(
                    topic.name,
                    topic.paused,
                    tuple(ChannelEntry(channel.name, channel.paused) for channel in topic.channels.values()),
                )
                for topic in topics
            ],
            COMPATIBLE_VERSION,
        )
        return SyncJob(self._directory, {}, replacement=Replacement(self._directory / NAME, content))


class ChannelEntry(NamedTuple):
    name: str
    paused: bool = False


class TopicEntry(NamedTuple):
    name: str
    paused: bool = False
    channels: tuple[ChannelEntry, ...] = ()


def encode(topics: Iterable[TopicEntry], version: str) -> bytes:
    """Encode the list of topics without ephemeral ones. As in Go, an empty list is null."""
    entries = [_topic_json(topic) for topic in topics if not is_ephemeral(topic.name)]
    return json.dumps({"topics": entries or None, "version": version}, separators=(",", ":")).encode()


def decode(content: bytes) -> list[TopicEntry]:
    """Decode the list of topics without invalid entries. Raises ValueError if it is not a JSON object."""
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
