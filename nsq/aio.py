"""The client for programs on an asyncio event loop: ``Producer`` and ``Consumer`` with coroutines.

The work is done by the threads of nsq.Producer and nsq.Consumer. This module passes results and messages to
the loop and never blocks it. Many of them cost one wakeup: a thread that finds a wakeup requested already
only appends to a deque. An object of this module belongs to the loop on which it was used first.
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from nsq.config import SignatureWithOptions, checked_functions
from nsq.consumer import consumer as threads_consumer
from nsq.consumer.consumer import checked_seconds, checked_whole
from nsq.consumer.decisions import Exceptions, check_result
from nsq.consumer.handlers import HandlerPool, check_no_backoff, is_async, surrounded
from nsq.consumer.reports import StopReport
from nsq.errors import AlreadyResponded, Closed, ConfigError, QueueFull, UsageError
from nsq.log import Logger
from nsq.message import Message
from nsq.producer import producer as threads_producer
from nsq.producer.publishes import Defer, PublishFuture, PublishOptions, checked_timeout, with_options_shown
from nsq.producer.reports import CloseReport, FlushReport
from nsq.threads.stop_signals import StopSignals
from nsq.threads.waiters import start_thread
from nsq.wire.frames import Published

log = Logger("nsq.aio")

T = TypeVar("T")

AsyncHandler = Callable[[Message], Coroutine[Any, Any, Any]]
AroundAsyncHandler = Callable[[AsyncHandler], AsyncHandler]

#: Messages that a consumer hands out before it lets other tasks run.
_IN_A_ROW = 50
#: The part of a stop's time kept for cancelled handlers to give messages back: this share, at most so long.
_CANCEL_SHARE, _CANCEL_SECONDS = 0.2, 2.0
#: Seconds that a stop leaves to cancelled handlers even when its time is up.
_LEAST_TO_CANCEL = 0.1
#: Seconds until a cancelled task of a handler is replaced. A loop that ends cancels all, and is closed then.
_REPLACE_SECONDS = 0.05
#: Seconds until a publish ends that has just got room; it may not be zero.
_LEAST_TIMEOUT = 0.001


class _FromThreads(Generic[T]):
    """Items that threads pass to an event loop, and one call of ``deliver`` there for all that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[], None]) -> None:
        self.loop = loop
        self.items: deque[T] = deque()
        self._deliver = deliver
        self._requested = False

    def put(self, item: T) -> bool:
        self.items.append(item)
        return self.wake()

    def wake(self) -> bool:
        """Return whether the loop is there: not if it is closed."""
        # After the item is in ``items``: if we see a request, ``_run`` has not looked at them yet.
        if not self._requested:
            self._requested = True
            try:
                self.loop.call_soon_threadsafe(self._run)
            except RuntimeError:
                self._requested = False
                return False
        return True

    release = wake  # among Waiters

    def abandon(self) -> None: ...  # of a Watch

    def _run(self) -> None:
        self._requested = False
        self._deliver()


