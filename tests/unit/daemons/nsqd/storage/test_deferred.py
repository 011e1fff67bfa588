"""Deferred messages on disk: memory, files, restarts, Go's nsqd in between, kills, full disks and damage."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pytest

from nsq.daemons.nsqd.core.backlog import Message, StorageFailed
from nsq.daemons.nsqd.disk.layout import HEAD_SIZE, cut, wholeness
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.syncing import run_together
from nsq.daemons.nsqd.storage import deferred, deferred_files
from nsq.daemons.nsqd.storage.deferred import DeferredOnDisk
from nsq.daemons.nsqd.storage.deferred_file import file_numbers
from nsq.daemons.nsqd.storage.memory_first import decode, encode
from tests.fakes.clock import FakeClock
from tests.integration import go_reader
from tests.unit.daemons.nsqd.disk.files import Lines, names, room_for
from tests.unit.daemons.nsqd.storage.backlogs import bodies, message, messages

DAY = 86_400.0

MODES = pytest.mark.parametrize("durable", [False, True], ids=["default", "durable"])


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Closes the files of every node that a test has not stopped."""
    yield
    while NODES:
        node = NODES.pop()
        for file in [*node.deferred.files._dirty, *node.deferred.files._in_memory]:
            file.close()
        node.disk.release()


NODES: list[Node] = []


class Node:
    """A channel's deferred messages and its queue, in one life of nsqd."""

    def __init__(
        self,
        directory: Path,
        *,
        durable: bool = False,
        limit: int = 10,
        clock: FakeClock | None = None,
        in_topic: Mapping[bytes, int] = MappingProxyType({}),
    ) -> None:
        self.directory = directory
        self.clock = clock or FakeClock()
        self.log = Lines()
        self.errors: list[Exception] = []
        self.broken: Exception | None = None
        self.disk = DiskQueue(
            directory,
            "t:c",
            max_bytes_per_file=10_000,
            min_record=HEAD_SIZE,
            max_record=HEAD_SIZE + 1000,
            log=self.log,
        )
        self.deferred = DeferredOnDisk(
            directory,
            self.disk,
            self.clock,
            numbers=file_numbers(names(directory)).get("t:c", ()),
            durable=durable,
            memory_limit=limit,
            log=self.log,
            failed=lambda error, size: self.errors.append(error),
            written=lambda: None,
            sync_error=lambda: self.broken,
            make_room=lambda error: False,
            waiting_in_topic=lambda: in_topic,
        )
        self.released: list[tuple[float, Message]] = []
        self.joined = 0  # how many of them came in files that joined the queue
        self.full = False  # whether the queue keeps them in memory only
        NODES.append(self)

    def add(self, *delays: float) -> None:
        for delay in delays:
            due = self.clock.now() + delay
            made = message(b"%.3f" % (due + self.wall), due)
            made.attempts = 3
            self.deferred.add([made])

    @property
    def wall(self) -> float:
        """The wall clock minus the monotonic one, in seconds after a fixed time."""
        return (self.clock.time_ns() - 1_700_000_000_000_000_000) / 1e9 - self.clock.now()

    def run(self, seconds: float) -> list[bytes]:
        """Let time pass; return the messages that were released meanwhile, in that order."""
        before, end = len(self.released), self.clock.now() + seconds
        while (check := max(self.clock.now(), self.deferred.next_check())) <= end:
            self.clock.advance_without_calls(check - self.clock.now())
            self.deferred.release(self.clock.now(), self._put)
        self.clock.advance_without_calls(end - self.clock.now())
        return bodies(each for _, each in self.released[before:])

    def _put(self, found: list[Message]) -> bool:
        """Take released messages, or those of a file that has joined the queue."""
        joined = [decode(record) for _, record in self.disk.read(10_000)] if not found else []
        self.joined += len(joined)
        self.released += [(self.clock.now(), each) for each in found + joined]
        return not self.full

    def lateness(self) -> list[float]:
        """How late each message was released, in seconds; negative if it was early."""
        return [at + self.wall - float(each.body) for at, each in self.released]

    def sync(self) -> None:
        if (job := self.deferred.files.sync_job()) is not None:
            job()
            self.deferred.synced(job)
        self.disk.sync()

    def stop(self) -> None:
        run_together(self.deferred.persist())
        self.deferred.files.join(synced=True)
        queue = self.disk.sync_job(last=True)
        run_together([queue] if queue is not None else [])
        self.deferred.files.remove_rewritten()
        self.disk.release()

    def copy(self, target: Path) -> Path:
        """Copy the directory, as a kill leaves it."""
        return Path(shutil.copytree(self.directory, target))


