"""The life of one publish: made from a user's arguments, sent, answered, ended, waited for.

    state    new: its caller has it · queued: the loops may send it · sent · ended: ``done()``
    claim    the right to send a publish, or to end it unsent: only the thread that gets this lock does either
    end      the first end counts: nsqd's answer, its deadline, or the end of its connection or producer

A message is *surely not stored* before it is sent, when nsqd said so, and when nsqd refused an earlier
command of the same connection with a fatal error: nsqd executes commands in order, and none after that one. A
message that was sent and not answered *may be stored*. No socket and no thread here.

``PublishFuture`` is the result of ``publish_async``. It is a concurrent.futures.Future, so that
``asyncio.wrap_future``, ``concurrent.futures.wait`` and ``as_completed`` take it, but has none of the insides
of that class: its Condition leaks a lock when a signal handler raises inside it (Ctrl-C, a soft time limit),
and the thread of ours that ends the future would then wait for ever. So all public methods are our own.
``wait`` and ``as_completed`` use private attributes: these have stand-ins without locks.
"""

from __future__ import annotations

import _thread
import inspect
import math
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar, cast

from nsq.config import Config
from nsq.errors import InvalidMessage, NsqError, UsageError
from nsq.log import Logger
from nsq.message import shown_body
from nsq.producer.answers import PLAIN, Rules
from nsq.threads.waiters import Callbacks, SafeEvent, Waiter, Waiters, event_loop
from nsq.wire import commands
from nsq.wire.frames import PUBLISHED, Published
from nsq.wire.names import check_topic

if TYPE_CHECKING:
    from concurrent.futures._base import _Waiter

    from nsq.producer.endpoint import PublishingEndpoint

log = Logger("nsq.producer")

#: The states of a publish that has not ended. Its caller writes QUEUED, before a loop can see it. A loop
#: writes SENT before it takes the claim, so that other threads see a claimed publish as SENT.
NEW: Final = "new"
QUEUED: Final = "queued"
SENT: Final = "sent"
State = Literal["new", "queued", "sent"]

#: The longest timeout in seconds; a thread can wait for longer.
MAX_TIMEOUT = 10.0**9


class Publish(Waiters):
    """One publish that has options, several messages or a future, or goes through the loops: from the user's
    call until it has ended and its place on a connection is free.

    ``command`` is ready to be sent; None means a message that may be joined with others of its
    ``destination``. Those that wait for its end are its ``locks``: threads, callbacks, results of asyncio.
    """

    # Attributes that few publishes need have class defaults; a publish that sets one gets a ``__dict__``.
    __slots__ = (
        "__dict__",
        "body",
        "caller",
        "claim",
        "command",
        "deadline",
        "destination",
        "endpoint",
        "ends",
        "rules",
        "size",
        "started",
        "state",
        "topic",
    )
    messages = 1
    no_batching = False  # nsqd refused it together with others: do not join it again
    uncertain_at: tuple[str, ...] = ()  # the nsqds that may have stored it
    memory: object = None  # what its rules remember between tries
    published: Published = PUBLISHED  # the ids and the offset that nsqd gave it

    def __init__(self, topic: str, body: bytes) -> None:
        self.locks: list[Waiter] = []  # instead of Waiters.__init__: a call less per publish
        self.ends: list[NsqError | None] = []  # How it has ended: the first counts. None: nsqd has stored it.
        self.topic = topic
        self.destination = topic  # the words after PUB: publishes with the same ones are joined
        self.rules: Rules = PLAIN
        self.body = body
        self.size = len(body)
        self.claim = _thread.allocate_lock()
        self.state: State = NEW
        self.endpoint: PublishingEndpoint | None = None  # the nsqd where it waits or was sent
        # The pool sets these before another thread sees the publish.
        self.started: float
        self.deadline: float
        # The thread that has not queued it yet. In a signal handler there, ``flush`` must not wait for it.
        self.caller: int | None
        self.command: bytes | None = None

    def __repr__(self) -> str:
        state, begin = "ended" if self.done() else self.state, shown_body(self.body)
        several = f"{self.messages} messages of {self.size} bytes"
        return f"<Publish to {self.topic}, {state}, {several if self.messages > 1 else begin}>"

    def done(self) -> bool:
        """Whether it has ended."""
        for _ in self.ends:  # locks the list, as ``bool`` does not
            return True
        return False

    @property
    def error(self) -> NsqError | None:
        """The error of a publish that has ended; None when it is stored."""
        for error in self.ends:
            return error
        return None

    def outcome(self) -> Published:
        """Return what nsqd has answered, or raise the error of a publish that has ended."""
        error = self.error
        if error is not None:
            raise error
        return self.published

    def end(self, error: NsqError | None) -> bool:
        """End the publish, unless it has ended; return whether this call ended it."""
        self.ends.append(error)
        if self.locks:  # a thread that adds its lock from now on sees the end, as ``append`` is a barrier
            self.wake()
        return self.ends[0] is error

    def wake(self) -> None:
        for each in self.locks.copy():
            with suppress(RuntimeError, ValueError):  # released before: its waiter removes it
                each.release()
                self.locks.remove(each)

    def try_again(self) -> None:
        """Give it a new claim, before it is put into a queue again."""
        self.claim = _thread.allocate_lock()
        self.state, self.endpoint = QUEUED, None


