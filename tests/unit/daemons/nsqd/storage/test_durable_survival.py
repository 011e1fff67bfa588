"""Whatever happens in whatever order, kills included: nothing unfinished is lost, nothing is invented."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsq.daemons.nsqd.core.backlog import Message, StorageFailed
from nsq.daemons.nsqd.storage import durable
from tests.fakes.clock import FakeClock
from tests.unit.daemons.nsqd.disk.files import room_for
from tests.unit.daemons.nsqd.storage.backlogs import Durable

DELAYS = st.sampled_from([0.5, 5.0, 60.0])
CLOSE = 1e-5  # seconds; moments on disk are nanoseconds


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """A handful of records is "thousands", and there is no power cut."""
    with patch.object(durable, "_MAX_LAG", 6), patch("os.fsync", lambda descriptor: None):
        yield


class Survival(RuleBasedStateMachine):
    """The model: which messages wait, which are in flight or deferred, which are finished.

    A kill leaves a copy of the directory as it is at that moment, as the system keeps what was written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.lives = self.published = self.moves = 0
        self.directory = self.root / "0"
        self.directory.mkdir()
        self.clock = FakeClock()
        self.waiting: list[bytes] = []
        self.held: dict[bytes, Message] = {}
        self.dues: dict[bytes, float] = {}  # what the files know
        self.finished: set[bytes] = set()  # since the last stop; a kill may bring them back
        self.ghosts: set[bytes] = set()  # those it has brought back, as far as the test knows
        self.exact = True  # whether every record that is still to be read is of a message that waits
        self.backlog = Durable(self.directory, 3, self.clock)

    def teardown(self) -> None:
        self.backlog.delete()
        assert list(self.directory.iterdir()) == []
        shutil.rmtree(self.root)

    # In.

    def _new(self, count: int, delay: float) -> list[Message]:
        due = self.clock.now() + delay if delay else 0.0
        self.published += count
        made = [
            Message(b"%016d" % number, b"some body", 0, due)
            for number in range(self.published - count, self.published)
        ]
        if delay:
            self.dues.update((each.id, due) for each in made)
        return made

    @rule(count=st.sampled_from([1, 4, 9]), delay=st.sampled_from([0.0, 0.0, 0.5, 60.0]))
    def put(self, count: int, delay: float) -> None:
        made = self._new(count, delay)
        self.backlog.put(made)
        self.waiting += [each.id for each in made]

    @rule(count=st.integers(1, 4), delay=st.just(0.0) | DELAYS, room=st.integers(0, 25))
    def put_on_a_full_disk(self, count: int, delay: float, room: int) -> None:
        made = self._new(count, delay)
        try:
            with room_for(room):
                self.backlog.put(made)
        except StorageFailed:
            assert self.backlog.errors
            return
        raise AssertionError("written where there is no room")

    @precondition(lambda self: self._due)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        chosen = self._some(data)
        self.backlog.put_back([self.held.pop(each) for each in chosen])
        self.waiting += chosen

    @property
    def _due(self) -> list[bytes]:
        """What can be in a client's hands; the rest is deferred."""
        return [each.id for each in self.held.values() if each.due <= self.clock.now()]

    def _some(self, data: st.DataObject) -> list[bytes]:
        return data.draw(st.lists(st.sampled_from(self._due), unique=True, min_size=1, max_size=8))

    # Out.

    @rule(limit=st.integers(1, 7))
    def take(self, limit: int) -> None:
        wanted = min(limit, len(self.waiting))
        taken = self._take(limit)
        assert len(taken) <= limit
        assert len(taken) == wanted or not self.exact

    def _take(self, limit: int) -> list[Message]:
        taken = self.backlog.take(limit)
        for each in taken:
            assert each.id not in self.held, "given twice"
            if each.id in self.waiting:
                self.waiting.remove(each.id)
            else:
                assert each.id in self.ghosts, "it was never put, or finished for good"
            due = self.dues.get(each.id, 0.0)
            assert each.due <= self.clock.now() if due <= self.clock.now() else abs(each.due - due) < CLOSE
            self.held[each.id] = each
        return taken

    @rule()
    def take_everything(self) -> None:
        while self._take(100):
            pass
        assert self.waiting == []
        assert len(self.backlog) == 0
        self.ghosts.clear()
        self.exact = True

    @precondition(lambda self: self._due)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        chosen = self._some(data)
        self.backlog.finished([self.held.pop(each) for each in chosen])
        self.finished.update(chosen)

    @precondition(lambda self: self.long_enough)
    @rule()
    def finish_everything(self) -> None:
        """Then there is room again."""
        self.take_everything()
        self.backlog.finished(list(self.held.values()))
        self.finished.update(self.held)
        self.held.clear()
        self.backlog.sync()
        assert self.backlog.disk.depth == 0
        assert len(list(self.directory.glob("*.diskqueue.0*.dat"))) <= 1

    @precondition(lambda self: self._due)
    @rule(data=st.data(), delay=DELAYS)
    def defer_again(self, data: st.DataObject, delay: float) -> None:
        """As REQ does: only a clean stop writes such a moment down."""
        for each in self._some(data):
            self.held[each].due = self.clock.now() + delay
            self.held[each].attempts = 1

    @precondition(lambda self: self.long_enough)
    @rule()
    def clear(self) -> None:
        self.backlog.clear()
        for forgotten in (self.waiting, self.held, self.finished, self.ghosts):
            forgotten.clear()
        self.exact = True
        self.moves = 0

    # Time and syncs.

    @rule(room=st.sampled_from([1000, 1000, 60, 0]), whole=st.booleans())
    def sync(self, room: int, whole: bool) -> None:
        with room_for(room):
            self.backlog.sync() if whole else self.backlog.advance()

    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # The end of a life.

    @property
    def long_enough(self) -> bool:
        """Something worth ending has come together."""
        return self.moves >= 8

    @precondition(lambda self: self.long_enough)
    @rule(limit=st.integers(0, 4))
    def kill(self, limit: int) -> None:
        self.lives += 1
        copy = self.root / str(self.lives)
        shutil.copytree(self.directory, copy)
        self.backlog.delete()
        self.ghosts |= self.finished
        self._reopen(copy, limit)

    @precondition(lambda self: self.long_enough)
    @rule(limit=st.integers(0, 4))
    def stop(self, limit: int) -> None:
        self.dues.update((each.id, each.due) for each in self.held.values() if each.due > self.clock.now())
        self.backlog.close(list(self.held.values()))
        self.finished.clear()
        self._reopen(self.directory, limit)

    def _reopen(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.waiting += self.held
        self.held.clear()
        self.backlog = Durable(directory, limit, self.clock)
        self.exact = False
        self.moves = 0

    # What holds at every moment.

    @invariant()
    def another_move_was_made(self) -> None:
        self.moves += 1

    @invariant()
    def the_count_is_right(self) -> None:
        if self.exact:
            assert len(self.backlog) == len(self.waiting)
        else:
            assert len(self.backlog) >= len(self.waiting)
        assert 0 <= self.backlog.backend_depth <= len(self.backlog)


TestSurvival = Survival.TestCase
TestSurvival.settings = settings(stateful_step_count=60)
