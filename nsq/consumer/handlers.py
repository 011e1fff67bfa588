"""The handler threads: they take messages from the inbox, call the user's handler, and send the answer.

    read loops       put -> inbox
    handler threads  inbox.get -> the user's handler -> finish or requeue

A message that times out in the inbox is dropped, not handled: nsqd delivers it again. No exception of a
handler ends its thread. What it means for the message is decided in ``decisions``; here it is carried out.
"""

from __future__ import annotations

import inspect
import math
import queue
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import partial
from types import MethodType
from typing import Any

from nsq.connection.deliveries import TIMED_OUT
from nsq.consumer.decisions import (
    NO_AWAIT,
    Again,
    Decision,
    Exceptions,
    GivenUp,
    GiveUp,
    Requeue,
    ToGiveUp,
    TooOld,
    check_result,
    decide,
    decide_before,
    outlook,
)
from nsq.errors import AlreadyResponded, ConfigError
from nsq.log import Logger
from nsq.message import Message, begun, finish_all, finish_given_up, time_out
from nsq.rate import Rate
from nsq.threads.waiters import join_threads

log = Logger("nsq.consumer")

Handler = Callable[[Message], Any]
BatchHandler = Callable[[list[Message]], Any]

#: Seconds whose messages may begin at once after a pause, if there is a rate.
_BURST = 0.1
#: The longest sleep of a thread that waits for the rate, in seconds: then a change takes effect.
_RATE_STEP = 0.25
#: The most messages for which we count how often they timed out before a handler saw them.
_MAX_TIMED_OUT_UNHANDLED = 10_000