# The result of ``publish_async``.


class PublishFuture(Publish, Future[Published]):
    """The result of ``publish_async``: a concurrent.futures.Future without its Condition.

    A signal handler that raises inside a Condition leaks its lock. Here a waiting thread brings its own lock,
    and a callback stands among these locks: its ``release`` hands it to the thread that runs callbacks.
    """

    __slots__ = ("callbacks",)

    callbacks: Callbacks  # Runs the callbacks. Set before the publish is sent.

    __repr__ = Publish.__repr__

    def cancel(self) -> bool:
        """Return False: a publish cannot be cancelled. It ends at its timeout at the latest."""
        return False

    def cancelled(self) -> bool:
        return False

    def running(self) -> bool:
        return not self.done()

    done = Publish.done

    def result(self, timeout: float | None = None) -> Published:
        """Wait for the end; return what nsqd answered, or raise the error."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.published

    def exception(self, timeout: float | None = None) -> NsqError | None:
        """Wait for the end; return the error, or None. Raises TimeoutError after ``timeout`` seconds."""
        if not self.done():
            self._refuse_in_callback()
            deadline = math.inf if timeout is None else time.monotonic() + timeout
            if not self.wait_for(self.done, deadline):
                reason = "before the interpreter" if timeout is None else f"within {timeout:g} s"
                raise TimeoutError(f"{self!r} has not ended {reason}")
        return self.ends[0]

    def _refuse_in_callback(self) -> None:
        if self.callbacks.owns_current_thread():
            raise UsageError(
                "a future's callback waits for another future of the same producer, which holds up all other "
                "callbacks: add a callback to that one instead, or wait on another thread"
            )

    def __await__(self) -> Generator[Any, None, Published]:
        """Wait in a coroutine, as in ``await producer.publish_async(…)``."""
        if event_loop() is None:
            raise UsageError("a future was awaited where no asyncio event loop runs: use its result() there")
        waiter: Awaitable[Published] = sys.modules["asyncio"].wrap_future(self)
        return waiter.__await__()

    def add_done_callback(self, fn: Callable[[Future[Published]], object]) -> None:
        """Call ``fn`` with the future when it ends, on a thread of the producer; at once if it has ended."""
        callback = Callback(self, fn)
        self.locks.append(callback)
        if self.done():  # ``end`` may have missed the callback; only one of us runs it
            callback.run(Exception)

    def _get_snapshot(self) -> tuple[bool, bool, Published | None, NsqError | None]:
        """Return done, cancelled, result and exception, for the asyncio of newer Pythons."""
        return (True, False, self.published, self.error) if self.done() else (False, False, None, None)

    # Internals that concurrent.futures.wait and as_completed use.

    @property
    def _state(self) -> str:  # type: ignore[override]
        frozen = self._frozen.get(_thread.get_ident())
        return frozen or (FINISHED if self.done() else RUNNING)

    @property
    def _frozen(self) -> dict[int, str]:
        """By thread: the state it saw when it "locked" the future, kept until it "unlocks" it."""
        frozen: dict[int, str] = self.__dict__.setdefault("_states", {})
        return frozen

    @property
    def _condition(self) -> _ConditionShim:  # type: ignore[override]
        return _ConditionShim(self)

    _waiters = _condition  # type: ignore[assignment]


class Callback:
    """A future's callback, stored with the waiters' locks; ``release`` queues it for the callback thread."""

    def __init__(self, future: PublishFuture, fn: Callable[[Future[Published]], object]) -> None:
        self.fn = fn
        self._future = future
        self._left = [None]  # popped by the thread that runs it

    def release(self) -> None:
        self._future.callbacks.put(self.run)

    def run(self, kept_here: type[BaseException] = BaseException) -> None:
        """Call ``fn`` once. On the callbacks' thread catch even SystemExit: that thread must go on."""
        try:
            self._left.pop()
        except IndexError:
            return
        try:
            self.fn(self._future)
        except kept_here:
            log.exception("a callback of %r failed", self._future)


