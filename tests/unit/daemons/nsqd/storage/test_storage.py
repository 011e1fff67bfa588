"""The storage under a real broker, on a real directory, with an event loop and no network."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from nsq.daemons.nsqd.core.backlog import Message, StorageFailed
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.clock import LoopClock
from nsq.daemons.nsqd.disk import syncing
from nsq.daemons.nsqd.disk.queue import DiskQueue
from nsq.daemons.nsqd.disk.syncing import Replacement
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.storage import rounds, stopping
from nsq.daemons.nsqd.storage.directory import DataDirectory
from nsq.daemons.nsqd.storage.health import HEALTHY
from nsq.daemons.nsqd.storage.memory_first import MemoryFirstBacklog
from nsq.daemons.nsqd.storage.storage import Storage
from nsq.daemons.serve.logs import DaemonLog
from tests.integration import go_reader
from tests.unit.daemons.nsqd.core.consumer import Consumer
from tests.unit.daemons.nsqd.disk.files import names, room_for
from tests.unit.daemons.nsqd.storage.waiting import until

MODES = pytest.mark.parametrize("durable", [False, True], ids=["spilling", "durable"])


class Node:
    """An nsqd's inside."""

    def __init__(self, directory: Path, *, sync_timeout: float = 600.0, **options: object) -> None:
        self.directory = directory
        self.log = io.StringIO()
        clock = LoopClock(asyncio.get_running_loop())
        made = NsqdOptions(data_path=str(directory), sync_timeout=sync_timeout, **options)  # type: ignore[arg-type]
        self.storage = Storage(made, clock, DaemonLog("", "info", self.log))
        self.broker = Broker(clock, backlogs=self.storage)
        self.storage.start(self.broker)

    async def wait_until_synced(self) -> None:
        assert self.storage.committer is not None
        await self.storage.committer.wait_until_synced()

    async def consume(self, topic: str, channel: str, count: int, *, finish: bool = True) -> list[bytes]:
        consumer = Consumer(rdy=count)
        found = self.broker.subscribe(topic, channel, consumer.subscriber)
        await until(lambda: len(consumer.delivered) >= count)
        for message in list(consumer.subscriber.in_flight.values()) if finish else []:
            assert not found.finish(consumer.subscriber, [message.id])
        found.unsubscribe(consumer.subscriber)
        return consumer.bodies

    async def stop(self) -> list[StorageFailed]:
        return await self.storage.stop(self.broker.close())


@asynccontextmanager
async def node(directory: Path, **options: object) -> AsyncIterator[Node]:
    made = Node(directory, **options)  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(40):
            yield made
    finally:
        await made.stop()


def roster(directory: Path) -> object:
    return json.loads((directory / "nsqd.dat").read_bytes())["topics"]