def restarted(node: Node, seconds: float = 0.0, *, set_clock: float = 0.0, **options: object) -> Node:
    """Stop, and start some time later on a computer with another monotonic clock."""
    node.stop()
    return later(node, node.directory, seconds, set_clock=set_clock, **options)


def later(
    node: Node, directory: Path, seconds: float = 0.0, *, set_clock: float = 0.0, **options: object
) -> Node:
    clock = FakeClock(now=50.0)
    clock._start = 50.0 - (node.clock.time_ns() / 1e9 - 1.7e9) - seconds - set_clock
    return Node(directory, durable=node.deferred._durable, clock=clock, **options)  # type: ignore[arg-type]


def delays(count: int, longest: float = DAY) -> list[float]:
    chance = random.Random(7)
    return [chance.uniform(0.0, longest) for _ in range(count)]


def in_order(found: Iterable[bytes]) -> bool:
    numbers = list(map(float, found))
    return numbers == sorted(numbers)


@MODES
def test_messages_are_released_in_order_and_on_time_while_few_are_in_memory(
    tmp_path: Path, durable: bool
) -> None:
    node = Node(tmp_path, durable=durable, limit=20)
    node.add(*delays(500))
    assert len(node.deferred) == 500
    assert node.deferred.on_disk >= 480
    most = 0
    found = []
    for _ in range(300):
        found += node.run(300.0)
        most = max(most, len(node.deferred._heap))
        if durable:
            node.sync()
    assert (len(found), in_order(found), len(node.deferred)) == (500, True, 0)
    assert min(node.lateness()) > -0.001
    assert max(node.lateness()) < 0.002
    assert most <= 60
    assert {each.attempts for _, each in node.released} == {3}
    node.stop()
    assert go_reader.bodies(tmp_path, "t:c") == []
    assert not any("deferred" in name for name in names(tmp_path))


