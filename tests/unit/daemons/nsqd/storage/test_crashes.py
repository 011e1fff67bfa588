"""A durable nsqd dies before any change of its files: every confirmed message comes afterwards, none early.

A kill leaves everything that was written. A power cut leaves only what was synced: the names in the directory
at its last fsync, and the content of each file at its own. A disk that fails drops what an fsync should have
written: as on Linux, the next fsync of the file succeeds and does not write it.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from nsq.daemons.nsqd.core import topic
from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.disk import syncing
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.storage import deferred, deferred_file, deferred_files, durable, storage
from nsq.daemons.nsqd.storage.committer import Round
from nsq.daemons.nsqd.storage.storage import Storage
from nsq.daemons.serve.logs import DaemonLog
from tests.fakes.clock import EPOCH_NS, FakeClock
from tests.integration import go_reader
from tests.unit.daemons.nsqd.core.consumer import Consumer

CHANNELS = ("one", "two")
#: Changes of files after which a life ends, at most.
LONGEST_LIFE = 400
LIVES = 8
#: Seconds by which two clocks may differ.
ROUNDING = 1e-3

CHANGES = ("pwrite", "fsync", "replace", "rename", "unlink", "ftruncate", "truncate")


class Killed(BaseException):
    """The process is killed here."""


class Disk:
    """A directory whose process dies before its n-th change. ``survivor`` is what the next life finds.

    ``names`` and ``contents`` (by inode) are what a power cut leaves. ``fails`` says whether an fsync fails.
    """

    def __init__(self, directory: Path, survivor: Path, before: Disk | None, changes: int) -> None:
        self.directory = directory
        self.survivor = survivor
        self.left = changes
        self.power_cut = False
        self.fails: Callable[[], bool] = lambda: False
        self.names: dict[str, int] = before.names if before else {}
        self.contents: dict[int, bytes] = before.contents if before else {}
        # What the next fsync writes, by inode; all content of an inode that is not here.
        self.dirty: dict[int, list[tuple[int, int]]] = before.dirty if before else {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in CHANGES:
                change = functools.partial(self._change, getattr(os, name))
                stack.enter_context(patch.object(os, name, change))
            yield

    def _change(self, change: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self._crash()
        if self.left <= 0:
            raise Killed
        if change.__name__ in ("replace", "unlink"):
            with suppress(OSError):
                os.open(args[-1], os.O_RDONLY)  # stays open, so that no new file gets its inode
        if change.__name__ == "fsync":
            return self._sync(args[0])
        changed = change(*args, **named)
        if change.__name__ == "pwrite":
            written = self.dirty.setdefault(os.fstat(args[0]).st_ino, [])
            written.append((args[2], args[2] + changed))
        return changed

    def _sync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path == self.directory:
            self.names = {each.name: each.stat().st_ino for each in self.directory.iterdir()}
        elif path.exists():
            self._sync_content(path.stat().st_ino, path.read_bytes())

    def _sync_content(self, inode: int, content: bytes) -> None:
        written = self.dirty.get(inode, [(0, len(content))])
        self.dirty[inode] = []
        if self.fails():
            raise OSError(errno.EIO, "the disk has dropped what it should have written")
        synced = bytearray(self.contents.get(inode, b""))
        for start, end in written:
            synced.extend(bytes(max(0, end - len(synced))))
            synced[start:end] = content[start:end]
        self.contents[inode] = bytes(synced[: len(content)])

    def _crash(self) -> None:
        self.survivor.mkdir()
        if not self.power_cut:
            for path in self.directory.iterdir():
                os.link(path, self.survivor / path.name)
            return
        survivors = {name: self.contents.get(inode, b"") for name, inode in self.names.items()}
        self.names, self.contents, self.dirty = {}, {}, {}
        for name, content in survivors.items():
            (self.survivor / name).write_bytes(content)
            inode = (self.survivor / name).stat().st_ino
            self.names[name], self.contents[inode] = inode, content


class Rounds:
    """The committer, without a thread: the test runs its rounds."""

    def __init__(
        self,
        prepare: Callable[[], Round],
        failed: Callable[[Exception], None],
        worked: Callable[[], None],
        begin_new_files: Callable[[], None],
    ) -> None:
        self._prepare = prepare
        self._failed = failed
        self._worked = worked
        self._begin_new_files = begin_new_files
        self.error: OSError | None = None

    def ask(self) -> None:
        pass

    def run(self) -> bool:
        """Run a round; return whether it has succeeded."""
        try:
            this = self._prepare()
            this.run()
            this.finish()
        except OSError as error:
            self.error = error
            self._begin_new_files()
            self._failed(error)
            return False
        self.error = None
        self._worked()
        return True

    async def close(self) -> None:
        pass


class Ledger:
    """What was published, and what consumers did with it, by channel and body."""

    def __init__(self) -> None:
        self.confirmed: set[bytes] = set()
        self.finished: dict[str, set[bytes]] = {name: set() for name in CHANNELS}
        self.due: dict[tuple[str, bytes], float] = {}  # on the wall clock
        self.early: list[tuple[str, bytes, float]] = []

    def lost(self) -> list[tuple[str, bytes]]:
        return [(name, body) for name in CHANNELS for body in sorted(self.confirmed - self.finished[name])]


class Life:
    """A broker and its storage until a kill or a stop."""

    def __init__(self, directory: Path, wall: float, ledger: Ledger, chance: random.Random) -> None:
        self.directory = directory
        self.clock = FakeClock(now=50.0)
        self.clock._start = 50.0 - wall
        self.ledger = ledger
        self.chance = chance
        self.log = io.StringIO()
        options = NsqdOptions(
            data_path=str(directory),
            durable=True,
            mem_queue_size=3,
            max_bytes_per_file=400,
            sync_timeout=600.0,
        )
        self.storage = Storage(options, self.clock, DaemonLog("", "info", self.log))
        self.broker = Broker(self.clock, backlogs=self.storage)
        self.storage.start(self.broker)
        self.written: list[bytes] = []  # and not confirmed
        self.dues: dict[tuple[str, bytes], float] = {}  # likewise
        self.consumers = [(name, Consumer()) for name in CHANNELS for _ in range(2)]
        self.channels: dict[str, Channel] = {}
        for name, consumer in self.consumers:
            self.channels[name] = self.broker.subscribe("t", name, consumer.subscriber)
        self.seen = [0] * len(self.consumers)

    @property
    def wall(self) -> float:
        return (self.clock.time_ns() - EPOCH_NS) / 1e9

    def publish(self) -> None:
        made = [b"%d" % self.chance.getrandbits(64) for _ in range(self.chance.choice([1, 1, 5]))]
        self.broker.publish("t", made)
        self.written += made

    def defer(self) -> None:
        body, delay = b"d%d" % self.chance.getrandbits(64), self.chance.choice([0.5, 3.0, 30.0, 5000.0])
        self.broker.publish_deferred("t", [(delay, body)])
        self.written.append(body)
        for name in CHANNELS:
            self.dues[name, body] = self.wall + delay

    def consume(self) -> None:
        """Open a consumer's window, and answer what it got."""
        index = self.chance.randrange(len(self.consumers))
        name, consumer = self.consumers[index]
        consumer.subscriber.rdy = self.chance.choice([1, 3, 10])
        self.channels[name].wake(consumer.subscriber)
        self.clock.run_due()
        self.note_deliveries()
        for message in list(consumer.subscriber.in_flight.values()):
            self.answer(name, consumer, message.id, message.body)
        consumer.subscriber.rdy = 0

    def note_deliveries(self) -> None:
        for index, (name, consumer) in enumerate(self.consumers):
            for message in consumer.delivered[self.seen[index] :]:
                self.dues.pop((name, message.body), None)
                due = self.ledger.due.pop((name, message.body), 0.0)
                if due > self.wall + ROUNDING:
                    self.ledger.early.append((name, message.body, due - self.wall))
            self.seen[index] = len(consumer.delivered)

    def answer(self, name: str, consumer: Consumer, message_id: bytes, body: bytes) -> None:
        kind = self.chance.random()
        channel = self.channels[name]
        if kind < 0.5:
            self.ledger.finished[name].add(body)
            channel.finish(consumer.subscriber, [message_id])
        elif kind < 0.8:
            delay = self.chance.choice([0.0, 1.0, 30.0, 600.0])
            channel.requeue(consumer.subscriber, message_id, delay)
            if delay:
                self.dues[name, body] = self.wall + delay

    def sync(self) -> None:
        if self.rounds.run():
            self._note_confirmed()
        else:
            self.written.clear()
            self.dues.clear()

    def _note_confirmed(self) -> None:
        self.ledger.confirmed.update(self.written)
        self.ledger.due.update(self.dues)
        self.written.clear()
        self.dues.clear()

    def sync_all(self) -> None:
        self.storage.try_again()
        self.sync()

    @property
    def rounds(self) -> Rounds:
        rounds = self.storage.committer
        assert isinstance(rounds, Rounds)
        return rounds

    def sleep(self) -> None:
        self.clock.advance(self.chance.choice([0.1, 1.0, 20.0]))
        self.note_deliveries()

    def act(self) -> float:
        """Do something, and return the time on the wall clock."""
        acts = [self.publish, self.defer, self.consume, self.consume, self.sync, self.sync_all, self.sleep]
        with suppress(StorageFailed):  # since the last sync has failed
            self.chance.choice(acts)()
        self.clock.run_due()
        self.note_deliveries()
        return self.wall

    def drain(self) -> None:
        """Finish all messages, until the last one is due."""
        for name, consumer in self.consumers:
            consumer.subscriber.rdy = 1000
            self.channels[name].wake(consumer.subscriber)
        for _ in range(200):
            self.clock.advance(60.0)
            self.note_deliveries()
            for name, consumer in self.consumers:
                found = list(consumer.subscriber.in_flight.values())
                self.ledger.finished[name].update(message.body for message in found)
                self.channels[name].finish(consumer.subscriber, [message.id for message in found])
            self.sync()

    async def stop(self) -> None:
        errors = await self.storage.stop(self.broker.close())
        assert errors == []
        self._note_confirmed()


