"""What a pool says before any process is started."""

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


def test_it_is_nobody_until_it_starts(tmp_path: Path) -> None:
    pool = ReceiverPool(options_of(tmp_path), DirectoryWal(tmp_path), 3)
    assert pool.status() == PoolStatus(wanted=3)
    assert pool.wait(0.0) is False
    assert not pool.status().ready
    assert pool.roll(0.0) is True
    assert pool.fatal_error is None


def test_it_cannot_start_after_its_end(tmp_path: Path) -> None:
    pool = ReceiverPool(options_of(tmp_path), DirectoryWal(tmp_path))
    assert pool.stop(0.0)
    with pytest.raises(Closed):
        pool.start()
    assert pool.wait(3600.0) is False  # at once


def test_settings_that_cannot_travel_are_refused_when_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SSLContext"):
        ReceiverPool(options_of(tmp_path, Config(tls=ssl.create_default_context())), DirectoryWal(tmp_path))
    with pytest.raises(ConfigError, match="more than a receiver can be handed"):
        ReceiverPool(options_of(tmp_path, nsqds=3000), DirectoryWal(tmp_path))
