"""A thread that owns state, and carries out requests, one after the other.

What one thread alone changes needs no lock, and a signal handler may interrupt every other thread at any
bytecode. So ``Pool``, ``Engine`` and ``Discovery`` each have an owner. Other threads ask, and wait for a
change. In between the owner takes its ``turn``: it brings the state to what was requested, and says when to
look again. ``Ending`` divides the time of its end.
"""

from __future__ import annotations

import _thread
import math
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from nsq.log import Logger
from nsq.threads.waiters import Waiters, join_threads, start_thread

_LONGEST = 3600.0  # seconds of the longest single wait: queues refuse infinite timeouts
_RESPITE = 0.1  # seconds to pause after a bug of ours, so that it does not repeat as fast as the machine can

#: The part of an end's time that is kept for threads to end, which nsqds and users' functions cannot use up:
#: this share, and at most so many seconds.
_ENDING_SHARE, _ENDING_SECONDS = 0.1, 0.25
_LEAST_TO_END = 0.1  # seconds that an end allows our threads even when its timeout is zero

Request = Callable[[], object]


class Owner:
    """The thread ``name``. It calls ``begin`` once, then ``turn`` after each batch of requests, and ends when
    ``turn`` returns None. Otherwise ``turn`` returns when it is due again (monotonic).

    If ``begin`` raises, or no thread can be started, ``failure`` says why and ``failed`` is called; the owner
    may be started again.
    """

    def __init__(
        self,
        name: str,
        log: Logger,
        *,
        turn: Callable[[], float | None],
        begin: Callable[[], object] = lambda: None,
        failed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.begun = False  # whether ``begin`` has returned
        self.ended = False
        self.failure: Exception | None = None
        self.thread: threading.Thread | None = None
        self.changed = Waiters()
        """Woken after each turn, for threads that wait for a change of the owner's state."""
        self._log, self._turn, self._begin, self._failed, self._clock = log, turn, begin, failed, clock
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._once = _thread.allocate_lock()  # the thread takes it and keeps it

    # Other threads, signal handlers too.

    def start(self, deadline: float = math.inf) -> None:
        """Start the thread, and return when ``begin`` is over or ``deadline`` has passed."""
        self.failure = None
        start_thread(self._run, self.name, self._fail)
        self.changed.wait_for(lambda: self.begun or self.ended or self.failure is not None, deadline)

    @property
    def exists(self) -> bool:
        """Whether the thread runs, is about to begin, or has ended after it began."""
        return self._once.locked()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self.thread

    def ask(self, request: Request) -> None:
        """Have the owner carry out a request. Does not wait."""
        self._requests.put(request)

    def wake(self) -> None:
        """Have the owner take its turn soon."""
        self._requests.put(None)

    def do(self, action: Request, deadline: float, give_up: Callable[[], object] = bool) -> None:
        """Have the owner carry out an action; wait until ``deadline`` or ``give_up()``, raise its error."""
        outcome: list[BaseException | None] = []

        def request() -> None:
            try:
                action()
            except BaseException as error:
                outcome.append(error)
            else:
                outcome.append(None)

        self.ask(request)
        self.changed.wait_for(lambda: outcome or give_up(), deadline)
        if outcome and outcome[0] is not None:
            raise outcome[0]

    def join(self, deadline: float) -> list[str]:
        """Wait for the thread's end; return its name if it has not ended by ``deadline`` (monotonic)."""
        return [] if self.thread is None else join_threads([self.thread], deadline)

    def abandon(self) -> None:
        """Forget requests and waiting threads in a forked child, where the owner does not run."""
        self._requests = queue.SimpleQueue()
        self.changed = Waiters()

    # The owner.

    def run_requests(self, seconds: float = 0.0) -> None:
        """Sleep until there is a request, for ``seconds`` at most, then carry out all that wait, in order."""
        requests = self._requests
        with suppress(queue.Empty):
            request = requests.get(timeout=min(max(seconds, 0.0), _LONGEST))
            for left in range(requests.qsize(), -1, -1):
                try:
                    if request is not None:
                        request()
                except BaseException:  # SystemExit too, from a user's backoff_strategy
                    self._log.exception("%s: a request failed, which is a bug of ours", self.name)
                if left:
                    request = requests.get_nowait()

    def _run(self) -> None:
        if not self._once.acquire(False):
            return
        self.thread = threading.current_thread()
        try:
            self._begin()
        except Exception as error:
            self.thread = None
            self._once.release()
            self._fail(error)
            return
        self.begun = True
        self.changed.wake()
        while (due := self._take_turn()) is not None:
            self.run_requests(due - self._clock())
        self.ended = True
        self.changed.wake()

    def _take_turn(self) -> float | None:
        try:
            due = self._turn()
        except Exception:
            # Go on: the client would be dead without its owner.
            self._log.exception("%s failed, which is a bug of ours; it goes on", self.name)
            time.sleep(_RESPITE)
            due = self._clock()
        self.changed.wake()
        return due

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self._failed()
        self.changed.wake()


class Ending:
    """The time of a stop or a close, divided: for the work under way, then for the threads to end."""

    def __init__(self) -> None:
        self.work_by = math.inf  # until then answers may still come and go
        self.users_by = math.inf  # until then the threads that run users' functions may end
        self.join_by = math.inf
        """Until then all others may. After that the caller has a moment to take the report."""

    def hasten(self, deadline: float, now: float) -> None:
        """Keep to a deadline. A later one than that of an earlier call changes nothing."""
        end = last_moment(deadline, now)
        keep = min(_ENDING_SECONDS, _ENDING_SHARE * (end - now))
        self.work_by = min(self.work_by, max(deadline - keep, now))
        self.users_by = min(self.users_by, end - keep * 0.6)
        self.join_by = min(self.join_by, end - keep * 0.2)


def last_moment(deadline: float, now: float) -> float:
    """Return until when the caller of a stop or a close waits for its report."""
    return max(deadline, now + _LEAST_TO_END)
