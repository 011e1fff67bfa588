"""Syncs files in rounds, one after the other, in a thread of their own.

A round syncs everything that was written before it began. So one fsync serves all publishes that arrived
during the previous one (group commit): the slower the disk, the larger the groups.
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

#: Passed instead of a ticket: the writes may not be on disk.
LOST = -1


class Round:
    """One round of syncs: the jobs, which a thread runs, and the calls after their success."""

    def __init__(self) -> None:
        self.jobs: list[SyncJob] = []
        self.probe: Callable[[], None] | None = None
        #: The probe's error, after the round.
        self.probe_error: OSError | None = None
        self.after: list[Callable[[], None]] = []

    def add(self, job: J | None, done: Callable[[J], None] | None = None) -> None:
        """Add a job, unless it is None; call ``done`` with it when the round has succeeded."""
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
            self.probe_error = error

    def finish(self) -> None:
        for call in self.after:
            call()


class Committer:
    """Runs the rounds. ``prepare`` makes a round on the event loop. If it or a job raises, writes may be
    lost: ``begin_new_files`` is called, ``failed`` gets the error, and another round follows."""

    def __init__(
        self,
        prepare: Callable[[], Round],
        failed: Callable[[Exception], None],
        worked: Callable[[], None],
        *,
        begin_new_files: Callable[[], None] = lambda: None,
        retry_after: float = 1.0,
    ) -> None:
        self._prepare = prepare
        self._failed = failed
        self._worked = worked
        self._begin_new_files = begin_new_files
        self.retry_after = retry_after
        #: Why the last round failed.
        self.error: Exception | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="nsqd-sync")
        self._threads.submit(int)  # starts the thread now instead of during a request
        self._wanted = asyncio.Event()
        self._closed = False
        self._begun = 0  # rounds
        self._waiting: list[tuple[int, Callable[[int], None]]] = []
        self._task = asyncio.get_running_loop().create_task(self._work(), name="nsqd-sync")

    @property
    def ticket(self) -> int:
        """The number of the round that will sync everything written so far."""
        return self._begun + 1

    def ask(self) -> None:
        """Request a round."""
        self._wanted.set()

    def on_synced(self, call: Callable[[int], None]) -> int:
        """Call ``call`` with the ticket when everything written so far is synced; with LOST if that fails."""
        ticket = self.ticket
        self._waiting.append((ticket, call))
        self._wanted.set()
        return ticket

    async def wait_until_synced(self) -> None:
        """Return when everything written so far is synced. Raises StorageFailed if that fails."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(answer: int) -> None:
            if future.done():
                return
            if answer == LOST:
                future.set_exception(StorageFailed("syncing to disk failed"))
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
                # Any error, not only OSError: if the rounds ended, no waiter would get a reply.
                self.error = error
                # Linux discards pages that a failed fsync could not write, and the next fsync succeeds. That
                # concerns also what was written while it ran: so no write before now may count as synced.
                self._answer(self.ticket, LOST)
                self._begin_new_files()
                self._failed(error)
                self._wanted.set()
                await asyncio.sleep(self.retry_after)
                continue
            self.error = None
            self._worked()
            self._answer(ticket, ticket)

    def _answer(self, ticket: int, answer: int) -> None:
        ready = [call for covered, call in self._waiting if covered <= ticket]
        self._waiting = [entry for entry in self._waiting if entry[0] > ticket]
        loop = asyncio.get_running_loop()
        for call in ready:
            loop.call_soon(call, answer)  # separately: one that raises must not keep others from being called

    async def close(self) -> None:
        """End the rounds; waiters are not called any more. Returns when the thread has ended; if the disk
        hangs, that may take long, but does not block the event loop.
        """
        if self._closed:
            return
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, int)  # after all other work
        except BaseException:
            self._threads.shutdown(wait=False)
            raise
        self._threads.shutdown()
