"""A write-ahead log in an object store, which receivers on many hosts write and queries read:

    <wal>/identity.json, subject.json       as in ``store``
    <wal>/m/<receiver>.json, p/…            the manifests of the receivers; see ``manifest``
    <wal>/s/<receiver>/000000001.arrow      a segment
    <wal>/readers/<name>.json               how far a query has committed, and which process it is
    <wal>/jobs/<name>.json                  receivers that run as a job of Spark stop when there is one

One request lists the manifests and tells which of them changed; segments are never listed to plan a batch.
Receivers delete their own segments, behind the positions of all readers. A receiver whose head has not
changed for a minute, by the clock of the process that looks, is dead: that process closes its manifest, and
then queries delete what it has left. A receiver that was only suspended finds its head changed, and starts
again under a new name; nothing is lost by that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow as pa

from nsq.errors import SegmentLost, WalError, WalOwned
from nsq.log import Logger
from nsq.spark.wal import manifest, names, ownership, readers, records
from nsq.spark.wal.manifest import Head, Row
from nsq.spark.wal.names import Listing, Position, ReceiverFolder, Segment, SegmentFile
from nsq.spark.wal.objects import (
    Bucket,
    Conflict,
    Entry,
    Objects,
    Raced,
    create,
    refuse_unconditional,
    replace,
)
from nsq.spark.wal.ownership import LEAVING_PATIENCE, Owner
from nsq.spark.wal.readers import ReaderState, check_reader, deletable
from nsq.spark.wal.shared_log import SharedLog
from nsq.spark.wal.store import BaseWal

_logger = Logger("nsq.spark.wal")

#: A receiver seems dead when its head has not changed for so many seconds; its heartbeat is every ten. It is
#: declared dead if that is still so a while later: if the store was away, or this process suspended,
#: receivers have had no chance to change anything.
DEAD, CONFIRMED = 60.0, 15.0
#: A query writes its position at least so often, and has ended when it was silent for so long.
BEAT, SILENCE = 5.0, 20.0
#: The search for objects that no manifest names takes this many at a time, and pauses in between, in seconds.
ORPHANS_AT_ONCE, ORPHANS_EVERY = 1000, 60.0
#: Requests under way at once.
THREADS = 32
_NAP = 0.5
#: How often the log is prepared at most, when the store refuses to decide between two requests.
_PREPARATIONS = 5
_JOIN = 30.0


class _KnownHead(NamedTuple):
    """A head as last read. ``since``: since when, on our clock, it has not changed. ``suspected``: when it
    seemed dead for the first time; None while it does not.
    """

    tag: str
    head: Head
    since: float
    suspected: float | None = None


class SharedWal(BaseWal):
    """A log below the root of a store. For one thread, except for ``read``, ``readers`` and ``measure``."""

    def __init__(
        self,
        store: Objects,
        location: str,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        nap: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(_SmallFiles(store), location)
        self._store = store
        self._now = now
        self._clock = clock
        self._nap = nap
        self._known: dict[str, _KnownHead] = {}  # by receiver
        self._pages: dict[tuple[str, int], list[Row]] = {}
        self._claims: dict[str, SharedClaim] = {}
        self._states: dict[str, tuple[str, ReaderState]] = {}  # by reader, with the tag
        self._searched = clock()
        self._searched_to = ""  # the last object of the search for orphans

    @classmethod
    def at(cls, uri: str) -> SharedWal:
        return cls(Bucket(uri), uri)

    def prepare(self, subject: names.Subject | None = None) -> str:
        for _ in range(_PREPARATIONS - 1):
            try:
                return self._prepare(subject)
            except Raced:
                self._nap(_NAP)
        return self._prepare(subject)

    def _prepare(self, subject: names.Subject | None) -> str:
        if self.identity() is None:
            refuse_unconditional(self._store)
        return super().prepare(subject)

    def log(self, receiver: str) -> SharedLog:
        self._check_name(receiver)  # ``SharedLog`` itself finds out whether the name is new
        return SharedLog(self._store, receiver, now=self._now)

    # Planning

    def listing(self, after: Mapping[str, Position] | None = None) -> Listing:
        """Describe the log: only the segments ``after`` these positions; without positions, all."""
        self._look()
        heads = [known.head for _, known in sorted(self._known.items())]
        return Listing(self._files(heads, after or {}), self._folders(), sum(head.size for head in heads))

    def _files(self, heads: Sequence[Head], after: Mapping[str, Position]) -> list[SegmentFile]:
        lows = {head.receiver: max(head.first - 1, _read(after, head.receiver)) for head in heads}
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

    def _look(self) -> None:
        """Read the heads that have changed."""
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
        changed += before.keys() - listed.keys()  # they are deleted, unless the store lists them late
        now = self._clock()
        found = dict(zip(changed, self._each(self._read_head, changed), strict=True))
        known = dict(before)
        for receiver, read in found.items():
            if read is None:
                known.pop(receiver, None)
            elif receiver not in known or known[receiver].tag != read[1]:
                since = now if receiver in before else now - age[receiver]
                known[receiver] = _KnownHead(read[1], read[0], since)
        for receiver, one in known.items():
            if one.suspected is None and now - one.since >= DEAD:
                known[receiver] = one._replace(suspected=now)
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

    def _folders(self) -> list[ReceiverFolder]:
        now = self._clock()
        return [
            ReceiverFolder(
                receiver,
                not known.head.closed and now - known.since < DEAD,
                0,
                known.head.count,
                known.head.status,
                known.head.closed,
            )
            for receiver, known in sorted(self._known.items())
        ]

    def segments(self) -> list[Segment]:
        return [file.segment for file in self.files()]

    def files(self) -> list[SegmentFile]:
        return self.listing().files

    def files_of_readers(self) -> list[SegmentFile]:
        """The segments that readers delete: those of dead receivers. The others delete their own."""
        return self._files(self._left(), {})

    def _left(self) -> list[Head]:
        """The manifests of dead receivers that have segments."""
        return [
            known.head for _, known in sorted(self._known.items()) if known.head.closed and known.head.count
        ]

    def receivers(self) -> list[ReceiverFolder]:
        self._look()
        return self._folders()

    def read(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        name = manifest.segment_name(segment.receiver, segment.number)
        found = self._store.get(name)
        if found is None:
            raise SegmentLost(f"{self._store.path(name)} is not there")
        return records.decode(pa.py_buffer(found.data), segment.rows, self._store.path(name))

    # The receivers that are dead

    def recover(self) -> list[Segment]:
        """Close the manifests of dead receivers, so that a receiver that was only suspended notices. Returns
        no segments: what a manifest does not name was not finished, and nsqd delivers it again.
        """
        self._look()
        now = self._clock()
        for receiver, known in list(self._known.items()):
            seems_dead = known.suspected is not None and now - known.suspected >= CONFIRMED
            if seems_dead and not known.head.closed:
                _logger.warning("receiver %s is dead: it was silent for %d s", receiver, now - known.since)
                self._close(known, known.head)
        return []

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
            if self._close(known, known.head.trimmed(number + 1)):
                numbers = range(known.head.first, number + 1)
                self._store.delete_many(manifest.segment_name(receiver, one) for one in numbers)
                gone += [one for one in segments if one.receiver == receiver]
        return gone

    def discard_empty(self) -> None:
        """Forget dead receivers without segments, and now and then delete objects that no manifest names."""
        for receiver, known in list(self._known.items()):
            if known.head.closed and not known.head.count:
                pages = [entry.name for entry in self._store.list_after(f"{manifest.PAGES}{receiver}/")]
                self._store.delete_many([*pages, manifest.head_name(receiver)])
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

    # A receiver's own share

    def measure(self, logs: Sequence[SharedLog], limit: int) -> tuple[int, int]:
        """Delete of these logs what all readers have committed; return the bytes that they hold, and the most
        that they may hold: an even share of ``limit`` for each receiver of the log."""
        sharing = max(len(logs), len(self._store.list_after(manifest.HEADS)))
        share = limit * len(logs) // max(1, sharing)
        states, now = list(self.readers().values()), self._now()
        held = 0
        for log in logs:
            files = log.files()
            gone = deletable(files, states, now=now, most=share // max(1, 2 * len(logs)))
            log.trim(gone[-1].number + 1 if gone else 1)
            held += sum(file.size for file in files)
        return held, share

    # Readers

    def readers(self) -> dict[str, ReaderState]:
        entries = [
            (entry, readers.name_of(entry.name.rpartition("/")[2])) for entry in self._listed_readers()
        ]
        found: dict[str, tuple[str, ReaderState]] = {}
        for entry, name in entries:
            if not name:
                continue
            known = self._states.get(name)
            if known is not None and known[0] == entry.tag:
                found[name] = known
            elif (got := self._store.get(entry.name)) is not None:
                found[name] = got.tag, readers.decode(got.data, self._store.path(entry.name))
        self._states = found
        return {name: state for name, (_, state) in found.items() if state.updated}

    def _listed_readers(self) -> list[Entry]:
        return self._store.list_after(f"{readers.FOLDER}/")

    def own(self, reader: str, description: str, patience: float) -> SharedClaim:
        """Take a reader's name. Raises WalOwned when a process that has it is alive, which may take 20 s to
        find out, and does not leave within ``patience`` seconds."""
        name = readers.file_of(check_reader(reader))
        owner = ownership.introduce(description)
        started = since = self._clock()
        seen, alive = "", False
        while True:
            found = self._store.get(name)
            now = self._clock()
            if found is None:
                before, state = None, ReaderState()
            else:
                before, state = _owner_in(found.data), readers.decode(found.data, self._store.path(name))
                if found.tag != seen:
                    alive, seen, since = bool(seen), found.tag, now
            if before is None or now - since >= SILENCE:
                try:
                    claim = SharedClaim(self._store, reader, owner, state, found.tag if found else None)
                except Conflict:
                    continue
                self._claims[reader] = claim
                return claim
            if alive and now - started >= (max(patience, LEAVING_PATIENCE) if before.leaving else patience):
                place = self._store.path("")
                raise WalOwned(ownership.owned_message(reader, place, before, now - started))
            self._nap(_NAP)

    def owner(self, reader: str) -> Owner | None:
        """The process that reads under this name; None when none does, or it has been silent for long."""
        name = readers.file_of(reader)
        written = next((entry.modified for entry in self._listed_readers() if entry.name == name), None)
        found = self._store.get(name)
        if found is None or written is None or self._now() - written > 3 * SILENCE:
            return None
        return _owner_in(found.data)

    def save_reader(self, reader: str, state: ReaderState) -> None:
        """Save the state of a reader whose name this process owns."""
        self._claims[reader].save(state)

    def remove_reader(self, reader: str) -> None:
        self._claims.pop(reader).abandon("it was removed")
        super().remove_reader(reader)


def _read(after: Mapping[str, Position], receiver: str) -> int:
    return after.get(receiver, Position()).segment


def _owner_in(data: bytes) -> Owner | None:
    found = json.loads(data).get("owner")
    return ownership.decode(found) if found else None


class SharedClaim:
    """A reader's name, owned by this process until ``release``. Its thread writes the object every five
    seconds, so that other processes see that this one is alive. Only one process can write it: the others
    know another tag.
    """

    def __init__(
        self, store: Objects, reader: str, owner: Owner, state: ReaderState, tag: str | None
    ) -> None:
        self._store = store
        self._name = readers.file_of(reader)
        self._token = uuid.uuid4().hex
        self._lock = threading.RLock()  # one write at a time
        self._owner: Owner | None = owner
        self._state = state
        self._beat = 0
        self._lost = ""
        data = self._encoded()
        self._tag = create(store, self._name, data) if tag is None else replace(store, self._name, data, tag)
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # safe in a signal handler; True: the end
        self._thread = threading.Thread(target=self._run, name=f"nsq-wal-reader-{reader}", daemon=True)
        self._thread.start()

    def _encoded(self) -> bytes:
        self._beat += 1
        owner = self._owner._asdict() if self._owner else None
        return readers.encode(self._state, owner=owner, token=self._token, beat=self._beat)

    def save(self, state: ReaderState) -> None:
        """Write the position; durable on return."""
        with self._lock:
            self._state = state
            self._write()

    def _write(self) -> None:
        with self._lock:
            self.check()
            data = self._encoded()
            try:
                self._tag = replace(self._store, self._name, data, self._tag)
                return
            except Conflict:
                found = self._store.get(self._name)
            if found is None or json.loads(found.data).get("token") != self._token:
                by = _owner_in(found.data) if found else None
                self._lost = (
                    f"{self._store.path(self._name)}: this reader's name was taken over by "
                    f"{by or 'another process'}, because this process was silent for {SILENCE:g} s; it "
                    "goes on there, and nothing is lost"
                )
                _logger.error("%s", self._lost)
                raise WalOwned(self._lost)
            # An earlier write of ours has succeeded, although it reported an error.
            self._tag = self._store.put_match(self._name, data, found.tag)

    def check(self) -> None:
        """Raise WalOwned when another process has taken the name over."""
        if self._lost:
            raise WalOwned(self._lost)

    def verify(self) -> None:
        """Like ``check``, but asks the store."""
        self._write()

    def leaving(self) -> None:
        """Announce that the name will be free soon; does not wait, so that a signal handler may call it."""
        if self._owner is not None:
            self._owner = self._owner._replace(leaving=True)
            self._wake.put(False)

    def abandon(self, why: str) -> None:
        """Write no more."""
        self._lost = why
        self.release()

    def release(self) -> None:
        """Give the name back; safe to call twice."""
        self._wake.put(True)
        self._thread.join(_JOIN)

    def _run(self) -> None:
        ended = False
        while not ended and not self._lost:
            with contextlib.suppress(queue.Empty):
                ended = self._wake.get(timeout=BEAT)
            if self._lost:
                return
            if ended:
                self._owner = None
            try:
                self._write()
            except WalError as error:
                if not self._lost:
                    _logger.warning("a reader's position cannot be written: %s", error)


class _SmallFiles:
    """The small files of ``BaseWal`` as objects."""

    def __init__(self, store: Objects) -> None:
        self._store = store

    def path(self, name: str) -> str:
        return self._store.path(name)

    def make_folder(self, name: str) -> None:
        """Do nothing: an object store has no folders."""

    def names(self, folder: str) -> list[str]:
        """The names directly in a folder, of its first thousand objects: enough to see if it is empty."""
        prefix = f"{folder}/" if folder else ""
        listed = self._store.list_after(prefix, most=1000)
        return sorted({entry.name[len(prefix) :].partition("/")[0] for entry in listed})

    def get(self, name: str) -> bytes | None:
        found = self._store.get(name)
        return None if found is None else found.data

    def put(self, name: str, data: bytes, *, once: bool = False) -> None:
        """Write an object. ``once`` keeps one that exists."""
        try:
            create(self._store, name, data)
        except Conflict:
            if not once and (found := self._store.get(name)) is not None:
                replace(self._store, name, data, found.tag)

    def delete(self, name: str) -> None:
        self._store.delete_many([name])
