"""Whatever happens in whatever order: nothing synced is lost, nothing is invented, the order is kept."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsq.daemons.nsqd.disk.syncing import SyncJob
from tests.unit.daemons.nsqd.disk.files import data, drain, names, open_queue, records, room_for

BATCHES = st.lists(st.binary(max_size=40), max_size=12)


class Survival(RuleBasedStateMachine):
    """The model: every record written in this life of the queue, and numbers that point between them.

    A life ends with a close, a kill or a power cut. What a restart then reads is compared with what it must
    read, and becomes the list of the next life.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.lives = 0
        self.serial = 0
        self.damaged = False
        self.directory = self.root / "0"
        self.directory.mkdir()
        self.begin([])

    def begin(self, waiting: list[bytes]) -> None:
        self.queue = open_queue(self.directory)
        self.written = waiting
        self.read = 0
        self.committed = 0
        self.places = {0: self.queue.committed}  # as far as they are known
        self.job: SyncJob | None = None
        self.late: list[SyncJob] = []
        self.last(0, len(waiting), self.sizes())

    def last(self, start: int, end: int, sizes: dict[str, int]) -> None:
        """From now on a power cut leaves the records between these two, and the files at least this long."""
        self.lasting_from = start
        self.lasting_to = end
        self.lasting_sizes = sizes

    def teardown(self) -> None:
        self.queue.delete()
        shutil.rmtree(self.root)

    def sizes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self.directory.glob("*.dat")}

    def unique(self, batch: Iterable[bytes]) -> list[bytes]:
        made = []
        for record in batch:
            self.serial += 1
            made.append(b"%06d" % self.serial + record)
        return made

    @rule(batch=BATCHES)
    def append(self, batch: list[bytes]) -> None:
        made = self.unique(batch)
        self.places.update(enumerate(self.queue.append(made), len(self.written) + 1))
        self.written += made

    @rule(batch=BATCHES.filter(bool), room=st.integers(0, 300))
    def append_to_a_full_disk(self, batch: list[bytes], room: int) -> None:
        made = self.unique(batch)
        size = sum(4 + len(record) for record in made)
        refused = False
        with room_for(min(room, size - 1)):
            try:
                self.queue.append(made)
            except OSError:
                refused = True
        assert refused

    @rule(limit=st.integers(1, 20))
    def take(self, limit: int) -> None:
        found = self.queue.read(limit)
        assert [record for _, record in found] == self.written[self.read : self.read + limit]
        self.places.update(enumerate((position for position, _ in found), self.read + 1))
        self.read += len(found)
        if len(found) < limit:
            assert self.queue.unread == 0

    @rule(choice=st.data())
    def commit(self, choice: st.DataObject) -> None:
        number = choice.draw(st.sampled_from(sorted(self.places)))
        self.queue.commit(self.places[number])
        self.committed = max(self.committed, number)
        self.read = max(self.read, number)

    @rule(choice=st.data())
    def skip(self, choice: st.DataObject) -> None:
        number = choice.draw(st.sampled_from(sorted(self.places)))
        self.queue.skip(self.places[number])
        self.read = max(self.read, number)

    @rule()
    def ask_for_a_sync(self) -> None:
        if self.job is not None:
            self.late.append(self.job)
        self.job = self.queue.sync_job()
        self.promised = (self.committed, len(self.written), self.sizes())
        if self.job is None:
            assert (self.lasting_from, self.lasting_to) == self.promised[:2]

    @precondition(lambda self: self.job is not None)
    @rule(tell=st.booleans())
    def do_the_sync(self, tell: bool) -> None:
        assert self.job is not None
        self.job()
        self.last(*self.promised)
        if tell:
            self.queue.synced(self.job)
            self.job = None

    @precondition(lambda self: self.late)
    @rule()
    def a_cancelled_sync_runs_late(self) -> None:
        late = self.late.pop()
        late()
        self.queue.synced(late)

    @rule()
    def empty(self) -> None:
        if self.job is not None:
            self.late.append(self.job)
            self.job = None
        self.queue.empty()
        self.read = self.committed = end = len(self.written)
        self.places = {end: self.queue.committed}
        self.last(end, end, self.sizes())

    @rule()
    def close_and_reopen(self) -> None:
        late = [*self.late, *([self.job] if self.job else [])]
        self.queue.close()
        self.begin(self.written[self.committed :])
        self.late = late

    @rule()
    def kill(self) -> None:
        """The system keeps what the process wrote, synced or not."""
        found = self.restart(self.copied())
        assert found == self.written[self.lasting_from :]
        self.begin(found)

    @rule(choice=st.data())
    def cut_the_power(self, choice: st.DataObject) -> None:
        self.damaged = True
        directory = self.copied()
        for path in sorted(directory.glob("*.[0-9]*.dat")):
            self.damage(path, choice)
        found = self.restart(directory)
        synced = self.written[self.lasting_from : self.lasting_to]
        assert found[: len(synced)] == synced
        behind = iter(self.written[self.lasting_to :])
        assert all(record in behind for record in found[len(synced) :])
        self.begin(found)

    def damage(self, path: Path, choice: st.DataObject) -> None:
        """Some of what was not synced is missing, and some zeros may have come in its place."""
        size = path.stat().st_size
        synced = self.lasting_sizes.get(path.name, 0)
        left = choice.draw(st.integers(synced, size))
        # The system may have made room for what it did not write any more.
        zeros = choice.draw(st.integers(0, 300)) if left == size > synced else 0
        if left or path.name in self.lasting_sizes:
            path.write_bytes(path.read_bytes()[:left] + bytes(zeros))
        else:
            path.unlink()

    def copied(self) -> Path:
        """The directory as it is now, the process that wrote it gone."""
        self.lives += 1
        copy = self.root / str(self.lives)
        shutil.copytree(self.directory, copy)
        self.queue.release()
        return copy

    def restart(self, directory: Path) -> list[bytes]:
        """What a start-up finds; tried on another copy, as it moves things on."""
        trial = self.root / "trial"
        shutil.copytree(directory, trial)
        queue = open_queue(trial)
        depth = queue.depth
        found = records(queue)
        assert depth == len(found)
        queue.delete()
        shutil.rmtree(trial)
        self.directory = directory
        return found

    @invariant()
    def the_numbers_are_right(self) -> None:
        depth, unread = len(self.written) - self.committed, len(self.written) - self.read
        size = sum(4 + len(record) for record in self.written[self.committed :])
        if self.damaged:
            # What a power cut left of a record counts as long as reading has not met it.
            assert self.queue.depth in (depth, max(1, depth))
            assert self.queue.unread in (unread, max(1, unread))
            assert self.queue.size >= size
        else:
            assert (self.queue.depth, self.queue.unread, self.queue.size) == (depth, unread, size)


