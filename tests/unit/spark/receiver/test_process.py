"""The process of a receiver: events that its owner does not read, signals, and one without an owner."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsq.errors import WalForeign
from nsq.spark.receiver import protocol
from nsq.spark.receiver.process import ReceiverLoop, SignalWakeup, progress_line, standalone
from nsq.spark.receiver.protocol import Ready, Stopped
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import Subject, open_wal
from nsq.spark.wal.status import Status, merge_statuses

LONGEST = merge_statuses([Status(paused="p" * 10_000, error="e" * 10_000)])


@pytest.fixture
def pipes() -> Iterator[tuple[ReceiverLoop, int]]:
    inlet, command = os.pipe()
    reader, outlet = os.pipe()
    yield ReceiverLoop(inlet, outlet, SignalWakeup()), reader
    for descriptor in (inlet, command, outlet):
        os.close(descriptor)


def test_an_owner_that_does_not_read_misses_whole_events_and_holds_up_nothing(
    pipes: tuple[ReceiverLoop, int], caplog: pytest.LogCaptureFixture
) -> None:
    loop, reader = pipes
    while not caplog.records:
        loop._send(LONGEST)
    read = os.read(reader, 1 << 20)
    loop._send(Stopped(1))
    read += os.read(reader, 1 << 20)
    os.close(reader)
    *statuses, last = [protocol.decoded(line) for line in read.splitlines()]
    assert len(statuses) > 10
    assert set(statuses) == {LONGEST}
    assert last == Stopped(1)
    assert not loop._ending


def served(loop: ReceiverLoop) -> None:
    receiving: Any = SimpleNamespace(name="r-1", status=Status)
    loop._last_status_at = float("-inf")
    loop._listen = lambda timeout: None  # type: ignore[method-assign]
    loop._serve(receiving)


def test_a_name_that_the_owner_has_missed_is_sent_again_and_once(pipes: tuple[ReceiverLoop, int]) -> None:
    loop, reader = pipes
    while loop._send(LONGEST) or loop._send(Stopped()):
        pass
    served(loop)
    os.read(reader, 1 << 20)
    served(loop)
    served(loop)
    loop._send(Stopped())  # for the read
    events = [protocol.decoded(line) for line in os.read(reader, 1 << 20).splitlines()]
    assert [event for event in events if isinstance(event, Ready)] == [Ready("r-1")]
    os.close(reader)


def test_an_owner_that_is_gone_is_noticed(pipes: tuple[ReceiverLoop, int]) -> None:
    loop, reader = pipes
    os.close(reader)
    loop._send(Stopped(1))
    assert loop._ending


def test_a_signal_ends_the_wait_and_is_found() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with SignalWakeup() as wakeup:
            os.kill(os.getpid(), signal.SIGTERM)
            wakeup.wait(3600.0)
            os.kill(os.getpid(), signal.SIGINT)  # within a second, so it counts as the same
            assert wakeup.signals == 1
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_progress_line_says_how_the_job_goes() -> None:
    line = progress_line(Status(received=12345, sealed=6, connections=2), 1234.5)
    assert line == "12,345 messages received (1,234/s), 6 segments sealed, 2 connections"
    amiss = progress_line(Status(paused="the log is full", error="no disk"), 0.0)
    assert amiss.endswith("0 connections, paused: the log is full, error: no disk")


def test_a_log_of_something_else_is_left_alone(tmp_path: Path) -> None:
    wal = open_wal(str(tmp_path / "wal"))
    wal.prepare(Subject("clicks", "spark"))
    given = {"topic": "orders", "channel": "spark", "wal": wal.location, "nsqd": "127.0.0.1:1"}
    with pytest.raises(WalForeign, match="is the log of clicks/spark, and this is to read orders/spark"):
        standalone(SourceOptions.of(given), progress=print)
    assert wal.receivers() == []
