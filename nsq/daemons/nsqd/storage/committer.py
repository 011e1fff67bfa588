"""When things are synced: in rounds, one after the other, in a thread of their own.

A round makes everything last that was written before it began. So with many publishers waiting, one fsync
answers all that arrived during the one before: the slower the disk, the larger the groups.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.disk.syncing import SyncJob, run_together

J = TypeVar("J", bound=SyncJob)

#: Instead of a ticket: what was waited for may not be on disk.
LOST = -1


class Round:
    """One round of syncs: jobs in a thread, and the calls that follow from their success."""

    def __init__(self) -> None:
        self.jobs: list[SyncJob] = []
        self.probe: Callable[[], None] | None = None
        #: What came of it, once the round is over.
        self.probe_fault: OSError | None = None
        self.after: list[Callable[[], None]] = []

    def add(self, job: J | None, done: Callable[[J], None] | None = None) -> None:
        """``done`` is told of the job when the round has succeeded. None is nothing to do."""
        if job is not None:
            self.jobs.append(job)
        if job is not None and done is not None:
            self.after.append(functools.partial(done, job))

    def run(self) -> None:
        run_together(self.jobs)
        try:
            if self.probe is not None:
                self.probe()
        except OSError as error:
            self.probe_fault = error

    def finish(self) -> None:
        for call in self.after:
            call()


class Committer:
    """``prepare`` gathers a round on the loop; what it or a job raises is told to ``failed``, and the round
    repeated. ``distrust`` is called when a job has raised: what was written may be on disk or not."""

    def __init__(
        self,
        prepare: Callable[[], Round],
        failed: Callable[[Exception], None],
        worked: Callable[[], None],
        *,
        distrust: Callable[[], None] = lambda: None,
        retry_after: float = 1.0,
    ) -> None:
        self._prepare = prepare
        self._failed = failed
        self._worked = worked
        self._distrust = distrust
        self._retry_after = retry_after
        #: Why the last round failed.
        self.fault: Exception | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="nsqd-sync")
        self._threads.submit(int)  # starts the thread now, with the daemon, rather than under some request
        self._wanted = asyncio.Event()
        self._closed = False
        self._begun = 0  # rounds
        self._waiting: list[tuple[int, Callable[[int], None]]] = []
        self._task = asyncio.get_running_loop().create_task(self._work(), name="nsqd-sync")

    @property
    def ticket(self) -> int:
        """The round that will cover everything written up to now."""
        return self._begun + 1

    def ask(self) -> None:
        """Have a round soon."""
        self._wanted.set()

    def on_synced(self, call: Callable[[int], None]) -> int:
        """Call with the ticket, once all that is written by now is on disk; with LOST if it may never be."""
        ticket = self.ticket
        self._waiting.append((ticket, call))
        self._wanted.set()
        return ticket

    async def wait_until_synced(self) -> None:
        """Return once all that is written by now is on disk. Raises StorageFailed if it may never be."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(answer: int) -> None:
            if future.done():
                return
            if answer == LOST:
                future.set_exception(StorageFailed("the disk did not take what was written"))
            else:
                future.set_result(None)

        self.on_synced(done)
        await future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            ticket = self.ticket
            self._begun = ticket
            try:
                this = self._prepare()
                if this.jobs or this.probe is not None:
                    await loop.run_in_executor(self._threads, this.run)
                this.finish()
            except Exception as error:
                # Not OSError alone: without further rounds no waiter would ever be answered.
                self.fault = error
                # Linux drops what a failed fsync could not write, and the next one succeeds: nothing that
                # was written before may count as lasting any more.
                self._answer(ticket, LOST)
                self._distrust()
                self._failed(error)
                self._wanted.set()
                await asyncio.sleep(self._retry_after)
                continue
            self.fault = None
            self._worked()
            self._answer(ticket, ticket)

    def _answer(self, ticket: int, answer: int) -> None:
        ready = [call for covered, call in self._waiting if covered <= ticket]
        self._waiting = [entry for entry in self._waiting if entry[0] > ticket]
        loop = asyncio.get_running_loop()
        for call in ready:
            loop.call_soon(call, answer)  # what one of them raises is not for the others

    async def close(self) -> None:
        """End the rounds; waiters are not called any more. Returns when the thread is done with the disk,
        which may take as long as the disk likes: the loop goes on meanwhile.
        """
        if self._closed:
            return
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, int)  # behind all else
        except BaseException:
            self._threads.shutdown(wait=False)
            raise
        self._threads.shutdown()