class HandlerPool:
    """Threads in groups, one group for each handler; all of them take from one inbox.

    ``give_up`` gets a message, or several that are older than ``max_age``: they are finished if it returns,
    requeued if it raises. ``starved`` says whether nsqds send nothing more until a message here is answered.
    ``requeue_delay`` maps a message's attempts and its error to seconds. ``threads`` is the number for each
    handler that is added without one. ``fields`` are those of log records.

    For messages that are handled in order, ``in_order`` maps each handler to the function to call instead,
    and ``give_up_failed`` is called with a message that could not be given up, and why.
    """

    def __init__(
        self,
        name: str,
        *,
        max_attempts: int,
        give_up: Callable[[ToGiveUp], None],
        max_age: float = 0.0,
        rate: float = 0.0,
        starved: Callable[[], bool],
        requeue_delay: Callable[[int, BaseException | None], float],
        threads: int = 1,
        at_thread_end: Callable[[], object] | None = None,
        gives_up_at_last_failure: bool = False,
        fields: Mapping[str, str] | None = None,
        in_order: Callable[[Handler], Handler] | None = None,
        give_up_failed: Callable[[Message, BaseException], object] = lambda *_: None,
    ) -> None:
        self.inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()  # None ends one thread
        # By ``_key``: deliveries that timed out before a handler saw them. nsqd counts them as attempts; our
        # ``max_attempts`` does not.
        self.timed_out_unhandled: dict[Hashable, int] = {}
        # The FINs that are no success of a handler: messages given up, and of each batch all but one.
        self.uncounted = 0
        # Guards the two above; no signal interrupts the threads that take it.
        self._counting = threading.Lock()
        self._name, self._fields = name, fields or {}
        self._max_attempts, self._max_age = max_attempts or math.inf, max_age
        self._give_up, self._gives_up_at_last_failure = give_up, gives_up_at_last_failure
        self._giving_up_old = threading.Lock()  # taken by handler threads alone
        self._warned_of_clocks: set[str] = set()  # addresses of nsqds
        self._starved, self.requeue_delay = starved, requeue_delay
        self.threads_each, self._at_thread_end = threads, at_thread_end or bool
        self._in_order, self._give_up_failed = in_order, give_up_failed
        self.rate = Rate(rate, _BURST, time.monotonic())
        self._rating = threading.Lock()  # guards ``rate``; taken by handler threads alone
        self.set_rate(rate)
        # For each handler: the function its threads run, their number, and the messages that one of them has
        # in work at once, in how many calls.
        self._groups: list[tuple[Callable[[], None], int | None, int, int]] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        # Whether this is a child that a handler has forked. Its thread ends once that handler returns or
        # raises: all messages of the parent are late in the child, and no others come.
        self.inherited = False
        self._running: dict[int, Message | list[Message] | None] = {}  # by thread: last message or batch
        # Deliveries that wait, as their message's handler still runs with an earlier one: see ``_keeps``.
        self.kept: dict[Hashable, Message] = {}
        # Whether messages have timed out, or a connection was lost: they come again, and handlers still run.
        self.repeats_come = False
        # Whether other code handles the messages, after ``began`` and until ``ended``; auto_response is off.
        self.handed_over = False

    def __len__(self) -> int:
        """Count the threads that run, or will run after the start."""
        return sum(threads or self.threads_each for _, threads, _, _ in self._groups)

    @property
    def at_once(self) -> int:
        """How many messages all threads together work on at once."""
        return sum((threads or self.threads_each) * size for _, threads, size, _ in self._groups)

    @property
    def calls_at_once(self) -> int:
        """How many calls of handlers there are at once. A batch is one."""
        return sum((threads or self.threads_each) * calls for _, threads, _, calls in self._groups)

    def set_rate(self, per_second: float) -> None:
        """Let handlers begin so many messages a second, at most; 0 is no limit. Any thread."""
        self.rate.per_second = per_second
        # Messages of no more attempts than this begin without another look, unless they are late.
        checks_all = per_second > 0 or (self._max_age > 0 and self._in_order is None)
        self._unchecked = -1 if checks_all else self._max_attempts

    def add(
        self, handler: Handler, threads: int | None = None, no_backoff: Exceptions = (), at_once: int = 1
    ) -> None:
        """Add a handler. A thread that hands messages to other code has ``at_once`` of them in work."""
        check_handler(handler)
        check_no_backoff(no_backoff)
        call = handler if self._in_order is None else self._in_order(handler)
        self._groups.append((lambda: self._handle_each(call, no_backoff), threads, at_once, at_once))

    def add_batch(
        self, handler: BatchHandler, size: int, wait: float, threads: int, no_backoff: Exceptions = ()
    ) -> None:
        if self._in_order is not None:
            raise ConfigError("ordered=True delivers one message at a time: use add_handler, not batches")
        check_handler(handler)
        check_no_backoff(no_backoff)
        self._groups.append((lambda: self._handle_batches(handler, no_backoff, size, wait), threads, size, 1))

    def start(self) -> None:
        """Start the threads. Raises RuntimeError when one cannot be started."""
        # Made here: a Thread object made before a fork counts as ended in the child.
        runs = [run for run, threads, _, _ in self._groups for _ in range(threads or self.threads_each)]
        self._threads = [
            threading.Thread(target=self._run, args=[run], name=f"{self._name}-handler-{number}", daemon=True)
            for number, run in enumerate(runs)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            try:
                self._at_thread_end()
            except BaseException:
                log.exception("at_thread_end failed")

    def stop(self, deadline: float) -> list[str]:
        """End the threads once the inbox is empty; return those still busy at the deadline. Repeatable."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self.inbox.put(None)
        return join_threads(self._threads, deadline)

    def owns_current_thread(self) -> bool:
        return threading.current_thread() in self._threads

    def put(self, messages: list[Message]) -> None:
        """Put each message into the inbox by itself: that takes 0.1 µs."""
        put, may_repeat = self.inbox.put, self.repeats_come
        for message in messages:
            if not may_repeat or message.attempts == 1 or not self._keeps(message):
                put(message)

    def in_work(self) -> list[Message]:
        """Return the messages that the busy threads took last. Some may be answered already."""
        messages: list[Message] = []
        for taken in list(self._running.values()):
            if isinstance(taken, list):
                messages += taken
            elif taken is not None:
                messages.append(taken)
        return messages

    @property
    def busy(self) -> int:
        return sum([bool(messages) for messages in list(self._running.values())])

    def sweep(self, now: float) -> None:
        """Drop expired messages from the inbox: they must not pile up there while handlers are stuck."""
        for message in self._remove(lambda message: message.expires_at <= now):
            self.expire(message)

    def _remove(self, condition: Callable[[Message], bool]) -> list[Message]:
        """Remove the messages from the inbox for which the condition holds, and return them."""
        removed = []
        with suppress(queue.Empty):
            for _ in range(self.inbox.qsize()):
                message = self.inbox.get_nowait()
                if message is not None and condition(message):
                    removed.append(message)
                else:
                    self.inbox.put(message)
        return removed

    def expire(self, message: Message) -> None:
        """Note a message that timed out before a handler saw it."""
        key = _key(message)
        with self._counting:
            # Popped, so that the latest comes last.
            self.timed_out_unhandled[key] = self.timed_out_unhandled.pop(key, 0) + 1
            if len(self.timed_out_unhandled) > _MAX_TIMED_OUT_UNHANDLED:
                del self.timed_out_unhandled[next(iter(self.timed_out_unhandled))]
        time_out(message)

    def handled_attempts(self, message: Message) -> int:
        """Return the attempts without those that timed out before a handler saw them."""
        return message.attempts - self.timed_out_unhandled.get(_key(message), 0)

    def _forget(self, message: Message) -> None:
        """Remove the count of a finished message."""
        with self._counting:
            self.timed_out_unhandled.pop(_key(message), None)

    # One message.

    def _handle_each(self, handler: Handler, no_backoff: Exceptions) -> None:
        # The hot path: local names for everything that each message needs.
        me, monotonic, running = threading.get_ident(), time.monotonic, self._running
        get, timed_out_unhandled = self.inbox.get, self.timed_out_unhandled
        while True:
            try:
                message = get(False)
            except queue.Empty:
                if self.inherited:
                    return
                running[me] = None
                message = get()
            running[me] = message
            if message is None:
                return
            try:
                now = monotonic()
                if message.expires_at <= now or message.attempts > self._unchecked:
                    if message.expires_at <= now and self.inherited:
                        return
                    ready, given_up = self._sort([message])
                    if not ready:
                        self._dispose(given_up)
                        continue
                    now = monotonic()  # it may have waited
                message.begun_at = now
                try:
                    result = handler(message)
                    if result is not None:
                        check_result(result)
                except BaseException as error:
                    if self.inherited:
                        raise
                    # SystemExit and KeyboardInterrupt too: the thread goes on with the next message.
                    self.give_up(self.failed([message], error, no_backoff))
                    self.ended(me, [message], False)
                    continue
                if message.auto_response:
                    message.finish()
                    if timed_out_unhandled:
                        self._forget(message)
                elif self.kept and not self.handed_over:
                    self.ended(me, [message], False)
            except AlreadyResponded:
                # The handler has answered it, or it timed out and nsqd has it again.
                log.debug("%r needs no answer any more", message)
                running[me] = None
                if self.kept:
                    self.ended(me, [message], True)
            except BaseException:
                if self.inherited:
                    raise
                text = "handling %r failed, which is a bug of ours; nsqd delivers it again"
                log.exception(text, message, extra=self.fields_of(message))
                self.ended(me, [message], False)

    def fields_of(self, message: Message) -> dict[str, object]:
        """Return the fields of a log record about a message."""
        partition = {} if message.partition is None else {"nsq_partition": message.partition}
        about = {"nsq_message_id": message.id_text, "nsq_attempts": message.attempts, **partition}
        return {**self._fields, "nsqd_address": message.nsqd_address, **about}

    # Handlers that have raised.

    def failed(self, messages: list[Message], error: BaseException, no_backoff: Exceptions) -> ToGiveUp:
        """Requeue the messages whose handler has raised. Return those to give up instead: that may take long,
        so the caller does it last, or on another thread.
        """
        most, at_last = self._max_attempts, self._gives_up_at_last_failure
        decided: list[tuple[Message, Decision]] = []
        for message in messages:
            if (message.auto_response or self.handed_over) and not message.responded:
                attempts = self.handled_attempts(message)
                delay = partial(self.requeue_delay, message.attempts)
                left = self._max_age - self._age(message) if self._max_age else math.inf
                decision = decide(
                    error, attempts, most, delay, no_backoff, at_last_failure=at_last, age_left=left
                )
                decided.append((message, decision))
        if not isinstance(error, (Requeue, GiveUp)):
            said = outlook([decision for _, decision in decided], most, counted=len(messages) > 1)
            if len(messages) == 1:
                fields = self.fields_of(messages[0])
                log.error("handler failed on %r; %s", messages[0], said, exc_info=error, extra=fields)
            else:
                text = "batch handler failed on %d messages; %s"
                log.error(text, len(messages), said, exc_info=error, extra=self._fields)
        # A batch that has failed is one failure: that of its message with the most attempts, which may be the
        # cause of it.
        counts = True
        for message, decision in sorted(decided, key=lambda each: -each[0].attempts):
            if isinstance(decision, Again):
                with suppress(AlreadyResponded):
                    message.requeue(decision.delay, backoff=decision.backoff and counts)
                    counts = False
        return [(message, decision) for message, decision in decided if isinstance(decision, GivenUp)]

    def give_up(self, given_up: ToGiveUp) -> None:
        """Give messages up: the ones that are too old together, the others one by one."""
        now = time.monotonic()
        for each in given_up:
            if not each[1].too_old:
                self._give_up_together([each])
        if old := [each for each in given_up if each[1].too_old and each[0].expires_at > now]:
            self._give_up_together(old)

    def _give_up_together(self, given_up: ToGiveUp) -> None:
        """Give messages up, and finish them; requeue them if that fails."""
        messages = [message for message, _ in given_up]
        try:
            self._give_up(given_up)
        except BaseException as failure:
            more = f" and {len(messages) - 1} more" if len(messages) > 1 else ""
            text, fields = "giving up on %r%s failed; nsqd delivers it again", self.fields_of(messages[0])
            log.exception(text, messages[0], more, extra=fields)
            for message in messages:
                with suppress(AlreadyResponded):
                    self._give_up_failed(message, failure)
                    message.requeue(backoff=False)
            return
        for message in messages:
            with suppress(AlreadyResponded):  # ``give_up`` has answered it, or was too slow
                finish_given_up(message)
                self._forget(message)
                with self._counting:
                    self.uncounted += 1

    # Messages that nsqd delivers again while their handler runs. A second run beside the first would be of no
    # use: it takes as long, so that all of them would be late.

    def _keeps(self, message: Message) -> bool:
        """Return whether a delivery waits, as a handler still runs with an earlier one, which has timed out.
        The consumer touches it from now on, and ``ended`` answers it.
        """
        key = _key(message)
        if key not in self._late_runs():
            return False
        earlier, self.kept[key] = self.kept.get(key), message
        if earlier is not None:
            self.expire(earlier)  # it has timed out too
        # The run may have ended before the line above. ``ended`` marks its end first, and then looks for a
        # delivery: so it finds this one, or we see the end.
        return key in self._late_runs() or self.kept.pop(key, None) is not message

    def _late_runs(self) -> set[Hashable]:
        """Return the keys of messages that handlers work on, though their time is up."""
        return {
            _key(each)
            for each in self.in_work()
            if each.expires_at <= TIMED_OUT and begun(each) and (each.auto_response or self.handed_over)
        }

    def began(self, me: int, message: Message) -> None:
        """Note that other code begins a message that was handed over. ``me`` is the number of its task."""
        self._running[me] = message
        message.begun_at = time.monotonic()

    def ended(self, me: int, messages: list[Message], succeeded: bool) -> None:
        """Note the end of a handler's run, and answer the deliveries that were kept until then."""
        self._running[me] = None
        for message in messages if self.kept else ():
            kept = self.kept.pop(_key(message), None)
            if kept is None:
                continue
            if succeeded:
                with suppress(AlreadyResponded):
                    kept.finish()
            else:
                self.inbox.put(kept)  # its next attempt

    # A batch.

    def _handle_batches(self, handler: BatchHandler, no_backoff: Exceptions, size: int, wait: float) -> None:
        me = threading.get_ident()
        while not self.inherited and (batch := self._collect(size, wait)):
            try:
                self._running[me] = batch
                ready, given_up = self._sort(batch)
                if ready:
                    self._handle_batch(handler, no_backoff, ready)
                # Last: to give a message up may take long, while the timeouts of the others run.
                self._dispose(given_up)
            except BaseException:
                if self.inherited:
                    raise
                text = "handling %d messages failed, which is a bug of ours; nsqd delivers them again"
                log.exception(text, len(batch))
                self.ended(me, batch, False)
            self._running[me] = None

    def _collect(self, size: int, wait: float) -> list[Message]:
        """Collect up to ``size`` messages within ``wait`` seconds; none: the thread must end."""
        get = self.inbox.get
        message = get()
        batch = [] if message is None else [message]
        deadline = time.monotonic() + wait
        while batch and len(batch) < size:
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
                self.inbox.put(None)  # it ends this thread, or another one, after the batch
                break
            batch.append(message)
        return batch

    # Before the handler.

    def _sort(self, messages: list[Message]) -> tuple[list[Message], ToGiveUp]:
        """Drop what has timed out. Return what may begin, once the rate lets it, and what to give up."""
        ready: list[Message] = []
        given_up: ToGiveUp = []
        # Messages that are handled in order pass: their lane gives them up.
        now, unchecked = time.monotonic(), self._unchecked if self._in_order is None else math.inf
        for message in messages:
            if message.expires_at <= now:
                self.expire(message)
            elif message.attempts > unchecked and (decision := self._decide_before(message)):
                given_up.append((message, decision))
            else:
                ready.append(message)
        return self._wait_for_rate(ready), given_up

    def _dispose(self, given_up: ToGiveUp) -> None:
        """Give up messages that no handler gets. If some are too old, so are perhaps more in the inbox: give
        up all of them together, so that fresh ones behind them do not grow old.
        """
        me = threading.get_ident()
        self._running[me] = [message for message, _ in given_up]
        if not any(why.too_old for _, why in given_up):
            self.give_up(given_up)
            return
        with self._giving_up_old:  # one thread at a time, so that many go together
            old = self._remove(lambda each: each.expires_at > time.monotonic() and self.is_too_old(each))
            given_up += [(each, why) for each in old if (why := self._decide_before(each)) is not None]
            self._running[me] = [message for message, _ in given_up]
            self.give_up(given_up)

    def _wait_for_rate(self, messages: list[Message]) -> list[Message]:
        """Wait until the rate lets these begin; the consumer touches them meanwhile. Return them, without
        those that timed out all the same, as when their connection is lost.
        """
        rate = self.rate
        while messages and rate.per_second > 0:
            with self._rating:
                if rate.take_all(len(messages), time.monotonic()):
                    break
                pause = rate.pause()
            time.sleep(min(pause, _RATE_STEP))
            now = time.monotonic()
            for message in messages:
                if message.expires_at <= now:
                    self.expire(message)
            messages = [message for message in messages if message.expires_at > now]
        return messages

    def _decide_before(self, message: Message) -> GivenUp | None:
        age = self._age(message) if self._max_age else 0.0
        return decide_before(self.handled_attempts(message), self._max_attempts, age, self._max_age)

    def is_too_old(self, message: Message) -> bool:
        """Return whether no handler may begin a message, as it has waited too long."""
        return self._max_age > 0 and self._in_order is None and self._age(message) > self._max_age

    def refuse_old(self, message: Message) -> None:
        """Raise TooOld for a message of an ordered partition that must not begin: its lane must end it."""
        if (given_up := self._decide_before(message)) is not None:
            raise TooOld(given_up.reason)

    def _age(self, message: Message) -> float:
        """Return the seconds since nsqd got the message, by its clock and ours."""
        age = time.time() - message.timestamp / 1e9
        if age < -self._max_age / 2 and message.nsqd_address not in self._warned_of_clocks:
            self._warned_of_clocks.add(message.nsqd_address)
            text = "the clock of nsqd %s is %.1f s ahead of this machine's: max_age takes effect later"
            log.warning(text, message.nsqd_address, -age, extra=self.fields_of(message))
        return age

    def _handle_batch(self, handler: BatchHandler, no_backoff: Exceptions, batch: list[Message]) -> None:
        me, now = threading.get_ident(), time.monotonic()
        self._running[me] = batch
        for message in batch:
            message.begun_at = now
        try:
            result = handler(batch)
            if result is not None:
                check_result(result)
        except BaseException as error:
            if self.inherited:
                raise
            self.give_up(self.failed(batch, error, no_backoff))
            self.ended(me, batch, False)
            return
        unanswered = [message for message in batch if message.auto_response]
        now = time.monotonic()
        finish_all(unanswered)
        self._running[me] = None
        if self.kept:
            self.ended(me, unanswered, True)
            self.ended(me, [message for message in batch if not message.auto_response], False)
        if len(unanswered) > 1:
            with self._counting:
                self.uncounted += len(unanswered) - 1
        if self.timed_out_unhandled:
            for message in unanswered:
                if message.expires_at > now:
                    self._forget(message)


def _key(message: Message) -> Hashable:
    """Return what tells deliveries of one message: the ids of two nsqds, or partitions, may be equal."""
    return message.nsqd_address, message.partition, message.id


def check_handler(handler: object) -> None:
    if not callable(handler):
        raise ConfigError(f"handler {handler!r} is not callable")
    functions = _called(handler)
    if is_async(handler) or any(map(inspect.isasyncgenfunction, functions)):
        raise ConfigError(f"handler {handler!r} is an async def, but handlers run in threads. {NO_AWAIT}")
    if any(map(inspect.isgeneratorfunction, functions)):
        raise ConfigError(f"handler {handler!r} has a yield: to call it runs nothing. Write a plain function")


def surrounded(handler: Any, hooks: list[Callable[[Any], Any]], check: Callable[[Any], object]) -> Any:
    """Return what to call for a handler. ``check`` refuses what a hook must not return."""
    for hook in reversed(hooks):  # the first one is the outermost
        handler = hook(handler)
        try:
            check(handler)
        except ConfigError as error:
            raise ConfigError(f"around_handler {hook!r} has returned what is no handler: {error}") from error
    return handler


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
    classes = no_backoff if isinstance(no_backoff, tuple) else (None,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in classes):
        raise ConfigError(f"no_backoff is {no_backoff!r}; it must be a tuple of exception classes")
