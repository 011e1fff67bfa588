"""Inspects and cleans logs, for ``nsq-spark wal ls``, ``verify`` and ``gc``.

These functions return data and print nothing. None of them disturbs a running query.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import NamedTuple

from nsq.errors import SegmentLost, UsageError, WalError
from nsq.spark.wal import records
from nsq.spark.wal.log import CONFIRMED, Wal
from nsq.spark.wal.names import Segment
from nsq.spark.wal.readers import DEFAULT, lost
from nsq.spark.wal.store import open_wal, shown


class ReceiverLine(NamedTuple):
    """A line of ``wal ls``."""

    receiver: str
    alive: bool
    segments: int
    rows: int
    bytes: int
    oldest_seconds: float | None  # age of its oldest message; None without segments


class ReaderLine(NamedTuple):
    """A reader in ``wal ls``. ``rows`` counts the rows that the reader has not committed; they are kept."""

    reader: str
    owner: str | None
    rows: int
    idle_seconds: float  # since its last commit


class Overview(NamedTuple):
    location: str
    identity: str
    subject: str | None  # topic/channel; None until a query or receiver uses the log
    readers: list[ReaderLine]
    receivers: list[ReceiverLine]


class Verified(NamedTuple):
    """The number of sound segments and their rows, and a line for each problem."""

    segments: int
    rows: int
    problems: list[str]


class Tidied(NamedTuple):
    closed: list[str]  # dead receivers whose manifests were still open
    deleted: list[Segment]
    forgotten: list[str]  # dead receivers without segments
    orphans: int = 0  # objects that no manifest names


def ls(location: str, now: float | None = None) -> Overview:
    """Describe a log."""
    wal, identity = _existing(location)
    files = wal.listing().files
    moment = time.time() if now is None else now
    lines = []
    for each in wal.receivers():
        own = [file for file in files if file.segment.receiver == each.receiver]
        oldest = min((file.oldest for file in own), default=None)
        lines.append(
            ReceiverLine(
                each.receiver,
                each.alive,
                len(own),
                sum(file.segment.rows for file in own),
                sum(file.segment.bytes for file in own),
                None if oldest is None else max(0.0, moment - oldest / 1e9),
            )
        )
    return Overview(shown(location), identity, _text(wal.subject()), readers(location, moment), lines)


def readers(location: str, now: float | None = None) -> list[ReaderLine]:
    """All readers of a log, sorted by name."""
    wal, _ = _existing(location)
    moment, segments = time.time() if now is None else now, wal.segments()
    return [
        ReaderLine(
            name,
            _text(wal.owner(name)),
            sum(segment.rows for segment in segments if not state.has_committed(segment)),
            max(0.0, moment - state.updated),
        )
        for name, state in sorted(wal.readers().items())
    ]


def remove_reader(location: str, reader: str) -> None:
    """Forget a reader, so that its unread segments can be deleted. Raises WalOwned while the reader runs."""
    wal, _ = _existing(location)
    if reader not in wal.readers():
        there = ", ".join(sorted(wal.readers())) or "none"
        raise UsageError(f"the log {shown(location)} has no reader {reader!r}; there are: {there}")
    claim = wal.own(reader, "nsq-spark wal ls --remove", 0.0)
    try:
        wal.remove_reader(reader)
    finally:
        claim.release()


def verify(location: str) -> Verified:
    """Read all segments and check their checksums, and that readers lack nothing. Skips segments that a query
    deletes meanwhile."""
    wal, _ = _existing(location)
    states = wal.readers()  # before the listing: what is deleted in between is committed
    listing = wal.listing(known={receiver for state in states.values() for receiver in state.at})
    listed = [file.segment for file in listing.files]
    problems = _holes(listed)
    for name, state in sorted(states.items()):
        problems += [f"reader {name!r} lacks {what}" for what in lost(state.at, listing.receivers)]
    good = rows = 0
    for segment in listed:
        try:
            size = records.body_bytes(wal.read(segment))
        except SegmentLost as error:
            if segment in wal.segments():
                problems.append(str(error))
            continue
        good, rows = good + 1, rows + segment.rows
        if size != segment.bytes:
            problems.append(f"{segment}: its bodies have {size} bytes")
    return Verified(good, rows, problems)


def gc(location: str, force: bool = False) -> Tidied:
    """Close the manifests of dead receivers, and forget those without segments. ``force`` also deletes all
    segments of dead receivers, read or not; it raises WalOwned while a query runs.
    """
    wal, _ = _existing(location)
    closed = wal.close_dead()
    if any(not each.alive and not each.closed for each in wal.receivers()):
        time.sleep(CONFIRMED)  # without locks, a receiver is found dead by two looks
        closed += wal.close_dead()
    deleted: list[Segment] = []
    if force:
        claims = []
        try:
            for name in wal.readers() or (DEFAULT,):
                claims += [wal.own(name, "nsq-spark wal gc", 0.0)]
            dead = {each.receiver for each in wal.receivers() if not each.alive}
            deleted = [segment for segment in wal.segments() if segment.receiver in dead]
            wal.delete(deleted)
        finally:
            for claim in claims:
                claim.release()
    before = {each.receiver for each in wal.receivers()}
    wal.discard_empty(wal.readers().values())
    orphans = wal.delete_orphans()
    return Tidied(closed, deleted, sorted(before - {each.receiver for each in wal.receivers()}), orphans)


def _existing(location: str) -> tuple[Wal, str]:
    """Open a log; raise WalError when there is none."""
    wal = open_wal(location)
    identity = wal.identity()
    if identity is None:
        raise WalError(f"there is no log at {shown(location)}")
    return wal, identity


def _text(one: object | None) -> str | None:
    return None if one is None else str(one)


def _holes(segments: Iterable[Segment]) -> list[str]:
    """Report gaps: segments are deleted from the front, so the remaining numbers must be consecutive."""
    found = []
    for receiver, own in itertools.groupby(segments, key=lambda segment: segment.receiver):
        for one, two in itertools.pairwise(own):
            if two.number != one.number + 1:
                found.append(f"{receiver}: segment {one.number} is followed by {two.number}")
    return found