TestSurvival = Survival.TestCase
TestSurvival.settings = settings(stateful_step_count=30)


@given(
    flips=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 99), st.integers(1, 255)), min_size=1, max_size=6
    ),
    running=st.booleans(),
    limit=st.integers(1, 12),
)
def test_flipped_bytes_cost_no_other_file_and_raise_nothing(
    flips: list[tuple[int, int, int]], running: bool, limit: int
) -> None:
    """File 4 stands for the meta file. A running queue meets the damage unprepared."""
    batch = [b"%02d" % number * 8 for number in range(20)]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        queue = open_queue(directory)
        queue.append(batch)
        queue.sync()
        if not running:
            queue.close()
        flip(directory, flips)
        if not running:
            queue = open_queue(directory)
        found = []
        while taken := drain(queue, limit):
            found += taken
        assert (queue.depth, queue.unread, queue.size) == (0, 0, 0)
        hit = {file for file, _, _ in flips}
        if 4 not in hit or running:
            expected = [record for number, record in enumerate(batch) if number // 5 not in hit]
            assert [record for record in found if record in expected] == expected
        queue.append([b"new"])
        assert drain(queue) == [b"new"]
        queue.close()
        again = open_queue(directory)
        assert (again.depth, records(again)) == (0, [])
        again.delete()
        assert all(file.endswith(".bad") for file in names(directory))


def flip(directory: Path, flips: Iterable[tuple[int, int, int]]) -> None:
    for file, offset, bits in flips:
        path = directory / "q.diskqueue.meta.dat" if file == 4 else data(directory, file)
        content = bytearray(path.read_bytes())
        content[offset % len(content)] ^= bits
        path.write_bytes(content)
