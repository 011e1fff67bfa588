"""A pool of receivers before any process is started."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from nsq.config import Config
from nsq.errors import Closed, ConfigError
from nsq.spark.receiver.pool import PoolStatus, ReceiverPool
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.directory import DirectoryWal


def options_of(path: Path, config: Config | None = None, nsqds: int = 1) -> SourceOptions:
    return SourceOptions(
        topic="orders",
        channel="spark",
        wal=str(path),
        nsqd=tuple(f"host-{number}.example.org:4150" for number in range(nsqds)),
        config=config or Config(),
    )


def test_a_pool_has_no_receivers_before_it_starts(tmp_path: Path) -> None:
    pool = ReceiverPool(options_of(tmp_path), DirectoryWal(tmp_path), 3)
    assert pool.status() == PoolStatus(wanted=3)
    assert pool.wait(0.0) is False
    assert not pool.status().ready
    assert pool.roll(0.0) is True
    assert pool.fatal_error is None
    assert ReceiverPool(options_of(tmp_path), DirectoryWal(tmp_path), 0).status().ready


def test_a_stopped_pool_cannot_start(tmp_path: Path) -> None:
    pool = ReceiverPool(options_of(tmp_path), DirectoryWal(tmp_path))
    assert pool.stop(0.0)
    with pytest.raises(Closed):
        pool.start()
    assert pool.wait(3600.0) is False  # at once


def test_a_pool_refuses_options_that_cannot_be_sent_to_a_process(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SSLContext"):
        ReceiverPool(options_of(tmp_path, Config(tls=ssl.create_default_context())), DirectoryWal(tmp_path))
    with pytest.raises(ConfigError, match="more than a receiver can be handed"):
        ReceiverPool(options_of(tmp_path, nsqds=3000), DirectoryWal(tmp_path))