class _ConditionShim:
    """A future's ``_condition`` and ``_waiters``: no lock, but a thread that "holds" it sees one state."""

    def __init__(self, future: PublishFuture) -> None:
        self._future = future

    def acquire(self) -> None:
        future = self._future
        future._frozen[_thread.get_ident()] = FINISHED if future.done() else RUNNING

    def release(self, *_: object) -> None:
        self._future._frozen.pop(_thread.get_ident(), None)

    __enter__, __exit__ = acquire, release

    def append(self, waiter: _Waiter) -> None:
        if self._future._state == FINISHED:
            return
        self._future._refuse_in_callback()
        if not isinstance(waiter.event, SafeEvent):
            # Interrupting a wait on an Event leaks its lock.
            waiter.event = SafeEvent()  # type: ignore[assignment]
        self._future.add_done_callback(_WaiterCallback(waiter))

    def remove(self, waiter: _Waiter) -> None:
        for each in self._future.locks.copy():
            if isinstance(each, Callback) and each.fn == _WaiterCallback(waiter):
                with suppress(ValueError):
                    self._future.locks.remove(each)


@dataclass(frozen=True)
class _WaiterCallback:
    """The callback that tells a waiter of concurrent.futures about the end."""

    waiter: _Waiter

    def __call__(self, future: Future[Published]) -> None:
        if future.exception() is None:
            self.waiter.add_result(future)
        else:
            self.waiter.add_exception(future)


# A user's arguments.

P = TypeVar("P", bound=Publish)

#: What a body may be. It is sent as bytes.
BYTES = (bytes, bytearray, memoryview)

#: Seconds or a timedelta from now, or an aware datetime.
Defer = float | timedelta | datetime


class PublishOptions(TypedDict, total=False):
    """The options of a publish that only a partitioned NSQ has."""

    key: str | bytes | int | None
    partition: int | None
    trace: int | None
    headers: Mapping[str, object] | None
    tag: str | None


NO_OPTIONS: Final[PublishOptions] = {}

F = TypeVar("F", bound=Callable[..., object])


def with_options_shown(method: F) -> F:
    """Let help() and notebooks show each of the PublishOptions in place of a method's ``**options``."""
    signature = inspect.signature(method)
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint.__forward_arg__)
        for name, hint in PublishOptions.__annotations__.items()
    ]
    others = list(signature.parameters.values())[:-1]
    method.__signature__ = signature.replace(parameters=[*others, *shown])  # type: ignore[attr-defined]
    return method


def given_options(options: PublishOptions) -> dict[str, object]:
    """Return the options that are not None. Raises TypeError if a publish has no such option."""
    for name in options.keys() - PublishOptions.__annotations__.keys():
        raise TypeError(f"a publish has no option {name!r}, its options are in nsq.Producer.publish")
    return {name: value for name, value in options.items() if value is not None}


def refused_option(*names: str) -> UsageError:
    """Return the error for options that only a partitioned NSQ has."""
    return UsageError(
        f"{' and '.join([f'{name}=' for name in names])} needs a partitioned NSQ. This producer publishes to "
        "the original one, or has only nsqd addresses: a partitioned cluster is found through nsqlookupd="
    )


# Making a publish from them.

checked_topic = lru_cache(maxsize=1024)(check_topic)


