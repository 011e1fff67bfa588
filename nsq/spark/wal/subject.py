"""The file that says what a log is for: one topic, read through one channel. Text only; no I/O.

    {"format": 1, "topic": "orders", "channel": "spark"}

Logs that are older than this file have none; the first who uses one says what it is for.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from nsq.errors import WalForeign

FORMAT = 1


class Subject(NamedTuple):
    topic: str
    channel: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.channel}"

    def check(self, found: Subject | None, location: str) -> None:
        """Raises WalForeign when the log at ``location`` is for something else than this."""
        if found is not None and found != self:
            raise WalForeign(
                f"{location} is the log of {found}, and this is to read {self}: every topic and channel "
                "needs a log of its own, so give option wal another place"
            )


def encode(subject: Subject) -> bytes:
    return json.dumps({"format": FORMAT, **subject._asdict()}).encode() + b"\n"


def decode(text: bytes, path: str) -> Subject:
    """Raises WalForeign for what this version cannot read."""
    try:
        found = json.loads(text)
        version, topic, channel = found["format"], found["topic"], found["channel"]
    except (ValueError, KeyError, TypeError):
        raise _unreadable(text, path) from None
    if not (isinstance(version, int) and isinstance(topic, str) and isinstance(channel, str)):
        raise _unreadable(text, path)
    if version > FORMAT:
        raise WalForeign(
            f"{path} has format {version}, this version of nsq reads {FORMAT}: read it with a newer one"
        )
    return Subject(topic, channel)


def _unreadable(text: bytes, path: str) -> WalForeign:
    return WalForeign(f"{path} does not say what a log is for: {text[:60]!r}")
