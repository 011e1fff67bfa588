"""The handler threads: they take messages from the inbox, call the user's handler, and send the answer.

    read loops       put -> inbox
    handler threads  inbox.get -> the user's handler -> finish or requeue

A message that times out in the inbox is dropped, not handled: nsqd delivers it again. No exception of a
handler ends its thread. Below: which handlers are refused, and how a handler's result becomes an answer.
"""

from __future__ import annotations

import inspect
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import MethodType
from typing import Any

from nsq.config import Config
from nsq.consumer.reports import PartitionHealth
from nsq.errors import (
    AlreadyResponded,
    ConfigError,
    InvalidMessage,
    NsqError,
    ServerError,
    UsageError,
)
from nsq.log import Logger
from nsq.message import Message, finish_all, time_out
from nsq.threads.waiters import join_threads

log = Logger("nsq.consumer")

Handler = Callable[[Message], Any]
BatchHandler = Callable[[list[Message]], Any]
Exceptions = tuple[type[BaseException], ...]

#: The most messages for which we count how often they timed out before a handler saw them.
_MAX_TIMED_OUT_UNHANDLED = 10_000


class HandlerPool:
    """Threads in groups, one group for each handler; all of them take from one inbox.

    ``give_up`` is called with a message that has failed too often, and with its last error if that is known:
    the message is finished if it returns, requeued if it raises. ``starved`` says whether nsqds send nothing
    more until a message here is answered. ``requeue_delay`` maps a message's attempts to the seconds after
    which it comes again. ``threads`` is the number for each handler that is added without one;
    ``at_thread_end`` is called by each thread before it ends. With ``gives_up_at_last_failure`` a message is
    given up right when it fails at its last attempt, while its error is known; otherwise when it comes once
    more. ``fields`` are those of log records.
    """

    def __init__(
        self,
        name: str,
        *,
        max_attempts: int,
        give_up: Callable[[Message, BaseException | None], None],
        starved: Callable[[], bool],
        requeue_delay: Callable[[int], float],
        threads: int = 1,
        at_thread_end: Callable[[], object] | None = None,
        gives_up_at_last_failure: bool = False,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        self.inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()  # None ends one thread
        # By nsqd and id: deliveries that timed out before a handler saw them. nsqd counts them as attempts;
        # we do not count them towards ``max_attempts``.
        self.timed_out_unhandled: dict[tuple[str, bytes], int] = {}
        # Guards the dict above; no signal interrupts the threads that take it.
        self._counting = threading.Lock()
        self._name = name
        self._max_attempts = max_attempts or float("inf")
        self._give_up = give_up
        self._starved = starved
        self.requeue_delay = requeue_delay
        self._threads_each, self._at_thread_end = threads, at_thread_end
        self._gives_up_at_last_failure = gives_up_at_last_failure
        self._fields = fields or {}
        # For each handler: the function its threads run, their number, the messages one works on at once.
        self._groups: list[tuple[Callable[[], None], int | None, int]] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._inherited = False  # by a child that a handler has forked
        self._running: dict[int, Message | list[Message] | None] = {}  # by thread: last message or batch

    def __len__(self) -> int:
        """Count the threads that run, or will run after the start."""
        return sum(threads or self._threads_each for _, threads, _ in self._groups)

    @property
    def at_once(self) -> int:
        """How many messages all threads together work on at once."""
        return sum((threads or self._threads_each) * size for _, threads, size in self._groups)

    def set_threads(self, threads: int) -> None:
        """Set the number of threads for each handler that is added without one. Call it before the start."""
        self._threads_each = threads

    def add(self, handler: Handler, threads: int | None = None, no_backoff: Exceptions = ()) -> None:
        check_handler(handler)
        check_no_backoff(no_backoff)
        self._groups.append((lambda: self._handle_each(handler, no_backoff), threads, 1))

    def add_batch(
        self, handler: BatchHandler, size: int, wait: float, threads: int, no_backoff: Exceptions = ()
    ) -> None:
        check_handler(handler)
        check_no_backoff(no_backoff)
        self._groups.append((lambda: self._handle_batches(handler, no_backoff, size, wait), threads, size))

    def start(self) -> None:
        """Start the threads. Raises RuntimeError when one cannot be started."""
        # Made here: a Thread object made before a fork counts as ended in the child.
        runs = [run for run, threads, _ in self._groups for _ in range(threads or self._threads_each)]
        if self._at_thread_end is not None:
            runs = [partial(self._run_to_end, run, self._at_thread_end) for run in runs]
        self._threads = [
            threading.Thread(target=run, name=f"{self._name}-handler-{number}", daemon=True)
            for number, run in enumerate(runs)
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _run_to_end(run: Callable[[], None], at_end: Callable[[], object]) -> None:
        try:
            run()
        finally:
            try:
                at_end()
            except BaseException:
                log.exception("at_thread_end failed")

    def stop(self, deadline: float) -> list[str]:
        """End the threads once the inbox is empty; return the names of those still busy at the deadline.

        May be called again.
        """
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self.inbox.put(None)
        return join_threads(self._threads, deadline)

    def abandon(self) -> None:
        """End the thread of a child that a handler has forked, once that handler returns or raises: all
        messages of the parent are late in the child, and no others come.
        """
        self._inherited = True

    def owns_current_thread(self) -> bool:
        return threading.current_thread() in self._threads

    def turn(self, now: float) -> float:
        """Begin attempts that are due, on the owner's thread; return when to call this again."""
        return math.inf

    @property
    def requeued_here(self) -> int:
        """The requeues that nsqd knows nothing of: the message waits here for its next attempt."""
        return 0

    def expects(self, error: ServerError) -> bool:
        """Return whether nsqd had to answer with this error, so that no log or hook reports it."""
        return False

    def partitions(self, now: float) -> list[PartitionHealth]:
        """Return the health of each partition that is handled in order."""
        return []

    def put(self, messages: list[Message]) -> None:
        """Put each message into the inbox by itself: that takes 0.1 µs."""
        put = self.inbox.put
        for message in messages:
            put(message)

    def in_work(self) -> list[Message]:
        """Return the messages that the threads took last. Some may be answered already; a waiting thread has
        none.
        """
        messages: list[Message] = []
        for taken in list(self._running.values()):
            if isinstance(taken, list):
                messages += taken
            elif taken is not None:
                messages.append(taken)
        return messages

    @property
    def busy(self) -> int:
        """Count the threads that are at work."""
        return sum([bool(messages) for messages in list(self._running.values())])

    def sweep(self, now: float) -> None:
        """Drop expired messages from the inbox: they must not pile up there while handlers are stuck."""
        with suppress(queue.Empty):
            for _ in range(self.inbox.qsize()):
                message = self.inbox.get_nowait()
                if message is None or message.expires_at > now:
                    self.inbox.put(message)
                else:
                    self.expire(message)

    def expire(self, message: Message) -> None:
        """Note a message that timed out before a handler saw it."""
        key = message.nsqd_address, message.id
        with self._counting:
            # Popped, so that the latest comes last.
            self.timed_out_unhandled[key] = self.timed_out_unhandled.pop(key, 0) + 1
            if len(self.timed_out_unhandled) > _MAX_TIMED_OUT_UNHANDLED:
                del self.timed_out_unhandled[next(iter(self.timed_out_unhandled))]
        time_out(message)

    def _handled_attempts(self, message: Message) -> int:
        """Return the attempts without those that timed out before a handler saw them."""
        return message.attempts - self.timed_out_unhandled.get((message.nsqd_address, message.id), 0)

    def _forget(self, message: Message) -> None:
        """Remove the count of a finished message."""
        with self._counting:
            self.timed_out_unhandled.pop((message.nsqd_address, message.id), None)

    # One message.

    def _handle_each(self, handler: Handler, no_backoff: Exceptions) -> None:
        # The hot path: local names for everything that each message needs.
        me, monotonic, running = threading.get_ident(), time.monotonic, self._running
        get, timed_out_unhandled, max_attempts = self.inbox.get, self.timed_out_unhandled, self._max_attempts
        while True:
            try:
                message = get(False)
            except queue.Empty:
                if self._inherited:
                    return
                running[me] = None
                message = get()
            running[me] = message
            if message is None:
                return
            try:
                late = message.expires_at <= monotonic()
                if late and self._inherited:
                    return
                if (late or message.attempts > max_attempts) and not self._accept_or_dispose(message):
                    continue
                try:
                    result = handler(message)
                    again = None if result is None else requeue_for_result(result)
                except BaseException as error:
                    if self._inherited:
                        raise
                    # SystemExit and KeyboardInterrupt too: the thread goes on with the next message.
                    if isinstance(error, GiveUp):
                        if message.auto_response:
                            self.give_up_for(error, [message])
                        continue
                    again = requeue_for_exception(error, no_backoff)
                    if not isinstance(error, Requeue):
                        delay = self.requeue_delay(message.attempts)
                        again = delay, again[1]
                        outlook, extra = self._outlook(message, delay), self.fields_of(message)
                        log.exception("handler failed on %r; %s", message, outlook, extra=extra)
                        if message.auto_response and self.failed_for_good(message):
                            self.give_up(message, error)
                            continue
                if again is None and message.auto_response:
                    message.finish()
                    if timed_out_unhandled:
                        self._forget(message)
                elif again is not None and message.auto_response:
                    message.requeue(again[0], backoff=again[1])
            except AlreadyResponded:
                # The handler has answered it, or it timed out and nsqd has it again.
                log.debug("%r needs no answer any more", message)
            except BaseException:
                if self._inherited:
                    raise
                log.exception(
                    "handling %r failed, which is a bug of ours; nsqd delivers it again",
                    message, extra=self.fields_of(message),
                )  # fmt: skip

    def fields_of(self, message: Message) -> dict[str, object]:
        """Return the fields of a log record about a message."""
        about = {"nsq_message_id": message.id_text, "nsq_attempts": message.attempts}
        return {**self._fields, "nsqd_address": message.nsqd_address, **about}

    def failed_for_good(self, message: Message) -> bool:
        """Whether the message, which has just failed, must be given up now."""
        if not self._gives_up_at_last_failure or message.responded:
            return False
        return self._handled_attempts(message) >= self._max_attempts

    def _outlook(self, message: Message, delay: float) -> str:
        """Return what becomes of a message whose handler has raised."""
        if message.responded:
            return "it was answered before, or has timed out"
        if not message.auto_response:
            return "the program answers it later"
        if self.failed_for_good(message):
            return f"given up (max_attempts is {self._max_attempts})"
        last = self._handled_attempts(message) >= self._max_attempts
        return f"again in {delay:g} s" + (f", then given up (max_attempts is {self._max_attempts})" * last)

    def _outlook_of(self, batch: list[Message]) -> str:
        left = [message for message in batch if message.auto_response and not message.responded]
        if not left:
            return "all were answered before, have timed out, or are answered later"
        delays = [self.requeue_delay(message.attempts) for message in left]
        first, last = f"{min(delays):g}", f"{max(delays):g}"
        return f"{len(left)} again in {first if first == last else f'{first} to {last}'} s"

    # A batch.

    def _handle_batches(self, handler: BatchHandler, no_backoff: Exceptions, size: int, wait: float) -> None:
        me = threading.get_ident()
        over = False
        while not over and not self._inherited:
            over, batch = self._collect(size, wait)
            try:
                self._running[me] = batch
                now, most = time.monotonic(), self._max_attempts
                ready: list[Message] = []
                doubtful: list[Message] = []
                for message in batch:
                    fits = message.expires_at > now and message.attempts <= most
                    (ready if fits else doubtful).append(message)
                if ready:
                    self._handle_batch(handler, no_backoff, ready)
                # Last: to give a message up may take long, while the timeouts of the others run.
                if ready := [message for message in doubtful if self._accept_or_dispose(message)]:
                    self._handle_batch(handler, no_backoff, ready)
            except BaseException:
                if self._inherited:
                    raise
                log.exception(
                    "handling %d messages failed, which is a bug of ours; nsqd delivers them again",
                    len(batch),
                )
            self._running[me] = None

    def _collect(self, size: int, wait: float) -> tuple[bool, list[Message]]:
        """Collect up to ``size`` messages within ``wait`` seconds; return whether to end, and the batch."""
        get = self.inbox.get
        message = get()
        if message is None:
            return True, []
        batch = [message]
        deadline = time.monotonic() + wait
        while len(batch) < size:
            try:
                message = get(False)
            except queue.Empty:
                # With an empty inbox and no room for more messages, waiting is useless.
                patience = 0.0 if self._starved() else max(0.0, deadline - time.monotonic())
                try:
                    message = get(timeout=patience)
                except queue.Empty:
                    break
            if message is None:
                return True, batch
            batch.append(message)
        return False, batch

    def _accept_or_dispose(self, message: Message) -> bool:
        """Whether a handler should get the message; if not, this has dropped it or given it up."""
        if message.expires_at <= time.monotonic():
            self.expire(message)
            return False
        if self._handled_attempts(message) <= self._max_attempts:
            return True
        self.give_up(message)
        return False

    def give_up(self, message: Message, error: BaseException | None = None) -> None:
        """Give a message up, and finish it; requeue it if that fails."""
        with suppress(AlreadyResponded):  # ``give_up`` has answered it, or was too slow
            try:
                self._give_up(message, error)
            except BaseException as failure:
                log.exception(
                    "giving up on %r failed; nsqd delivers it again", message, extra=self.fields_of(message)
                )
                self.give_up_failed(message, failure)
                message.requeue(backoff=False)
            else:
                message.finish()
                self._forget(message)

    def give_up_failed(self, message: Message, error: BaseException) -> None:
        """Note why a message could not be given up."""

    def give_up_for(self, error: GiveUp, messages: list[Message]) -> None:
        """Give up the messages that have no answer."""
        for message in messages:
            if not message.responded:
                extra = self.fields_of(message)
                log.error("the handler gives up on %r: %s", message, error, extra=extra)
                self.give_up(message, error)

    def _handle_batch(self, handler: BatchHandler, no_backoff: Exceptions, batch: list[Message]) -> None:
        failure: BaseException | None = None
        try:
            result = handler(batch)
            again = None if result is None else requeue_for_result(result)
        except BaseException as error:
            if self._inherited:
                raise
            if isinstance(error, GiveUp):
                self.give_up_for(error, [message for message in batch if message.auto_response])
                return
            again = requeue_for_exception(error, no_backoff)
            if not isinstance(error, Requeue):
                outlook = self._outlook_of(batch)
                log.exception(
                    "batch handler failed on %d messages; %s", len(batch), outlook, extra=self._fields
                )
                failure = error
        unanswered = [message for message in batch if message.auto_response]
        if again is not None:
            final: list[Message] = []
            for message in unanswered:
                if failure is not None and self.failed_for_good(message):
                    final.append(message)
                    continue
                with suppress(AlreadyResponded):
                    message.requeue(again[0], backoff=again[1])
            for message in final:  # last, as this may take long
                self.give_up(message, failure)
            return
        now = time.monotonic()
        finish_all(unanswered)
        if self.timed_out_unhandled:
            for message in unanswered:
                if message.expires_at > now:
                    self._forget(message)


_NO_AWAIT = "Give an async def to the add_handler of nsq.aio.Consumer, which runs it on your event loop"


def check_handler(handler: object) -> None:
    if not callable(handler):
        raise ConfigError(f"handler {handler!r} is not callable")
    functions = _called(handler)
    if is_async(handler) or any(map(inspect.isasyncgenfunction, functions)):
        raise ConfigError(f"handler {handler!r} is an async def, but handlers run in threads. {_NO_AWAIT}")
    if any(map(inspect.isgeneratorfunction, functions)):
        raise ConfigError(f"handler {handler!r} has a yield: to call it runs nothing. Write a plain function")


def is_async(handler: object) -> bool:
    """Whether a call of the handler returns a coroutine, as far as one can see."""
    return any(map(inspect.iscoroutinefunction, _called(handler)))


def _called(handler: object) -> tuple[object, object]:
    """Return the function that a handler calls: itself, or the __call__ of its class."""
    # Python 3.11 does not see through a partial of a method, or of an object with __call__.
    called: Any = handler
    while isinstance(called, (partial, MethodType)):
        called = called.func if isinstance(called, partial) else called.__func__
    return called, type(called).__call__


def check_no_backoff(no_backoff: object) -> None:
    classes = no_backoff if isinstance(no_backoff, tuple) else ()
    if classes != no_backoff or not all(
        isinstance(c, type) and issubclass(c, BaseException) for c in classes
    ):
        raise ConfigError(f"no_backoff is {no_backoff!r}; it must be a tuple of exception classes")


# Answers from a handler's result.


class Requeue(NsqError):
    """Raised by a handler to have the message delivered again, after ``delay`` seconds, with or without
    backing off. Not an error, so nothing is logged."""

    def __init__(self, delay: float | None = None, *, backoff: bool = True) -> None:
        super().__init__()  # no arguments: unpickling would pass them to __init__
        if delay is not None and not (isinstance(delay, (int, float)) and math.isfinite(delay)):
            raise InvalidMessage(f"a requeue delay of {delay!r}; it must be a number of seconds")
        self.delay = delay
        self.backoff = backoff

    def __str__(self) -> str:
        return "requeue"

    def __repr__(self) -> str:
        return f"Requeue(delay={self.delay!r}, backoff={self.backoff!r})"


class GiveUp(NsqError):
    """Raised by a handler that can never handle the message: it is given up at once, as after max_attempts,
    and goes to the dead letters. The text says why.
    """


#: How to requeue a message: the delay (None: the default one), and whether to back off.
RequeueDecision = tuple[float | None, bool]


def requeue_for_result(result: object) -> RequeueDecision | None:
    """Return how to requeue: a result of False asks for it, as in pynsq; any other result is a success."""
    if inspect.iscoroutine(result):
        result.close()  # else Python warns that it was never awaited
        raise UsageError(f"the handler returned a coroutine, which nothing here runs. {_NO_AWAIT}")
    if inspect.isasyncgen(result) or inspect.isgenerator(result):
        raise UsageError(
            f"the handler returned a {type(result).__name__}, which nothing here runs. Write a plain function"
        )
    return (None, True) if result is False else None


def requeue_for_exception(error: BaseException, no_backoff: Exceptions) -> RequeueDecision:
    if isinstance(error, Requeue):
        return error.delay, error.backoff
    return None, not isinstance(error, no_backoff)


def requeue_delay(attempts: int, config: Config, chance: float) -> float:
    """Return the default delay of a requeued message, which grows with every attempt."""
    delay = min(config.default_requeue_delay * attempts, config.max_requeue_delay)
    return min(delay * (1 + config.requeue_jitter * chance), config.max_requeue_delay)
