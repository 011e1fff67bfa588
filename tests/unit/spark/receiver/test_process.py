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
from nsq.spark.receiver.protocol import Ready, Status, Stopped, merge_statuses
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import Subject, open_wal

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


def test_the_owner_is_sent_the_names_of_topics_that_are_found_later(pipes: tuple[ReceiverLoop, int]) -> None:
    loop, reader = pipes
    for names in ("r-1", "r-1", "r-1,r-2"):
        receiving: Any = SimpleNamespace(names=names)
        loop._send_names(receiving)
    events = [protocol.decoded(line) for line in os.read(reader, 1 << 20).splitlines()]
    assert [event.receiver for event in events if isinstance(event, Ready)] == ["r-1", "r-1,r-2"]
    os.close(reader)


def test_an_event_that_is_longer_than_the_pipe_arrives_in_parts(pipes: tuple[ReceiverLoop, int]) -> None:
    loop, reader = pipes
    many: Any = SimpleNamespace(
        names=",".join(f"20260301T073000-host-1-{number:08x}" for number in range(5000))
    )
    loop._send_names(many)
    read = b""
    for _ in range(10):
        read += os.read(reader, 1 << 20)
        loop._send(Status())
    os.close(reader)
    first, *statuses = [protocol.decoded(line) for line in read.splitlines()]
    assert first == Ready(many.names)
    assert set(statuses) == {Status()}


def test_names_that_the_owner_has_missed_are_sent_again(pipes: tuple[ReceiverLoop, int]) -> None:
    loop, reader = pipes
    while loop._send(LONGEST) or loop._send(Stopped()):
        pass
    receiving: Any = SimpleNamespace(names="r-1")
    loop._send_names(receiving)
    os.read(reader, 1 << 20)
    loop._send_names(receiving)
    loop._send(Stopped())  # for the read
    assert protocol.decoded(os.read(reader, 1 << 20).splitlines()[0]) == Ready("r-1")
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
