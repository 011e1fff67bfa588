"""A disk that never answers, and a process that may open few files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from nsq.wire import commands
from tests.integration.clients import connected, consumer, stats
from tests.integration.judged import only_ours
from tests.integration.patience import eventually

pytestmark = only_ours("the scripted disk is in its process")

ROOT = Path(__file__).resolve().parents[2]

#: nsqd on a disk whose syncs hang, and say so, in the thread of that name.
HANGING = """
import os, sys, threading
from nsq.daemons.nsqd.__main__ import main

fsync = os.fsync

def hanging(descriptor):
    if threading.current_thread().name.startswith(sys.argv[1]):
        print("the disk hangs", flush=True)
        threading.Event().wait()
    fsync(descriptor)

os.fsync = hanging
sys.exit(main(sys.argv[2:]))
"""


@contextmanager
def hanging(thread: str, directory: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    # With a topic there is something to sync at once.
    (directory / "nsqd.dat").write_text('{"topics":[{"name":"t","paused":false,"channels":[]}]}')
    addresses = [f"--tcp-address={directory / 'tcp'}", f"--http-address={directory / 'http'}"]
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, thread, *addresses, f"--data-path={directory}", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], *texts: str) -> None:
    """Wait until it has said all of them, in any order."""
    assert process.stdout is not None
    left, seen = set(texts), []
    for line in process.stdout:
        left -= {text for text in left if text in line}
        if not left:
            return
        seen.append(line)
    raise AssertionError(f"it ended without saying {left}: {''.join(seen)}")


@pytest.mark.parametrize("flags", [[], ["--durable"]], ids=["normal", "durable"])
@pytest.mark.parametrize("thread", ["nsqd-sync", "nsqd-write-down"])
def test_a_stop_waits_for_a_hanging_disk_in_spite_of_signals(
    thread: str, flags: list[str], tmp_path: Path
) -> None:
    with hanging(thread, tmp_path, *flags) as process:
        syncs = thread == "nsqd-sync"
        wait_for(process, "HTTP: listening", *["the disk hangs"] * syncs)
        process.send_signal(signal.SIGTERM)
        wait_for(process, "nsqd: stopping" if syncs else "the disk hangs")
        time.sleep(1.1)
        process.send_signal(signal.SIGTERM)
        wait_for(process, "received SIGTERM again")
        left = "1 queue with 0 messages in memory" if syncs else "the list of topics"
        wait_for(process, f"still writing {left} to disk, for ")
        assert process.poll() is None


def few_files(directory: Path, limit: int) -> Path:
    """The program nsqd, allowed so many open files and no more."""
    path = directory / "nsqd-with-few-files"
    path.write_text(f'#!/bin/sh\nulimit -n {limit}\nexec "{sys.executable}" -m nsq.daemons.nsqd "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("durable", [False, True], ids=["normal", "durable"])
def test_nsqd_serves_more_queues_than_it_may_open_files(
    nsqd_factory: Factory[Nsqd], tmp_path: Path, durable: bool
) -> None:
    others = {"durable": True} if durable else {"mem_queue_size": 0}
    nsqd = nsqd_factory(
        binary=few_files(tmp_path, 64), sync_timeout=0.2, max_bytes_per_file=200, stop_timeout=60, **others
    )
    topics = [f"topic{number}" for number in range(150)]
    with connected(nsqd) as client:
        for _ in range(2):
            client.send(b"".join(commands.pub(topic, b"a") for topic in topics))
            client.send(b"".join(commands.dpub(topic, 3_600_000, b"later") for topic in topics))
            for _ in range(2 * len(topics)):
                client.expect_ok(timeout=60)
        assert len(os.listdir(f"/proc/{nsqd.pid}/fd")) <= 64
    if durable:
        nsqd.kill()
        nsqd.start()
    else:
        nsqd.restart()
    eventually(lambda: nsqd.get("/ping").status, lambda status: status == 200, within=60)
    assert [topic["depth"] for topic in stats(nsqd)["topics"]] == [4] * len(topics)
    for topic in (topics[0], topics[-1]):
        with consumer(nsqd, topic, rdy=5) as client:
            assert [client.expect_message().body for _ in range(2)] == [b"a", b"a"]
            client.expect_silence(0.05)
    assert nsqd.get("/ping").status == 200
