"""The status of receivers, and when a query does not wait for them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nsq.errors import ConfigError
from nsq.spark.receiver.pool import PoolStatus, ReceiverPool
from nsq.spark.receiver.protocol import Status
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.directory import DirectoryWal


def pool_of(path: Path, *statuses: Status, ready: bool = True) -> ReceiverPool:
    """No process runs; each receiver said that."""
    options = SourceOptions(topic="orders", channel="spark", wal=str(path), nsqd=("a:4150",))
    pool = ReceiverPool(options, DirectoryWal(path), len(statuses))
    for slot, status in zip(pool._slots, statuses, strict=True):
        slot.ready, slot.status = ready, status
    return pool


def test_the_state_is_that_of_all_receivers(tmp_path: Path) -> None:
    one = Status(received=4, open_rows=2, open_bytes=20, sealed=1, connections=1, paused="the log is full")
    other = Status(received=5, open_rows=3, open_bytes=30, sealed=2, paused="no disk")
    pool = pool_of(tmp_path, one, other)
    found = pool.state()
    assert (found.ready, found.connections, found.received, found.sealed) == (True, 1, 9, 3)
    assert (found.open_rows, found.open_bytes, found.paused) == (5, 50, "the log is full; no disk")


def test_a_pool_is_ready_when_all_receivers_are(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, Status(), Status())
    assert pool.state().ready
    pool._slots[0].ready = False
    assert not pool.state().ready


def test_a_fatal_error_is_raised_by_state_and_not_by_status(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, Status(received=9))
    pool._slots[0].fatal_error = ConfigError("nsqd refuses: E_UNAUTHORIZED")
    with pytest.raises(ConfigError, match="E_UNAUTHORIZED"):
        pool.state()
    assert pool.status().received == 9


def test_news_that_were_there_before_do_not_end_a_wait_at_once(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, Status(open_rows=1))
    began = time.monotonic()
    assert pool.wait(60.0)
    assert 0.04 < time.monotonic() - began < 30.0


def test_waiting_without_receivers_returns_after_the_timeout(tmp_path: Path) -> None:
    pool = pool_of(tmp_path)
    pool.start()
    assert pool.state().ready
    assert (pool.state(), pool.wait(0.01), pool.roll(0.0), pool.stop()) == (PoolStatus(), False, True, True)