async def _on_own_thread(name: str, call: Callable[[], T]) -> T:
    """Run a call that blocks. Not on asyncio's threads: the program may keep all of them busy."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def end(set_end: Callable[[Any], None], value: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if ended.done() else set_end(value))

    def run() -> None:
        try:
            end(ended.set_result, context.run(call))
        except BaseException as error:
            end(ended.set_exception, error)

    start_thread(run, name, partial(end, ended.set_exception))
    return await ended


# Publishing.


class _Result:
    """Waits for the end of a publish, and passes it to the loop."""

    __slots__ = ("deadline", "ended", "publish", "results")

    def __init__(self, results: _FromThreads[_Result], publish: PublishFuture, deadline: float) -> None:
        self.results, self.publish, self.deadline = results, publish, deadline
        # Its error, or None. Not as an exception: asyncio would complain of one that a cancelled task leaves.
        self.ended: asyncio.Future[Exception | None] = results.loop.create_future()

    def release(self) -> None:
        """Called by the thread that ends the publish."""
        self.results.put(self)

    def end_without_room(self) -> None:
        """Called at the deadline of a publish that still waits for room."""
        if not self.ended.done():
            full = "as many publishes are unanswered as max_pending or max_pending_bytes allow"
            self.ended.set_result(QueueFull(f"{full}, and none was answered in time"))


class Producer:
    """``nsq.Producer`` for coroutines, with the same arguments.

        async with aio.Producer("10.0.0.2:4150") as producer:
            await producer.publish("orders", b"body")

    A publish ends as one of nsq.Producer does. If its task is cancelled, a message that was not sent yet is
    withdrawn, and one that was sent may be stored. ``producer`` is the nsq.Producer itself: its ``stats`` and
    ``health`` do not block.
    """

    __signature__ = SignatureWithOptions(threads_producer.Producer)

    def __init__(self, *addresses: str, **options: Any) -> None:
        self.producer = threads_producer.Producer(*addresses, **options)
        self._results: _FromThreads[_Result] | None = None
        # Publishes that wait for room, in the order of their calls, and what ends them at their deadline.
        self._queue: OrderedDict[_Result, asyncio.TimerHandle] = OrderedDict()

    def __repr__(self) -> str:
        return f"<aio.{repr(self.producer)[1:]}"

    @with_options_shown
    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        defer: Defer | None = None,
        timeout: float | None = None,
        **options: Unpack[PublishOptions],
    ) -> Published:
        """Return when an nsqd has stored the message. ``timeout`` covers everything, waiting for room too."""
        watched, publish = self.producer.prepare(PublishFuture, topic, [body], options, defer=defer)
        with watched:
            return await self._send(publish, timeout)

    @with_options_shown
    async def multi_publish(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        timeout: float | None = None,
        **options: Unpack[PublishOptions],
    ) -> Published:
        """Publish all messages at once to one nsqd, which stores all or, unless it fails midway, none."""
        watched, publish = self.producer.prepare(PublishFuture, topic, bodies, options, several=True)
        with watched:
            return await self._send(publish, timeout)

    async def _send(self, publish: PublishFuture, timeout: float | None) -> Published:
        seconds = checked_timeout(timeout, self.producer.config.publish_timeout)
        result = _Result(self._own_results(), publish, time.monotonic() + seconds)
        if self._queue or not self._try(result, seconds):
            if not self._queue:  # while any is queued, ``_deliver`` is called when there may be room
                self.producer.room.add(result.results)
                result.results.wake()  # room may have come before the line above
            self._queue[result] = result.results.loop.call_later(seconds, result.end_without_room)
            result.ended.add_done_callback(lambda _: self._leave_queue(result))
        try:
            error = await result.ended
        except asyncio.CancelledError:
            self.producer.withdraw(publish)
            raise
        if error is not None:
            raise error
        return publish.published

    def _own_results(self) -> _FromThreads[_Result]:
        loop = asyncio.get_running_loop()
        if self._results is None:
            self._results = _FromThreads(loop, self._deliver)
        if self._results.loop is not loop:
            raise UsageError(f"{self!r} belongs to another event loop: make one for each loop")
        return self._results

    def _try(self, result: _Result, seconds: float) -> bool:
        """Send a publish, or return False if there is no room for it."""
        publish = result.publish
        if not self.producer.try_to_send(publish, seconds):
            return False
        publish.add(result)
        if publish.done():  # it may have ended before the line above
            result.release()
        return True

    def _deliver(self) -> None:
        assert self._results is not None
        items = self._results.items
        while items:
            result = items.popleft()
            if not result.ended.done():  # else its task was cancelled, or it came twice
                result.ended.set_result(result.publish.error)
        # Send the publishes that wait for room, in order, as far as there is room now.
        while self._queue:
            result = next(iter(self._queue))
            if not result.ended.done():
                try:
                    if not self._try(result, max(_LEAST_TIMEOUT, result.deadline - time.monotonic())):
                        return
                except Exception as error:
                    result.ended.set_result(error)  # such as Closed
            self._leave_queue(result)

    def _leave_queue(self, result: _Result) -> None:
        timer = self._queue.pop(result, None)
        if timer is not None:
            timer.cancel()
        if not self._queue:
            self.producer.room.remove(result.results)

    async def flush(self, timeout: float | None = None) -> FlushReport:
        """Wait until nsqd has answered all publishes so far, as ``nsq.Producer.flush`` does."""
        return await _on_own_thread("nsq-producer-flush", partial(self.producer.flush, timeout))

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Refuse new publishes, wait for pending ones, and disconnect, as ``nsq.Producer.close`` does."""
        return await _on_own_thread("nsq-producer-close", partial(self.producer.close, timeout))

    async def __aenter__(self) -> Self:
        self._own_results()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


