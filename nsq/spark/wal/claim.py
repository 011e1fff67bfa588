"""A reader's name, which belongs to one process at a time, and the reader's object in the log, which says how
far that process has committed.

Where the store has locks, the process holds the object: its name is free as soon as it ends. Elsewhere it
writes the object every five seconds, and another process may take the name after 20 s of silence. Only one
process can write the object: the others know another tag.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import uuid

from nsq.errors import WalError, WalOwned
from nsq.log import Logger
from nsq.spark.wal import ownership, readers
from nsq.spark.wal.objects import Conflict, Objects, create, replace
from nsq.spark.wal.ownership import FileLock, Owner
from nsq.spark.wal.readers import ReaderState

_logger = Logger("nsq.spark.wal")

#: Without locks: a query writes its position at least so often, and has ended when it was silent for so long.
BEAT, SILENCE = 5.0, 20.0
#: Seconds that a process which is leaving gets to leave.
LEAVING_PATIENCE = 30.0
_JOIN = 30.0


class Claim:
    """A reader's name, owned by this process until ``release``. ``tag`` is that of the object, None if there
    is none."""

    def __init__(
        self,
        store: Objects,
        reader: str,
        owner: Owner,
        state: ReaderState,
        tag: str | None,
        hold: FileLock | None,
    ) -> None:
        self._store = store
        self._name = readers.file_of(reader)
        self._hold = hold
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
                by = owner_in(found.data) if found else None
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
                ended = self._wake.get(timeout=None if self._hold else BEAT)
            if ended:
                self._owner = None
            try:
                if not self._lost:
                    self._write()
            except WalError as error:
                if not self._lost:
                    _logger.warning("a reader's position cannot be written: %s", error)
        if self._hold is not None:
            self._hold.release()


def owner_in(data: bytes) -> Owner | None:
    """The owner that a reader's object names."""
    found = json.loads(data).get("owner")
    return ownership.decode(found) if found else None


def owned_message(reader: str, location: str, owner: Owner | None, waited: float) -> str:
    """The message of WalOwned: who owns the reader's name, and what to do."""
    return (
        f"{location} is owned by {owner or 'another process'}; waited {waited:.1f} s for it to leave. It "
        f"reads as {reader!r}: a second query on one log, or the other side of a self-join, needs a name of "
        "its own, option reader"
    )
