"""A log that several processes share: locks end with their process, and another process gets them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq.errors import WalOwned
from nsq.spark.wal import open_wal
from nsq.spark.wal.folder import Folder

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 100.0

BEGIN = """
import sys
from nsq.spark.wal import open_wal
from nsq.spark.wal import records
wal = open_wal(sys.argv[1])

def batch(start, count=5):
    numbers = range(start, start + count)
    ids = [b"%016x" % number for number in numbers]
    return records.stored("t", ids, [0] * count, [1] * count, ["h:1"] * count, [b"body"] * count)

def say(text):
    print(text, flush=True)
"""

RECEIVER = """
import threading
wal.prepare()
log = wal.log("receiver")
for start in range(0, 10**9, 5):
    named = threading.Event()
    log.put(batch(start), named.set)
    named.wait()
    say(start + 5)
"""

OWNER = """
claim = wal.own("default", "the other process", 0)
say("mine")
sys.stdin.readline()
claim.leaving()
say("leaving")
sys.stdin.readline()
claim.release()
say("free")
sys.stdin.readline()
"""

CROWD = """
say("ready")
sys.stdin.readline()
say(wal.prepare())
sys.stdin.readline()
say(len(wal.close_dead()))
"""

COUNTER = """
import os
from pathlib import Path
from nsq.spark.wal.folder import Folder
from nsq.spark.wal.objects import Conflict, replace
store = Folder(Path(sys.argv[1]))
say("ready")
sys.stdin.readline()
done = 0
while done < 300:
    found = store.get("m/number")
    try:
        # Equal bytes would count as our own.
        mine = b"%d %d %d" % (int(found.data.split()[0]) + 1, os.getpid(), done)
        replace(store, "m/number", mine, found.tag)
        done += 1
    except Conflict:
        pass
say("done")
"""


@contextlib.contextmanager
def process(program: str, wal: Path) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-c", BEGIN + program, str(wal)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def line(of: subprocess.Popen[str]) -> str:
    assert of.stdout is not None
    return of.stdout.readline().strip()


def wake(other: subprocess.Popen[str]) -> None:
    assert other.stdin is not None
    other.stdin.write("\n")
    other.stdin.flush()


def numbers(wal: Path) -> list[int]:
    log = open_wal(str(wal))
    return [int(one, 16) for segment in log.segments() for one in log.read(segment).column("id").to_pylist()]


@pytest.mark.parametrize("puts", [1, 7, 60])
def test_a_killed_receiver_leaves_all_rows_that_were_named(tmp_path: Path, puts: int) -> None:
    place = tmp_path / "wal"
    with process(RECEIVER, place) as receiver:
        for _ in range(puts):
            said = int(line(receiver))
        wal = open_wal(str(place))
        assert wal.receivers()[0].alive
        assert wal.close_dead() == []
        receiver.send_signal(signal.SIGKILL)
        assert receiver.stdout is not None
        said = max([said, *map(int, receiver.stdout.read().split())])
        receiver.wait(PATIENCE)
    assert not wal.receivers()[0].alive
    assert wal.close_dead() == ["receiver"]
    found = numbers(place)
    assert found == list(range(len(found)))
    assert len(found) in (said, said + 5)  # it may have died between a name and its line
    assert [segment.number for segment in wal.segments()] == list(range(1, len(wal.segments()) + 1))


def test_four_processes_increase_an_object_and_no_step_is_lost(tmp_path: Path) -> None:
    store = Folder(tmp_path)
    store.put_new("m/number", b"0")
    with contextlib.ExitStack() as stack:
        counters = [stack.enter_context(process(COUNTER, tmp_path)) for _ in range(4)]
        assert [line(one) for one in counters] == ["ready"] * 4
        for one in counters:
            wake(one)
        assert [line(one) for one in counters] == ["done"] * 4
    found = store.get("m/number")
    assert found is not None
    assert int(found.data.split()[0]) == 1200
    assert found.tag == "1201"


def test_a_readers_name_has_one_owner_until_that_one_leaves(tmp_path: Path) -> None:
    place = tmp_path / "wal"
    wal = open_wal(str(place))
    wal.prepare()
    with process(OWNER, place) as other:
        assert line(other) == "mine"
        with pytest.raises(WalOwned, match=rf"owned by the other process \(process {other.pid} on"):
            wal.own("default", "me", 0)
        wake(other)
        assert line(other) == "leaving"
        wake(other)
        wal.own("default", "me", PATIENCE).release()
        assert line(other) == "free"


def test_a_killed_process_owns_no_readers_name(tmp_path: Path) -> None:
    place = tmp_path / "wal"
    wal = open_wal(str(place))
    wal.prepare()
    with process(OWNER, place) as other:
        assert line(other) == "mine"
        other.kill()
        other.wait(PATIENCE)
        began = time.monotonic()
        claim = wal.own("default", "me", PATIENCE)
        assert time.monotonic() - began < 1.0
        claim.release()


def test_a_program_that_an_owner_starts_does_not_inherit_the_lock(tmp_path: Path) -> None:
    wal = open_wal(str(tmp_path / "wal"))
    wal.prepare()
    claim = wal.own("default", "me", 0)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    with child:
        claim.release()
        # Popen may return just before the kernel closes what exec closes.
        deadline = time.monotonic() + PATIENCE
        while wal.owner("default") is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.kill()


def test_many_processes_may_prepare_a_log_and_close_the_dead_at_once(tmp_path: Path) -> None:
    place = tmp_path / "wal"
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(process(CROWD, place)) for _ in range(4)]
        assert [line(one) for one in crowd] == ["ready"] * 4
        for one in crowd:
            wake(one)
        assert len({line(one) for one in crowd}) == 1
        assert sorted(os.listdir(place)) == [".reserve", "identity.json"]
        with process(RECEIVER, place) as receiver:
            line(receiver)
            receiver.kill()
            receiver.wait(PATIENCE)
        for one in crowd:
            wake(one)
        assert sum(int(line(one)) for one in crowd) == 1
    found = numbers(place)
    assert found == list(range(len(found)))
    assert found
