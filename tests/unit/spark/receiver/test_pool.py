"""A pool of receivers without any process: its status, waiting for it, and when a receiver is restarted."""

from __future__ import annotations

import ssl
import threading
import time
from pathlib import Path

import pytest

from nsq.config import Config
from nsq.errors import Closed, ConfigError
from nsq.spark.receiver.pool import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MOST_STILLBORN,
    STEADY,
    PoolStatus,
    ReceiverPool,
    Slot,
)
from nsq.spark.receiver.protocol import Failed, Status
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


def pool_of(path: Path, *statuses: Status, ready: bool = True) -> ReceiverPool:
    """Each receiver has sent that status."""
    pool = ReceiverPool(options_of(path), DirectoryWal(path), len(statuses))
    for slot, status in zip(pool._slots, statuses, strict=True):
        slot.ready, slot.status = ready, status
    return pool


def test_a_pool_has_no_receivers_before_it_starts(tmp_path: Path) -> None:
    pool = ReceiverPool(options_of(tmp_path), DirectoryWal(tmp_path), 3)
    assert pool.status() == PoolStatus(wanted=3)
    assert pool.wait(0.0) is False
    assert not pool.status().ready
    assert pool.roll(0.0) is True
    assert pool.fatal_error is None


def test_a_stopped_pool_cannot_start(tmp_path: Path) -> None:
    pool = ReceiverPool(options_of(tmp_path), DirectoryWal(tmp_path))
    assert pool.stop(0.0)
    with pytest.raises(Closed):
        pool.start()
    assert pool.wait(3600.0) is False  # at once


def test_a_pool_stops_although_a_signal_left_its_lock_with_the_thread(tmp_path: Path) -> None:
    """A handler that raises while ``with`` begins leaves the lock held: the slots' threads wait for it."""
    pool = ReceiverPool(options_of(tmp_path), DirectoryWal(tmp_path), 1, command=["/nowhere"])
    pool._changed.acquire()
    pool.start()
    pool.stop(1.0)
    assert not pool._slots[0].thread.is_alive()


def test_a_pool_refuses_options_that_cannot_be_sent_to_a_process(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SSLContext.*give it as text"):
        ReceiverPool(options_of(tmp_path, Config(tls=ssl.create_default_context())), DirectoryWal(tmp_path))
    with pytest.raises(ConfigError, match="more than a receiver can be handed"):
        ReceiverPool(options_of(tmp_path, nsqds=3000), DirectoryWal(tmp_path))


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


class Lives:
    """One receiver after the other in a slot; no process runs."""

    def __init__(self) -> None:
        self.slot = Slot("place", b"", threading.Condition(), [])

    def pause(self, lived: float, *, ready: bool, explained: bool) -> float | None:
        self.slot.ready = ready
        self.slot._last_words = Failed("the log is not there yet") if explained else None
        pause = self.slot._end("it died", lived)
        assert (pause is None) is (self.slot.fatal_error is not None)
        return pause


def test_pauses_between_starts_double_up_to_a_limit() -> None:
    lives = Lives()
    pauses = [lives.pause(1.0, ready=True, explained=False) for _ in range(70)]
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert set(pauses[10:]) == {LONGEST_PAUSE}


def test_the_pause_starts_over_after_a_receiver_has_worked_long_enough() -> None:
    lives = Lives()
    for _ in range(4):
        lives.pause(1.0, ready=True, explained=False)
    assert lives.pause(STEADY, ready=True, explained=False) == FIRST_PAUSE
    assert lives.pause(1.0, ready=True, explained=False) == 2 * FIRST_PAUSE


def test_a_long_start_does_not_count_as_work() -> None:
    lives = Lives()
    lives.pause(1.0, ready=True, explained=False)
    assert lives.pause(STEADY, ready=False, explained=False) == 2 * FIRST_PAUSE


def test_a_receiver_that_never_starts_is_given_up() -> None:
    lives = Lives()
    pauses = [lives.pause(0.1, ready=False, explained=False) for _ in range(MOST_STILLBORN)]
    assert None not in pauses[:-1]
    assert pauses[-1] is None


def test_a_receiver_that_reports_an_error_or_has_worked_is_not_given_up() -> None:
    lives = Lives()
    for number in range(10 * MOST_STILLBORN):
        explained = number % (MOST_STILLBORN - 1) == 0
        assert lives.pause(0.1, ready=False, explained=explained) is not None
    for _ in range(10 * MOST_STILLBORN):
        assert lives.pause(0.1, ready=True, explained=False) is not None
