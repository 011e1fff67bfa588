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
wal.prepare()
log = wal.log("receiver")
for start in range(0, 10**9, 5):
    log.append(batch(start))
    say(start + 5)
    if start % 50 == 45:
        log.roll()
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
say(len(wal.recover()))
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
    return [
        int(one, 16)
        for segment in log.segments()
        for batch in log.read(segment)
        for one in batch.column("id").to_pylist()
    ]


@pytest.mark.parametrize("appends", [1, 7, 60])
def test_a_killed_receiver_leaves_all_rows_that_were_durable(tmp_path: Path, appends: int) -> None:
    place = tmp_path / "wal"
    with process(RECEIVER, place) as receiver:
        for _ in range(appends):
            said = int(line(receiver))
        wal = open_wal(str(place))
        assert wal.receivers()[0].alive
        assert wal.recover() == []
        receiver.send_signal(signal.SIGKILL)
        assert receiver.stdout is not None
        said = max([said, *map(int, receiver.stdout.read().split())])
        receiver.wait(PATIENCE)
    assert not wal.receivers()[0].alive
    wal.recover()
    found = numbers(place)
    assert found == list(range(len(found)))
    assert len(found) in (said, said + 5)  # it may have died between an append and its line
    assert [segment.number for segment in wal.segments()] == list(range(1, len(wal.segments()) + 1))


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
        wal.own("default", "me", PATIENCE).release()


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


def test_many_processes_may_prepare_and_recover_a_log_at_once(tmp_path: Path) -> None:
    place = tmp_path / "wal"
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(process(CROWD, place)) for _ in range(4)]
        assert [line(one) for one in crowd] == ["ready"] * 4
        for one in crowd:
            wake(one)
        assert len({line(one) for one in crowd}) == 1
        assert os.listdir(place) == ["identity.json"]
        with process(RECEIVER, place) as receiver:
            line(receiver)
            receiver.kill()
            receiver.wait(PATIENCE)
        left = len(list(place.glob("receiver/*.open")))
        for one in crowd:
            wake(one)
        assert sum(int(line(one)) for one in crowd) == left
    found = numbers(place)
    assert found == list(range(len(found)))
    assert found
