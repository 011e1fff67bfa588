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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

BEGIN, EPOCH = 1_000.0, 1_800_000_000.0  # the monotonic clock and the wall clock when a run begins
_SWITCH = 1e-6  # seconds that pass whenever another thread runs
_SHORTEST_LAG, _LONGEST_STAND = 1e-5, 20.0  # seconds for which a thread, or a process, stands still
_BUSY = 400_000  # switches without a timer in between after which a run counts as hanging


@dataclass(eq=False)
class Process:
    """What dies together: threads, sockets and open files."""

    name: str
    pid: int
    host: Any = None
    threads: list[Thread] = field(default_factory=list)
    alive: bool = True
    descriptors: dict[int, Any] = field(default_factory=dict)
    crashed: list[str] = field(default_factory=list)  # errors that ended a thread
    stopped_until: float = 0.0
    stands: list[tuple[float, float]] = field(default_factory=list)  # from when to when a thread stood still

    def stop(self, seconds: float) -> None:
        """Let none of its threads run for so long, as SIGSTOP does."""
        self.stopped_until = max(self.stopped_until, scheduler.now + seconds)
        self.stands.append((scheduler.now, scheduler.now + seconds))

    def stood(self, since: float, until: float) -> float:
        """Return for how many seconds its threads stood still in this time, all together."""
        first, last = (bisect.bisect(self.stands, (at,)) for at in (since - _LONGEST_STAND, until))
        return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in self.stands[first:last])


class Waiters(dict["Thread", None]):
    """The threads that wait for one thing to change, such as a lock; the first has waited longest."""

    def wake(self, count: int | None = None) -> None:
        for thread in list(self)[:count]:
            del self[thread]
            scheduler.wake(thread)


class Thread:
    """A thread of the run. The package gets it in place of ``threading.Thread``."""

    def __init__(
        self,
        target: Callable[..., object],
        name: str = "thread",
        args: Iterable[Any] = (),
        daemon: bool = False,
        process: Process | None = None,
    ) -> None:
        self._target, self._args = target, args
        self.name, self.daemon = name, daemon
        self.process = process or scheduler.me().process
        self.ident: int | None = None
        self.alive = self.waiting = False
        self.timer: list[Any] | None = None
        self.interrupt: Callable[[], object] | None = None  # called before the thread runs again
        self.joiners = Waiters()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stack = greenlet(self._run, scheduler.main)

    def __repr__(self) -> str:
        return f"{self.process.name}/{self.name}"

    def start(self) -> None:
        assert self.ident is None, f"{self} was started twice"
        self.alive = True
        self.process.threads.append(self)  # kept: freeing a greenlet would run its ``finally`` clauses
        self.ident = next(scheduler.numbers)
        scheduler.runnable.append(self)
        scheduler.note("started", self.ident, self.name)

    def _run(self) -> None:
        try:
            self._target(*self._args)
        except BaseException:
            self.process.crashed.append(f"{self} died of {traceback.format_exc()}")
        self.alive = False
        self.joiners.wake()
        scheduler.note("ended", self.ident)
        scheduler.run_next()

    def is_alive(self) -> bool:
        """Say what the package sees: a program's main thread lives as long as its process."""
        return self.alive or self is self.process.threads[0]

    def join(self, timeout: float | None = None) -> None:
        assert self.ident is not None, f"{self} was not started"
        scheduler.wait_until(lambda: not self.alive, timeout, self.joiners)


