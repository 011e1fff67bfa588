"""Receivers, owners and disks that fail: no message is lost, no process is left, and receiving continues."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsq.spark.receiver import protocol
from nsq.spark.receiver.pool import Child, ReceiverPool, receiver_command
from nsq.spark.receiver.protocol import (
    Begin,
    Ready,
    Stop,
    Stopped,
    UnparsableLine,
    packed,
)
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.log import Wal
from nsq.spark.wal.status import Status
from nsq.spark.wal.store import open_wal
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory

from ..consuming import CHANNEL, TOPIC, channel_of, create, numbered, publish
from ..patience import eventually
from .receivers import (
    PATIENCE,
    all_ready,
    bodies_of,
    connected,
    drained,
    options_of,
    prepared,
    received,
    working,
)

ROOT = Path(__file__).resolve().parents[3]


def pids_of(pool: ReceiverPool) -> list[int]:
    return [child.pid for child in [slot.child for slot in pool._slots] if child is not None]


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def expect_all(nsqd: Nsqd, wal: Wal, wanted: list[bytes]) -> None:
    """Everything is in the log, and what is there twice is so because nsqd delivered it twice."""
    found = bodies_of(wal)
    assert set(wanted) - set(found) == set()
    assert set(found) - set(wanted) == set()
    stats = channel_of(nsqd)
    assert len(found) - len(wanted) <= stats["timeout_count"] + stats["requeue_count"]


# Receivers.


def test_a_dead_receiver_is_replaced_and_what_it_had_named_is_there(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    publish(nsqd, numbered(100))
    wal = prepared(tmp_path / "wal")
    with working(options_of(tmp_path / "wal", nsqd)) as pool:
        received(pool, 100)
        drained(nsqd)
        first = pool.status().receivers
        os.kill(pids_of(pool)[0], signal.SIGKILL)
        eventually(pool.status, lambda status: status.deaths == 1, PATIENCE)
        assert (first[0], False) in [(each.receiver, each.alive) for each in wal.receivers()]  # at once
        assert wal.close_dead() == list(first)
        assert sorted(bodies_of(wal)) == sorted(numbered(100))
        all_ready(pool)
        assert pool.status().receivers != first
        publish(nsqd, numbered(100, "later"))
        received(pool, 200)
    assert len(bodies_of(wal)) == 200


def test_receivers_killed_at_random_lose_nothing(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    chance = random.Random(20260101)
    wal = prepared(tmp_path / "wal")
    given = {"receivers": "2", "maxInFlight": "100", "msgTimeout": "2s", "commitInterval": "50ms"}
    with working(options_of(tmp_path / "wal", nsqd, **given)) as pool:
        wanted: list[bytes] = []
        for life in range(5):
            some = numbered(1000, f"life {life}")
            wanted += some
            publish(nsqd, some)
            received(pool, pool.status().received + chance.randrange(200))
            os.kill(chance.choice(pids_of(pool)), signal.SIGKILL)
            eventually(pool.status, lambda status: status.deaths > life, PATIENCE)  # noqa: B023
            all_ready(pool)
        drained(nsqd)
        expect_all(nsqd, wal, wanted)


def test_sigterm_ends_a_receiver_without_leaving_anything_in_flight(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    wal = prepared(tmp_path / "wal")
    with working(options_of(tmp_path / "wal", nsqd, maxInFlight="500")) as pool:
        publish(nsqd, numbered(20_000))
        received(pool, 1000)
        os.kill(pids_of(pool)[0], signal.SIGTERM)
        eventually(pool.status, lambda status: status.deaths == 1, PATIENCE)
        # Had it left anything, nsqd would hold that back for a minute.
        drained(nsqd)
        stats = channel_of(nsqd)
    assert (stats["timeout_count"], stats["requeue_count"]) == (0, 0)
    assert sorted(bodies_of(wal)) == sorted(numbered(20_000))


def test_a_receiver_that_hangs_stays_alive_and_is_killed_by_a_stop(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    wal = prepared(tmp_path / "wal")
    with ReceiverPool(options_of(tmp_path / "wal", nsqd)) as pool:
        pool.start()
        all_ready(pool)
        [pid] = pids_of(pool)
        assert os.getsid(pid) == pid  # no Ctrl-C in this terminal reaches it
        os.kill(pid, signal.SIGSTOP)
        assert [each.alive for each in wal.receivers()] == [True]
        assert not pool.stop(0.1)
        assert not runs(pid)


# Owners.


def test_a_pool_stopped_while_it_starts_leaves_no_process(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    for _ in range(3):
        prepared(tmp_path / "wal")
        pool = ReceiverPool(options_of(tmp_path / "wal", nsqd), 2)
        pool.start()
        assert pool.stop(PATIENCE)
        assert pids_of(pool) == []
    assert all(not each.alive for each in prepared(tmp_path / "wal").receivers())


OWNER = """
import os, sys, time
from nsq.spark.receiver.pool import ReceiverPool
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import open_wal