def test_a_few_messages_write_nothing_until_the_stop(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add(*delays(10))
    node.run(100.0)
    assert names(tmp_path) == []
    node.stop()
    assert len(names(tmp_path)) == 3  # records, index, meta file


@MODES
@pytest.mark.parametrize("emptied", [False, True])
def test_after_many_messages_due_soon_few_of_those_due_later_are_in_memory(
    tmp_path: Path, durable: bool, emptied: bool
) -> None:
    node = Node(tmp_path, durable=durable)
    node.add(*[1.0] * 200)
    if emptied:
        node.deferred.clear()
    node.run(2.0)
    node.add(*[5000.0] * 150)
    assert len(node.deferred._heap) <= 10


@MODES
def test_files_of_messages_that_are_all_due_join_the_queue(tmp_path: Path, durable: bool) -> None:
    node = Node(tmp_path, durable=durable)
    node.add(*[5000.0] * 9000)
    node.sync()
    assert node.run(4990.0) == []
    assert len(node.deferred._heap) <= 2010
    assert len(node.run(9.0)) <= 2000
    node.sync()
    node.clock.advance_without_calls(1.5)
    node.run(0.0)
    assert (len(node.released), len(node.deferred), min(node.lateness()) > 0) == (9000, 0, True)
    assert node.joined >= 6000


def test_after_the_clock_was_set_back_new_messages_do_not_wait_for_a_burst(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add(*[50.0] * 500)
    (file,) = node.deferred.files.unread
    begins = file.first / 1e9 - 1.7e9
    while file.opens > node.clock.time_ns():
        node.run(1.0)
    node.clock._start += 20.0  # the bucket is not open any more
    node.add(*[begins - node.clock.now() - node.wall + 0.5] * 20)
    node.run(100.0)
    assert (len(node.released), max(node.lateness()) < 0.05) == (520, True)


def test_statistics_have_the_due_time_of_a_burst_that_is_postponed(tmp_path: Path) -> None:
    node = Node(tmp_path, limit=100)
    due = node.clock.now() + 5000.0
    node.add(*[5000.0] * 2000)
    for _ in range(40):
        node.run(100.0)
        assert node.deferred.next_due() == pytest.approx(due, abs=1e-3)
        assert all(each == pytest.approx((due, due, each.messages)) for each in node.deferred.due_ranges())


@MODES
def test_a_restart_keeps_due_times_and_attempts(tmp_path: Path, durable: bool) -> None:
    node = Node(tmp_path, durable=durable)
    node.add(*delays(200))
    found = node.run(1000.0)
    for _ in range(5):
        released = node.released
        node = restarted(node, 600.0, limit=30)
        node.released = released
        found += node.run(3000.0)
        node.add(*delays(20))
    found += node.run(2 * DAY)
    assert (len(found), len(set(found))) == (300, 300)
    assert min(node.lateness()) > -0.001
    assert {each.attempts for _, each in node.released} == {3}


@pytest.mark.parametrize("at", ["the start", "a second stop"])
def test_a_power_cut_that_undoes_a_renaming_costs_no_due_time(tmp_path: Path, at: str) -> None:
    directory = tmp_path / "here"
    directory.mkdir()
    node = Node(directory, durable=True)
    node.add(100.0, 200.0, 300.0)
    node.stop()
    cut = node.copy(tmp_path / "after the power cut")
    node = later(node, directory)
    if at == "the start":
        assert node.run(99.0) == []  # reads the file, and notes that in the index
    else:
        node.disk.append([b"r" * HEAD_SIZE + b"waits"])
        node.stop()  # under another number
    for index in directory.glob("*.dues.dat"):
        shutil.copy(index, cut)
    again = later(node, cut)
    again.run(300.0)
    assert len(again.released) == 3
    assert min(again.lateness()) > -0.001


@MODES
def test_after_a_stop_gos_nsqd_finds_every_message_in_the_queue(tmp_path: Path, durable: bool) -> None:
    node = Node(tmp_path, durable=durable)
    node.disk.append([b"r" * HEAD_SIZE + b"waits"])
    node.add(*delays(300))
    early = node.run(9000.0)
    node.stop()
    found = go_reader.bodies(tmp_path, "t:c")
    assert (len(found) + len(early), found[0]) == (301, b"waits")
    again = Node(tmp_path, durable=durable, clock=node.clock)
    assert (len(again.deferred), again.disk.depth) == (300 - len(early), 1)
    again.stop()
    assert sorted(go_reader.bodies(tmp_path, "t:c")) == sorted(found)


@MODES
@pytest.mark.parametrize("waiting", [0, 1])
def test_a_kill_after_a_stop_and_a_start_is_not_taken_for_lost_files(
    tmp_path: Path, durable: bool, waiting: int
) -> None:
    node = Node(tmp_path, durable=durable)
    node.disk.append([b"r" * HEAD_SIZE + b"waits"] * waiting)
    node.add(*delays(300))
    node.stop()
    killed = Node(tmp_path, durable=durable, clock=node.clock)
    found = go_reader.GoQueue(tmp_path, "t:c").bodies()
    assert found == [b"waits"] * waiting  # and none of the files that were taken out
    killed.log.complaints.clear()
    again = Node(tmp_path, durable=durable, clock=node.clock)
    assert (len(again.deferred), again.disk.depth) == (300, waiting)
    assert again.log.complaints == []


def go_worked(directory: Path, count: int, *, adds: bool) -> list[bytes]:
    """Consume the first messages of the queue, and leave the rest as Go's nsqd does."""
    queue = DiskQueue(
        directory, "t:c", max_bytes_per_file=10_000, min_record=26, max_record=10_000, log=Lines()
    )
    found = queue.read(count)
    if found:
        queue.commit(found[-1][0])
    if adds:
        queue.append([b"g" * HEAD_SIZE + b"0.0"])
    queue.close()
    return [record[HEAD_SIZE:] for _, record in found]


@MODES
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("consumed", [0, 1, 40, 80, 100])
def test_after_gos_nsqd_has_worked_on_the_directory_nothing_comes_twice(
    tmp_path: Path, durable: bool, consumed: int, adds: bool
) -> None:
    node = Node(tmp_path, durable=durable)
    for _ in range(2):  # two files
        node.add(*delays(50))
        node = restarted(node, 1.0)
    node.stop()
    found = go_worked(tmp_path, consumed, adds=adds)
    after = later(node, tmp_path, 1.0)
    found += [record[HEAD_SIZE:] for _, record in after.disk.read(1000)]
    found += after.run(2 * DAY)
    assert sorted(found) == sorted([*set(found)])
    assert len(found) == 100 + adds
    if not consumed and not adds:
        assert len(after.released) == 100


def test_an_index_of_a_channel_that_gos_nsqd_made_anew_is_ignored(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add(100.0)
    node.stop()
    record = tmp_path / "t:c.diskqueue.000000.dat"
    content = record.read_bytes()
    record.write_bytes(content[:14] + b"another message." + content[30:])
    after = later(node, tmp_path)
    assert (len(after.deferred), after.disk.depth) == (0, 1)
    assert not any("dues" in name for name in names(tmp_path))


@MODES
def test_a_kill_loses_only_what_was_in_memory(tmp_path: Path, durable: bool) -> None:
    (tmp_path / "a").mkdir()
    node = Node(tmp_path / "a", durable=durable)
    node.add(*delays(200))
    found = node.run(20_000.0)
    node.sync()
    kept = 200 - len(found) if durable else node.deferred.on_disk
    after = later(node, node.copy(tmp_path / "b"), 5.0)
    assert len(after.deferred) == kept
    assert not set(after.run(DAY)) & set(found)
    assert (len(after.released), min(after.lateness()) > -0.001) == (kept, True)
    after.stop()
    assert go_reader.bodies(tmp_path / "b", "t:c") == []


def torn(records: bytes) -> bytes:
    """Return them as a power cut can leave them, with zeros at the end."""
    return records[:-3] + bytes(3)


def messages_of(node: Node) -> tuple[list[bytes], list[bytes]]:
    """Return the bodies of the queue's records that count, and of the messages that become due."""
    found = node.disk.read(1000)
    queued = [each[HEAD_SIZE:] for place, each in found if place.place not in node.deferred.obsolete]
    return queued, node.run(100.0)


@pytest.mark.parametrize("whole", ["in the queue", "in an older file", "in the same file", "in the topic"])
def test_a_deferred_record_that_a_power_cut_has_torn_does_not_replace_another(
    tmp_path: Path, whole: str
) -> None:
    (tmp_path / "a").mkdir()
    node = Node(tmp_path / "a", durable=True)
    sent = message(b"50.0", node.clock.now() + 50.0)
    node.deferred.add([sent])
    if whole == "in the queue":
        node.disk.append([encode(sent)])
    if whole == "in an older file":
        node.deferred.files.begin_new()
    if "file" in whole:
        node.deferred.add([sent])
    after_cut = node.copy(tmp_path / "b")
    records = sorted(after_cut.glob("*.deferred.00000?.dat"))[-1]
    records.write_bytes(torn(records.read_bytes()))
    in_topic = {sent.id: wholeness(encode(sent))} if whole == "in the topic" else {}
    after = later(node, after_cut, in_topic=in_topic)
    assert after.deferred.repeated == set()
    queued, due = messages_of(after)
    assert queued == [b"50.0"] * (whole == "in the queue")
    assert due == [b"50.0"] * ("file" in whole)


@pytest.mark.parametrize("which", ["the second", "the first", "none", "both"])
@pytest.mark.parametrize("topic", ["has it", "has it torn", "has it no more"])
def test_of_a_queues_records_the_last_that_is_whole_counts(tmp_path: Path, which: str, topic: str) -> None:
    (tmp_path / "a").mkdir()
    node = Node(tmp_path / "a", durable=True)
    record = b"\0" * 8 + b"\0\1" + b"i" * 16 + b"body"
    again = record.replace(b"\0\1", b"\0\2")  # attempts
    first = torn(record) if which in ("the first", "both") else record
    second = torn(again) if which in ("the second", "both") else again
    node.disk.append([first, second])
    in_topic = {"has it": wholeness(record), "has it torn": wholeness(torn(record))}
    after = later(
        node,
        node.copy(tmp_path / "b"),
        in_topic={b"i" * 16: in_topic[topic]} if topic in in_topic else {},
    )
    (one, two) = [each.place for each in after.disk.unread_records(2)]
    if which == "both" and topic == "has it":
        assert (set(after.deferred.obsolete), after.deferred.repeated) == ({one, two}, set())
    else:
        assert set(after.deferred.obsolete) == {two if which == "the second" else one}
        assert after.deferred.repeated == ({b"i" * 16} if topic in in_topic else set())


@pytest.mark.parametrize("in_topic", [True, False])
def test_zeros_that_a_power_cut_leaves_in_an_index_do_not_say_that_a_message_has_left(
    tmp_path: Path, in_topic: bool
) -> None:
    (tmp_path / "a").mkdir()
    node = Node(tmp_path / "a", durable=True)
    sent = message(b"50.0", node.clock.now() + 50.0)
    node.deferred.add([message(b"60.0", node.clock.now() + 60.0)])
    node.deferred.add([sent])
    after_cut = node.copy(tmp_path / "b")
    (index,) = after_cut.glob("*.dues.dat")
    index.write_bytes(index.read_bytes()[:-8] + bytes(8))
    after = later(node, after_cut, in_topic={sent.id: wholeness(encode(sent))} if in_topic else {})
    assert after.deferred.repeated == set()
    assert messages_of(after) == ([], [b"50.0"] * (not in_topic) + [b"60.0"])


@pytest.mark.parametrize("damage", ["torn", "without a due time"])
def test_a_message_that_only_its_topic_has_whole_is_not_taken_for_one_that_has_left(
    tmp_path: Path, damage: str
) -> None:
    (tmp_path / "a").mkdir()
    node = Node(tmp_path / "a", durable=True)
    sent = message(b"50.0", node.clock.now() + 50.0)
    node.deferred.add([message(b"5000.0", node.clock.now() + 5000.0)])
    node.deferred.add([sent])
    after_cut = node.copy(tmp_path / "b")
    (path,) = after_cut.glob("*.deferred.000001.dat" if damage == "torn" else "*.dues.dat")
    path.write_bytes(torn(path.read_bytes()) if damage == "torn" else path.read_bytes()[:-24])
    in_topic = {sent.id: wholeness(encode(sent))}
    after = later(node, after_cut, in_topic=in_topic)
    assert messages_of(after) == ([], [])
    after.sync()
    after_kill = later(after, after.copy(tmp_path / "c"), in_topic=in_topic)  # the topic is paused
    assert after_kill.deferred.repeated == set()
    assert messages_of(after_kill) == ([], [])


def test_a_message_whose_index_a_power_cut_has_cut_comes_again_from_its_topic(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "synced").mkdir()
    node = Node(tmp_path / "a", durable=True)
    sent = [message(body, node.clock.now() + 50.0) for body in (b"50.0", b"50.1")]
    node.deferred.add(sent)
    node.copy(tmp_path / "after")
    (index,) = (tmp_path / "after").glob("*.dues.dat")
    index.write_bytes(index.read_bytes()[:72])  # two notes, and the first message
    after = later(node, tmp_path / "after", in_topic=dict.fromkeys([each.id for each in sent], 0))
    assert after.deferred.repeated == {sent[0].id}  # the channel takes the other one from the topic
    assert (after.run(49.0), after.run(2.0)) == ([], [b"50.0"])


@MODES
@pytest.mark.parametrize("seconds", [-DAY, -60.0, 60.0])
def test_a_clock_that_was_set_over_a_restart_shifts_due_times_and_repeats_nothing(
    tmp_path: Path, durable: bool, seconds: float
) -> None:
    node = Node(tmp_path, durable=durable)
    node.add(*delays(100, 7200.0))
    found = node.run(1000.0)
    node = restarted(node, set_clock=seconds)
    assert len(set(found + node.run(3 * DAY))) == 100
    assert len(found) + len(node.released) == 100


@MODES
def test_a_full_disk_refuses_messages_and_keeps_the_others(tmp_path: Path, durable: bool) -> None:
    node = Node(tmp_path, durable=durable)
    node.add(*delays(10))
    before = len(node.deferred)
    with room_for(100), pytest.raises(StorageFailed, match="No space left"):
        node.add(*delays(20))
    refused = len(node.deferred) - before
    assert node.errors
    node.clock.advance_without_calls(2.0)
    node.add(*delays(10))
    node.sync()
    node = restarted(node)
    assert len(node.run(2 * DAY)) == 20 + refused


def test_on_a_full_disk_files_are_read_without_room_for_narrower_buckets(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add(*delays(100))
    with room_for(0):
        assert len(node.run(2 * DAY)) == 100
    assert max(node.lateness()) < 0.002


class TestDueOnAFullDisk:
    """The queue has such messages only in memory, so that consumers can make room."""

    def node(self, directory: Path) -> tuple[Node, list[Message]]:
        """Of four messages three are due."""
        directory.mkdir()
        node = Node(directory, durable=True)
        node.add(1.0, 1.1, 1.2, 50.0)
        node.sync()
        node.full = True
        node.run(2.0)
        return node, [each for _, each in node.released]

    def test_a_kill_repeats_them_all_until_finished_ones_are_synced(self, tmp_path: Path) -> None:
        node, due = self.node(tmp_path / "a")
        node.deferred.finished(due[:2])
        after = later(node, node.copy(tmp_path / "b"))
        assert (len(after.run(1.0)), len(after.deferred)) == (3, 1)
        node.sync()
        after = later(node, node.copy(tmp_path / "c"))
        assert (after.run(1.0), len(after.deferred)) == ([due[2].body], 1)

    def test_a_file_goes_at_once_when_all_its_messages_are_finished(self, tmp_path: Path) -> None:
        node, due = self.node(tmp_path / "a")
        node.deferred.finished(due)
        assert not node.deferred.files.make_room()
        node.run(50.0)
        assert not node.deferred.files.make_room()
        node.deferred.finished([node.released[-1][1]])
        assert node.deferred.files.make_room()
        assert names(node.directory) == []

    def test_a_file_stays_until_messages_that_have_moved_are_synced(self, tmp_path: Path) -> None:
        node, due = self.node(tmp_path / "a")
        node.deferred.finished(due)
        node.full = False
        node.run(50.0)
        assert not node.deferred.files.make_room()
        node.sync()
        assert names(node.directory) == []

    def test_a_stop_writes_them_with_their_attempts(self, tmp_path: Path) -> None:
        node, due = self.node(tmp_path / "a")
        node.deferred.finished(due[:1])
        due[1].attempts = 7
        due[2].due = node.clock.now() + 30.0  # the disk refuses to defer it again
        node.deferred.hold(due[2:])
        assert node.deferred.take_held() == due[2:]
        node = restarted(node)
        assert node.run(1.0) == [due[1].body]
        assert node.released[0][1].attempts == 7
        assert node.run(28.0) == []
        assert node.run(5.0) == [due[2].body]
        assert len(node.run(50.0)) == 1

    @pytest.mark.parametrize("synced", [False, True])
    def test_one_that_is_deferred_again_is_in_one_file_with_its_new_due_time(
        self, tmp_path: Path, synced: bool
    ) -> None:
        node, due = self.node(tmp_path / "a")
        due[0].due = node.clock.now() + 20.0
        node.deferred.add(due[:1])
        node.deferred.finished(due)  # the backlog has forgotten the first
        assert not node.deferred.files.make_room()
        if synced:
            node.sync()
        after = later(node, node.copy(tmp_path / "b"))
        assert len(after.run(19.0)) == (0 if synced else 2)
        assert after.run(2.0) == [due[0].body]

    def test_emptying_forgets_them(self, tmp_path: Path) -> None:
        node, due = self.node(tmp_path / "a")
        node.deferred.finished(due)  # the backlog is emptied first
        node.deferred.clear()
        node = restarted(node)
        assert (len(node.deferred), names(node.directory)) == (0, [])


@pytest.mark.parametrize("damage", ["cut records", "cut index", "no index", "no records"])
@MODES
def test_a_damaged_file_is_kept_aside_and_what_is_readable_comes(
    tmp_path: Path, damage: str, durable: bool
) -> None:
    (tmp_path / "a").mkdir()
    node = Node(tmp_path / "a", durable=durable, limit=100 if durable else 10)
    node.add(*[5000.0] * 50)
    after_kill = node.copy(tmp_path / "b")
    count = len(node.deferred) if durable else node.deferred.on_disk
    (records,) = after_kill.glob("*.deferred.000001.dat")
    (index,) = after_kill.glob("*.deferred.000001.dues.dat")
    path = records if "records" in damage else index
    if damage.startswith("no "):
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 1])
    after = later(node, after_kill)
    found = after.run(6000.0)
    after.sync()
    expected = {"cut records": 1 / 3 * count, "no records": 0}.get(damage, count)
    assert len(found) >= expected if expected else found == []
    if damage != "no records":
        assert any(name.endswith(".bad") for name in names(after_kill)), after.log.complaints
        assert any("t:c.deferred.000001.dat" in line for line in after.log.complaints)


@pytest.mark.parametrize("few", [20, 0], ids=["at once", "in a thread"])
@MODES
def test_emptying_leaves_no_file(tmp_path: Path, durable: bool, few: int) -> None:
    node = Node(tmp_path, durable=durable)
    node.add(*delays(100))
    job = node.deferred.files.sync_job()
    with patch.object(deferred_files, "_REMOVED_AT_ONCE", few):
        node.deferred.clear()
    removers = [thread for thread in threading.enumerate() if thread.name == "nsqd-remove"]
    assert not removers or not few
    for remover in removers:
        remover.join()
    if job is not None:
        job()
        node.deferred.synced(job)
    assert (len(node.deferred), names(tmp_path), node.run(2 * DAY)) == (0, [], [])
    node.add(5.0)
    assert len(node.run(6.0)) == 1


def test_while_syncs_fail_a_durable_nsqd_refuses_deferred_messages(tmp_path: Path) -> None:
    node = Node(tmp_path, durable=True)
    node.broken = OSError(errno.EIO, "Input/output error")
    with pytest.raises(StorageFailed, match="Input/output"):
        node.add(5.0)
    assert names(tmp_path) == []


def test_a_removed_file_fails_the_sync(tmp_path: Path) -> None:
    node = Node(tmp_path, durable=True)
    node.add(5000.0)
    next(tmp_path.glob("*.deferred.000001.dat")).unlink()
    with pytest.raises(OSError, match="another program has removed"):
        node.sync()
    node.sync()


def test_peek_shows_the_next_ones_with_their_due_times(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add(*delays(100))
    shown = asyncio.run(node.deferred.peek(3, 10))
    expected = sorted(float(delay) + 1000.0 for delay in delays(100))[:3]
    assert [due for due, _ in shown] == pytest.approx(expected)
    assert [each.attempts for _, each in shown] == [3, 3, 3]
    assert sum(len(each.body) for _, each in shown) == 10
    assert len(node.run(2 * DAY)) == 100


def test_peek_shows_a_message_once_that_comes_into_memory_meanwhile(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add(*[5000.0 + number / 100 for number in range(20)])
    node = restarted(node, limit=100)

    async def while_files_are_read(call: Callable[[], Any], name: str) -> Any:
        found = call()
        node.run(4999.0)
        return found

    with patch.object(deferred, "in_thread", while_files_are_read):
        shown = asyncio.run(node.deferred.peek(20, 1000))
    assert (len(node.deferred._heap), node.deferred.on_disk) == (20, 0)
    assert len(shown) == len({each.id for _, each in shown}) == 20


def test_a_look_at_a_file_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add(*[5000.0] * 20)
    (file,) = node.deferred.files.unread
    index = file.index.read_bytes()
    file.index.write_bytes(index + b"the next message" + index[16:24])  # its record comes in a moment
    asyncio.run(node.deferred.peek(3, 10))
    file.index.write_bytes(index)
    assert len(node.run(6000.0)) == 20
    assert node.log.complaints == []


def test_due_ranges_count_every_message(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add(*delays(100))
    ranges = node.deferred.due_ranges()
    assert sum(each.messages for each in ranges) == 100
    assert all(each.first <= each.last <= 1000.0 + DAY + 300_000 for each in ranges)


def test_messages_that_the_disk_refused_to_defer_go_back_to_the_backlog_at_a_stop(tmp_path: Path) -> None:
    node = Node(tmp_path, durable=True)
    (held,) = messages(b"a")
    held.due = 1060.0
    node.deferred.hold([held])
    assert node.deferred.take_held() == [held]
    assert len(node.deferred) == 0


@MODES
def test_a_stop_on_a_full_disk_says_what_is_lost_and_loses_no_more(tmp_path: Path, durable: bool) -> None:
    node = Node(tmp_path, durable=durable)
    node.add(*delays(100))
    node.add(1.0, 1.5)
    node.sync()
    in_memory = len(node.deferred._heap)
    with (
        room_for(50),
        pytest.raises(StorageFailed, match="deferred messages of t:c are lost or not in the queue"),
    ):
        node.deferred.persist()
    node.disk.close()
    after = later(node, tmp_path)
    assert len(after.run(2 * DAY)) == 102 - (0 if durable else in_memory)


def test_a_stop_on_a_full_disk_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    node = Node(tmp_path / "a", durable=True)
    node.add(1.0, 5000.0)
    node.run(1.5)
    node.sync()  # notes that one has left
    after_kill = later(node, node.copy(tmp_path / "b"))
    after_kill.sync()
    opened = len(os.listdir("/dev/fd"))
    with room_for(0), pytest.raises(StorageFailed):
        after_kill.deferred.persist()
    assert len(os.listdir("/dev/fd")) == opened


@MODES
def test_a_damaged_due_time_is_kept_and_reported_once(tmp_path: Path, durable: bool) -> None:
    """A flipped bit puts a message eighteen years ahead."""
    node = Node(tmp_path, durable=durable)
    node.add(*[5000.0 + number for number in range(20)])
    node.stop()
    (index, *_) = sorted(tmp_path.glob("*.dues.dat"))
    content = bytearray(index.read_bytes())
    content[24 + 16] ^= 0x08  # of the first message's due time
    index.write_bytes(content)
    for lines in (1, 0, 0):
        node = later(node, tmp_path)
        node.run(5100.0)
        assert (len(node.deferred), min(node.lateness(), default=0.0) > -0.001) == (1, True)
        assert node.deferred.next_due() - node.clock.now() > 18 * 365 * DAY
        assert len(node.log.complaints) == lines
        node.stop()


def test_of_two_records_that_a_kill_left_the_one_with_a_damaged_due_time_does_not_count(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").mkdir()
    node = Node(tmp_path / "a", durable=True)
    node.add(*[5000.0 + number for number in range(20)])
    after_kill = node.copy(tmp_path / "b")
    journal, other = sorted(after_kill.glob("*.dues.dat"))
    content = bytearray(journal.read_bytes())
    place = 4 * 24
    assert content[place : place + 16] in other.read_bytes()
    content[place + 16] ^= 0x08
    journal.write_bytes(content)
    after = later(node, after_kill)
    assert (len(after.run(6000.0)), min(after.lateness()) > -0.001) == (20, True)


@MODES
def test_due_times_ever_later_are_no_damage(tmp_path: Path, durable: bool) -> None:
    node = Node(tmp_path, durable=durable, limit=100)
    node.add(*[10_000.0 * number for number in range(1, 300)])
    with room_for(200), pytest.raises(StorageFailed):
        node.add(*[8 * 10_000_000.0] * 1000)  # what was written of them is undone
    node.clock.advance_without_calls(2.0)
    node.add(*[10_000.0 * number for number in range(1, 300)])
    node.sync()
    for _ in range(3):
        node = restarted(node)
        node.run(1_000_000.0)
    assert node.log.complaints == []


def test_a_stop_right_after_the_start_keeps_messages_whose_index_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    node = Node(tmp_path / "a")
    node.add(*[5000.0] * 50)
    after_kill = node.copy(tmp_path / "b")
    for index in after_kill.glob("*.dues.dat"):
        index.unlink()
    after = restarted(later(node, after_kill))
    after.run(10.0)
    assert len(after.released) == node.deferred.on_disk


def test_after_a_kill_messages_with_a_record_here_are_not_taken_from_the_topic_again(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    node = Node(tmp_path / "a", durable=True)
    sent = [
        message(b"%d" % number, node.clock.now() + delay) for number, delay in enumerate([1.0, 50.0, 60.0])
    ]
    node.deferred.add(sent)
    node.run(1.5)
    node.sync()  # notes that the first has left
    after_kill = node.copy(tmp_path / "b")
    (records,) = after_kill.glob("*.deferred.000001.dat")
    records.write_bytes(records.read_bytes()[:-1])
    first, second, third = (each.id for each in sent)
    after = later(node, after_kill, in_topic=dict.fromkeys([first, second, third, b"x" * 16], 0))
    assert after.deferred.repeated == {first, second}
    assert len(after.run(100.0)) == 1


@MODES
def test_a_kill_between_the_two_writes_of_a_message_damages_nothing(tmp_path: Path, durable: bool) -> None:
    (tmp_path / "a").mkdir()
    node = Node(tmp_path / "a", durable=durable, limit=100 if durable else 10)
    node.add(*[5000.0] * 50)
    after_kill = node.copy(tmp_path / "b")
    (records,) = after_kill.glob("*.deferred.000001.dat")
    content = records.read_bytes()
    spans, _ = cut(content, 0, 1000, node.disk.sizes)
    records.write_bytes(content[: spans[-2][1]])
    after = later(node, after_kill)
    assert len(after.run(6000.0)) == len(spans) - 1
    assert any("000001.dat lacks its last 1 messages: nsqd ended" in line for line in after.log.complaints)
    assert not any(name.endswith(".bad") for name in names(after_kill))
