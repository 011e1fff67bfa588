"""What a failed sync means for those who wait for it."""

from __future__ import annotations

import asyncio

import pytest

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.storage.committer import LOST, Committer, Round


class Disk:
    """Syncs fail while ``broken`` says so."""

    def __init__(self) -> None:
        self.broken = True
        self.distrusted = 0
        self.faults: list[Exception] = []

    def prepare(self) -> Round:
        this = Round()
        this.jobs.append(self.sync)
        return this

    def sync(self) -> None:
        if self.broken:
            raise OSError(5, "Input/output error")

    def distrust(self) -> None:
        self.distrusted += 1

    def committer(self) -> Committer:
        return Committer(
            self.prepare, self.faults.append, lambda: None, distrust=self.distrust, retry_after=0.001
        )


def test_who_waited_for_a_sync_that_failed_is_not_told_that_it_worked_the_second_time() -> None:
    async def scenario() -> None:
        disk = Disk()
        committer = disk.committer()
        answers: asyncio.Queue[int] = asyncio.Queue()
        committer.when_lasting(answers.put_nowait)
        assert await answers.get() == LOST
        disk.broken = False
        ticket = committer.when_lasting(answers.put_nowait)
        assert await answers.get() >= ticket
        assert disk.distrusted == len(disk.faults) > 0
        await committer.close()
        assert answers.empty()

    asyncio.run(scenario())


def test_a_waiting_request_learns_of_it() -> None:
    async def scenario() -> None:
        committer = Disk().committer()
        with pytest.raises(StorageFailed, match="did not take"):
            await committer.lasting()
        await committer.close()

    asyncio.run(scenario())
