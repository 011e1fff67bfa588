"""nsq_to_file against an nsqd: it finishes only messages on disk, and a kill loses nothing."""

from __future__ import annotations

import gzip
import itertools
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from nsq.tools import nsq_to_file
from tests.integration.consuming import channel_of, create, numbered, publish, until
from tests.integration.running_tools import ROOT, signalled_when, tool_command, tool_process

ARGUMENTS = ["--topic=orders", "--channel=billing"]


def lines(directory: Path) -> list[bytes]:
    """The lines of all files there, decompressed."""
    found: list[bytes] = []
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        found += (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    return found


def drained(nsqd: Nsqd, count: int, topic: str = "orders") -> Callable[[], bool]:
    def condition() -> bool:
        counts = channel_of(nsqd, topic)
        left = counts["depth"] + counts["in_flight_count"] + counts["deferred_count"]
        return bool(counts["message_count"] == count and counts["client_count"] and not left)

    return condition


def arguments(nsqd: Nsqd, tmp_path: Path) -> list[str]:
    return [*ARGUMENTS, f"--nsqd-tcp-address={nsqd.tcp_address}", f"--output-dir={tmp_path}"]


def test_a_message_is_finished_once_it_is_on_disk(
    nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(nsqd)
    publish(nsqd, numbered(100))
    fsync, seen = os.fsync, []

    def slow_fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_size and not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            counts = channel_of(nsqd)
            seen.append((counts["depth"], counts["in_flight_count"]))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", slow_fsync)
    with signalled_when(drained(nsqd, 100)):
        assert nsq_to_file.main([*arguments(nsqd, tmp_path), "--max-in-flight=100"]) == 0
    assert seen[0][0] + seen[0][1] == 100
    assert lines(tmp_path) == numbered(100)


def test_a_hang_up_hands_the_file_over_and_the_next_message_opens_another(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    publish(nsqd, [b"one"])
    out, work = tmp_path / "out", tmp_path / "work"

    def written() -> bool:
        return work.is_dir() and any(path.stat().st_size for path in work.iterdir())

    def stop_after_another() -> None:
        until("handed over", lambda: out.is_dir() and list(out.iterdir()))
        publish(nsqd, [b"two"])
        until("written", written)
        os.kill(os.getpid(), signal.SIGTERM)

    stop = threading.Thread(target=stop_after_another, name="stop")
    stop.start()
    with signalled_when(written, signal.SIGHUP):
        assert nsq_to_file.main([*arguments(nsqd, out), f"--work-dir={work}"]) == 0
    stop.join()
    assert len(list(out.iterdir())) == 2
    assert lines(out) == [b"one", b"two"]
    assert list(work.iterdir()) == []


def test_topics_that_match_are_found_when_they_appear(
    nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> None:
    nsqd = nsqd_factory(lookupd=[nsqlookupd])
    for topic in ("orders.eu", "returns"):
        create(nsqd, topic)
    publish(nsqd, [b"one"], "orders.eu")

    def in_flight(topic: str) -> bool:
        return bool(channel_of(nsqd, topic).get("in_flight_count"))

    def both() -> bool:
        if in_flight("orders.eu") and not channel_of(nsqd, "orders.us"):
            create(nsqd, "orders.us")
            publish(nsqd, [b"two"], "orders.us")
        return in_flight("orders.us")

    flags = [
        "--channel=billing",
        "--topic-pattern=^orders",
        "--topic-refresh=50ms",
        f"--output-dir={tmp_path}",
    ]
    with signalled_when(both):
        dead = "--lookupd-http-address=127.0.0.1:1"
        assert nsq_to_file.main([f"--lookupd-http-address={nsqlookupd.http_address}", dead, *flags]) == 0
    assert lines(tmp_path) == [b"one", b"two"]
    assert channel_of(nsqd, "returns")["client_count"] == 0


@pytest.mark.parametrize("flag", ["--gzip=false", "--gzip", "--rotate-size=1000000"])
def test_a_file_that_cannot_grow_costs_no_message(nsqd: Nsqd, tmp_path: Path, flag: str) -> None:
    create(nsqd)
    bodies = [os.urandom(20).hex().encode() for _ in range(2000)]
    publish(nsqd, bodies)
    flags = [*arguments(nsqd, tmp_path), flag]
    limited = ["sh", "-c", 'ulimit -f 40; exec "$@"', "sh", *tool_command("nsq_to_file", *flags)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(limited, env=environment, stderr=subprocess.PIPE, check=False, timeout=60)
    assert done.returncode == 1
    assert f"FATAL: cannot archive topic orders to {tmp_path}/orders".encode() in done.stderr
    assert b"; its messages are requeued" in done.stderr
    assert b"Traceback" not in done.stderr
    kept = set(lines(tmp_path)) & set(bodies)
    assert 0 < len(kept) < len(bodies)
    counts = until("answered", lambda: not channel_of(nsqd)["in_flight_count"] and channel_of(nsqd))
    assert counts["depth"] + counts["deferred_count"] >= len(bodies) - len(kept)
    with signalled_when(drained(nsqd, len(bodies))):
        assert nsq_to_file.main(flags) == 0
    assert set(bodies) <= set(lines(tmp_path))


def test_an_error_that_is_not_the_disks_ends_it_too(
    nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(nsqd)
    publish(nsqd, numbered(3))

    def exhausted(*_: object) -> bytes:
        raise MemoryError("no memory for a gzip member")

    monkeypatch.setattr("gzip.compress", exhausted)
    assert nsq_to_file.main([*arguments(nsqd, tmp_path), "--gzip", "--sync-interval=100ms"]) == 1
    until("requeued", lambda: channel_of(nsqd)["depth"] == 3)


def test_a_second_signal_ends_it_though_the_disk_hangs(
    nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(nsqd)
    publish(nsqd, numbered(3))
    fsync, hangs, released = os.fsync, threading.Event(), threading.Event()

    def hung_fsync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
            hangs.set()
            released.wait()
        fsync(descriptor)

    def signal_twice() -> None:
        until("in flight", lambda: channel_of(nsqd)["in_flight_count"] == 3)
        os.kill(os.getpid(), signal.SIGTERM)
        until("the disk hangs", hangs.is_set)
        time.sleep(1.2)  # those within a second count as one
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("os.fsync", hung_fsync)
    signals = threading.Thread(target=signal_twice, name="signals")
    signals.start()
    try:
        began = time.monotonic()
        assert nsq_to_file.main(arguments(nsqd, tmp_path)) == 1
        assert time.monotonic() - began < 15
    finally:
        released.set()
        signals.join()
    until("not finished", lambda: channel_of(nsqd)["depth"] == 3)
    writers = [each for each in threading.enumerate() if each.name.startswith("nsq-archive")]
    for writer in writers:
        writer.join(60)


@pytest.mark.parametrize("gzipped", [False, True], ids=["plain", "gzip"])
def test_killed_at_any_moment_it_loses_nothing(nsqd: Nsqd, tmp_path: Path, gzipped: bool) -> None:
    create(nsqd)
    out, work = tmp_path / "out", tmp_path / "work"
    flags = [f"--output-dir={out}", f"--work-dir={work}", "--max-in-flight=10", "--rotate-size=3000"]
    flags.append("--sync-interval=100ms")
    command = [*arguments(nsqd, tmp_path), *flags, f"--gzip={str(gzipped).lower()}"]
    count = itertools.count()
    published: list[bytes] = []
    chance = random.Random(7)
    for kill in range(4):
        with tool_process("nsq_to_file", *command, stderr=subprocess.DEVNULL) as process:
            until("connected", lambda: channel_of(nsqd)["client_count"] == 1)
            finished_at = len(published) + chance.randrange(50, 500)
            while len(published) < finished_at:
                bodies = [b"message %d of this test" % next(count) for _ in range(20)]
                publish(nsqd, bodies)
                published += bodies
            if kill < 3:
                process.kill()
                process.wait()
                until("noticed", lambda: channel_of(nsqd)["client_count"] == 0)
            else:
                until("drained", drained(nsqd, len(published)))
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
    found = lines(out)
    assert list(work.iterdir()) == []
    assert set(published) - set(found) == set()
    # What the kills tore is a beginning of a record; it stands on a line of its own.
    torn = [line for line in set(found) - set(published) if not re.fullmatch(rb"m[\w ]*", line)]
    assert torn == []
