"""The readers of a log, how far each one has committed, and which segments may be deleted.

A log can have several readers: queries, or the two sides of a join, each under its own name. A segment stays
until every reader has committed it, and then for ``retention``. Pure: no I/O.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nsq.errors import ConfigError
from nsq.spark.wal import names
from nsq.spark.wal.names import Position, Segment, SegmentFile

FOLDER = "readers"
DEFAULT = "default"
#: The most segments that retention keeps: the pages of a manifest name all of them.
MOST_SEGMENTS = 200_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ReaderState(NamedTuple):
    """How far a reader is. ``at`` is what Spark has committed. ``begun``: a batch was planned, so a
    checkpoint holds an offset. ``starting`` is the option that chose the start; ``updated`` is Unix time.
    ``retention``, in seconds, and ``retention_bytes`` are what this reader wants the log to keep.
    """

    at: Mapping[str, Position] = {}
    begun: bool = False
    starting: str = ""
    updated: float = 0.0
    retention: float = 0.0
    retention_bytes: int = 0

    def has_committed(self, segment: Segment) -> bool:
        """Whether the reader has committed all rows of a segment."""
        return segment.number <= self.at.get(segment.receiver, Position()).segment


def check_reader(name: str) -> str:
    """Return a valid reader name; raises ConfigError for others."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "the name of a reader has at most 100 letters, digits, '.', '_' or '-', and begins with a letter "
            "or digit"
        )
    return name


def file_of(name: str) -> str:
    return f"{FOLDER}/{name}.json"


def name_of(file: str) -> str | None:
    """The reader whose state this file holds; None for other files below ``readers``."""
    name = file.removesuffix(".json")
    return name if name != file and _NAME.fullmatch(name) else None


def encode(state: ReaderState, **more: object) -> bytes:
    at = {receiver: list(state.at[receiver]) for receiver in sorted(state.at)}
    updated = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(state.updated))
    return names.encode({**state._asdict(), "at": at, "time": updated, **more})


def decode(text: bytes, path: str) -> ReaderState:
    def read(found: dict[str, Any]) -> ReaderState:
        at = {str(name): Position(int(one), int(rows)) for name, (one, rows) in found["at"].items()}
        return ReaderState(
            at,
            bool(found["begun"]),
            str(found["starting"]),
            float(found["updated"]),
            float(found.get("retention", 0.0)),
            int(found.get("retention_bytes", 0)),
        )

    return names.decode(text, path, "is not the position of a reader", read)


def deletable(
    files: Iterable[SegmentFile],
    readers: Iterable[ReaderState],
    *,
    now: float,
    most: int,
) -> list[Segment]:
    """The segments that every reader has committed, except those that retention keeps: younger than the
    longest retention that any reader wants, and within the newest bytes that any wants, at most ``most``, and
    the newest MOST_SEGMENTS. Without readers nothing may be deleted.
    """
    states = list(readers)
    retention = max((state.retention for state in states), default=0.0)
    retention_bytes = min(most, max((state.retention_bytes for state in states), default=0))
    done = [file for file in files if states and all(one.has_committed(file.segment) for one in states)]
    last: dict[str, int] = {}  # highest number to delete per receiver: its segments are deleted in order
    kept = 0  # bytes of the newest segments, which come first
    newest = sorted(done, key=lambda one: (one.modified, one.segment), reverse=True)
    for count, file in enumerate(newest, 1):
        kept += file.size
        too_much = kept > retention_bytes or count > MOST_SEGMENTS
        if last or too_much or retention <= 0 or now - file.modified >= retention:
            receiver, number, *_ = file.segment
            last[receiver] = max(last.get(receiver, 0), number)
    return sorted(file.segment for file in done if file.segment.number <= last.get(file.segment.receiver, 0))
