"""A receiver's side of a log (``log.py`` is the other side).

Every start of a receiver has a name of its own, which stands in the name of each of its objects: so two
processes never write the same segment. Several threads put segments at once. One thread
writes the head of the manifest, which names the segments in their order: a message is finished only after
that. If another process has written the head, it has declared this receiver dead: then this log is *broken*,
names nothing more, and the receiver must start again under a new name.

A put is repeated until it succeeds, with the same bytes under the same name, so an answer that was lost does
no harm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from nsq.errors import WalError
from nsq.log import Logger
from nsq.spark.wal import manifest, records
from nsq.spark.wal.disk import DiskFull
from nsq.spark.wal.manifest import Head, Row
from nsq.spark.wal.names import SegmentFile
from nsq.spark.wal.objects import Conflict, Objects, create, replace
from nsq.spark.wal.status import Status

_logger = Logger("nsq.spark.wal")

#: The longest between two writes of the head, in seconds, where the store has no locks: others take a
#: receiver for dead whose head does not change for ``log.DEAD`` seconds.
HEARTBEAT = 10.0
#: Seconds between two looks whether the status has changed, which others find in the head.
STATUS_EVERY = 1.0
#: Pauses between attempts to write an object, in seconds: they double from the first to the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
#: A segment is not put before all but so many earlier ones are named: on a full disk, segments that wait for
#: an earlier one must not take the space that this one needs.
AHEAD = 4
_SEGMENTS, _MANIFEST = "segments", "the manifest"
#: Seconds that the last write of the head gets when the log is closed.
_LAST_WRITE = 10.0
_JOIN = 30.0


class _Put(NamedTuple):
    """A segment whose object exists. ``done`` is called when the manifest names it."""

    row: Row
    done: Callable[[], None]


class ReceiverLog:
    """One receiver's log; thread-safe. ``status`` is called for what the head tells other processes."""

    def __init__(
        self,
        store: Objects,
        receiver: str,
        *,
        now: Callable[[], float] = time.time,
        status: Callable[[], Status] = Status,
    ) -> None:
        self.receiver = receiver
        self.status = status
        self._troubles: dict[str, WalError] = {}  # why segments, or the manifest, cannot be written now
        self.broken = ""  # why this log is at its end
        self.written = 0  # bytes of all objects
        self._store = store
        self._now = now
        self._head = Head(receiver, uuid.uuid4().hex)
        self._files: dict[int, SegmentFile] = {}  # named and not deleted
        self._lock = threading.Lock()  # guards what follows; never held during a request
        self._turns = threading.Condition(self._lock)  # segments are named, or the log is broken
        self._next = 1  # number of the next segment
        self._ready: dict[int, _Put] = {}  # by number: put, and not named yet
        self._trim_to = 1
        self._deleted = 1  # the segments below this number are deleted
        self._old_pages: list[manifest.Page] = []  # that the head does not name any more, and are not deleted
        self._closing = False
        self._ended = threading.Event()  # nothing waits any more
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._name = manifest.head_name(receiver)
        self._hold = store.hold(self._name)  # before others see the head
        try:
            self._tag = create(store, self._name, manifest.encode_head(self._head))
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name=f"nsq-wal-{receiver[-24:]}", daemon=True)
        self._thread.start()

    # Putting segments: any thread

    def put(self, batch: pa.RecordBatch, done: Callable[[], None]) -> None:
        """Put a segment. ``done`` is called, by another thread, when the manifest names it. Raises WalError
        when that will never be.
        """
        data = bytes(records.encode(batch))
        row = Row(batch.num_rows, records.body_bytes(batch), len(data), 0.0, *records.times(batch))
        with self._lock:
            self._check()
            number, self._next = self._next, self._next + 1
            self.written += len(data)
            self._turns.wait_for(lambda: self.broken or number - self._head.last <= AHEAD)
        name = manifest.segment_name(self.receiver, number)
        try:
            put = self._persist(_SEGMENTS, lambda: create(self._store, name, data))
        except BaseException as error:
            self._break(f"{name} cannot be written, and no later segment can be named: {error!r}")
            raise
        if not put:
            raise WalError(self.broken)
        with self._lock:
            self._check()
            self._ready[number] = _Put(row, done)
        self._wake.put(None)

    @property
    def trouble(self) -> str:
        """Why the store cannot be written now; empty when it can."""
        return "; ".join(str(error) for error in list(self._troubles.values()))

    @property
    def full(self) -> bool:
        """Whether the disk is full."""
        return any(isinstance(error, DiskFull) for error in list(self._troubles.values()))

    def _persist(self, what: str, attempt: Callable[[], object]) -> bool:
        """Repeat an attempt until it succeeds; False when the log ends before that. Conflicts pass."""
        pause = FIRST_PAUSE
        while not self.broken:
            try:
                attempt()
            except Conflict:
                raise
            except WalError as error:
                if what not in self._troubles:
                    _logger.error("the log cannot be written: %s", error)
                self._troubles[what] = error
                if self._ended.wait(pause):
                    self._break(f"the receiver stopped while {error}")
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                if self._troubles.pop(what, None):
                    _logger.warning("the log can be written again: %s", what)
                return True
        return False

    def _check(self) -> None:
        if self.broken:
            raise WalError(self.broken)
        if self._closing:
            raise WalError(f"{self._store.path(self._name)}: this log has been closed")

    def _break(self, why: str) -> None:
        with self._lock:
            self.broken = self.broken or why
            self._turns.notify_all()
        self._wake.put(None)

    # Naming them: the thread of the head

    def _run(self) -> None:
        try:
            closing, beat = False, time.monotonic()
            while not closing:
                if not self._is_woken() and not self._is_stale(beat):
                    continue
                closing, beat = self._closing, time.monotonic()
                if not self._write_head(closing):
                    return
        except Conflict as error:
            self._break(f"{error}, which took this receiver for dead: it starts again under a new name")
            _logger.error("%s", self.broken)
        except Exception as error:
            _logger.exception("the manifest of %s cannot be written", self.receiver)
            self._break(f"the manifest of {self.receiver} cannot be written: {error!r}")
        finally:
            self._ended.set()

    def _is_woken(self) -> bool:
        """Wait for something to write, up to ``STATUS_EVERY`` seconds; whether there is something."""
        woken = False
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=STATUS_EVERY)
            woken = True
            while True:  # the next write answers all of them
                self._wake.get_nowait()
        return woken

    def _is_stale(self, beat: float) -> bool:
        """Whether the head of that time says something else than is so, or others could take us for dead."""
        beats = self._hold is None and time.monotonic() - beat >= HEARTBEAT
        return beats or self.status() != self._head.status

    def _write_head(self, closed: bool) -> bool:
        """Write the head with all segments that are put; False when the log ended before that."""
        puts: list[_Put] = []
        with self._lock:
            while put := self._ready.pop(self._head.last + 1 + len(puts), None):
                puts.append(put)
            trim_to = self._trim_to
        named = round(self._now(), 3)
        rows = [put.row._replace(named=named) for put in puts]
        new = manifest.files(self.receiver, self._head.last + 1, rows, 0)
        head = self._head.named(rows)
        while full := head.full_page():
            name, data = manifest.page_name(self.receiver, full[0].first), manifest.encode_page(full[1])
            try:
                create(self._store, name, data)
            except Conflict:
                raise
            except WalError as error:  # perhaps the disk is full, and this head has to say what is deleted
                _logger.info("a page of the manifest has to wait: %s", error)
                break
            head = head.with_page(full[0])
        pages = head.pages
        gone = [file.newest for file in self.files() if file.segment.number < trim_to]
        head = head.trimmed(trim_to, max(gone, default=0))
        head = dataclasses.replace(head, beat=head.beat + 1, status=self.status(), closed=closed)
        if not self._persist(_MANIFEST, functools.partial(self._replace_head, manifest.encode_head(head))):
            return False
        with self._lock:
            self._files |= {file.segment.number: file for file in new}
            for number in [number for number in self._files if number < head.first]:
                del self._files[number]
            self._old_pages += [page for page in pages if page not in head.pages]
            self._head = head
            self._turns.notify_all()
        for put in puts:
            put.done()
        return True

    def _replace_head(self, data: bytes) -> None:
        self._tag = replace(self._store, self._name, data, self._tag)

    # What is in the log, and deleting it

    def files(self) -> list[SegmentFile]:
        """The segments that are named and not deleted, by number."""
        with self._lock:
            return list(self._files.values())

    @property
    def named(self) -> int:
        """The number of segments that the manifest has named."""
        return self._head.last

    @property
    def first(self) -> int:
        """The lowest number that is not deleted."""
        return self._head.first

    def trim(self, first: int) -> None:
        """Delete the segments below ``first``, at the latest with the next call: the head has to say so
        before their objects go. For one thread.
        """
        self._delete_trimmed()
        with self._lock:
            self._trim_to = max(self._trim_to, first)
            waits = self._trim_to > self._head.first
        if waits:
            self._wake.put(None)

    def _delete_trimmed(self) -> None:
        with self._lock:
            head, pages = self._head, list(self._old_pages)
        gone = [manifest.segment_name(self.receiver, number) for number in range(self._deleted, head.first)]
        self._store.delete_many([*gone, *(manifest.page_name(self.receiver, page.first) for page in pages)])
        self._deleted = head.first
        with self._lock:
            self._old_pages = [page for page in self._old_pages if page not in pages]

    # The end

    def close(self, timeout: float = _LAST_WRITE) -> None:
        """Name the segments that are put, and close the manifest. If the store does not answer in time, other
        processes find this receiver dead later.
        """
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._wake.put(None)
        self._thread.join(timeout)
        self._ended.set()
        self._thread.join(_JOIN)
        self._release()
        if not self._head.closed:
            _logger.warning("the end of %s is not in its manifest; others find it dead", self.receiver)
            return
        with contextlib.suppress(WalError):  # else the rare search for orphans finds them
            self._delete_trimmed()

    def _release(self) -> None:
        if self._hold is not None:
            self._hold.release()