# Consuming.


class Consumer:
    """``nsq.Consumer`` for coroutines, with the same arguments but ``threads``. Take messages in a loop:

        async with aio.Consumer("orders", "billing", nsqd="10.0.0.2:4150") as consumer:
            async for message in consumer:
                async with message:
                    await bill(message.body)

    or add handlers and run it:

        consumer = aio.Consumer("orders", "billing", nsqd="10.0.0.2:4150")
        consumer.add_handler(bill, concurrency=20)
        await consumer.run()

    ``async with message`` finishes the message at its end; an exception requeues it, as a failure; a
    cancelled task requeues it at once, and not as a failure. ``consumer`` is the nsq.Consumer:
    its ``stats`` and ``health`` do not block.
    """

    __signature__ = SignatureWithOptions(threads_consumer.Consumer, without="threads")

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        around_handler: AroundAsyncHandler | Sequence[AroundAsyncHandler] | None = None,
        **options: Any,
    ) -> None:
        if "threads" in options:
            raise ConfigError("aio.Consumer has no threads: give add_handler a concurrency instead")
        if options.get("on_stuck") is not None:
            raise ConfigError("aio.Consumer has no on_stuck: raise nsq.GiveUp, or nsq.Requeue with a delay")
        self._around_handler = checked_functions("around_handler", around_handler)
        self.consumer = threads_consumer.Consumer(topic, channel, **options)
        self._name = f"nsq-{topic}/{channel}"
        self._pool: HandlerPool | None = None  # of the consumer, once it is started
        self._handlers: list[tuple[AsyncHandler, int, Exceptions]] = []
        self._workers: set[asyncio.Task[None]] = set()
        self._messages: _FromThreads[Message] | None = None
        self._takers: deque[asyncio.Future[None]] = deque()
        self._taken = 0
        self._ended = asyncio.Event()
        self._over = False  # no handler and no iteration gets another message
        self._returns = False  # a stop has begun: messages that no handler has taken go back
        self._handlers_cancelled = False  # by a stop
        self._background: set[asyncio.Task[StopReport]] = set()

    def __repr__(self) -> str:
        return f"<aio.{repr(self.consumer)[1:]}"

    # Handlers.

    def add_handler(
        self, handler: AsyncHandler, *, concurrency: int = 1, no_backoff: Exceptions = ()
    ) -> Self:
        """Add an ``async def`` that is called as ``await handler(message)``, for up to ``concurrency``
        messages at a time. Its end answers the message as in ``nsq.Consumer.add_handler``; if it is
        cancelled, the message is requeued without delay and without backing off.
        """
        checked_whole("concurrency", concurrency)
        check_no_backoff(no_backoff)
        _check_async(handler)
        if self._messages is not None:
            raise Closed(f"add_handler comes before start: {self!r}")
        handler = surrounded(handler, self._around_handler, _check_async)
        self._handlers.append((handler, concurrency, no_backoff))
        return self

    async def _work(self, handler: AsyncHandler, no_backoff: Exceptions) -> None:
        assert self._pool is not None
        task = asyncio.current_task()
        while (message := await self._take()) is not None:
            self._pool.began(id(task), message)
            succeeded = False
            try:
                result = await handler(message)
                if result is not None:
                    check_result(result)
                succeeded = True
                with suppress(AlreadyResponded):  # by the handler, or it has timed out
                    message.finish()
            except asyncio.CancelledError:
                _give_back(message)
                if task is not None and task.cancelling():
                    raise
                # Else the handler has cancelled something of its own.
            except (KeyboardInterrupt, SystemExit):
                _give_back(message)
                raise
            except BaseException as error:
                if given_up := self._pool.failed([message], error, no_backoff):
                    await _on_own_thread(f"{self._name}-give-up", partial(self._pool.give_up, given_up))
            finally:
                self._pool.ended(id(task), [message], succeeded)

    def _start_worker(self, name: str, handler: AsyncHandler, no_backoff: Exceptions) -> None:
        """Start a task that calls a handler. Only a stop ends it for good: a handler may cancel its task."""
        if self._over or self._handlers_cancelled:
            return

        def ended(worker: asyncio.Task[None]) -> None:
            self._workers.discard(worker)
            error = None if worker.cancelled() else worker.exception()
            if isinstance(error, Exception):
                log.error("%s failed", name, exc_info=error)
            loop.call_later(_REPLACE_SECONDS, self._start_worker, name, handler, no_backoff)

        loop = asyncio.get_running_loop()
        worker = loop.create_task(self._work(handler, no_backoff), name=name)
        self._workers.add(worker)
        worker.add_done_callback(ended)

    # Messages: from the handler thread to the loop.

    def _take_over(self, message: Message) -> None:
        """Pass a message to the loop. Runs on the consumer's handler thread."""
        messages, pool = self._messages, self._pool
        assert messages is not None
        assert pool is not None
        message.disable_auto_response()
        message.begun_at = 0.0  # it only begins to wait for a task
        # Drop what timed out before it was taken: nsqd delivers it again, and that is no attempt.
        with suppress(IndexError):
            while _is_late(oldest := messages.items.popleft()):
                pool.expire(oldest)
            messages.items.appendleft(oldest)
        if not messages.put(message):  # the loop was closed before the consumer was stopped
            self._returns = True
            self.consumer.stop()  # only asks for it here
        if self._returns:
            self._return_waiting()

    def _return_waiting(self) -> None:
        """Requeue what waits to be taken. Any thread."""
        with suppress(IndexError):
            while self._messages is not None:
                _give_back(self._messages.items.popleft())

    def _wake_takers(self) -> None:
        """Wake a taker for each message that waits; at the end, all of them."""
        assert self._messages is not None
        count = len(self._takers) if self._over else min(len(self._messages.items), len(self._takers))
        while count and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1

    def _look_for_end(self) -> None:
        if self._returns or self.consumer.refusal is not None or self.consumer.wait(0.0):
            self._over = True
            self._ended.set()
            self._wake_takers()

    async def _take(self) -> Message | None:
        """Return the next message; None at the end."""
        messages, pool = self._messages, self._pool
        if messages is None or pool is None:
            raise UsageError(f"{self!r} has not been started: use it in `async with`")
        while True:
            while messages.items and not self._over:
                self._taken += 1
                if self._taken % _IN_A_ROW == 0:
                    await asyncio.sleep(0)
                try:
                    message = messages.items.popleft()
                except IndexError:
                    break  # another one has taken it
                if not _is_late(message) and not pool.is_too_old(message):
                    return message
                if message.expired or not message.responded:
                    pool.inbox.put(message)  # its thread drops messages that are late, and counts them
            if self._over:
                return None
            taker = messages.loop.create_future()
            self._takers.append(taker)
            try:
                await taker
            except BaseException:
                if taker.cancelled():
                    with suppress(ValueError):
                        self._takers.remove(taker)
                else:
                    self._wake_takers()  # it was woken for a message that another one can take
                raise

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """Return the next message. The iteration ends when the consumer is stopped; it raises nsqd's error,
        such as Unauthorized, if every nsqd refuses the subscription.
        """
        if self._handlers:
            raise UsageError(f"{self!r} has handlers, which take all messages: it cannot be iterated over")
        message = await self._take()
        if message is not None:
            message.begun_at = time.monotonic()
            return message
        if self.consumer.refusal is not None and not self._returns:
            raise self.consumer.refusal
        raise StopAsyncIteration

    # Lifecycle.

    async def start(self) -> Self:
        """Connect, and begin to take messages."""
        loop = asyncio.get_running_loop()
        if self._messages is not None:
            raise Closed(f"{self!r} cannot be started again: make a new one")
        self._messages = _FromThreads(loop, self._wake_takers)
        self.consumer.wake_at_end(_FromThreads(loop, self._look_for_end))
        tasks = sum(concurrency for _, concurrency, _ in self._handlers) or 1
        self._pool = self.consumer.hand_over(self._take_over, tasks)
        try:
            await _on_own_thread(f"{self._name}-start", self.consumer.start)
        except asyncio.CancelledError:
            self.consumer.request_stop(0.0)  # the thread starts it all the same
            raise
        for handler, concurrency, no_backoff in self._handlers:
            for number in range(concurrency):
                self._start_worker(f"{self._name}-handler-{number}", handler, no_backoff)
        return self

    async def stop(self, timeout: float = 30.0) -> StopReport:
        """Take no more messages, give back those that wait, let tasks and handlers finish theirs, disconnect.

        Takes up to ``timeout`` seconds; handlers still at work shortly before are cancelled. In a handler it
        only asks for the stop and returns at once.
        """
        timeout = checked_seconds(timeout)
        if asyncio.current_task() in self._workers:
            task = asyncio.create_task(self._stop(timeout))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            return StopReport(clean=False, in_flight=self.consumer.stats().in_flight)
        return await self._stop(timeout)

    async def _stop(self, timeout: float) -> StopReport:
        deadline = time.monotonic() + timeout
        call = partial(self._stop_in_thread, timeout)
        stopping = asyncio.ensure_future(_on_own_thread(f"{self._name}-stop", call))
        try:
            reserved = min(_CANCEL_SECONDS, _CANCEL_SHARE * timeout)
            await asyncio.wait({stopping}, timeout=timeout - reserved)
        finally:
            self._cancel_handlers()
        # Not for longer: a handler may ignore that it is cancelled.
        workers = asyncio.gather(*self._workers, return_exceptions=True)
        await asyncio.wait({workers}, timeout=max(_LEAST_TO_CANCEL, deadline - time.monotonic()))
        return await stopping

    def _stop_in_thread(self, timeout: float) -> StopReport:
        deadline = time.monotonic() + timeout
        # First: nsqd would send a message that is requeued before RDY is 0 back at once.
        self.consumer.pause()
        self._returns = True
        self._return_waiting()
        return self.consumer.stop(max(0.0, deadline - time.monotonic()))  # which wakes ``_look_for_end``

    async def run(self, timeout: float = 30.0) -> StopReport:
        """Start, and stop at SIGTERM or SIGINT, within ``timeout``. Another signal, more than a second later,
        cancels the handlers.

        If every nsqd refuses the subscription, raises the nsqd's error. On threads other than the main one it
        handles no signals: there it ends when ``stop`` is called.
        """
        if not self._handlers:
            raise UsageError(f"{self!r} has no handler: call add_handler before run")
        signals = StopSignals()
        signalled = False

        def on_signal() -> None:
            nonlocal signalled
            if signals.repeats(time.monotonic()):
                return
            if signalled:
                self._cancel_handlers()
            signalled = True
            self._ended.set()

        with _handling_signals(on_signal):
            try:
                await self.start()
                await self._ended.wait()
            finally:
                report = await self.stop(timeout)
        if self.consumer.refusal is not None and not signalled:
            raise self.consumer.refusal
        return report

    def _cancel_handlers(self) -> None:
        self._handlers_cancelled = True
        for worker in self._workers:
            worker.cancel()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()


def _check_async(handler: object) -> None:
    if not is_async(handler):
        raise ConfigError(
            f"handler {handler!r} is not an async def, and would stop the event loop while it works: "
            "write an async def, or give it to an nsq.Consumer, which runs it on threads"
        )


def _is_late(message: Message) -> bool:
    return message.expired or message.responded


def _give_back(message: Message) -> None:
    """Requeue a message that was not handled, unless it has an answer."""
    with suppress(AlreadyResponded):
        message.requeue(0.0, backoff=False)


@contextmanager
def _handling_signals(call: Callable[[], None]) -> Iterator[None]:
    """Have the loop call ``call`` at SIGTERM and SIGINT, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