@MODES
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_ids_do_not_repeat_when_the_clock_was_set_back_over_a_restart(
    tmp_path: Path, durable: bool, killed: bool
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()

    async def published(directory: Path, hour: int, kill: bool) -> list[bytes]:
        """Publish at this hour of a day, stop or kill nsqd, and return the ids of all messages."""
        with patch.object(time, "time_ns", lambda: (500_000 + hour) * 3600 * 10**9):
            async with node(directory, durable=durable) as one:
                one.broker.publish("t", [b"a", b"b"])
                one.broker.publish("t", [b"c"])
                await one.wait_until_synced()
                if kill:
                    shutil.copytree(directory, second)
                return [message.id for message in await one.broker.topics["t"].peek(100, 0)]

    async def scenario() -> None:
        before = await published(first, 9, killed)
        after = await published(second if killed else first, 7, False)
        assert max(before) < min(set(after) - set(before))
        assert len(after) == len(set(after)) == (3 if killed and not durable else 6)
        assert (await published(second if killed else first, 7, False))[-1] > max(after)

    asyncio.run(scenario())


@pytest.mark.parametrize("content", [b"", b"junk", b"9" * 30 + b"\n"])
def test_a_damaged_list_of_ids_is_only_warned_about(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "nsqd.ids.dat").write_bytes(content)

    async def scenario() -> None:
        async with node(tmp_path) as one:
            assert "nsqd.ids.dat is damaged: new ids may repeat old ones" in one.log.getvalue()
            one.broker.publish("t", [b"a"])

    asyncio.run(scenario())
    assert int((tmp_path / "nsqd.ids.dat").read_bytes()) == pytest.approx(time.time_ns() >> 20, rel=0.001)


def test_ids_do_not_repeat_if_a_kill_leaves_records_but_not_the_list_of_ids(tmp_path: Path) -> None:
    ids = tmp_path / "nsqd.ids.dat"
    ids.write_bytes(b"%d\n" % ((time.time_ns() >> 20) + 10**6))  # the clock was set back

    async def id_of_a_killed_run() -> bytes:
        async with node(tmp_path, durable=True) as one:
            at_the_kill = ids.read_bytes()
            one.broker.publish("t", [b"a"])
            (message,) = (await one.broker.topics["t"].peek(100, 0))[-1:]
        ids.write_bytes(at_the_kill)
        return message.id

    assert asyncio.run(id_of_a_killed_run()) < asyncio.run(id_of_a_killed_run())


@MODES
def test_after_a_start_all_channels_get_the_messages_that_waited_in_their_topic(
    tmp_path: Path, durable: bool
) -> None:
    async def scenario() -> None:
        async with node(tmp_path, durable=durable) as one:
            topic = one.broker.topic("t")
            topic.channel("x")
            topic.channel("y")
            one.broker.pause(topic, True)
            one.broker.publish("t", [b"a", b"b"])
        text = (tmp_path / "nsqd.dat").read_text().replace("true", "false")
        (tmp_path / "nsqd.dat").write_text(text)
        async with node(tmp_path, durable=durable) as two:
            assert {name: channel.depth for name, channel in two.broker.topics["t"].channels.items()} == {
                "x": 2,
                "y": 2,
            }

    asyncio.run(scenario())


@MODES
def test_deleting_leaves_nothing_on_disk(tmp_path: Path, durable: bool) -> None:
    async def scenario() -> None:
        async with node(tmp_path, durable=durable, mem_queue_size=0) as one:
            topic = one.broker.topic("t")
            one.broker.publish("t", [b"waits"])
            topic.channel("c")
            one.broker.publish("t", [b"%d" % number for number in range(9)])
            one.broker.publish_deferred("t", [(3600, b"deferred")])
            await one.wait_until_synced()
            assert any(name.startswith("t:c.") for name in names(tmp_path))
            one.broker.delete_channel(topic, "c")
            assert not any(name.startswith("t:c.") for name in names(tmp_path))
            one.broker.publish("t", [b"waits"])
            one.broker.delete_topic("t")
            await one.wait_until_synced()
            assert names(tmp_path) == ["nsqd.dat", "nsqd.ids.dat"]
            assert roster(tmp_path) is None

    asyncio.run(scenario())


@MODES
def test_a_topic_that_is_made_anew_is_empty(tmp_path: Path, durable: bool) -> None:
    async def scenario() -> None:
        async with node(tmp_path, durable=durable, mem_queue_size=0) as one:
            for _ in range(20):
                one.broker.topic("t").channel("c")
                one.broker.publish("t", [b"a"])
                one.storage.try_again()
                lasting = asyncio.create_task(one.wait_until_synced())
                await asyncio.sleep(0)
                one.broker.delete_topic("t")  # perhaps under the hands of a round
                one.broker.topic("t").channel("c")
                assert one.broker.topics["t"].channels["c"].depth == 0
                await lasting
            assert one.storage.health == HEALTHY

    asyncio.run(scenario())


@MODES
def test_a_stop_syncs_many_queues_at_a_time_and_says_how_far_it_is(tmp_path: Path, durable: bool) -> None:
    async def scenario() -> None:
        one = Node(tmp_path, durable=durable)
        for number in range(30):
            one.broker.publish(f"t{number:02}", [b"x"])
        with (
            patch.multiple(stopping, _QUEUES_AT_ONCE=10, _PROGRESS_SECONDS=0.0),
            patch.object(stopping, "run_together", side_effect=stopping.run_together) as together,
        ):
            assert await one.stop() == []
        assert together.call_count == 4  # three groups of queues, then the lists
        assert "still writing 30 queues with 30 messages in memory to disk" in one.log.getvalue()
        async with node(tmp_path, durable=durable) as two:
            assert [topic.depth for topic in two.broker.topics.values()] == [1] * 30

    asyncio.run(scenario())


def test_ephemeral_topics_touch_no_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node(tmp_path, mem_queue_size=0) as one:
            one.broker.topic("t#ephemeral").channel("c#ephemeral")
            one.broker.publish("t#ephemeral", [b"a"])
            assert one.broker.topics["t#ephemeral"].channels["c#ephemeral"].depth == 1
        assert names(tmp_path) == ["nsqd.dat", "nsqd.ids.dat"]

    asyncio.run(scenario())


@MODES
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_files_may_have_become_links_and_nsqd_writes_through_none(
    tmp_path: Path, durable: bool, killed: bool
) -> None:
    (data := tmp_path / "data").mkdir()
    (outside := tmp_path / "outside").mkdir()
    options = {"durable": durable, "mem_queue_size": 0}

    async def first_life() -> None:
        async with node(data, **options) as one:
            one.broker.topic("t").channel("c")
            one.broker.publish("t", [b"1", b"2"])
            one.broker.publish("without channel", [b"x"])
            one.broker.publish_deferred("without channel", [(3600.0, b"y")])
            one.broker.publish_deferred("t", [(3600.0, b"deferred %d" % number) for number in range(300)])
            await one.wait_until_synced()
            if killed:
                shutil.copytree(data, outside, dirs_exist_ok=True)

    async def second_life() -> None:
        async with node(data, **options) as one:
            one.broker.publish("t", [b"3"])
            one.broker.publish("without channel", [b"z"])
            one.broker.publish_deferred("without channel", [(3600.0, b"later")])
            one.broker.publish_deferred("t", [(3600.0, b"4")])
            await one.wait_until_synced()
            assert await one.consume("t", "c", 3) == [b"1", b"2", b"3"]
            deferred = one.broker.topics["t"].channels["c"].deferred
            assert len(deferred) == 301 if durable or not killed else 1 <= len(deferred) <= 301
            assert one.storage.health == HEALTHY

    asyncio.run(first_life())
    if not killed:
        shutil.copytree(data, outside, dirs_exist_ok=True)
    before = {path.name: path.read_bytes() for path in outside.iterdir()}
    assert len(before) > 6
    shutil.rmtree(data)
    data.mkdir()
    for path in outside.iterdir():
        (data / path.name).symlink_to(path)
    asyncio.run(second_life())
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before


class TestRounds:
    def test_publishers_wait_for_their_own_records_alone(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with node(tmp_path, durable=True) as one:
                for name in ("a", "b"):
                    one.broker.topic(name).channel("c")
                    one.broker.publish(name, [b"x"])
                await one.wait_until_synced()
                synced.clear()
                one.broker.publish("a", [b"x"])
                await one.wait_until_synced()
                assert synced == ["a:c.diskqueue.000000.dat"]

        synced: list[str] = []
        with watched(synced):
            asyncio.run(scenario())

    @MODES
    def test_thousands_of_queues_are_synced_in_portions(self, tmp_path: Path, durable: bool) -> None:
        def written() -> list[Path]:
            return [path for path in tmp_path.glob("*.meta.dat") if "fsynced 1 " in path.read_text()]

        async def scenario() -> None:
            async with node(tmp_path, durable=durable, mem_queue_size=0) as one:
                for number in range(120):
                    one.broker.publish(f"t{number}", [b"x"])
                await one.wait_until_synced()
                assert 0 < len(written()) < 120
                await until(lambda: len(written()) == 120)

        asyncio.run(scenario())

    def test_without_durable_files_are_synced_every_so_many_messages(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with node(tmp_path, mem_queue_size=0, sync_every=10) as one:
                assert one.storage.publish_committer is None
                one.broker.topic("t")
                await one.wait_until_synced()
                synced.clear()
                one.broker.publish("t", [b"x"] * 9)
                for _ in range(20):
                    await asyncio.sleep(0)
                assert synced == []
                one.broker.publish("t", [b"x"])
                await until(lambda: synced)

        synced: list[str] = []
        with watched(synced):
            asyncio.run(scenario())
        assert synced[0] == "t.diskqueue.000000.dat"


def watched(synced: list[str]) -> ExitStack:
    """Notes every file that is synced, and every name a file is given."""
    sync, rename = syncing.sync_path, Replacement.rename

    def sync_path(path: Path) -> None:
        sync(path)
        if path.suffix == ".dat":
            synced.append(path.name)

    def renamed(replacement: Replacement) -> None:
        rename(replacement)
        synced.append(replacement.target.name)

    stack = ExitStack()
    stack.enter_context(patch.object(syncing, "sync_path", sync_path))
    stack.enter_context(patch.object(Replacement, "rename", renamed))
    return stack


@pytest.fixture
def broken_syncs() -> Iterator[Callable[[], list[str]]]:
    """Lets syncs fail while the list it gives is not empty."""
    sync, errors = syncing.sync_path, ["broken"]

    def sync_path(path: Path) -> None:
        if errors:
            raise OSError(errno.EIO, "Input/output error")
        sync(path)

    with patch.object(syncing, "sync_path", sync_path):
        yield lambda: errors


class TestFaults:
    @MODES
    def test_a_full_disk_is_tried_again_without_publishers_or_ticks(
        self, tmp_path: Path, durable: bool
    ) -> None:
        async def scenario() -> None:
            async with node(tmp_path, durable=durable, mem_queue_size=0) as one:
                one.broker.topic("t").channel("c")
                await one.wait_until_synced()
                full = patch.object(DataDirectory, "probe", side_effect=OSError(errno.ENOSPC, "full"))
                with room_for(0), full as probe:
                    with pytest.raises(StorageFailed, match="No space left"):
                        one.broker.publish("t", [b"refused"])
                    await until(lambda: probe.call_count > 2)
                    assert one.storage.health != HEALTHY
                await until(lambda: one.storage.health == HEALTHY)

        with patch.object(rounds, "_RETRY_SECONDS", 0.001):
            asyncio.run(scenario())

    def test_what_was_written_during_a_failed_fsync_is_not_confirmed_by_the_next_one(
        self, tmp_path: Path
    ) -> None:
        """The fsync has dropped the records, and the system then their pages: the file holds zeros."""
        begun, goes_on = threading.Event(), threading.Event()
        sync = syncing.sync_path

        def sync_path(path: Path) -> None:
            if path.name == "t.diskqueue.000000.dat" and not goes_on.is_set():
                begun.set()
                assert goes_on.wait(40)
                path.write_bytes(bytes(path.stat().st_size))
                raise OSError(errno.EIO, "Input/output error")
            sync(path)

        async def scenario() -> None:
            async with node(tmp_path, durable=True) as one:
                assert one.storage.committer is not None
                one.storage.committer.retry_after = 0.001
                one.broker.topic("t")
                await one.wait_until_synced()
                one.broker.publish("t", [b"first"])
                first = asyncio.create_task(one.wait_until_synced())
                await until(begun.is_set)
                one.broker.publish("t", [b"second"])
                second = asyncio.create_task(one.wait_until_synced())
                await asyncio.sleep(0)
                goes_on.set()
                for waiting in (first, second):
                    with pytest.raises(StorageFailed, match="syncing to disk failed"):
                        await waiting
                await until(lambda: one.storage.health == HEALTHY)
                one.broker.publish("t", [b"third"])
                await one.wait_until_synced()

        with patch.object(syncing, "sync_path", sync_path):
            asyncio.run(scenario())
        assert (tmp_path / "t.diskqueue.000001.dat").read_bytes().endswith(b"third")

    def test_a_list_of_topics_that_could_not_be_written_is_written_later(
        self, tmp_path: Path, broken_syncs: Callable[[], list[str]]
    ) -> None:
        async def scenario() -> None:
            errors = broken_syncs()
            async with node(tmp_path) as one:
                assert one.storage.committer is not None
                one.storage.committer.retry_after = 0.001
                one.broker.topic("t")
                await until(lambda: one.storage.health != HEALTHY)
                errors.clear()
                await one.wait_until_synced()
                assert roster(tmp_path) == [{"name": "t", "paused": False, "channels": None}]

        asyncio.run(scenario())

    @MODES
    def test_a_channel_goes_on_when_its_files_can_be_read_again(self, tmp_path: Path, durable: bool) -> None:
        async def scenario() -> None:
            async with node(tmp_path, durable=durable, mem_queue_size=0, sync_timeout=0.01) as one:
                channel = one.broker.topic("t").channel("c")
                one.broker.publish("t", [b"a", b"b"])
                consumer = Consumer(rdy=9)
                with patch.object(
                    DiskQueue, "read", side_effect=OSError(errno.EMFILE, "Too many open files")
                ):
                    one.broker.subscribe("t", "c", consumer.subscriber)
                    await until(lambda: one.storage.health != HEALTHY)
                    assert (consumer.bodies, channel.depth) == ([], 2)
                await until(lambda: len(consumer.delivered) >= 2)

        asyncio.run(scenario())

    @MODES
    def test_a_stop_that_cannot_write_says_so_and_ends_all_the_same(
        self, tmp_path: Path, durable: bool
    ) -> None:
        async def scenario() -> None:
            one = Node(tmp_path, durable=durable)
            for name in ("t", "u"):
                one.broker.topic(name).channel("c")
                one.broker.publish(name, [b"a"])
            with full_disk():
                errors = await one.stop()
            said = [str(error) for error in errors]
            lost = [error for error in said if "1 messages of " in error and "are lost" in error]
            assert (len(said), len(lost)) == (3, 0 if durable else 2)
            assert "cannot write the list of topics" in said.pop()
            assert all("may repeat" in error for error in said if error not in lost)

        asyncio.run(scenario())

    def test_a_stop_writes_messages_that_the_disk_refused_once(self, tmp_path: Path) -> None:
        persist = MemoryFirstBacklog.persist

        def slowly(backlog: MemoryFirstBacklog, taken: list[Message]) -> None:
            persist(backlog, taken)
            time.sleep(0.2)  # in another thread; the time to try the disk again passes

        async def scenario() -> None:
            one = Node(tmp_path, mem_queue_size=0)
            one.broker.topic("t").channel("c")
            one.broker.publish("t", [b"a"])
            with full_disk():
                await one.consume("t", "c", 1, finish=False)
            assert await one.stop() == []

        slow_stop = patch.object(MemoryFirstBacklog, "persist", slowly)
        with patch.object(rounds, "_RETRY_SECONDS", 0.1), slow_stop:
            asyncio.run(scenario())
        assert go_reader.bodies(tmp_path, "t:c") == [b"a"]

    def test_a_queue_that_cannot_be_opened_is_a_refusal(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with node(tmp_path) as one:
                error = OSError(errno.EMFILE, "Too many open files")
                with (
                    patch("os.open", side_effect=error),
                    pytest.raises(StorageFailed, match="Too many"),
                ):
                    one.broker.publish("t", [b"a"])
                assert "t" not in one.broker.topics
                one.broker.publish("t", [b"a"])

        asyncio.run(scenario())


@contextmanager
def full_disk() -> Iterator[None]:
    """No room for a byte, of whatever file."""
    error = OSError(errno.ENOSPC, "No space left on device")
    with room_for(0), patch.object(Replacement, "write", side_effect=error):
        yield


@pytest.mark.parametrize("moved", [False, True], ids=["unlinked", "moved away"])
def test_a_removed_message_file_is_noticed_and_its_messages_are_written_again(
    tmp_path: Path, moved: bool
) -> None:
    data, after = tmp_path / "data", tmp_path / "after"
    data.mkdir()

    async def scenario() -> None:
        async with node(data, durable=True) as one:
            one.broker.publish("t", [b"0", b"1", b"2", b"3"])
            one.broker.publish_deferred("t", [(3600.0, b"4")])
            await one.wait_until_synced()
            for name in ("t.diskqueue.000000.dat", "t.dues.dat"):
                (data / name).rename(tmp_path / name) if moved else (data / name).unlink()
            one.broker.publish_deferred("t", [(3600.0, b"5")])
            with pytest.raises(StorageFailed):
                await one.wait_until_synced()
            assert "another program has removed files of messages: 't.disk" in one.log.getvalue()
            await until(lambda: one.storage.health == HEALTHY)
            one.broker.publish("t", [b"6"])
            await one.wait_until_synced()
            shutil.copytree(data, after)
        async with node(after, durable=True) as two:
            topic = two.broker.topic("t")
            assert sorted(each.body for each in await topic.peek(100, 100)) == [b"%d" % n for n in range(7)]
            channel = topic.channel("c")
            await two.consume("t", "c", 5)
            assert channel.deferred_count == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("mem_queue_size", [0, 100])
def test_emptying_a_topic_keeps_what_a_channel_on_a_full_disk_has_only_in_memory(
    tmp_path: Path, mem_queue_size: int
) -> None:
    data, after = tmp_path / "data", tmp_path / "after"
    data.mkdir()

    async def scenario() -> None:
        async with node(data, durable=True, mem_queue_size=mem_queue_size) as one:
            topic = one.broker.topic("t")
            topic.pause(True)
            channels = [topic.channel(name) for name in ("a", "b")]
            one.broker.publish("t", [b"1", b"2"])
            one.broker.publish_deferred("t", [(3600.0, b"3")])
            await one.wait_until_synced()
            full = OSError(errno.ENOSPC, "No space left on device")
            with patch.object(channels[1].backlog.disk, "append", side_effect=full):  # type: ignore[attr-defined]
                topic.pause(False)
            topic.pause(True)
            one.broker.publish("t", [b"discarded"])
            assert [each.depth for each in channels] == [2, 2]
            topic.empty()
            assert topic.depth == 0
            await one.wait_until_synced()
            shutil.copytree(data, after)
            assert await one.consume("t", "b", 2) == [b"1", b"2"]
        async with node(after, durable=True) as two:
            two.broker.topics["t"].pause(False)
            assert await two.consume("t", "b", 2) == [b"1", b"2"]
            assert two.broker.topics["t"].channels["b"].deferred_count == 1

    asyncio.run(scenario())


def test_a_removed_file_is_noticed_without_a_publish(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node(tmp_path, durable=True, sync_timeout=0.01) as one:
            one.broker.publish("t", [b"a"])
            await one.wait_until_synced()
            (tmp_path / "t.diskqueue.000000.dat").unlink()
            await until(lambda: "another program has removed files of messages" in one.log.getvalue())
            await until(lambda: one.storage.health == HEALTHY)
            await one.wait_until_synced()
            assert (tmp_path / "t.diskqueue.000001.dat").stat().st_size == 31
            assert one.log.getvalue().count("another program") == 1

    asyncio.run(scenario())


def test_a_removed_file_of_a_spilled_queue_is_noticed_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node(tmp_path, mem_queue_size=0, sync_every=1) as one:
            one.broker.publish("t", [b"a"])
            await one.wait_until_synced()
            (tmp_path / "t.diskqueue.000000.dat").unlink()
            one.broker.publish("t", [b"b"])
            await until(lambda: "another program has removed files" in one.log.getvalue())
            await until(lambda: one.storage.health == HEALTHY)
            one.broker.publish("t", [b"c"])
            assert b"c" in await one.consume("t", "c", 1, finish=False)

    asyncio.run(scenario())


def test_a_removed_file_of_deferred_messages_is_noticed_and_written_again(tmp_path: Path) -> None:
    data, after = tmp_path / "data", tmp_path / "after"
    data.mkdir()

    async def scenario() -> None:
        async with node(data, durable=True) as one:
            assert one.storage.committer is not None
            one.storage.committer.retry_after = 0.001
            channel = one.broker.topic("t").channel("c")
            for delay in (2.0, 3600.0):
                one.broker.publish_deferred("t", [(delay, b"%d" % delay)])
            for path in data.glob("t:c.deferred.*"):
                path.unlink()
            with pytest.raises(StorageFailed):
                await one.wait_until_synced()
            await until(lambda: one.storage.health == HEALTHY)
            await one.wait_until_synced()
            assert channel.deferred_count == 2
            shutil.copytree(data, after)
        async with node(after, durable=True) as two:
            assert await two.consume("t", "c", 1) == [b"2"]

    asyncio.run(scenario())