wal, nsqd, forks = sys.argv[1:]
given = {"topic": "orders", "channel": "billing", "wal": wal, "nsqd": nsqd, "receivers": "2"}
options = SourceOptions.of(given)
open_wal(wal).prepare()
pool = ReceiverPool(options)
pool.start()
while not pool.status().ready:
    time.sleep(0.02)
sleeper = os.fork() if forks == "yes" else 0
if forks == "yes" and sleeper == 0:
    time.sleep(600)
print(*[slot.child.pid for slot in pool._slots], sleeper, flush=True)
time.sleep(600)
"""


@contextmanager
def owner(wal: Path, nsqd: Nsqd, *, forks: bool) -> Iterator[tuple[subprocess.Popen[str], list[int], int]]:
    """A process with a pool of two; ``forks``: and a child that inherits the ends of their pipes."""
    command = [sys.executable, "-c", OWNER, str(wal), nsqd.tcp_address, "yes" if forks else "no"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        sleeper, receivers = 0, list[int]()
        try:
            assert process.stdout is not None
            *receivers, sleeper = map(int, process.stdout.readline().split())
            yield process, receivers, sleeper
        finally:
            process.kill()
            for pid in filter(None, [sleeper, *filter(runs, receivers)]):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("forks", [False, True], ids=["alone", "with a fork that holds on to the pipes"])
def test_receivers_end_with_their_owner(nsqd: Nsqd, tmp_path: Path, forks: bool) -> None:
    create(nsqd)
    with owner(tmp_path / "wal", nsqd, forks=forks) as (process, receivers, _):
        connected(nsqd, clients=2)
        publish(nsqd, numbered(3000))
        eventually(lambda: channel_of(nsqd)["message_count"], lambda seen: seen == 3000, PATIENCE)
        process.kill()
        eventually(lambda: list(filter(runs, receivers)), lambda left: not left, PATIENCE)
    # What they sent last may have to be read yet.
    connected(nsqd, clients=0)
    stats = channel_of(nsqd)
    assert (stats["in_flight_count"], stats["timeout_count"]) == (0, 0)
    wal = open_wal(str(tmp_path / "wal"))
    assert len(bodies_of(wal)) == 3000 - stats["depth"]
    assert [(each.alive, each.closed) for each in wal.receivers()] == [(False, True)] * 2


class Talk:
    """A receiver process with nothing but its pipes."""

    def __init__(self, options: SourceOptions) -> None:
        self.begin = protocol.encoded(Begin(packed(options)))
        self.child = Child(receiver_command())
        self._events = self.child.events()

    def say(self, *lines: bytes) -> None:
        for line in lines:
            assert self.child.send(line)

    def until(self, kind: type[protocol.Event]) -> object:
        """The next one of that kind."""
        for event in self._events:
            assert not isinstance(event, UnparsableLine), event
            if isinstance(event, kind):
                return event
        raise AssertionError(f"the process ended without {kind.__name__}")

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.reap()


def test_a_receiver_ignores_garbage_and_answers_the_rest(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    wal = prepared(tmp_path / "wal")
    with Talk(options_of(tmp_path / "wal", nsqd)) as talk:
        talk.say(b"what?\n", b'["stop", {}]\n', talk.begin, b"\xff\xfe\n", b'["Ready"]\n')
        assert isinstance(talk.until(Ready), Ready)
        publish(nsqd, numbered(10))
        talk.say(b"nonsense\n")
        seen = Status()
        while seen.sealed < 1:
            event = talk.until(Status)
            assert isinstance(event, Status)
            seen = event
        assert seen.received == 10 or seen.received == 0  # it is counted just after it is named
        assert [segment.rows for segment in wal.segments()] == [10]
        talk.say(protocol.encoded(Stop()))
        assert talk.until(Stopped) == Stopped(1)
        assert talk.child.reap() == 0


def test_a_receiver_ends_when_its_owner_leaves_without_a_command(tmp_path: Path) -> None:
    with Talk(options_of(tmp_path / "wal", "127.0.0.1:1")) as talk:
        talk.child._stdin.close()
        assert talk.child.reap() == 0


def test_a_second_signal_ends_a_receiver_at_once(nsqd_factory: Factory[Nsqd], tmp_path: Path) -> None:
    nsqd = nsqd_factory(process=True)
    create(nsqd)
    prepared(tmp_path / "wal")
    with Talk(options_of(tmp_path / "wal", nsqd)) as talk:
        talk.say(talk.begin)
        connected(nsqd)
        nsqd_pid = nsqd._run.pid  # type: ignore[union-attr]
        os.kill(nsqd_pid, signal.SIGSTOP)  # so that a graceful end takes long
        try:

            def signalled() -> int | None:
                talk.child._process.send_signal(signal.SIGTERM)
                return talk.child._process.poll()

            status = eventually(signalled, lambda seen: seen is not None, PATIENCE)
        finally:
            os.kill(nsqd_pid, signal.SIGCONT)
        assert status == 128 + signal.SIGTERM


# Disks.


def test_a_log_that_cannot_be_written_keeps_messages_until_it_can(nsqd: Nsqd, tmp_path: Path) -> None:
    """No file may grow beyond a limit, which is lifted later."""
    create(nsqd)
    wanted = [b"%d " % number + os.urandom(500).hex().encode() for number in range(300)]
    wal = prepared(tmp_path / "wal")
    options = options_of(tmp_path / "wal", nsqd, maxInFlight="40", msgTimeout="2s", commitInterval="50ms")
    with working(options) as pool:
        publish(nsqd, wanted[:20])
        received(pool, 20)
        limited = (100, resource.RLIM_INFINITY)
        resource.prlimit(pids_of(pool)[0], resource.RLIMIT_FSIZE, limited)
        publish(nsqd, wanted[20:])
        eventually(pool.status, lambda status: "File too large" in status.error, PATIENCE)
        eventually(pool.status, lambda status: "cannot be written" in status.paused, PATIENCE)
        stats, status = channel_of(nsqd), pool.status()
        assert 20 <= status.received < 250
        assert stats["depth"] + stats["in_flight_count"] >= 300 - status.received
        assert stats["timeout_count"] == 0  # longer than their timeout
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(pids_of(pool)[0], resource.RLIMIT_FSIZE, unlimited)
        drained(nsqd)
        eventually(pool.status, lambda status: not status.error and not status.paused, PATIENCE)
        assert pool.status().deaths == 0
        expect_all(nsqd, wal, wanted)


# Without an owner.

STANDALONE = """
import sys
from nsq.spark.receiver.process import standalone
from nsq.spark.source.options import SourceOptions

options = SourceOptions.of(dict(zip(sys.argv[1::2], sys.argv[2::2])))
print(standalone(options, progress=print, interval=0.05))
"""


def test_a_standalone_receiver_reports_its_progress_and_stops_at_a_signal(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    given = {"topic": TOPIC, "channel": CHANNEL, "wal": str(tmp_path / "wal"), "nsqd": nsqd.tcp_address}
    command = [sys.executable, "-c", STANDALONE, *(word for pair in given.items() for word in pair)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            connected(nsqd)
            wal = open_wal(str(tmp_path / "wal"))
            publish(nsqd, numbered(100))
            eventually(lambda: sum(each.rows for each in wal.segments()), lambda rows: rows == 100, PATIENCE)
            # For queries elsewhere: what it has received, and why it pauses.
            reports = lambda: [each.status.received for each in wal.receivers()]  # noqa: E731
            eventually(reports, lambda found: found == [100], PATIENCE)
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "100 messages received" in said
    assert said.splitlines()[-1] == f"Stopped(sealed={len(wal.segments())}, in_flight=0)"
    assert sorted(bodies_of(wal)) == sorted(numbered(100))
    drained(nsqd)