async def at_once(call: Callable[[], Any], name: str) -> Any:
    return call()


@pytest.fixture(autouse=True)
def small(tmp_path: Path) -> Iterator[None]:
    """Small limits, so that everything happens often; syncs in one thread, in a known order."""
    with (
        patch.object(durable, "_MAX_LAG", 4),
        patch.object(deferred, "FILE_RECORDS", 4),
        patch.object(deferred_file, "FILE_RECORDS", 4),
        patch.object(deferred_files, "FILE_RECORDS", 4),
        patch.object(deferred_file, "_BURST_RECORDS", 2),
        patch.object(storage, "_LEAST_IN_MEMORY", 4),
        patch.object(syncing, "_AT_ONCE", 1),
        patch.object(storage, "Committer", Rounds),
        patch.object(storage, "in_thread", at_once),
    ):
        yield
    for descriptor in os.listdir("/proc/self/fd"):  # of killed lives
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(tmp_path)):
                os.close(int(descriptor))
    gc.collect()


@contextmanager
def many_channels() -> Iterator[None]:
    """The topic hands its messages to one channel after the other, as with more than 200."""
    with (
        patch.object(topic, "_CHANNELS_AT_ONCE", 1),
        patch.object(topic, "_SMALL_PORTION", 2),
        patch.object(topic, "COPIES_AT_ONCE", 2),
    ):
        yield


