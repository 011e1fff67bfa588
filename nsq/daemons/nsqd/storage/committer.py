"""When things are synced: in rounds, one after the other, in a thread of their own.

A round makes everything last that was written before it began. So with many publishers waiting, one fsync
answers all that arrived during the one before: the slower the disk, the larger the groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

Job = Callable[[], None]


class Round:
    """What one round does: jobs in a thread, and what follows from their success."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.after: list[Job] = []

    def run(self) -> None:
        for job in self.jobs:
            job()

    def finish(self) -> None:
        for call in self.after:
            call()


class Committer:
    """``prepare`` gathers a round on the loop; an OSError is told to ``failed``, and the round repeated."""

    def __init__(
        self,
        prepare: Callable[[], Round],
        failed: Callable[[OSError], None],
        worked: Callable[[], None],
        *,
        retry_after: float = 1.0,
    ) -> None:
        self._prepare = prepare
        self._failed = failed
        self._worked = worked
        self._retry_after = retry_after
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="nsqd-sync")
        self._threads.submit(int)  # starts the thread now, with the daemon, rather than under some request
        self._wanted = asyncio.Event()
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

    def when_lasting(self, call: Callable[[int], None]) -> int:
        """Call with the ticket, once all that is written by now is on disk."""
        ticket = self.ticket
        self._waiting.append((ticket, call))
        self._wanted.set()
        return ticket

    async def lasting(self) -> None:
        """Return once all that is written by now is on disk."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: int) -> None:
            if not future.done():
                future.set_result(None)

        self.when_lasting(done)
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
                if this.jobs:
                    await loop.run_in_executor(self._threads, this.run)
                this.finish()
            except OSError as fault:
                self._failed(fault)
                self._wanted.set()
                await asyncio.sleep(self._retry_after)
                continue
            self._worked()
            self._answer(ticket)

    def _answer(self, ticket: int) -> None:
        ready = [call for covered, call in self._waiting if covered <= ticket]
        self._waiting = [entry for entry in self._waiting if entry[0] > ticket]
        for call in ready:
            call(ticket)

    async def close(self) -> None:
        """End the rounds; whoever still waits is not called."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._threads.shutdown()
