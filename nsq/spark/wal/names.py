"""The names of receivers, what stands for segments and receivers, and the content of a log's small objects:

    identity.json                {"format": 3, "identity": "5f0c…", "created": "2025-01-31T12:00:00Z"}
    subject.json                 {"format": 3, "topic": "orders", "channel": "spark"}

Text only: no I/O, no pyarrow.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from nsq.errors import WalForeign
from nsq.spark.wal.status import Status


class Position(NamedTuple):
    """All segments of a receiver through number ``segment``, plus the first ``rows`` rows of the next one."""

    segment: int = 0
    rows: int = 0


class Segment(NamedTuple):
    """Rows that are stored together; sorts by receiver and number. ``bytes`` is the size of all bodies, not
    of the object."""

    receiver: str
    number: int
    rows: int
    bytes: int


class SegmentFile(NamedTuple):
    """A segment with the size of its object, and when it was named, in seconds since 1970. ``oldest`` and
    ``newest`` are the times of its messages, in nanoseconds since 1970.
    """

    segment: Segment
    size: int
    modified: float
    oldest: int
    newest: int


class ReceiverState(NamedTuple):
    """A receiver, dead or alive."""

    receiver: str
    alive: bool
    segments: int
    status: Status  # its own report
    closed: bool  # it has said that it ends, or was found dead
    first: int = 1  # the lowest number that is not deleted
    deleted: int = 0  # the time of the newest message that is deleted, in nanoseconds since 1970

    @property
    def ended(self) -> bool:
        """Whether all its segments are deleted, and there will be no more."""
        return self.closed and not self.segments


class Listing(NamedTuple):
    """What is in a log: the segments that were asked for, the receivers, and the bytes of all segments."""

    files: list[SegmentFile]
    receivers: list[ReceiverState]
    size: int


IDENTITY = "identity.json"
SUBJECT = "subject.json"

_RECEIVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def new_receiver(
    host: str | None = None, pid: int | None = None, now: float | None = None, chance: str | None = None
) -> str:
    """Make a unique receiver name from the time, host and process id; names sort by time.

    Arguments that are None are taken from the system.
    """
    spelt = re.sub(r"[^A-Za-z0-9.]+", "-", os.uname().nodename if host is None else host).strip("-.")[:80]
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time.time() if now is None else now))
    number = os.getpid() if pid is None else pid
    return f"{moment}-{spelt or 'host'}-{number}-{chance or secrets.token_hex(4)}"


def is_receiver(name: str) -> bool:
    """Whether this can be the name of a receiver."""
    return _RECEIVER.fullmatch(name) is not None


# The content of a log's small objects: JSON with a format number


FORMAT = 3
T = TypeVar("T")


def encode(fields: Mapping[str, object]) -> bytes:
    return json.dumps({"format": FORMAT, **fields}).encode() + b"\n"


def decode(text: bytes, path: str, what: str, read: Callable[[dict[str, Any]], T]) -> T:
    """Parse an object and pass its fields to ``read``. Raises WalForeign when this version cannot read it."""
    try:
        found = json.loads(text)
        version = found["format"]
        if not isinstance(version, int):
            raise TypeError
        if version == FORMAT:
            return read(found)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WalForeign(f"{path} {what}: {text[:60]!r}") from None
    if version < FORMAT:
        raise WalForeign(
            f"{path} belongs to a log of format {version}, which this version of nsq cannot read, nor the "
            "checkpoints of its queries: read it to its end with the version that wrote it, or give each "
            "query a new log (option wal), a new checkpoint and a new sink"
        )
    raise WalForeign(
        f"{path} has format {version}, this version of nsq reads {FORMAT}: read it with a newer one"
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def encode_identity(identity: str, now: float) -> bytes:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    return encode({"identity": identity, "created": created})


def decode_identity(text: bytes, path: str) -> str:
    return decode(text, path, "is not the identity of a log", lambda found: _text(found["identity"]))


# The subject of a log: its topics and its channel


class Subject(NamedTuple):
    """What a log is for. ``topic`` is one topic, several separated by commas, or ``~`` and a pattern."""

    topic: str
    channel: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.channel}"

    def changes(self, found: Subject | None) -> bool:
        """Whether this has topics in addition to those of ``found``, or lacks some of them."""
        if found is None or found.channel != self.channel:
            return False
        ours, theirs = set(self.topic.split(",")), set(found.topic.split(","))
        return ours < theirs or theirs < ours

    def check(self, found: Subject | None, location: str) -> None:
        """Raise WalForeign when the log at ``location`` has another subject, ``found``."""
        if found is not None and found != self and not self.changes(found):
            raise WalForeign(
                f"{location} is the log of {found}, and this is to read {self}: every topic and channel "
                "needs a log of its own, so give option wal another place"
            )


def encode_subject(subject: Subject) -> bytes:
    return encode(subject._asdict())


def decode_subject(text: bytes, path: str) -> Subject:
    def read(found: dict[str, Any]) -> Subject:
        return Subject(_text(found["topic"]), _text(found["channel"]))

    return decode(text, path, "does not say what a log is for", read)
