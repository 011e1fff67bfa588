"""nsqd's storage, seen from outside: restarts, kills, full disks, and directories of Go's nsqd."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsq.testing import DaemonFailed, Nsqd, V2Client
from nsq.testing.plugin import Factory
from nsq.testing.v2 import Message, PeerClosed
from nsq.wire import commands
from nsq.wire.frames import FRAME_MESSAGE, FRAME_RESPONSE
from tests.golden.recordings import others_are_judged
from tests.integration import go_reader
from tests.integration.clients import (
    channel_stats,
    connected,
    consumer,
    finish_all,
    publish,
    stats,
    subscribe,
    topic_stats,
)
from tests.integration.judged import ANY_PORTS, only_ours, run
from tests.integration.patience import eventually

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "diskqueue"

MODES = pytest.mark.parametrize(
    "durable",
    [False, pytest.param(True, marks=only_ours("durability"))],
    ids=["normal", "durable"],
)


def options(durable: bool, **others: Any) -> dict[str, Any]:
    return {"process": True, "sync_timeout": 0.2, **({"durable": True} if durable else {}), **others}


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(start, start + count)]


def take(client: V2Client, count: int) -> list[Message]:
    return [client.expect_message() for _ in range(count)]


def finish_and_leave(client: V2Client, messages: list[Message]) -> None:
    """Once nsqd knows, and without taking others in their place."""
    client.send(commands.rdy(0))
    finish_all(client, messages)
    client.send(b"CLS\n")
    client.expect(0, b"CLOSE_WAIT")


def restart_under(client: V2Client, nsqd: Nsqd) -> None:
    """While the client is connected; it hangs up when nsqd does, which waits for that."""
    os.kill(nsqd.pid, signal.SIGTERM)
    with contextlib.suppress(PeerClosed):
        while client.frame():
            pass
    client.close()
    eventually(lambda: not nsqd.running)  # a second signal would not wait for the stop
    nsqd.restart()


def drain(nsqd: Nsqd, topic: str, count: int, channel: str = "channel") -> list[bytes]:
    """Finish this many messages; there must be no more."""
    with consumer(nsqd, topic, channel, rdy=min(count, 2500) or 1) as client:
        found = []
        for _ in range(count):
            message = client.expect_message()
            found.append(message.body)
            client.send(commands.fin(message.id))
        client.expect_silence(0.05)
        client.send(b"CLS\n")
        client.expect(0, b"CLOSE_WAIT")
    return found


class TestACleanRestart:
    @MODES
    @pytest.mark.parametrize("memory", [0, 5])
    def test_a_restart_keeps_every_unfinished_message(
        self, nsqd_factory: Factory[Nsqd], durable: bool, memory: int
    ) -> None:
        nsqd = nsqd_factory(**options(durable, mem_queue_size=memory, max_bytes_per_file=300))
        for channel in ("one", "two"):
            with consumer(nsqd, "t", channel, rdy=0):
                pass
        publish(nsqd, "t", numbered(20))
        publish(nsqd, "no-channel", numbered(20))
        with consumer(nsqd, "t", "one", rdy=9) as client:
            held = take(client, 9)
            # Some in the middle are finished, two come later, the others stay in flight.
            finish_all(client, held[2:5])
            client.send(commands.req(held[6].id, 60_000) + commands.req(held[7].id, 0))
            eventually(lambda: channel_stats(nsqd, "t", "one"), lambda seen: seen["deferred_count"] == 1)
            restart_under(client, nsqd)
        finished = {message.body for message in held[2:5]}
        left = [body for body in numbered(20) if body not in finished]
        # Ours keeps the delay over the restart, Go's delivers it at once.
        expected = [body for body in left if others_are_judged() or body != held[6].body]
        assert sorted(drain(nsqd, "t", len(expected), "one")) == expected
        assert sorted(drain(nsqd, "t", 20, "two")) == numbered(20)
        assert sorted(drain(nsqd, "no-channel", 20)) == numbered(20)

    @MODES
    def test_a_second_restart_brings_back_no_finished_message(
        self, nsqd_factory: Factory[Nsqd], durable: bool
    ) -> None:
        nsqd = nsqd_factory(**options(durable, mem_queue_size=5))
        publish(nsqd, "t", numbered(40))
        found: list[bytes] = []
        for _ in range(3):
            with consumer(nsqd, "t", rdy=10) as client:
                held = take(client, 10)
                finish_and_leave(client, held)
            found += [message.body for message in held]
            nsqd.restart()
        found += drain(nsqd, "t", 10)
        assert sorted(found) == numbered(40)
        if not others_are_judged():  # Go's takes from memory and disk by turns
            assert found == numbered(40)

    @MODES
    def test_a_stop_leaves_files_that_go_can_read(
        self, nsqd_factory: Factory[Nsqd], tmp_path: Path, durable: bool
    ) -> None:
        nsqd = nsqd_factory(
            **options(durable, mem_queue_size=3, max_bytes_per_file=200, data_path=str(tmp_path))
        )
        with consumer(nsqd, "t", "a", rdy=0):
            pass
        with consumer(nsqd, "t", "b", rdy=0):
            pass
        publish(nsqd, "t", numbered(12))
        publish(nsqd, "u", numbered(7))
        with consumer(nsqd, "t", "a", rdy=5) as client:
            held = take(client, 5)
            finish_and_leave(client, held[1:4])
        publish(nsqd, "t", [b"last"])
        with connected(nsqd) as client:
            client.send(commands.dpub("t", 3_600_000, b"deferred"))
            client.expect_ok()
        nsqd.stop(keep_data=True)
        assert go_reader.topics(tmp_path) == {"t": ["a", "b"], "u": []}
        everything = {*numbered(12), b"deferred", b"last"}
        finished = {message.body for message in held[1:4]}
        assert sorted(go_reader.bodies(tmp_path, "t:b")) == sorted(everything)
        assert sorted(go_reader.bodies(tmp_path, "t:a")) == sorted(everything - finished)
        assert sorted(go_reader.bodies(tmp_path, "u")) == numbered(7)
        assert go_reader.bodies(tmp_path, "t") == []

    def test_topics_channels_and_pauses_are_there_after_a_restart(self, nsqd_factory: Factory[Nsqd]) -> None:
        nsqd = nsqd_factory(**options(False))
        for request in (
            "/topic/create?topic=t",
            "/channel/create?topic=t&channel=c",
            "/channel/pause?topic=t&channel=c",
            "/topic/create?topic=paused",
            "/channel/create?topic=paused&channel=c",
            "/topic/pause?topic=paused",
            "/topic/create?topic=gone",
            "/topic/delete?topic=gone",
            "/topic/create?topic=e%23ephemeral",
        ):
            assert nsqd.post(request).status == 200
        nsqd.restart()
        seen = {
            topic["topic_name"]: (
                topic["paused"],
                [(each["channel_name"], each["paused"]) for each in topic["channels"]],
            )
            for topic in stats(nsqd)["topics"]
        }
        assert seen == {"t": (False, [("c", True)]), "paused": (True, [("c", False)])}


class TestADirectoryOfGo:
    @MODES
    def test_a_directory_of_go_is_used_and_can_be_given_back(
        self, nsqd_factory: Factory[Nsqd], tmp_path: Path, durable: bool
    ) -> None:
        data = Path(shutil.copytree(GOLDEN, tmp_path / "data"))
        expected = go_reader.bodies(data, "dq:ch")
        assert len(expected) == 8
        nsqd = nsqd_factory(**options(durable, data_path=str(data)))
        with consumer(nsqd, "dq", "ch", rdy=3) as client:
            found = take(client, 3)
            finish_and_leave(client, found)
        assert [message.body for message in found] == expected[:3]
        nsqd.stop(keep_data=True)
        assert go_reader.bodies(data, "dq:ch") == expected[3:]
        assert go_reader.topics(data) == {"dq": ["ch"]}
        assert (data / "dq.diskqueue.000000.dat.bad").exists()


@MODES
@pytest.mark.parametrize("memory", [0, 100])
def test_fifty_thousand_spill_to_disk_and_come_back_in_order(
    nsqd_factory: Factory[Nsqd], durable: bool, memory: int
) -> None:
    count = 50_000
    nsqd = nsqd_factory(**options(durable, mem_queue_size=memory, max_bytes_per_file=1_000_000))
    with consumer(nsqd, "t", rdy=0):
        pass
    for start in range(0, count, 10_000):
        publish(nsqd, "t", numbered(10_000, start))
    # Go's hands from the topic to the channel while others publish.
    seen = eventually(lambda: channel_stats(nsqd, "t"), lambda seen: seen["depth"] == count)
    assert count - memory <= seen["backend_depth"] <= count
    files = sorted(nsqd.data_path.glob("t:channel.diskqueue.0*.dat"))
    assert len(files) >= 2
    found: list[bytes] = []
    with consumer(nsqd, "t", rdy=2500) as client:
        while len(found) < count:
            batch = take(client, 500)
            finish_all(client, batch)
            found += [message.body for message in batch]
    assert sorted(found) == numbered(count)
    if memory == 0 or not others_are_judged():  # Go's takes from memory and disk by turns
        assert found == numbered(count)
    eventually(lambda: channel_stats(nsqd, "t")["depth"], lambda depth: depth == 0)
    eventually(lambda: len(list(nsqd.data_path.glob("t:channel.diskqueue.0*.dat"))), lambda left: left <= 1)


class TestTheLock:
    def test_a_second_nsqd_ends_and_names_the_directory(
        self, nsqd_factory: Factory[Nsqd], tmp_path: Path
    ) -> None:
        first = nsqd_factory(**options(False, data_path=str(tmp_path)))
        publish(first, "t", [b"a"])
        second = run("nsqd", *ANY_PORTS, f"--data-path={tmp_path}", cwd=tmp_path)
        assert second.returncode == 1
        assert str(tmp_path) in second.stderr
        assert first.get("/ping").status == 200
        assert drain(first, "t", 1) == [b"a"]

    @only_ours("Go's binary ends with another status")
    def test_the_data_path_is_locked_within_one_process_too(
        self, nsqd_factory: Factory[Nsqd], tmp_path: Path
    ) -> None:
        nsqd_factory(data_path=str(tmp_path))
        with pytest.raises(DaemonFailed, match="cannot be locked"):
            nsqd_factory.make(data_path=str(tmp_path)).start()


class TestAKill:
    @only_ours("durability")
    def test_a_kill_loses_no_confirmed_message(self, nsqd_factory: Factory[Nsqd]) -> None:
        nsqd = nsqd_factory(**options(True, mem_queue_size=5))
        with connected(nsqd) as client:
            subscribe(client, "t", rdy=4)
            client.send(commands.mpub("t", numbered(20)))
            client.expect_ok()
            held = take(client, 4)
            finish_all(client, held[:1])
            client.send(commands.dpub("t", 3_600_000, b"deferred") + commands.pub("u", b"new topic"))
            # The place of the finished one is taken, before or after the two answers.
            frames = [client.frame() for _ in range(3)]
            assert sorted(frame.type for frame in frames) == [FRAME_RESPONSE, FRAME_RESPONSE, FRAME_MESSAGE]
            assert [frame.data for frame in frames if frame.type == FRAME_RESPONSE] == [b"OK", b"OK"]
            assert nsqd.post("/topic/create?topic=v").status == 200
            assert nsqd.post("/channel/create?topic=v&channel=c").status == 200
            assert nsqd.post("/channel/pause?topic=v&channel=c").status == 200
            nsqd.kill()
        nsqd.start()
        assert {topic["topic_name"] for topic in stats(nsqd)["topics"]} == {"t", "u", "v"}
        (kept,) = topic_stats(nsqd, "v")["channels"]
        assert (kept["channel_name"], kept["paused"]) == ("c", True)
        missing = set(numbered(20)) - {held[0].body}
        with consumer(nsqd, "t", rdy=30) as client:
            while missing:
                missing.discard(client.expect_message().body)  # the finished one may come again
        assert channel_stats(nsqd, "t")["deferred_count"] == 1
        assert drain(nsqd, "u", 1) == [b"new topic"]

    @MODES
    def test_after_a_kill_gos_nsqd_finds_every_message(
        self, nsqd_factory: Factory[Nsqd], tmp_path: Path, durable: bool
    ) -> None:
        nsqd = nsqd_factory(
            **options(durable, mem_queue_size=0, max_bytes_per_file=700, data_path=str(tmp_path))
        )
        with consumer(nsqd, "t", rdy=0):
            pass
        with connected(nsqd) as client:
            for body in numbered(100):
                client.send(commands.pub("t", body))
                client.expect_ok()
            eventually(lambda: topic_stats(nsqd, "t")["depth"], lambda seen: seen == 0)
            nsqd.kill()
        go = go_reader.GoQueue(tmp_path, "t:channel")
        assert go.bodies() == numbered(100)
        go.publish(b"of Go")
        go.stop()
        nsqd.start()
        assert sorted(drain(nsqd, "t", 101)) == sorted([*numbered(100), b"of Go"])

    @only_ours("durability")
    @pytest.mark.parametrize("older", [1, 20])
    def test_a_kill_brings_back_few_messages_finished_after_unfinished_ones(
        self, nsqd_factory: Factory[Nsqd], older: int
    ) -> None:
        """Older messages stay in flight while thousands are finished; positions are not synced by time."""
        nsqd = nsqd_factory(**options(True, sync_timeout=600, msg_timeout=600))
        with consumer(nsqd, "t", rdy=older) as slow, connected(nsqd) as client:
            publish(nsqd, "t", numbered(older))
            take(slow, older)
            subscribe(client, "t", rdy=500)
            for start in range(older, 6000 + older, 1000):
                publish(nsqd, "t", numbered(1000, start))
                for _ in range(4):
                    finish_all(client, take(client, 250))
            eventually(lambda: channel_stats(nsqd, "t"), lambda seen: seen["in_flight_count"] == older)
            nsqd.kill()
        nsqd.start()
        # On a busy machine no sync may have ended since the last publish, and up to 500 wait for a rewrite.
        assert older <= channel_stats(nsqd, "t")["depth"] <= older + 1500


@only_ours("the bound")
@MODES
def test_a_bound_keeps_the_newest_messages_in_memory_on_disk_and_over_a_kill(
    durable: bool, nsqd_factory: Factory[Nsqd]
) -> None:
    bound = 1000
    nsqd = nsqd_factory(**options(durable, max_channel_depth=bound, mem_queue_size=100))
    nsqd.post("/topic/create?topic=orders")
    nsqd.post("/channel/create?topic=orders&channel=channel")
    for start in range(0, 20_000, 500):
        publish(nsqd, "orders", numbered(500, start))
    figures = channel_stats(nsqd, "orders")
    assert (figures["depth"], figures["dropped_count"]) == (bound, 19_000)
    assert "WARNING: channel orders/channel has dropped its oldest" in nsqd.log
    with consumer(nsqd, "orders", rdy=10) as client:
        messages = take(client, 10)
        assert [message.body for message in messages] == numbered(10, 19_000)
        finish_and_leave(client, messages)
    if durable:
        nsqd.kill()
        nsqd.start()
        # A kill brings back some that were finished, and so some that were dropped.
        waiting = channel_stats(nsqd, "orders")["depth"]
        left = drain(nsqd, "orders", waiting)
        assert left[-(bound - 10) :] == numbered(bound - 10, 19_010)
        return
    nsqd.restart()
    assert drain(nsqd, "orders", bound - 10) == numbered(bound - 10, 19_010)


@only_ours("the bound")
def test_a_mistyped_bound_deletes_no_backlog(nsqd_factory: Factory[Nsqd], tmp_path: Path) -> None:
    data = {"data_path": tmp_path, "process": True}
    with Nsqd(**data) as nsqd:
        nsqd.post("/topic/create?topic=orders")
        nsqd.post("/channel/create?topic=orders&channel=channel")
        publish(nsqd, "orders", numbered(50))
        publish(nsqd, "alone", numbered(30))
    with Nsqd(**data, max_channel_depth=10) as nsqd:
        for name, depth in (("channel orders/channel", 50), ("topic alone", 30)):
            assert f"WARNING: {name} has {depth} waiting messages, {depth - 10} more than" in nsqd.log
        publish(nsqd, "orders", numbered(2, 50))
        nsqd.post("/channel/create?topic=alone&channel=channel")
    with Nsqd(**data) as nsqd:
        assert drain(nsqd, "orders", 50) == numbered(50, 2)
        assert drain(nsqd, "alone", 30) == numbered(30)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with room for little."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can make a small disk")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no small disk here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@only_ours("Go's nsqd drops what its disk refuses")
class TestAFullDisk:
    @MODES
    def test_a_full_disk_refuses_publishes_until_there_is_room(
        self, nsqd_factory: Factory[Nsqd], small_disk: Path, durable: bool
    ) -> None:
        nsqd = nsqd_factory(**options(durable, mem_queue_size=10, data_path=str(small_disk)))
        with consumer(nsqd, "t", rdy=0):
            pass
        (small_disk / "somebody elses file").write_bytes(b"x" * 256 * 1024)
        taken = self.publish_until_refused(nsqd)
        assert len(taken) > 30
        with consumer(nsqd, "t", rdy=5) as client:
            held = take(client, 5)  # reading goes on
            self.fill(small_disk)
            reply = nsqd.post("/pub?topic=t", b"x" * 4000)
            assert (reply.status, reply.json()) == (503, {"message": "PUB_FAILED"})
            assert nsqd.post("/mpub?topic=t", b"x" * 4000).status == 503
            ping = nsqd.get("/ping")
            assert (ping.status, b"No space left" in ping.body) == (500, True)
            assert "No space left" in stats(nsqd)["health"]
        # What was in flight found no room on disk, and waits in memory.
        assert channel_stats(nsqd, "t")["depth"] == len(taken)
        for path in small_disk.glob("somebody*"):
            path.unlink()
        eventually(lambda: nsqd.get("/ping").status, lambda status: status == 200)
        publish(nsqd, "t", [b"afterwards"])
        found = drain(nsqd, "t", len(taken) + 1)
        assert sorted(found) == sorted([*taken, b"afterwards"])
        assert {message.body for message in held} <= set(found)
        assert "storage works again" in nsqd.log

    def publish_until_refused(self, nsqd: Nsqd) -> list[bytes]:
        """Publish until nsqd refuses; return the confirmed messages."""
        taken: list[bytes] = []
        with V2Client(nsqd.tcp_address) as client:
            while True:
                body = b"%06d" % len(taken) + b"x" * 4000
                client.send(commands.pub("t", body))
                frame = client.frame()
                if frame.type == 1:
                    assert frame.data.startswith(b"E_PUB_FAILED PUB failed")
                    assert b"No space left" in frame.data
                    with pytest.raises(PeerClosed):
                        client.frame()
                    return taken
                taken.append(body)

    def fill(self, disk: Path) -> None:
        with (disk / "somebody elses second file").open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                return

    @MODES
    @pytest.mark.parametrize("files", [{}, {"max_bytes_per_file": 50_000}], ids=["one file", "many files"])
    def test_a_disk_full_of_consumed_messages_gets_room(
        self, nsqd_factory: Factory[Nsqd], small_disk: Path, durable: bool, files: dict[str, int]
    ) -> None:
        """With all messages in the file that is being written only its end can make room."""
        nsqd = nsqd_factory(**options(durable, mem_queue_size=0, data_path=str(small_disk), **files))
        with consumer(nsqd, "t", rdy=0):
            pass
        for restarts in (False, True):
            taken = self.publish_until_refused(nsqd)
            self.agrees(nsqd)
            self.fill(small_disk)
            assert drain(nsqd, "t", len(taken)) == taken
            if restarts:
                nsqd.terminate()
                nsqd.start()
            eventually(lambda: self.agrees(nsqd))
            publish(nsqd, "t", [b"x" * 4000] * 20)
            assert nsqd.get("/ping").status == 200
            assert len(drain(nsqd, "t", 20)) == 20
            (small_disk / "somebody elses second file").unlink()
            eventually(lambda: nsqd.get("/ping").status, lambda status: status == 200)

    @only_ours("durability")
    def test_deferred_messages_come_when_they_are_due_and_make_room(
        self, nsqd_factory: Factory[Nsqd], small_disk: Path
    ) -> None:
        nsqd = nsqd_factory(**options(True, mem_queue_size=10, msg_timeout=1.0, data_path=str(small_disk)))
        with consumer(nsqd, "t", rdy=0):
            pass
        self.defer_until_refused(nsqd, 1000)
        self.fill(small_disk)
        count = channel_stats(nsqd, "t")["deferred_count"]
        assert count > 50
        with consumer(nsqd, "t", rdy=count) as client:
            first, second, *others = take(client, count)
            client.send(commands.req(first.id, 100))
            finish_all(client, others)
            again = {each.id: each for each in take(client, 2)}  # one requeued, the other timed out
            assert again.keys() == {first.id, second.id}
            assert {each.attempts for each in again.values()} == {2}
            assert channel_stats(nsqd, "t")["in_flight_count"] == 2
            finish_all(client, list(again.values()))
            eventually(lambda: nsqd.get("/ping").status, lambda status: status == 200)
        assert nsqd.terminate() == 0
        nsqd.start()
        assert channel_stats(nsqd, "t")["depth"] + channel_stats(nsqd, "t")["deferred_count"] == 0

    @only_ours("durability")
    @pytest.mark.parametrize("end", [Nsqd.kill, Nsqd.terminate])
    def test_the_end_of_nsqd_on_a_full_disk_loses_no_deferred_message(
        self, nsqd_factory: Factory[Nsqd], small_disk: Path, end: Callable[[Nsqd], object]
    ) -> None:
        nsqd = nsqd_factory(**options(True, mem_queue_size=10, data_path=str(small_disk)))
        with consumer(nsqd, "t", rdy=0):
            publish(nsqd, "t", [b"requeued"])
        (small_disk / "somebody elses file").write_bytes(b"x" * 320 * 1024)
        self.defer_until_refused(nsqd, 1000)
        self.fill(small_disk)
        count = channel_stats(nsqd, "t")["deferred_count"]
        with consumer(nsqd, "t", rdy=count) as client:
            client.send(commands.req(client.expect_message().id, 60_000))
            first, second, *others = take(client, count)
            client.send(commands.req(first.id, 60_000))
            finish_all(client, [second])
            eventually(lambda: channel_stats(nsqd, "t")["in_flight_count"], lambda held: held == len(others))
        end(nsqd)
        (small_disk / "somebody elses file").unlink()
        nsqd.start()
        with consumer(nsqd, "t", rdy=count + 1) as client:
            again = set[bytes]()
            while not again >= {each.id for each in others}:
                again.add(client.expect_message().id)

    def defer_until_refused(self, nsqd: Nsqd, delay: int) -> None:
        with V2Client(nsqd.tcp_address) as client:
            frame = None
            while frame is None or frame.type == 0:
                client.send(commands.dpub("t", delay, b"x" * 4000))
                frame = client.frame()
            assert frame.data.startswith(b"E_DPUB_FAILED")
            assert b"No space left" in frame.data

    def agrees(self, nsqd: Nsqd) -> bool:
        """Whether publishers are served, as /ping says too."""
        before = nsqd.get("/ping").status
        status = nsqd.post("/pub?topic=probe", b"x" * 4000).status
        # It may have recovered, or found out, in between.
        assert (200 if status == 200 else 500) in (before, nsqd.get("/ping").status)
        if status == 200:
            assert nsqd.post("/topic/empty?topic=probe").status == 200
        return status == 200

    def test_a_full_disk_refuses_nothing_while_memory_has_room(
        self, nsqd_factory: Factory[Nsqd], small_disk: Path
    ) -> None:
        """Publishers do not notice, and /ping says so."""
        nsqd = nsqd_factory(**options(False, mem_queue_size=100, data_path=str(small_disk)))
        self.fill(small_disk)
        for number in range(10):
            assert nsqd.post(f"/topic/create?topic=t{number}").status == 200
            assert nsqd.post(f"/pub?topic=t{number}", b"x" * 4000).status == 200
            assert nsqd.get("/ping").status == 200
        eventually(lambda: "storage does not work" in nsqd.log)

    def test_a_full_disk_answers_administrators_with_the_error(
        self, nsqd_factory: Factory[Nsqd], small_disk: Path
    ) -> None:
        nsqd = nsqd_factory(**options(True, data_path=str(small_disk)))
        with consumer(nsqd, "t", rdy=0):
            pass
        self.fill(small_disk)
        for request in (
            "/topic/create?topic=new",
            "/topic/pause?topic=t",
            "/channel/create?topic=t&channel=new",
        ):
            reply = nsqd.post(request)
            assert (reply.status, reply.json()) == (503, {"message": "STORAGE_FAILED"})
        with connected(nsqd) as client:
            client.send(commands.sub("t", "another"))
            frame = client.frame()
            assert (frame.type, frame.data.split()[0]) == (1, b"E_SUB_FAILED")
        assert nsqd.get("/ping").status == 500
        (small_disk / "somebody elses second file").unlink()
        eventually(lambda: nsqd.get("/ping").status, lambda status: status == 200)
        assert nsqd.post("/topic/unpause?topic=t").status == 200

    @MODES
    def test_a_full_disk_at_a_stop_is_an_error_in_the_log(
        self, nsqd_factory: Factory[Nsqd], small_disk: Path, durable: bool
    ) -> None:
        nsqd = nsqd_factory(**options(durable, mem_queue_size=10, data_path=str(small_disk)))
        with consumer(nsqd, "t", rdy=0):
            pass
        publish(nsqd, "t", numbered(5))
        self.fill(small_disk)
        assert nsqd.terminate() == 1
        assert ("5 messages of t:channel are lost" in nsqd.log) is not durable
