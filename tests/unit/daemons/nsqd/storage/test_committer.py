from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.disk.syncing import SyncJob
from nsq.daemons.nsqd.storage.committer import LOST, Committer, Round
from tests.unit.daemons.nsqd.storage.waiting import until


class Disk:
    """Counts writes and how many of them are synced; fails and waits on request."""

    def __init__(self) -> None:
        self.written = self.synced_to = self.rounds = 0
        self.at_work = False  # the thread, with the job of a round that is gathered a moment before
        self.errors: list[Exception] = []
        self.failures: list[Exception] = []
        self.recovered = self.new_files_begun = 0
        self.gate: threading.Event | None = None
        self.committer = Committer(
            self.prepare,
            self.failures.append,
            self.worked,
            begin_new_files=self.begin_new_files,
            retry_after=0.001,
        )

    def prepare(self) -> Round:
        self.rounds += 1
        this, until = Round(), self.written
        this.jobs.append(SyncJob(Path(), {}))
        this.run = self.sync
        this.after.append(lambda: self.synced(until))
        return this

    def sync(self) -> None:
        self.at_work = True
        if self.gate is not None:
            assert self.gate.wait(100)
        if self.errors:
            raise self.errors.pop(0)

    def synced(self, until: int) -> None:
        self.synced_to = until

    def begin_new_files(self) -> None:
        self.new_files_begun += 1

    def worked(self) -> None:
        self.recovered += 1

    async def write(self) -> None:
        """Return when the write is synced."""
        self.written += 1
        mine = self.written
        await self.committer.wait_until_synced()
        assert self.synced_to >= mine, "confirmed before it was on disk"


def run(scenario: Callable[[Disk], Coroutine[Any, Any, None]]) -> Disk:
    async def main() -> Disk:
        disk = Disk()
        try:
            async with asyncio.timeout(100):
                await scenario(disk)
        finally:
            if disk.gate is not None:
                disk.gate.set()
            await disk.committer.close()
        return disk

    return asyncio.run(main())


def test_a_confirmed_write_is_on_disk() -> None:
    async def scenario(disk: Disk) -> None:
        for _ in range(5):
            await disk.write()

    assert run(scenario).rounds == 5


def test_all_that_arrives_during_a_round_shares_the_next() -> None:
    async def scenario(disk: Disk) -> None:
        disk.gate = threading.Event()
        first = asyncio.create_task(disk.write())
        await until(lambda: disk.at_work)
        others = [asyncio.create_task(disk.write()) for _ in range(100)]
        await asyncio.sleep(0)
        assert not first.done()
        disk.gate.set()
        await asyncio.gather(first, *others)

    assert run(scenario).rounds == 2


def test_a_round_that_is_under_way_confirms_nothing_that_came_later() -> None:
    async def scenario(disk: Disk) -> None:
        disk.gate = threading.Event()
        early: list[int] = []
        late: list[int] = []
        disk.committer.on_synced(early.append)
        await until(lambda: disk.at_work)
        ticket = disk.committer.on_synced(late.append)
        disk.gate.set()
        disk.gate = None
        await until(lambda: early)
        await until(lambda: late)
        assert (early, late, ticket) == ([1], [2], 2)

    run(scenario)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("an error of ours")])
def test_after_an_error_the_round_is_repeated_until_it_works(error: Exception) -> None:
    async def scenario(disk: Disk) -> None:
        disk.errors = [error, error]
        answers: list[int] = []
        disk.committer.on_synced(answers.append)
        with pytest.raises(StorageFailed, match="syncing to disk failed"):
            await disk.committer.wait_until_synced()
        await until(lambda: disk.recovered)
        assert answers == [LOST]

    disk = run(scenario)
    assert (disk.failures, disk.new_files_begun, disk.rounds, disk.recovered) == ([error, error], 2, 3, 1)


def test_a_fault_is_known_until_a_round_works() -> None:
    async def scenario(disk: Disk) -> None:
        disk.errors = [OSError(5, "Input/output error")]
        disk.committer.ask()
        await until(lambda: disk.failures)
        assert disk.committer.error is disk.failures[0]
        await disk.write()
        assert disk.committer.error is None

    run(scenario)


def test_a_waiter_that_raises_stops_no_other_waiter() -> None:
    async def scenario(disk: Disk) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))

        def bad(_: int) -> None:
            raise ValueError("no")

        disk.committer.on_synced(bad)
        await disk.write()
        await disk.write()

    complaints: list[dict[str, Any]] = []
    run(scenario)
    assert len(complaints) == 1


def test_a_waiter_may_give_up() -> None:
    async def scenario(disk: Disk) -> None:
        disk.gate = threading.Event()
        impatient = asyncio.create_task(disk.write())
        await until(lambda: disk.at_work)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        disk.gate.set()
        await disk.write()

    run(scenario)


def test_closing_in_the_middle_of_a_round_waits_for_its_thread() -> None:
    async def scenario(disk: Disk) -> None:
        disk.gate = threading.Event()
        disk.committer.on_synced(lambda _: called.append(True))
        await until(lambda: disk.at_work)
        opening = threading.Timer(0.01, disk.gate.set)
        opening.start()
        await disk.committer.close()
        assert disk.gate.is_set()
        opening.join()

    called: list[bool] = []
    run(scenario)
    assert not called
