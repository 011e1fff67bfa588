"""A write-ahead log: receivers on any hosts write it, and queries read it.

    <wal>/identity.json                     the log's unique id, which Spark's checkpoint remembers
    <wal>/subject.json                      the log's topics and channel
    <wal>/m/<receiver>.json, p/…            the manifests of the receivers; see ``manifest``
    <wal>/s/<receiver>/000000001.arrow      a segment
    <wal>/readers/<name>.json               how far a query has committed, and which process it is
    <wal>/jobs/<job>.json                   receivers that run as a job of Spark stop when there is one
    <wal>/jobs/<job>/<who>.json             why one of them, or the driver, fails

Each start of a receiver has a name of its own. It puts segments, which never change and which queries read
until they are deleted, then names them in the head of its manifest, and only then finishes their messages. A
receiver's segments are numbered from 1 without gaps, so "everything up to segment 7 of that receiver" is a
position.

One listing of the heads tells which of them changed; segments are never listed to plan a batch. Receivers
delete their own segments, behind the positions of all readers. Where the store has locks, a receiver holds
its head, and is dead when no process holds it. Elsewhere a receiver is dead whose head has not changed for a
minute, by the clock of the process that looks. That process closes the manifest, and then queries delete what
the receiver has left. A receiver that was only suspended finds its head changed, and starts again under a new
name; nothing is lost by that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from nsq.errors import SegmentLost, WalError, WalForeign, WalOwned
from nsq.log import Logger
from nsq.spark.wal import manifest, names, ownership, readers, records
from nsq.spark.wal.claim import LEAVING_PATIENCE, SILENCE, Claim, owned_message, owner_in
from nsq.spark.wal.manifest import Head, Row
from nsq.spark.wal.names import Listing, Position, ReceiverState, Segment, SegmentFile, Subject
from nsq.spark.wal.objects import Conflict, Entry, Objects, Raced, create, refuse_unconditional, replace
from nsq.spark.wal.ownership import FileLock, Owner
from nsq.spark.wal.readers import ReaderState, check_reader, deletable
from nsq.spark.wal.receiver_log import ReceiverLog

T = TypeVar("T")

_logger = Logger("nsq.spark.wal")

#: Without locks: a receiver seems dead when its head has not changed for so many seconds; its heartbeat is
#: every ten. It is declared dead if that is still so a while later: if the store was away, or this process
#: suspended, receivers have had no chance to change anything.
DEAD, CONFIRMED = 60.0, 15.0
#: The search for objects that no manifest names takes this many at a time, and pauses in between, in seconds.
ORPHANS_AT_ONCE, ORPHANS_EVERY = 1000, 60.0
#: Requests under way at once.
THREADS = 32
_NAP, _LOCK_NAP = 0.5, 0.1
#: To look whether a lock is free holds it for an instant: a process tries for at least so many seconds.
_LEAST_PATIENCE = 0.25
#: How often the log is prepared at most, when the store refuses to decide between two requests.
_PREPARATIONS = 5
#: Seconds in which an error of a job's receivers is noted again; one that is three times as old is over.
NOTED_EVERY = 60.0
_JOBS = "jobs"


class _KnownHead(NamedTuple):
    """A head as last read. ``since``: since when, on our clock, it has not changed. ``suspected``: when it
    seemed dead for the first time; None while it does not. ``held``: whether its receiver holds it; None
    where the store has no locks.
    """

    tag: str
    head: Head
    since: float
    suspected: float | None = None
    held: bool | None = None


class Wal:
    """A log below the root of a store. For one thread, except for ``read``, ``readers``, ``measure`` and
    ``job_errors``."""

    def __init__(
        self,
        store: Objects,
        location: str,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        nap: Callable[[float], None] = time.sleep,
    ) -> None:
        self.location = location
        self._store = store
        self._now = now
        self._clock = clock
        self._nap = nap
        self._known: dict[str, _KnownHead] = {}  # by receiver
        self._pages: dict[tuple[str, int], list[Row]] = {}
        self._claims: dict[str, Claim] = {}
        self._states: dict[str, tuple[str, ReaderState]] = {}  # by reader, with the tag
        self._searched = clock()
        self._searched_to = ""  # the last object of the search for orphans

    # What the log is for

    def prepare(self, subject: Subject | None = None) -> str:
        """Create the log if it does not exist; return its identity. Raises WalForeign when the log has
        another ``subject``; a log without a subject gets this one.
        """
        for _ in range(_PREPARATIONS - 1):
            try:
                return self._prepare(subject)
            except Raced:
                self._nap(_NAP)
        return self._prepare(subject)

    def _prepare(self, subject: Subject | None) -> str:
        place = self._store.path("")
        if self.identity() is None:
            # If the place is not empty, another process may just have created the log: look again.
            used = any(not entry.name.startswith(".") for entry in self._store.list_after("", most=1000))
            if used and self.identity() is None:
                raise WalForeign(f"{place} is not a log, and not empty: choose another folder")
            refuse_unconditional(self._store)
            with contextlib.suppress(Conflict):  # another process was first
                create(self._store, names.IDENTITY, names.encode_identity(uuid.uuid4().hex, self._now()))
        if subject is not None:
            there = self.subject()
            subject.check(there, place)
            if there is None:
                with contextlib.suppress(Conflict):
                    create(self._store, names.SUBJECT, names.encode_subject(subject))
            elif subject.changes(there):
                self._put(names.SUBJECT, names.encode_subject(subject))
            subject.check(self.subject(), place)
        return self.identity() or ""

    def identity(self) -> str | None:
        """The log's identity; None when there is no log yet."""
        return self._read(names.IDENTITY, names.decode_identity)

    def subject(self) -> Subject | None:
        """The log's subject; None until a query or receiver has used the log."""
        return self._read(names.SUBJECT, names.decode_subject)

    def _read(self, name: str, decode: Callable[[bytes, str], T]) -> T | None:
        found = self._store.get(name)
        return None if found is None else decode(found.data, self._store.path(name))

    def _put(self, name: str, data: bytes) -> None:
        """Write an object, whatever is there."""
        try:
            create(self._store, name, data)
        except Conflict:
            if (found := self._store.get(name)) is not None:
                replace(self._store, name, data, found.tag)

    # Receivers that run as a job of Spark: they and the driver meet only in the log, and leave objects there

    def request_stop(self, job: str) -> None:
        """Have the receivers of a job stop."""
        self._put(f"{_JOBS}/{job}.json", names.encode({"stop": True}))

    def stop_requested(self, job: str) -> bool:
        return self._store.get(f"{_JOBS}/{job}.json") is not None

    def note_error(self, job: str, who: str, error: str) -> None:
        """Leave word why a receiver of a job, or all of them, fail; an empty ``error`` takes it back. Must be
        repeated every ``NOTED_EVERY`` seconds."""
        name = f"{_JOBS}/{job}/{who}.json"
        if error:
            self._put(name, names.encode({"error": error, "noted": self._now()}))
        else:
            self._store.delete_many([name])

    def job_errors(self, job: str = "") -> list[str]:
        """The errors that were noted lately, of one job or of all. Any thread may ask."""
        prefix = f"{_JOBS}/{job}/" if job else f"{_JOBS}/"
        errors = []
        for entry in self._store.list_after(prefix):
            if entry.name.count("/") == 2 and self._now() - entry.modified < 3 * NOTED_EVERY:
                read = self._read(entry.name, _error_in)
                errors += [read] if read else []
        return list(dict.fromkeys(errors))

    def forget_job(self, job: str) -> None:
        noted = self._store.list_after(f"{_JOBS}/{job}/")
        self._store.delete_many([f"{_JOBS}/{job}.json", *(entry.name for entry in noted)])

    # Receivers

    def log(self, receiver: str) -> ReceiverLog:
        """Create a receiver's log. The name must be new: ``names.new_receiver`` makes one."""
        if not names.is_receiver(receiver):
            raise WalError(f"{receiver!r} is not a valid receiver name: take one from names.new_receiver()")
        if self.identity() is None:
            raise WalError(f"{self._store.path('')} is not a log yet: prepare it first")
        return ReceiverLog(self._store, receiver, now=self._now)

    def measure(self, log: ReceiverLog, limit: int) -> tuple[int, int]:
        """Delete of a receiver's log what all readers have committed; return the bytes that it holds, and the
        most that it may hold: an even share of ``limit`` for each living receiver."""
        entries = self._store.list_after(manifest.HEADS)
        newest = max((entry.modified for entry in entries), default=0.0)
        living = 0
        for entry in entries:
            held = self._store.is_held(entry.name)
            living += newest - entry.modified < DEAD if held is None else held
        share = limit // max(1, living)
        files = log.files()
        # On a full disk, retention keeps nothing.
        most = 0 if log.full else share // 2
        gone = deletable(files, list(self.readers().values()), now=self._now(), most=most)
        log.trim(gone[-1].number + 1 if gone else 1)
        return sum(file.size for file in files), share

    # Planning

    def listing(self, after: Mapping[str, Position] | None = None, known: Collection[str] = ()) -> Listing:
        """Describe the log: only the segments ``after`` these positions; without positions, all. A store may
        list new receivers late, but not the ``known`` ones."""
        self._look(known)
        heads = [known.head for _, known in sorted(self._known.items())]
        return Listing(self._files(heads, after or {}), self._described(), sum(head.size for head in heads))

    def _files(self, heads: Sequence[Head], after: Mapping[str, Position]) -> list[SegmentFile]:
        lows = {head.receiver: max(head.first - 1, _committed(after, head.receiver)) for head in heads}
        self._get_pages(
            (head.receiver, page.first) for head in heads for page in head.pages_after(lows[head.receiver])
        )
        files: list[SegmentFile] = []
        for head in heads:
            low = lows[head.receiver]
            for page in head.pages_after(low):
                rows = self._pages.get((head.receiver, page.first), [])
                files += manifest.files(head.receiver, page.first, rows, low)
            files += head.files_of_tail(low)
        return files

    def _look(self, expected: Collection[str] = ()) -> None:
        """Read the heads that have changed, and those ``expected`` that are not listed."""
        entries = self._store.list_after(manifest.HEADS)
        newest = max((entry.modified for entry in entries), default=0.0)
        listed, age = {}, {}
        for entry in entries:
            receiver = manifest.receiver_of(entry.name)
            if receiver:
                listed[receiver] = entry.tag
                age[receiver] = newest - entry.modified  # at least, by the store's clock
        before = self._known
        changed = [one for one, tag in listed.items() if one not in before or before[one].tag != tag]
        # These are deleted, unless the store lists them late.
        changed += (before.keys() | set(expected)) - listed.keys()
        now = self._clock()
        found = dict(zip(changed, self._each(self._read_head, changed), strict=True))
        known = dict(before)
        for receiver, read in found.items():
            if read is None:
                known.pop(receiver, None)
            elif receiver not in known or known[receiver].tag != read[1]:
                since = now if receiver in before else now - age.get(receiver, 0.0)
                known[receiver] = _KnownHead(read[1], read[0], since)
        for receiver, one in known.items():
            held = None if one.head.closed else self._store.is_held(manifest.head_name(receiver))
            seems_dead = now - one.since >= DEAD if held is None else not held
            suspected = None if not seems_dead else now if one.suspected is None else one.suspected
            known[receiver] = one._replace(held=held, suspected=suspected)
        self._known = known

    def _read_head(self, receiver: str) -> tuple[Head, str] | None:
        name = manifest.head_name(receiver)
        found = self._store.get(name)
        return (
            None if found is None else (manifest.decode_head(found.data, self._store.path(name)), found.tag)
        )

    def _get_pages(self, pages: Iterable[tuple[str, int]]) -> None:
        """Read these pages, and forget others: those of the living may be many. A dead receiver's are needed
        again and again, until all its segments are deleted.
        """
        wanted = set(pages)
        missing = sorted(wanted - self._pages.keys())
        kept = wanted | {(head.receiver, page.first) for head in self._left() for page in head.pages}
        self._pages = {one: rows for one, rows in self._pages.items() if one in kept}

        def get(one: tuple[str, int]) -> list[Row] | None:
            name = manifest.page_name(*one)
            found = self._store.get(name)
            return None if found is None else manifest.decode_page(found.data, self._store.path(name))

        for one, rows in zip(missing, self._each(get, missing), strict=True):
            if rows is not None:  # else its receiver has deleted it: all readers have committed it
                self._pages[one] = rows

    def _each(self, call: Callable[[Any], Any], listed: Sequence[Any]) -> list[Any]:
        if len(listed) < 2:
            return [call(one) for one in listed]
        with ThreadPoolExecutor(min(THREADS, len(listed)), "nsq-wal-get") as pool:
            return list(pool.map(call, listed))

    def _described(self) -> list[ReceiverState]:
        return [
            ReceiverState(
                receiver,
                not known.head.closed and known.suspected is None,
                known.head.count,
                known.head.status,
                known.head.closed,
                known.head.first,
                known.head.deleted,
            )
            for receiver, known in sorted(self._known.items())
        ]

    def segments(self) -> list[Segment]:
        """All segments, ordered by receiver and number."""
        return [file.segment for file in self.listing().files]

    def files_of_readers(self) -> list[SegmentFile]:
        """The segments that readers delete: those of dead receivers. The others delete their own."""
        return self._files(self._left(), {})

    def _left(self) -> list[Head]:
        """The manifests of dead receivers that have segments."""
        return [
            known.head for _, known in sorted(self._known.items()) if known.head.closed and known.head.count
        ]

    def receivers(self) -> list[ReceiverState]:
        self._look()
        return self._described()

    def read(self, segment: Segment, columns: Collection[str] = records.STORED_COLUMNS) -> pa.RecordBatch:
        """The rows of a segment, with these stored columns. Raises SegmentLost, which names the object."""
        name = manifest.segment_name(segment.receiver, segment.number)
        found = self._store.get(name)
        if found is None:
            raise SegmentLost(f"{self._store.path(name)} is not there")
        return records.decode(pa.py_buffer(found.data), segment.rows, self._store.path(name), columns)

    # The receivers that are dead

    def close_dead(self) -> list[str]:
        """Close the manifests of dead receivers, so that a receiver that was only suspended notices; return
        the names of those receivers. What a manifest does not name was not finished, and nsqd delivers it
        again.
        """
        self._look()
        now, closed = self._clock(), []
        for receiver, known in list(self._known.items()):
            if known.head.closed or known.suspected is None:
                continue
            if known.held is None and now - known.suspected < CONFIRMED:
                continue
            if self._close(known, known.head):
                _logger.warning("receiver %s is dead", receiver)
                closed.append(receiver)
        return closed

    def _close(self, known: _KnownHead, head: Head) -> bool:
        """Write the head of another process's manifest, closed; False when that process has changed it
        meanwhile."""
        new = dataclasses.replace(head, writer=uuid.uuid4().hex, closed=True, beat=head.beat + 1)
        name = manifest.head_name(head.receiver)
        try:
            tag = replace(self._store, name, manifest.encode_head(new), known.tag)
        except Conflict:
            return False
        self._known[head.receiver] = _KnownHead(tag, new, self._clock())
        return True

    def delete(self, segments: Sequence[Segment]) -> list[Segment]:
        """Delete segments of dead receivers; the others delete their own. Returns those that are deleted."""
        highest: dict[str, int] = {}
        for segment in segments:
            highest[segment.receiver] = max(highest.get(segment.receiver, 0), segment.number)
        gone: list[Segment] = []
        for receiver, number in highest.items():
            known = self._known.get(receiver)
            if known is None or not known.head.closed:
                continue
            files = self._files([known.head], {})
            newest = max((file.newest for file in files if file.segment.number <= number), default=0)
            if self._close(known, known.head.trimmed(number + 1, newest)):
                numbers = range(known.head.first, number + 1)
                self._store.delete_many(manifest.segment_name(receiver, one) for one in numbers)
                gone += [one for one in segments if one.receiver == receiver]
        return gone

    def discard_empty(self, states: Iterable[ReaderState]) -> None:
        """Forget dead receivers without segments that none of these readers knows: a reader takes a receiver
        that it knows for lost when there is no manifest. Now and then delete objects that no manifest names.
        """
        needed = {receiver for state in states for receiver in state.at}
        for receiver, known in list(self._known.items()):
            if known.head.closed and not known.head.count and receiver not in needed:
                for prefix in (manifest.PAGES, manifest.SEGMENTS):  # those that were never named, too
                    left = self._store.list_after(f"{prefix}{receiver}/")
                    self._store.delete_many(entry.name for entry in left)
                self._store.delete_many([manifest.head_name(receiver)])
                del self._known[receiver]
        if self._clock() - self._searched >= ORPHANS_EVERY:
            self._searched = self._clock()
            listed = self._store.list_after(manifest.SEGMENTS, self._searched_to, ORPHANS_AT_ONCE)
            self._delete_orphans(listed)
            self._searched_to = listed[-1].name if listed else ""

    def delete_orphans(self) -> int:
        """Delete the objects of segments that no manifest names, and none will; return their number. This
        lists the whole log: a request for each 1,000 segments."""
        return self._delete_orphans(self._store.list_after(manifest.SEGMENTS))

    def _delete_orphans(self, listed: Sequence[Entry]) -> int:
        # A receiver writes its head before its first segment. So the heads are read after the segments were
        # listed: a receiver without a head is gone, and not one that has just started.
        self._look()
        heads: dict[str, Head | None] = {one: known.head for one, known in self._known.items()}
        gone = []
        for entry in listed:
            if (found := manifest.segment_of(entry.name)) is None:
                continue
            receiver, number = found
            if receiver not in heads:  # the store may list a head late, but reads it
                read = self._read_head(receiver)
                heads[receiver] = read[0] if read else None
            head = heads[receiver]
            if head is None or number < head.first or (head.closed and number > head.last):
                gone.append(entry.name)
        if gone:
            self._store.delete_many(gone)
            _logger.info("deleted %d objects that no manifest names", len(gone))
        return len(gone)

    # Readers

    def readers(self) -> dict[str, ReaderState]:
        """The states of all readers, past and present, that were not removed."""
        found: dict[str, tuple[str, ReaderState]] = {}
        for entry in self._store.list_after(f"{readers.FOLDER}/"):
            name = readers.name_of(entry.name.rpartition("/")[2])
            if not name:
                continue
            known = self._states.get(name)
            if known is not None and known[0] == entry.tag:
                found[name] = known
            elif (got := self._store.get(entry.name)) is not None:
                found[name] = got.tag, readers.decode(got.data, self._store.path(entry.name))
        self._states = found
        return {name: state for name, (_, state) in found.items() if state.updated}

    def own(self, reader: str, description: str, patience: float) -> Claim:
        """Take a reader's name. Raises WalOwned, with the owner's description, when the owner does not leave
        within ``patience`` seconds (30 s when it has announced that it is leaving). Where the store has no
        locks, it may take 20 s to find out that the owner is dead.
        """
        name = readers.file_of(check_reader(reader))
        owner = ownership.introduce(description)
        started = since = self._clock()
        seen, alive = "", False
        while True:
            hold, locked = self._try_to_hold(name)
            try:
                found = self._store.get(name)
                now = self._clock()
                before = owner_in(found.data) if found else None
                state = readers.decode(found.data, self._store.path(name)) if found else ReaderState()
                if found is not None and found.tag != seen:
                    alive, seen, since = bool(seen), found.tag, now
                if hold is not None or (not locked and (before is None or now - since >= SILENCE)):
                    tag = found.tag if found else None
                    with contextlib.suppress(Conflict):
                        claim = self._claims[reader] = Claim(self._store, reader, owner, state, tag, hold)
                        return claim
            except BaseException:
                if hold is not None:
                    hold.release()
                raise
            if hold is not None:
                hold.release()
            least = max(patience, LEAVING_PATIENCE) if before and before.leaving else patience
            if (locked or alive) and now - started >= max(least, _LEAST_PATIENCE):
                place = self._store.path("")
                raise WalOwned(owned_message(reader, place, before, now - started))
            self._nap(_LOCK_NAP if locked else _NAP)

    def _try_to_hold(self, name: str) -> tuple[FileLock | None, bool]:
        """Hold an object; or None, and whether another process holds it."""
        try:
            return self._store.hold(name), False
        except Conflict:
            return None, True

    def owner(self, reader: str) -> Owner | None:
        """The process that reads under this name; None when none does, or, where the store has no locks, it
        has been silent for long."""
        name = readers.file_of(reader)
        held = self._store.is_held(name)
        found = self._store.get(name)
        if found is None or held is False:
            return None
        if held is None:
            entries = self._store.list_after(f"{readers.FOLDER}/")
            written = next((entry.modified for entry in entries if entry.name == name), None)
            if written is None or self._now() - written > 3 * SILENCE:
                return None
        return owner_in(found.data)

    def save_reader(self, reader: str, state: ReaderState) -> None:
        """Save the state of a reader whose name this process owns; durable on return."""
        self._claims[reader].save(state)

    def remove_reader(self, reader: str) -> None:
        """Forget a reader whose name this process owns, so that it no longer prevents the deletion of
        segments."""
        self._claims.pop(reader).abandon("it was removed")
        self._store.delete_many([readers.file_of(reader)])


def _error_in(data: bytes, path: str) -> str:
    return names.decode(data, path, "is not an error of a job", lambda found: str(found["error"]))


def _committed(after: Mapping[str, Position], receiver: str) -> int:
    return after.get(receiver, Position()).segment