@pytest.mark.parametrize(
    ("power_cuts", "fails"),
    [(0.0, False), (0.5, False), (1.0, False), (1.0, True), (0.5, True)],
    ids=["kills", "both", "power cuts", "power cuts and failed fsyncs", "both and failed fsyncs"],
)
@pytest.mark.parametrize("seed", range(int(os.environ.get("NSQ_TEST_EXAMPLES", "12"))))
def test_nothing_confirmed_is_lost_or_early(
    tmp_path: Path, seed: int, power_cuts: float, fails: bool
) -> None:
    chance = random.Random(seed)
    ledger = Ledger()
    by_portions = seed % 4 == 3

    async def scenario() -> None:
        directory, wall = tmp_path / "0", 0.0
        directory.mkdir()
        disk: Disk | None = None
        life: Life | None = None
        for number in range(1, LIVES + 1):
            survivor, changes = tmp_path / str(number), chance.randint(1, LONGEST_LIFE)
            disk = Disk(directory, survivor, disk, changes)
            disk.power_cut = chance.random() < power_cuts
            stops = chance.random() < 0.3
            with disk.watched():
                try:
                    life = Life(directory, wall, ledger, chance)
                    if fails and not stops:  # not before: the ids of this life must be reserved
                        disk.fails = lambda: chance.random() < 0.1
                    while not stops or disk.left > 50:
                        wall = life.act()
                    await life.stop()
                except Killed:
                    directory = survivor
                    wall = max(wall, life.wall) if life is not None else wall
        last = Life(directory, wall + 1.0, ledger, chance)
        last.drain()
        await last.stop()
        assert ledger.lost() == [], last.log.getvalue()
        # After a failed fsync, a due time that was not confirmed may count.
        if not fails:
            assert ledger.early == []
        for name in CHANNELS:
            assert go_reader.bodies(directory, f"t:{name}") == []

    with many_channels() if by_portions else nullcontext():
        asyncio.run(scenario())
