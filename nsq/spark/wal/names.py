"""File names inside a write-ahead log, and the content of its identity and subject files.
Text only: no I/O, no pyarrow.

    000007.open                  open: segment 7 of its receiver is being written
    000007-1250-250000.arrow     sealed: 1250 rows, 250000 bytes of bodies
    identity.json                {"format": 1, "identity": "5f0c…", "created": "2025-01-31T12:00:00Z"}
    subject.json                 {"format": 1, "topic": "orders", "channel": "spark"}

Listing a log is enough to know how many rows it holds. Names that begin with a dot are temporary: only the
process that creates them uses them. An old log without ``subject.json`` gets one from its next user.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nsq.errors import WalForeign

if TYPE_CHECKING:
    from nsq.spark.receiver.protocol import Status


class Position(NamedTuple):
    """All segments of a receiver through number ``segment``, plus the first ``rows`` rows of the next one."""

    segment: int = 0
    rows: int = 0


class Segment(NamedTuple):
    """A sealed file; sorts by receiver and number. ``bytes`` is the size of all bodies, not of the file."""

    receiver: str
    number: int
    rows: int
    bytes: int


class SegmentFile(NamedTuple):
    """A segment with the size and modification time of its file, in seconds since 1970."""

    segment: Segment
    size: int
    modified: float


class ReceiverFolder(NamedTuple):
    """The folder of one receiver, dead or alive."""

    receiver: str
    alive: bool  # the receiver holds its lock, or changes its manifest
    open_bytes: int  # size of the file that is not sealed yet
    segments: int
    status: Status | None = None  # its own report; in a directory, while it is alive
    closed: bool = True  # in an object store: it has said that it ends, or was found dead

    @property
    def needs_recovery(self) -> bool:
        """Whether ``recover`` has work to do once the receiver is dead."""
        return bool(self.open_bytes) or not self.closed


class Listing(NamedTuple):
    """What is in a log: the segments that were asked for, the receivers, and the bytes of all files."""

    files: list[SegmentFile]
    receivers: list[ReceiverFolder]
    size: int


IDENTITY = "identity.json"
SUBJECT = "subject.json"
LOCK = "lock"

_RECEIVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SEALED = re.compile(r"([0-9]{6,12})-([0-9]{1,12})-([0-9]{1,15})\.arrow")
_OPEN = re.compile(r"([0-9]{6,12})\.open")
_RESERVED = {IDENTITY, SUBJECT, "owner", "owner.json", "readers", "jobs"}


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
    """Whether this can be the name of a receiver's folder."""
    return _RECEIVER.fullmatch(name) is not None and name not in _RESERVED


def open_file(number: int) -> str:
    return f"{number:06d}.open"


def sealed_file(segment: Segment) -> str:
    return f"{segment.number:06d}-{segment.rows}-{segment.bytes}.arrow"


def path_of(segment: Segment) -> str:
    """The path of a segment's file, relative to the root of the log."""
    return f"{segment.receiver}/{sealed_file(segment)}"


def sealed_pattern(number: int) -> str:
    """A glob for the file of a lost segment, whose rows and bytes are unknown."""
    return f"{number:06d}-*.arrow"


def read_open(name: str) -> int | None:
    """The segment number in the name of an open file; None for any other name."""
    found = _OPEN.fullmatch(name)
    return int(found[1]) if found else None


def read_sealed(receiver: str, name: str) -> Segment | None:
    """The segment that the name of a sealed file describes; None for any other name."""
    found = _SEALED.fullmatch(name)
    return Segment(receiver, int(found[1]), int(found[2]), int(found[3])) if found else None


# The content of a log's small files: JSON with a format number


FORMAT = 1
T = TypeVar("T")


def encode(fields: Mapping[str, object]) -> bytes:
    return json.dumps({"format": FORMAT, **fields}).encode() + b"\n"


def decode(text: bytes, path: str, what: str, read: Callable[[dict[str, Any]], T]) -> T:
    """Parse a file and pass its fields to ``read``. Raises WalForeign when this version cannot read it."""
    try:
        found = json.loads(text)
        version = found["format"]
        if not isinstance(version, int):
            raise TypeError
        if version <= FORMAT:
            return read(found)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WalForeign(f"{path} {what}: {text[:60]!r}") from None
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
