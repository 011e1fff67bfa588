"""A pool of receivers without any process: its status, waiting for it, and when a receiver is restarted."""

from __future__ import annotations

import ssl
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nsq.config import Config
from nsq.errors import Closed, ConfigError
from nsq.spark.receiver.pool import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MOST_SILENT,
    STEADY,
    PoolStatus,
    ReceiverPool,
    Slot,
)
from nsq.spark.receiver.protocol import Failed, Ready
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.status import Status
from nsq.threads.waiters import SafeEvent


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
    pool = ReceiverPool(options_of(path), len(statuses))
    for slot, status in zip(pool._slots, statuses, strict=True):
        slot.state = replace(slot.state, ready=ready, status=status)
    return pool


def test_a_pool_has_no_receivers_before_it_starts(tmp_path: Path) -> None:
    pool = ReceiverPool(options_of(tmp_path), 3)
    assert pool.status() == PoolStatus(wanted=3)
    pool.wait(0.0)
    assert not pool.status().ready
    assert pool.fatal_error is None


def test_a_stopped_pool_cannot_start(tmp_path: Path) -> None:
    pool = ReceiverPool(options_of(tmp_path))
    assert pool.stop(0.0)
    with pytest.raises(Closed):
        pool.start()
    pool.wait(3600.0)  # at once


def test_a_pool_refuses_options_that_cannot_be_sent_to_a_process(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SSLContext.*give it as text"):
        ReceiverPool(options_of(tmp_path, Config(tls=ssl.create_default_context())))
    with pytest.raises(ConfigError, match="more than a receiver can be handed"):
        ReceiverPool(options_of(tmp_path, nsqds=3000))


def test_the_state_is_that_of_all_receivers(tmp_path: Path) -> None:
    one = Status(received=4, sealed=1, connections=1, paused="the log is full")
    other = Status(received=5, sealed=2, paused="no disk")
    found = pool_of(tmp_path, one, other).state()
    assert (found.ready, found.connections, found.received, found.sealed) == (True, 1, 9, 3)
    assert found.paused == "the log is full; no disk"


def test_a_pool_is_ready_when_all_receivers_are(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, Status(), Status())
    assert pool.state().ready
    pool._slots[0].state = replace(pool._slots[0].state, ready=False)
    assert not pool.state().ready


def test_a_fatal_error_is_raised_by_state_and_not_by_status(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, Status(received=9))
    slot = pool._slots[0]
    slot.state = replace(slot.state, fatal_error=ConfigError("nsqd refuses: E_UNAUTHORIZED"))
    pool.wait(3600.0)  # at once
    with pytest.raises(ConfigError, match="E_UNAUTHORIZED"):
        pool.state()
    assert pool.status().received == 9


def test_a_wait_ends_with_segments_and_receivers_that_come_and_not_with_other_news(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, Status())
    slot = pool._slots[0]

    def ends_a_wait() -> bool:
        began = time.monotonic()
        pool.wait(0.2)
        return time.monotonic() - began < 0.15

    slot._take(Status(received=5, in_flight=3))
    assert not ends_a_wait()
    slot._take(Status(received=5, sealed=1))
    assert ends_a_wait()
    assert not ends_a_wait()
    slot._take(Ready("r-1"))
    assert ends_a_wait()


def test_what_earlier_processes_did_still_counts(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, Status(received=4, sealed=1))
    slot = pool._slots[0]
    slot._end("it died", 1.0)
    assert (pool.state().received, pool.state().sealed, pool.state().error) == (4, 1, "it died")
    slot._take(Ready("r-2"))
    slot._take(Status(received=3, sealed=1))
    assert (pool.state().received, pool.state().sealed, pool.state().error) == (7, 2, "")


def test_waiting_without_receivers_returns_after_the_timeout(tmp_path: Path) -> None:
    pool = pool_of(tmp_path)
    pool.start()
    pool.wait(0.01)
    assert pool.state().ready
    assert (pool.state(), pool.stop()) == (PoolStatus(), True)


class Lives:
    """One receiver after the other in a slot; no process runs."""

    def __init__(self) -> None:
        self.slot = Slot("place", b"", SafeEvent(), SafeEvent(), [])

    def pause(self, lived: float, *, ready: bool, explained: bool) -> float | None:
        self.slot.state = replace(self.slot.state, ready=ready)
        self.slot._end_event = Failed("the log is not there yet") if explained else None
        pause = self.slot._end("it died", lived)
        assert (pause is None) is (self.slot.state.fatal_error is not None)
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
    pauses = [lives.pause(0.1, ready=False, explained=False) for _ in range(MOST_SILENT)]
    assert None not in pauses[:-1]
    assert pauses[-1] is None


def test_a_receiver_that_reports_an_error_or_has_worked_is_not_given_up() -> None:
    lives = Lives()
    for number in range(10 * MOST_SILENT):
        explained = number % (MOST_SILENT - 1) == 0
        assert lives.pause(0.1, ready=False, explained=explained) is not None
    for _ in range(10 * MOST_SILENT):
        assert lives.pause(0.1, ready=True, explained=False) is not None
