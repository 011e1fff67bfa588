"""Virtual time, and threads that run one at a time in an order that a seed decides.

A thread is a greenlet. It runs until it waits, or until it is *preempted*: ``code.py`` puts a call before
each statement of the package, and every so many statements that call comes here. Then another thread may run,
or this one *stands still* for a while. When no thread can run, time jumps to the next timer. Nothing else
moves time but a microsecond for each switch, so a run does not depend on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import bisect
import hashlib
import heapq
import itertools
import math
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

#: Seconds that pass whenever another thread runs.
_SWITCH = 1e-6
#: The least seconds for which a thread stands still.
_SHORTEST_LAG = 1e-5
#: The monotonic clock and the wall clock (seconds since 1970) when a run begins.
_BEGIN, EPOCH = 1_000.0, 1_800_000_000.0
#: The most seconds for which a thread stands still, or a process.
_LONGEST_STAND = 20.0
#: Switches without a timer in between after which a run counts as hanging.
_BUSY = 400_000


class Hang(Exception):
    """Threads run for ever without any of them waiting."""


@dataclass(eq=False)
class Process:
    """What dies together: threads, sockets and open files. ``clock_error`` is how wrong its wall clock is."""

    name: str
    pid: int
    host: Any = None
    threads: list[Thread] = field(default_factory=list)
    alive: bool = True
    clock_error: float = 0.0
    descriptors: dict[int, Any] = field(default_factory=dict)
    crashed: list[str] = field(default_factory=list)
    """Errors that ended a thread."""
    stopped: list[Thread] | None = None
    """Threads that would run if the process were not stopped; None while it is not."""
    stands: list[tuple[float, float]] = field(default_factory=list)
    """From when to when its threads stood still, one entry for each time."""

    def stood(self, since: float, until: float) -> float:
        """Return for how many seconds its threads stood still in this time, all together."""
        first, last = (bisect.bisect(self.stands, (at,)) for at in (since - _LONGEST_STAND, until))
        return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in self.stands[first:last])


@dataclass(eq=False)
class Thread:
    """A thread of the run; see ``threads.Thread`` for what the package sees of it, which is its ``face``."""

    number: int
    name: str
    process: Process
    stack: Any = None  # its greenlet
    alive: bool = True
    waiting: bool = False
    woken: bool = False
    timer: list[Any] | None = None
    interrupt: Callable[[], object] | None = None
    joiners: Waiters = field(default_factory=lambda: Waiters())
    loop: asyncio.AbstractEventLoop | None = None
    face: Any = None

    def __repr__(self) -> str:
        return f"{self.process.name}/{self.name}"


class Waiters(dict[Thread, None]):
    """The threads that wait for one thing to change, such as a lock; the first has waited longest."""

    def wake(self, count: int | None = None) -> None:
        for thread in list(self)[:count]:
            del self[thread]
            scheduler.wake(thread)


class Scheduler:
    """Runs the threads of one run. There is one for each operating system process: ``scheduler`` below."""

    def __init__(self, seed: int | str = 0) -> None:
        self.chance = random.Random(f"scheduler {seed}")
        self.now = _BEGIN
        self.current: Thread | None = None
        self.threads: list[Thread] = []
        self.story: Callable[[str], None] = lambda _line: None
        """Gets a line for each thing that happens, in a replay."""
        self.telling = False
        self.switches = 0
        #: How many statements run between two preemptions on average; how often one stands still, how long.
        self.pace = 200
        self.lag_share, self.lag_longest = 0.01, 0.3
        self.held: Callable[[str, int], float] = lambda _module, _site: 0.0
        """Says for how many seconds a thread stands still at a marked statement."""
        self._trace = hashlib.blake2b(digest_size=8)
        self._runnable: list[Thread] = []
        self._timers: list[list[Any]] = []
        self._numbers = itertools.count(1)
        self._since_timer = 0
        self._main: Any = None  # the greenlet that called ``run``
        self._over = False
        self._running_loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None

    # The run.

    def run(self, until: float = math.inf) -> None:
        """Let threads run until ``stop``, until none can ever run again, or until ``until``."""
        self._main = getcurrent()
        self._over = False
        self.at(until, self.stop)
        self._next()
        asyncio._set_running_loop(None)
        self._running_loop = None
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End ``run`` at the next switch."""
        self._over = True

    def note(self, *facts: object) -> None:
        """Add facts to the hash that tells whether two runs are the same."""
        self._trace.update(repr((self.now, facts)).encode())

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()

    # Threads.

    def start(self, target: Callable[[], object], name: str, process: Process) -> Thread:
        thread = Thread(next(self._numbers), name, process)
        process.threads.append(thread)
        self.threads.append(thread)  # kept to the end: freeing a greenlet would run its ``finally`` clauses

        def run() -> None:
            try:
                target()
            except SystemExit:
                pass
            except BaseException:
                process.crashed.append(f"{thread} died of {traceback.format_exc()}")
            thread.alive = False
            thread.joiners.wake()
            self.note("ended", thread.number)
            self._next()

        thread.stack = greenlet(run, self._main)
        self._runnable.append(thread)
        self.note("started", thread.number, name)
        return thread

    def kill(self, process: Process) -> None:
        """End all threads of a process where they are: they never run again."""
        process.alive = False
        for thread in process.threads:
            thread.alive = False
            if thread.timer is not None:
                thread.timer[2] = None
            thread.joiners.wake()
        if self.current is not None and self.current.process is process:
            self._next()

    def stop_process(self, process: Process) -> None:
        """Let no thread of a process run until ``continue_process``."""
        if process.stopped is None:
            process.stopped = []
            process.stands.append((self.now, math.inf))

    def continue_process(self, process: Process) -> None:
        stopped, process.stopped = process.stopped, None
        for number, (began, ended) in enumerate(process.stands):
            if ended == math.inf:
                process.stands[number] = (began, self.now)
        self._runnable += stopped or ()

    def wait(self, timeout: float | None = None) -> bool:
        """Have the current thread wait until it is woken, perhaps for no reason; False if not in time."""
        me = self.me()
        if timeout is not None and timeout <= 0:
            self.give_way()
            return False
        me.waiting, me.woken = True, False
        if timeout is not None and timeout < math.inf:
            me.timer = self.at(self.now + timeout, lambda: self._awake(me, woken=False))
        self._rest(me)
        return me.woken

    def wait_until(self, holds: Callable[[], object], timeout: float | None, *places: Waiters) -> bool:
        """Have the current thread wait until a condition holds; return whether it does in time. Who changes
        something that the condition looks at wakes the waiters of one of the places.
        """
        me = self.me()
        deadline = math.inf if timeout is None else self.now + timeout
        while not holds():
            if self.now >= deadline:
                return False
            for place in places:
                place[me] = None
            try:
                self.wait(deadline - self.now)
            except BaseException:
                for place in places:
                    if me not in place:  # woken, and interrupted: the turn is the next one's
                        place.wake(1)
                raise
            finally:
                for place in places:
                    place.pop(me, None)
        return True

    def wake(self, thread: Thread) -> None:
        if thread.waiting and thread.alive:
            self._awake(thread, woken=True)

    def give_way(self) -> None:
        """Let other threads run; the current one may go on at any time."""
        me = self.me()
        self._runnable.append(me)
        self._rest(me)

    def stand_still(self, seconds: float) -> None:
        """Keep the current thread from running for so long, whatever it is woken for."""
        me = self.me()
        me.process.stands.append((self.now, self.now + seconds))
        self.at(self.now + seconds, lambda: self._runnable.append(me))
        self._rest(me)

    def interrupt(self, thread: Thread, action: Callable[[], object]) -> None:
        """Have a thread call ``action`` before its next statement, as a signal handler; it may raise."""
        thread.interrupt = action
        if thread.waiting:
            self._awake(thread, woken=True)

    def me(self) -> Thread:
        assert self.current is not None, "no thread of the simulation runs here"
        return self.current

    def at(self, when: float, action: Callable[[], object]) -> list[Any]:
        """Call ``action`` at a time. It must not wait. Setting the result's third item to None cancels it."""
        timer = [when, next(self._numbers), action]
        if when < math.inf:
            heapq.heappush(self._timers, timer)
        return timer

    def statement(self, module: str, site: int, marked: bool) -> None:
        """Called before a statement of the package, when a preemption is due or the statement is marked."""
        me = self.current
        if me is None or getcurrent() is not me.stack:
            return  # importing, or inside of a timer's action
        if marked and (seconds := self.held(module, site)):
            self.note("held", me.number, seconds)
            self.story(f"{me} stands still for {seconds:.6f} s in {module}")
            self.stand_still(seconds)
        elif self.chance.random() < self.lag_share:
            seconds = _SHORTEST_LAG * (self.lag_longest / _SHORTEST_LAG) ** self.chance.random()
            self.note("lag", me.number, seconds)
            self.stand_still(seconds)
        else:
            self.give_way()

    def due(self) -> Iterator[int]:
        """Yield 0 for a statement after which the thread goes on, 1 for one before which it is preempted."""
        return itertools.chain.from_iterable(self._gaps())

    def _gaps(self) -> Iterator[tuple[int, ...]]:
        while True:
            yield (0,) * int(self.chance.expovariate(1 / self.pace))
            yield (1,)

    def _rest(self, me: Thread) -> None:
        """Let others run; when this thread runs again, run its interrupt first."""
        self._next()
        action, me.interrupt = me.interrupt, None
        if action is not None:
            self.note("interrupt", me.number)
            action()

    def _awake(self, thread: Thread, *, woken: bool) -> None:
        thread.waiting, thread.woken = False, woken
        if thread.timer is not None:
            thread.timer[2] = None
            thread.timer = None
        if thread.alive:
            self._runnable.append(thread)

    def _next(self) -> None:
        """Switch to another thread; return when this one runs again."""
        before = self.current
        while True:
            self._fire()
            if self._over:
                break
            runnable = self._runnable
            if not runnable:
                if not self._timers:
                    break
                self.now = max(self.now, self._timers[0][0])
                self._since_timer = 0
                continue
            index = int(self.chance.random() * len(runnable))
            runnable[index], runnable[-1] = runnable[-1], runnable[index]
            thread = runnable.pop()
            if not thread.alive:
                continue
            if thread.process.stopped is not None:
                thread.process.stopped.append(thread)
                continue
            self.now += _SWITCH
            self.switches += 1
            self._since_timer += 1
            if self._since_timer > _BUSY:
                self._failure = Hang(f"{thread} and others run without waiting")
                break
            if thread is before:
                return
            self.current = thread
            self.note("runs", thread.number)
            if thread.loop is not self._running_loop:
                self._running_loop = thread.loop
                asyncio._set_running_loop(thread.loop)
            thread.stack.switch()
            return
        self.current = None
        if getcurrent() is not self._main:
            self._main.switch()

    def _fire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            action = heapq.heappop(timers)[2]
            if action is not None:
                action()


scheduler = Scheduler()
"""The scheduler of this process's run. ``begin`` replaces its state."""


def begin(seed: int | str) -> Scheduler:
    """Begin a run: make the one scheduler new."""
    scheduler.__init__(seed)  # type: ignore[misc]
    return scheduler
