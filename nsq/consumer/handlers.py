"""The handler threads: they take messages from the inbox, run the user's code, and answer for it.

A message stays with nobody for longer than nsqd leaves it with us: one whose time ran out in the inbox is
dropped, not handled. Nothing a handler raises ends its thread.
"""

from __future__ import annotations

import inspect
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from nsq.consumer.outcomes import FINISH, Verdict, of_exception, of_result
from nsq.errors import AlreadyResponded, ConfigError
from nsq.message import Message, finish_all

log = logging.getLogger("nsq.consumer")

Handler = Callable[[Message], Any]
BatchHandler = Callable[[list[Message]], Any]


class Overseer(Protocol):
    """Who the handlers work for."""

    max_attempts: int

    @property
    def starved(self) -> bool:
        """Whether nothing more will come until some of what is here is answered."""

    def give_up(self, message: Message) -> None:
        """It has failed too often. Returning finishes it, raising requeues it."""

    def expired(self, message: Message) -> None:
        """Its time ran out before it was handled."""


class Inbox:
    """Messages on their way from the read loops to the handlers: a hop of 0.1 µs each."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.get = self._queue.get
        """The next message; None when there is no more to do. queue.Empty when its ``timeout`` is over."""

    def __len__(self) -> int:
        return self._queue.qsize()

    def put(self, messages: list[Message]) -> None:
        put = self._queue.put
        for message in messages:
            put(message)

    def sweep(self, now: float) -> None:
        """Throw away what has expired."""
        with suppress(queue.Empty):
            for _ in range(len(self)):
                message = self._queue.get_nowait()
                if message is None or message.expires_at > now:
                    self._queue.put(message)

    def close(self, readers: int) -> None:
        """Send this many readers home, behind what waits."""
        for _ in range(readers):
            self._queue.put(None)


class HandlerPool:
    """Threads in groups, one group per handler; all of them take from one inbox."""

    def __init__(self, name: str, overseer: Overseer) -> None:
        self.inbox = Inbox()
        self._name = name
        self._overseer = overseer
        self._threads: list[threading.Thread] = []
        self._running: dict[int, Sequence[Message]] = {}  # by thread: what it took last

    def __len__(self) -> int:
        return len(self._threads)

    def add(self, handler: Handler, threads: int, no_backoff: tuple[type[BaseException], ...] = ()) -> None:
        _check_handler(handler)
        _check_exceptions(no_backoff)
        worker = _Worker(self._overseer, self.inbox, self._running, handler, no_backoff)
        self._add_threads(worker.run, threads)

    def add_batch(
        self,
        handler: BatchHandler,
        size: int,
        wait: float,
        threads: int,
        no_backoff: tuple[type[BaseException], ...] = (),
    ) -> None:
        _check_handler(handler)
        _check_exceptions(no_backoff)
        worker = _BatchWorker(self._overseer, self.inbox, self._running, handler, no_backoff, size, wait)
        self._add_threads(worker.run, threads)

    def _add_threads(self, run: Callable[[], None], count: int) -> None:
        for _ in range(count):
            name = f"{self._name}-handler-{len(self._threads)}"
            self._threads.append(threading.Thread(target=run, name=name, daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def stop(self, deadline: float) -> list[str]:
        """End the threads once the inbox is empty; the names of those still busy at the deadline."""
        self.inbox.close(len(self._threads))
        started = [thread for thread in self._threads if thread.ident is not None]
        for thread in started:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in started if thread.is_alive()]

    def owns_current_thread(self) -> bool:
        return threading.current_thread() in self._threads

    def in_work(self) -> list[Message]:
        """What each thread took last; a thread that waits has nothing. Some may be answered already."""
        return [message for messages in list(self._running.values()) for message in messages]


class _Worker:
    """What each thread of a group runs."""

    def __init__(
        self,
        overseer: Overseer,
        inbox: Inbox,
        running: dict[int, Sequence[Message]],
        handler: Handler,
        no_backoff: tuple[type[BaseException], ...],
    ) -> None:
        self._overseer = overseer
        self._inbox = inbox
        self._running = running
        self._handler = handler
        self._no_backoff = no_backoff

    def run(self) -> None:
        # The hot path: what is needed for every message is at hand.
        me, monotonic, running = threading.get_ident(), time.monotonic, self._running
        get = self._inbox.get
        handler, no_backoff = self._handler, self._no_backoff
        max_attempts = self._overseer.max_attempts or float("inf")
        while True:
            try:
                message = get(False)
            except queue.Empty:
                running[me] = ()
                message = get()
            if message is None:
                running[me] = ()
                return
            try:
                if message.expires_at <= monotonic():
                    self._overseer.expired(message)
                    continue
                running[me] = (message,)
                if message.attempts > max_attempts:
                    _give_up(self._overseer, message)
                    continue
                try:
                    result = handler(message)
                    verdict = FINISH if result is None else of_result(result)
                except BaseException as fault:
                    # SystemExit and KeyboardInterrupt too: whatever one message does, the thread is for the
                    # next.
                    verdict = of_exception(fault, no_backoff)
                    if verdict.worth_logging:
                        log.exception("handler failed on %r (attempt %d)", message, message.attempts)
                if message.auto_response:
                    answer(message, verdict)
            except BaseException:
                log.exception("handling %r failed by a fault of ours; nsqd delivers it again", message)


class _BatchWorker:
    """Collects up to ``size`` messages for up to ``wait`` seconds, less when no more can come."""

    def __init__(
        self,
        overseer: Overseer,
        inbox: Inbox,
        running: dict[int, Sequence[Message]],
        handler: BatchHandler,
        no_backoff: tuple[type[BaseException], ...],
        size: int,
        wait: float,
    ) -> None:
        self._overseer = overseer
        self._inbox = inbox
        self._running = running
        self._handler = handler
        self._no_backoff = no_backoff
        self._size = size
        self._wait = wait

    def run(self) -> None:
        me = threading.get_ident()
        over = False
        while not over:
            over, batch = self._collect()
            try:
                now, most = time.monotonic(), self._overseer.max_attempts or float("inf")
                ready = [
                    message
                    for message in batch
                    if (message.expires_at > now and message.attempts <= most) or self._fit(message)
                ]
                self._running[me] = ready
                if ready:
                    self._handle(ready)
            except BaseException:
                log.exception("a batch of %d failed by a fault of ours; nsqd delivers it again", len(batch))
            self._running[me] = []

    def _collect(self) -> tuple[bool, list[Message]]:
        """Whether this was the end, and a batch."""
        get = self._inbox.get
        message = get()
        if message is None:
            return True, []
        batch = [message]
        deadline = time.monotonic() + self._wait
        while len(batch) < self._size:
            try:
                message = get(block=False)
            except queue.Empty:
                # With nothing in the inbox and no room for more, waiting only costs time.
                patience = 0.0 if self._overseer.starved else max(0.0, deadline - time.monotonic())
                try:
                    message = get(timeout=patience)
                except queue.Empty:
                    break
            if message is None:
                return True, batch
            batch.append(message)
        return False, batch

    def _fit(self, message: Message) -> bool:
        if message.expires_at <= time.monotonic():
            self._overseer.expired(message)
            return False
        if self._overseer.max_attempts and message.attempts > self._overseer.max_attempts:
            _give_up(self._overseer, message)
            return False
        return True

    def _handle(self, batch: list[Message]) -> None:
        try:
            result = self._handler(batch)
            verdict = FINISH if result is None else of_result(result)
        except BaseException as fault:
            verdict = of_exception(fault, self._no_backoff)
            if verdict.worth_logging:
                log.exception("batch handler failed on %d messages", len(batch))
        unanswered = [message for message in batch if message.auto_response]
        if verdict.finish:
            finish_all(unanswered)
            return
        for message in unanswered:
            if not message.responded:
                answer(message, verdict)


def answer(message: Message, verdict: Verdict) -> None:
    """Say so to nsqd, unless the handler has said something already."""
    try:
        if verdict.finish:
            message.finish()
        else:
            message.requeue(verdict.delay, backoff=verdict.backoff)
    except AlreadyResponded:
        # Answered by the handler, or too late: nsqd has it again.
        log.debug("%r needs no answer any more", message)


def _give_up(overseer: Overseer, message: Message) -> None:
    try:
        overseer.give_up(message)
    except BaseException:
        log.exception("giving up on %r failed; it is requeued", message)
        answer(message, Verdict(finish=False, backoff=False))
    else:
        answer(message, FINISH)


def _check_handler(handler: object) -> None:
    if not callable(handler):
        raise ConfigError(f"handler {handler!r} is not callable")
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        raise ConfigError(
            f"handler {handler!r} is a coroutine function: handlers run in threads, without await"
        )


def _check_exceptions(no_backoff: object) -> None:
    classes = no_backoff if isinstance(no_backoff, tuple) else ()
    if classes != no_backoff or not all(
        isinstance(c, type) and issubclass(c, BaseException) for c in classes
    ):
        raise ConfigError(f"no_backoff is {no_backoff!r}; it must be a tuple of exception classes")
