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
    """Counts what was written and what a sync has covered; fails and waits when told."""

    def __init__(self) -> None:
        self.written = self.lasting = self.rounds = 0
        self.at_work = False  # the thread, with the job of a round that is gathered a moment before
        self.faults: list[Exception] = []
        self.told: list[Exception] = []
        self.recovered = 0
        self.gate: threading.Event | None = None
        self.committer = Committer(self.prepare, self.told.append, self.worked, retry_after=0.001)

    def prepare(self) -> Round:
        self.rounds += 1
        this, until = Round(), self.written
        this.jobs.append(SyncJob(Path(), (), check=self.sync))
        this.after.append(lambda: self.synced(until))
        return this

    def sync(self) -> None:
        self.at_work = True
        if self.gate is not None:
            assert self.gate.wait(100)
        if self.faults:
            raise self.faults.pop(0)

    def synced(self, until: int) -> None:
        self.lasting = until

    def worked(self) -> None:
        self.recovered += 1

    async def write(self) -> None:
        """Return when it lasts."""
        self.written += 1
        mine = self.written
        await self.committer.wait_until_synced()
        assert self.lasting >= mine, "confirmed before it was on disk"


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


def test_what_is_confirmed_is_on_disk() -> None:
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


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), ValueError("a fault of ours")])
def test_after_a_fault_the_round_is_repeated_until_it_works(fault: Exception) -> None:
    async def scenario(disk: Disk) -> None:
        disk.faults = [fault, fault]
        answers: list[int] = []
        disk.committer.on_synced(answers.append)
        await until(lambda: disk.recovered)
        assert answers == [LOST]

    disk = run(scenario)
    assert (disk.told, disk.rounds, disk.recovered) == ([fault, fault], 3, 1)


def test_a_fault_is_known_until_a_round_works() -> None:
    async def scenario(disk: Disk) -> None:
        disk.faults = [OSError(5, "Input/output error")]
        disk.committer.ask()
        await until(lambda: disk.told)
        assert disk.committer.error is disk.told[0]
        await disk.write()
        assert disk.committer.error is None

    run(scenario)


def test_what_one_waiter_does_wrong_is_not_for_the_others() -> None:
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


def test_a_close_that_waits_for_the_disk_leaves_the_loop_to_others() -> None:
    async def scenario(disk: Disk) -> None:
        disk.gate = threading.Event()
        disk.committer.ask()
        await until(lambda: disk.at_work)
        closing = asyncio.create_task(disk.committer.close())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not closing.done()
        disk.gate.set()
        await closing

    run(scenario)


def test_a_second_close_does_nothing() -> None:
    async def scenario(disk: Disk) -> None:
        await disk.write()
        await disk.committer.close()

    run(scenario)


class BrokenDisk:
    """Syncs fail while ``broken`` says so."""

    def __init__(self) -> None:
        self.broken = True
        self.distrusted = 0
        self.faults: list[Exception] = []

    def prepare(self) -> Round:
        this = Round()
        this.jobs.append(SyncJob(Path(), (), check=self.sync))
        return this

    def sync(self) -> None:
        if self.broken:
            raise OSError(5, "Input/output error")

    def distrust(self) -> None:
        self.distrusted += 1

    def committer(self) -> Committer:
        return Committer(
            self.prepare, self.faults.append, lambda: None, begin_new_files=self.distrust, retry_after=0.001
        )


def test_who_waited_for_a_sync_that_failed_is_not_told_that_it_worked_the_second_time() -> None:
    async def scenario() -> None:
        disk = BrokenDisk()
        committer = disk.committer()
        answers: asyncio.Queue[int] = asyncio.Queue()
        committer.on_synced(answers.put_nowait)
        assert await answers.get() == LOST
        disk.broken = False
        ticket = committer.on_synced(answers.put_nowait)
        assert await answers.get() >= ticket
        assert disk.distrusted == len(disk.faults) > 0
        await committer.close()
        assert answers.empty()

    asyncio.run(scenario())


def test_a_waiting_request_learns_of_it() -> None:
    async def scenario() -> None:
        committer = BrokenDisk().committer()
        with pytest.raises(StorageFailed, match="syncing to disk failed"):
            await committer.wait_until_synced()
        await committer.close()

    asyncio.run(scenario())