class Maker:
    """Makes publishes for the original NSQ, and refuses what that cannot do."""

    def __init__(self, config: Config) -> None:
        self._config, self._max_size = config, config.max_msg_size

    def new_publish(
        self,
        make: type[P],
        topic: str,
        body: object,
        defer: Defer | None,
        options: PublishOptions = NO_OPTIONS,
    ) -> P:
        """Make a PUB, or a DPUB for a message that nsqd delivers after ``defer``."""
        # The usual case first: this runs for every message.
        usual = type(topic) is str and type(body) is bytes and defer is None and not options
        if usual and 0 < len(body) <= self._max_size:  # type: ignore[arg-type]
            return make(checked_topic(topic), body)  # type: ignore[arg-type]
        _refuse(options)
        name, data = check_topic(topic), _checked_body(body, self._config, "the message")
        publish = make(name, data)
        if defer is not None and (delay_ms := _checked_delay(defer, self._config.max_defer)):
            publish.command = commands.dpub(name, delay_ms, data)
        return publish

    def new_multi_publish(
        self, make: type[P], topic: str, bodies: Iterable[object], options: PublishOptions = NO_OPTIONS
    ) -> P:
        """Make an MPUB."""
        _refuse(options)
        name = check_topic(topic)
        checked, size = checked_bodies(bodies, self._config)
        publish = make(name, b"")
        publish.command, publish.messages, publish.size = commands.mpub(name, checked), len(checked), size
        return publish


def _refuse(options: PublishOptions) -> None:
    if given := given_options(options):
        raise refused_option(*given)


def checked_bodies(bodies: Iterable[object], config: Config, overhead: int = 0) -> tuple[list[bytes], int]:
    """Return the messages of a batch, and their size. Each takes ``overhead`` bytes more when it is sent."""
    if isinstance(bodies, (*BYTES, str)):
        raise UsageError(
            f"bodies is one {type(bodies).__name__}, must be several: a list, or another iterable"
        )
    if not isinstance(bodies, Iterable):
        raise UsageError(f"bodies is {bodies!r}, must be a list, or another iterable")
    checked = cast("list[bytes]", list(bodies))
    if not checked:
        raise UsageError("bodies is empty, must hold at least one message")
    # The usual case, bytes only, in one go: one by one takes ten times as long.
    sizes = list(map(len, checked)) if set(map(type, checked)) == {bytes} else []
    if not (sizes and min(sizes) > 0 and max(sizes) <= config.max_msg_size):
        checked = [_checked_body(body, config, f"message {place}") for place, body in enumerate(checked)]
        sizes = list(map(len, checked))
    size = sum(sizes)
    # If an nsqd runs with a larger --max-msg-size, it runs with a larger --max-body-size too.
    limit = max(config.max_body_size, config.max_msg_size + 8)
    packed = 4 + (4 + overhead) * len(checked) + size
    if packed > limit:
        raise InvalidMessage(
            f"{len(checked)} messages take {packed} bytes together, must be at most {limit} "
            "(max_body_size, to be that of nsqd): publish them in smaller batches"
        )
    return checked, size


def checked_timeout(timeout: float | None, default: float, *, may_be_zero: bool = False) -> float:
    """Return the timeout in seconds, or the default. Zero is allowed for calls that need not wait."""
    if timeout is None:
        return default
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise UsageError(f"timeout is {timeout!r}, must be a number of seconds")
    if may_be_zero and timeout == 0:
        return 0.0
    if not 0 < timeout <= MAX_TIMEOUT:
        raise UsageError(f"timeout is {timeout!r}, must be more than 0 seconds and finite")
    return float(timeout)


def _checked_body(body: object, config: Config, what: str) -> bytes:
    if not isinstance(body, BYTES):
        remedy = ": encode it, for example with .encode()" if isinstance(body, str) else ""
        raise InvalidMessage(f"{what} is a {type(body).__name__}, must be bytes{remedy}")
    data = bytes(body)
    if not data:
        raise InvalidMessage(f"{what} is empty, must have at least one byte")
    if len(data) > config.max_msg_size:
        raise InvalidMessage(
            f"{what} has {len(data)} bytes, must have at most {config.max_msg_size} "
            "(max_msg_size, to be that of nsqd)"
        )
    return data


def _checked_delay(defer: Defer, longest: float) -> int:
    """Return the delay in milliseconds; at least 0 for a datetime, which may have passed by now."""
    if isinstance(defer, timedelta):
        defer = defer.total_seconds()
    elif isinstance(defer, datetime):
        if defer.utcoffset() is None:
            raise InvalidMessage(f"defer is {defer!r}, must have a time zone")
        defer = max(0.0, defer.timestamp() - time.time())
    if isinstance(defer, bool) or not isinstance(defer, (int, float)) or not math.isfinite(defer):
        raise InvalidMessage(f"defer is {defer!r}, must be seconds, a timedelta or an aware datetime")
    if not 0 <= defer <= longest:
        raise InvalidMessage(
            f"defer is {defer} s, must be 0 to {longest:g} s (max_defer, to be nsqd's --max-defer-timeout)"
        )
    return round(defer * 1000)
