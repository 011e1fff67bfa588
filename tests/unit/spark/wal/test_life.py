"""Receivers append, fail, die and start again in any order, and an owner reads and deletes.

The owner reads each appended row once, and no other row; sealed segments never change.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nsq.errors import WalError
from nsq.spark.wal import Segment, inspect
from nsq.spark.wal.directory import DirectoryLog, DirectoryWal

FAILING = st.sets(st.sampled_from(["create", "write", "sync", "truncate", "rename", "remove", "sync_folder"]))


class Life(RuleBasedStateMachine):
    make: ClassVar[Any]
    new_disk: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.disk = type(self).new_disk()
        self.wal = DirectoryWal(self.folder / "wal", disk=self.disk)
        self.wal.prepare()
        self.log: DirectoryLog | None = None
        self.lives = 0
        self.numbered = 0
        self.appended: set[int] = set()
        self.tried: set[int] = set()
        self.deleted: list[int] = []
        self.gone: set[Segment] = set()
        self.known: dict[Segment, list[int]] = {}

    def teardown(self) -> None:
        self.disk.failing = set()
        if self.log is not None:
            self.log.close()
        shutil.rmtree(self.folder)

    @precondition(lambda self: self.log is None)
    @rule()
    def start(self) -> None:
        self.lives += 1
        self.log = self.wal.log(f"r{self.lives:04d}")

    @precondition(lambda self: self.log is not None)
    @rule(count=st.integers(0, 3), failing=FAILING, torn=st.sampled_from([0, 7, 400]))
    def append(self, count: int, failing: set[str], torn: int) -> None:
        assert self.log is not None
        numbers = set(range(self.numbered, self.numbered + count))
        batch = type(self).make(count, start=self.numbered, size=0)
        self.numbered += count
        self.tried |= numbers
        self.disk.failing, self.disk.torn = failing, torn
        before = self._durable()
        try:
            self.log.append(batch)
        except WalError:
            assert self._durable() == before
        else:
            self.appended |= numbers
        self.disk.failing = set()

    @precondition(lambda self: self.log is not None)
    @rule(failing=FAILING, closing=st.booleans())
    def roll(self, failing: set[str], closing: bool) -> None:
        assert self.log is not None
        self.disk.failing, self.disk.torn = failing, 3
        try:
            sealed = self.log.close() if closing else self.log.roll()
        except WalError:
            pass
        else:
            # A roll that failed behind the new name is finished by the next; a reader may have been quicker.
            assert sealed is None or sealed in self.wal.segments() or sealed in self.gone
        self.disk.failing = set()
        if closing:
            self.log = None

    @precondition(lambda self: self.log is not None)
    @rule()
    def die(self) -> None:
        assert self.log is not None
        if self.log._open is not None:
            os.close(self.log._open.descriptor)
        self.log._lock.release()
        self.log = None

    @rule(failing=FAILING)
    def recover(self, failing: set[str]) -> None:
        self.disk.failing = failing
        try:
            self.wal.recover()
        except WalError:
            self.disk.failing = set()
            self.wal.recover()
        self.disk.failing = set()
        living = {self.log.receiver} if self.log else set()
        assert all(not folder.open_bytes for folder in self.wal.receivers() if folder.receiver not in living)

    @precondition(lambda self: self.log is None)
    @rule()
    def read_everything(self) -> None:
        self.wal.recover()
        found = self._read() + self.deleted
        assert len(found) == len(set(found))
        assert self.appended <= set(found) <= self.tried
        assert inspect.verify(str(self.folder / "wal")).problems == []

    @rule(count=st.integers(1, 3))
    def delete(self, count: int) -> None:
        """Delete segments in order, as a query does."""
        gone = self.wal.segments()[:count]
        self.gone.update(gone)
        self.deleted += [number for segment in gone for number in self._numbers(segment)]
        self.wal.delete(gone)
        self.known = {one: numbers for one, numbers in self.known.items() if one not in gone}

    @rule()
    def discard(self) -> None:
        self.wal.discard_empty()

    @invariant()
    def what_is_sealed_stays(self) -> None:
        listed = self.wal.segments()
        for segment in listed:
            assert self.known.setdefault(segment, self._numbers(segment)) == self._numbers(segment)
        assert set(self.known) == set(listed)

    def _durable(self) -> int:
        assert self.log is not None
        own = [one for one in self.wal.segments() if one.receiver == self.log.receiver]
        return self.log.open_rows + sum(segment.rows for segment in own)

    def _numbers(self, segment: Segment) -> list[int]:
        batches = self.wal.read(segment)
        return [int(one, 16) for batch in batches for one in batch.column("id").to_pylist()]

    def _read(self) -> list[int]:
        return [number for segment in self.wal.segments() for number in self._numbers(segment)]


def test_no_row_is_lost_however_a_receiver_lives(make: Any, disk: Any) -> None:
    class Bound(Life):
        pass

    Bound.make, Bound.new_disk = staticmethod(make), type(disk)
    run_state_machine_as_test(
        Bound,
        settings=settings(stateful_step_count=25, suppress_health_check=list(HealthCheck)),
    )