class Scheduler:
    """Runs the threads of one run. There is one for each operating system process: ``scheduler`` below."""

    def __init__(self, seed: int | str = 0) -> None:
        self.chance = random.Random(f"scheduler {seed}")
        self.now = BEGIN
        self.current: Thread | None = None
        self.runnable: list[Thread] = []
        self._timers: list[list[Any]] = []
        self.numbers = itertools.count(1)
        self.main: Any = None  # the greenlet that called ``run``
        self.tell: Callable[[str], None] | None = None  # gets each line of the story, in a replay
        self.pace = 200  # how many statements run between two preemptions on average
        self.lag_share, self.lag_longest = 0.01, 0.3  # how often a preempted thread stands still, how long
        #: Says for how many seconds a thread stands still at a marked statement.
        self.held: Callable[[str, int], float] = lambda _module, _site: 0.0
        self.trace = hashlib.blake2b(digest_size=8)  # tells whether two runs are the same
        self._since_timer = 0  # how many switches
        self.scenario: Thread | None = None  # ``run`` ends with it

    # The run.

    def run(self) -> None:
        """Let threads run until it is over, or until none can ever run again."""
        self.main = getcurrent()
        self.run_next()
        asyncio._set_running_loop(None)

    @property
    def hangs(self) -> bool:
        """Whether threads ran for ever without any of them waiting."""
        return self._since_timer > _BUSY

    def story(self, text: str) -> None:
        """Tell a line of the story, with its time."""
        if self.tell is not None:
            self.tell(f"{self.now - BEGIN:11.6f}  {text}")

    def note(self, *facts: object) -> None:
        """Add facts to the hash of the run."""
        self.trace.update(repr((self.now, facts)).encode())

    # Threads and processes.

    def start(self, target: Callable[[], object], name: str, process: Process) -> Thread:
        thread = Thread(target, name, process=process)
        thread.start()
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
            self.run_next()

    # Waiting.

    def me(self) -> Thread:
        assert self.current is not None, "no thread of the simulation runs here"
        return self.current

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
            me.waiting = True
            if deadline < math.inf:
                me.timer = self.at(deadline, partial(self.wake, me))
            try:
                self._rest(me)
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
            thread.waiting = False
            if thread.timer is not None:
                thread.timer[2] = thread.timer = None
            self.runnable.append(thread)

    def give_way(self) -> None:
        """Let other threads run; the current one may go on at any time."""
        self.runnable.append(self.me())
        self._rest(self.me())

    def stand_still(self, seconds: float) -> None:
        """Keep the current thread from running for so long, whatever it is woken for."""
        me = self.me()
        me.process.stands.append((self.now, self.now + seconds))
        self.at(self.now + seconds, partial(self.runnable.append, me))
        self._rest(me)

    def interrupt(self, thread: Thread, action: Callable[[], object]) -> None:
        """Have a thread call ``action`` before its next statement, as a signal handler; it may raise."""
        thread.interrupt = action
        self.wake(thread)

    def at(self, when: float, action: Callable[[], object]) -> list[Any]:
        """Call ``action`` at a time. It must not wait. Setting the result's third item to None cancels it."""
        timer = [when, next(self.numbers), action]
        heapq.heappush(self._timers, timer)
        return timer

    # Preemption.

    def due(self) -> Iterator[int]:
        """Yield 0 for a statement before which the thread goes on, 1 for one before which it is preempted."""
        gaps = ((0,) * int(self.chance.expovariate(1 / self.pace)) + (1,) for _ in itertools.count())
        return itertools.chain.from_iterable(gaps)

    def preempt(self) -> None:
        """Called before a statement of the package, when a preemption is due."""
        if not self._in_thread():
            return
        me = self.me()
        if self.chance.random() < self.lag_share:
            seconds = _SHORTEST_LAG * (self.lag_longest / _SHORTEST_LAG) ** self.chance.random()
            self.note("lag", me.ident, seconds)
            self.stand_still(seconds)
        else:
            self.give_way()

    def hold(self, module: str, site: int) -> None:
        """Called before a marked statement of the package."""
        if self._in_thread() and (seconds := self.held(module, site)):
            me = self.me()
            self.note("held", me.ident, seconds)
            self.story(f"{me} stands still for {seconds:.6f} s in {module}")
            self.stand_still(seconds)

    def _in_thread(self) -> bool:
        """Whether a thread runs: no import, and no timer's action."""
        return self.current is not None and getcurrent() is self.current.stack

    # Switching.

    def _rest(self, me: Thread) -> None:
        """Let others run; when this thread runs again, run its interrupt first."""
        self.run_next()
        action, me.interrupt = me.interrupt, None
        if action is not None:
            self.note("interrupt", me.ident)
            action()

    def run_next(self) -> None:
        """Switch to another thread; return when this one runs again."""
        before, self.current = self.current, self._choose()
        if self.current is None:
            if getcurrent() is not self.main:
                self.main.switch()
        elif self.current is not before:
            self.note("runs", self.current.ident)
            asyncio._set_running_loop(self.current.loop)
            self.current.stack.switch()

    def _choose(self) -> Thread | None:
        """Return one of the threads that can run, when there is one; None ends the run."""
        runnable, timers = self.runnable, self._timers
        while True:
            while timers and timers[0][0] <= self.now:
                action = heapq.heappop(timers)[2]
                if action is not None:
                    action()
            over = self.scenario is not None and not self.scenario.alive
            if over or self.hangs or not (runnable or timers):
                return None
            if not runnable:
                self.now = timers[0][0]
                self._since_timer = 0
                continue
            index = int(self.chance.random() * len(runnable))
            runnable[index], runnable[-1] = runnable[-1], runnable[index]
            thread = runnable.pop()
            if not thread.alive:
                continue
            if thread.process.stopped_until > self.now:
                self.at(thread.process.stopped_until, partial(runnable.append, thread))
                continue
            self.now += _SWITCH
            self._since_timer += 1
            return thread


scheduler = Scheduler()


def begin(seed: int | str) -> None:
    """Begin a run: make the one scheduler new."""
    scheduler.__init__(seed)  # type: ignore[misc]
