"""Runs long work on the event loop a few milliseconds at a time, so that other tasks run in between."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Generator, Iterator
from typing import TypeVar

#: How long one slice takes. Each round of the event loop runs one slice, and one HTTP request takes some ten
#: rounds (connect, send, receive the reply): it waits for as many slices.
_SECONDS = 0.002

T = TypeVar("T")


class Slices:
    """Runs one slice in each round of the event loop; several pieces of work alternate."""

    def __init__(self) -> None:
        self._works: deque[tuple[Iterator[object], asyncio.Future[None]]] = deque()

    def run(self, steps: Iterator[object]) -> asyncio.Future[None]:
        """Run the iterator, whose steps are short, to its end. Cancelling the returned future stops it.

        The first slice runs at once if no other work is running, so short work does not wait.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._works.append((steps, done))
        if len(self._works) == 1:
            self._do_slice()
        return done

    async def result(self, work: Generator[object, None, T]) -> T:
        """Run ``work``, whose steps are short, and return its result."""
        results: list[T] = []

        def steps() -> Generator[object, None, None]:
            results.append((yield from work))

        await self.run(steps())
        return results[0]

    def _do_slice(self) -> None:
        steps, done = self._works[0]
        deadline = time.perf_counter() + _SECONDS
        try:
            while not done.cancelled():
                next(steps)
                if time.perf_counter() > deadline:
                    break
        except StopIteration:
            done.set_result(None)
        except Exception as error:
            done.set_exception(error)
        self._works.rotate(-1)
        if done.done():
            self._works.pop()
        if self._works:
            asyncio.get_running_loop().call_soon(self._do_slice)
