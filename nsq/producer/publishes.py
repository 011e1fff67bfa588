"""The life of one publish: made from a user's arguments, joined with others, sent, answered, ended.

    state    new: its caller has it · queued: the loops may send it · sent · ended: ``done()``
    claim    the right to send a publish, or to end it unsent: only the thread that gets this lock does either
    end      the first end counts: nsqd's answer, its deadline, or the end of its connection or producer

A message is *surely not stored* before it is sent, when nsqd said so, and when nsqd refused an earlier
command of the same connection with a fatal error: nsqd executes commands in order, and none after that one. A
message that was sent and not answered *may be stored*. No socket and no thread here.
"""

from __future__ import annotations

import _thread
import copy
import inspect
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypedDict, TypeVar, cast

from nsq.config import Config
from nsq.errors import (
    BadBody,
    BadMessage,
    InvalidMessage,
    NsqError,
    PublishFailed,
    PublishUncertain,
    ServerError,
    UsageError,
)
from nsq.log import Logger
from nsq.message import shown_body
from nsq.threads.waiters import Waiter, Waiters
from nsq.wire import commands
from nsq.wire.frames import PUBLISHED, Published
from nsq.wire.names import check_topic

if TYPE_CHECKING:
    from nsq.producer.endpoint import PublishingEndpoint

log = Logger("nsq.producer")

#: The most messages and bytes of one MPUB made of joined publishes.
_JOINED_MESSAGES = 1000
_JOINED_BYTES = 512 * 1024

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
    memory: object = None
    """What its rules remember between tries."""
    published: Published = PUBLISHED
    """The ids and the offset that nsqd gave it."""

    def __init__(self, topic: str, body: bytes) -> None:
        self.locks: list[Waiter] = []  # instead of Waiters.__init__: a call less per publish
        self.ends: list[NsqError | None] = []
        """How it has ended: the first counts. None: nsqd has stored it."""
        self.topic = self.destination = topic
        """The destination is the words after PUB: publishes with the same ones go to the same nsqds, and are
        joined.
        """
        self.rules: Rules = PLAIN
        self.body = body
        self.size = len(body)
        self.claim = _thread.allocate_lock()
        self.state: State = NEW
        self.endpoint: PublishingEndpoint | None = None  # the nsqd where it waits or was sent
        # The pool sets these before another thread sees the publish.
        self.started: float
        self.deadline: float
        self.caller: int | None
        """The thread that has not queued it yet. If a signal handler on that thread calls ``flush`` or
        ``close``, these must not wait for it. None once it is queued.
        """
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
        for error in self.ends:
            if error is not None:
                raise error
            break
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


P = TypeVar("P", bound=Publish)

#: Seconds or a timedelta from now, or an aware datetime.
Defer = float | timedelta | datetime

# A user's arguments.


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


def new_publish(
    make: type[P],
    topic: str,
    body: object,
    defer: Defer | None,
    config: Config,
    options: PublishOptions = NO_OPTIONS,
) -> P:
    """Make a PUB, or a DPUB for a message that nsqd delivers after ``defer``. Refuses what the original NSQ
    cannot do.
    """
    if options and (given := given_options(options)):
        raise refused_option(*given)
    name = checked_topic(topic) if type(topic) is str else check_topic(topic)
    # The usual case first: this runs for every message.
    if type(body) is not bytes or not 0 < len(body) <= config.max_msg_size:
        body = _checked_body(body, config, "the message")
    if defer is None:
        return make(name, body)
    publish = make(name, body)
    delay_ms = _checked_delay(defer, config.max_defer)
    if delay_ms:
        publish.command = commands.dpub(name, delay_ms, body)
    return publish


def new_multi_publish(
    make: type[P],
    topic: str,
    bodies: Iterable[object],
    config: Config,
    options: PublishOptions = NO_OPTIONS,
) -> P:
    """Make an MPUB. Refuses what the original NSQ cannot do."""
    if options and (given := given_options(options)):
        raise refused_option(*given)
    name = check_topic(topic)
    checked, size = checked_bodies(bodies, config)
    publish = make(name, b"")
    publish.command, publish.messages, publish.size = commands.mpub(name, checked), len(checked), size
    return publish


def checked_bodies(bodies: Iterable[object], config: Config, overhead: int = 0) -> tuple[list[bytes], int]:
    """Return the messages of a batch, and their size. Each takes ``overhead`` bytes more when it is sent."""
    if isinstance(bodies, (bytes, bytearray, memoryview, str)):
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
    if isinstance(body, str):
        raise InvalidMessage(f"{what} is a str, must be bytes: encode it, for example with .encode()")
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidMessage(f"{what} is a {type(body).__name__}, must be bytes")
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


# Joining.


def join(publishes: list[Publish], largest: int) -> list[list[Publish]]:
    """Return batches that are sent as one command each; they keep the order within every destination.

    Messages of one destination that wait together become one MPUB of at most ``largest`` bytes (0: no
    joining). Larger messages go alone, as do publishes with a command of their own.
    """
    largest = min(largest, _JOINED_BYTES)
    rows: dict[str, list[Publish]] = {}
    for publish in publishes:
        if publish.destination in rows:
            rows[publish.destination].append(publish)
        else:
            rows[publish.destination] = [publish]
    batches: list[list[Publish]] = []
    for row in rows.values():
        batch, used = list[Publish](), largest  # full: the first one begins a batch
        for publish in row:
            size = 4 + publish.size
            used += size
            alone = publish.no_batching or publish.command is not None
            if used <= largest and len(batch) < _JOINED_MESSAGES and not alone:
                batch.append(publish)
                continue
            batch, used = [publish], 4 + size  # 4: the count of the messages
            batches.append(batch)
            if alone or used > largest:
                used = largest  # full: later publishes begin a new batch after this one
    return batches


def command_of(batch: list[Publish]) -> bytes:
    first = batch[0]
    if first.command is not None:
        return first.command
    if len(batch) == 1:
        return commands.pub(first.destination, first.body)
    return commands.mpub(first.destination, [publish.body for publish in batch])


# Refused and unanswered publishes.


class Verdict(NamedTuple):
    """The decision about one publish: end it with the error, or send it again."""

    publish: Publish
    error: NsqError
    again: bool


def unanswered(
    publish: Publish, address: str, reason: str, cause: NsqError | None = None
) -> PublishUncertain:
    error = PublishUncertain(
        f"publishing to {publish.topic!r}: it was sent to {address} and not answered ({reason}); "
        "it may be stored"
    )
    error.__cause__ = cause
    return error


def unsent(publish: Publish, reason: str) -> NsqError:
    """Return the error for a publish that was not sent, or not sent again."""
    if publish.uncertain_at:
        times = Counter(publish.uncertain_at)
        sent_to = [f"{each} ({count} times)" if count > 1 else each for each, count in times.items()]
        return unanswered(publish, " and ".join(sent_to), f"then: {reason}")
    return PublishFailed(f"publishing to {publish.topic!r}: {reason}")


class Rules:
    """What nsqd's answers to a publish mean: here those of the original NSQ. Another one has its own."""

    def place_plainly(self, publish: Publish) -> None:
        """Make it one for the original NSQ, or raise UsageError."""

    def accepts(self, publish: Publish, data: bytes) -> bool:
        """Whether an answer other than OK says that nsqd has stored the publish."""
        return False

    def refused(
        self, batch: list[Publish], error: ServerError, address: str, *, retry_uncertain: bool, took: float
    ) -> list[Verdict]:
        """Decide about a refused batch. ``took``: the seconds until the answer. May correct what the error
        says about the connection.
        """
        if len(batch) > 1 and isinstance(error, (BadMessage, BadBody)):
            # No message of the batch is stored. One publish is at fault: send each alone now.
            for publish in batch:
                publish.no_batching = True
            return [Verdict(publish, error, again=True) for publish in batch]
        if error.maybe_stored:
            for publish in batch:
                publish.uncertain_at += (address,)
            if len(batch) > 1:
                errors = [unanswered(each, address, str(error), error) for each in batch]
                return [Verdict(*each, retry_uncertain) for each in zip(batch, errors, strict=True)]
        again = error.retry and (retry_uncertain or not error.maybe_stored)
        # A copy of the error for each: callers must not share a traceback.
        return [Verdict(publish, copy.copy(error) if len(batch) > 1 else error, again) for publish in batch]

    def lost(
        self,
        batch: list[Publish],
        cause: NsqError,
        address: str,
        *,
        executed: bool,
        retry_uncertain: bool,
    ) -> list[Verdict]:
        """Decide about a batch without an answer. ``executed``: it may be stored."""
        if not executed:
            return [Verdict(publish, cause, again=True) for publish in batch]
        for publish in batch:
            publish.uncertain_at += (address,)
        errors = [unanswered(publish, address, str(cause), cause) for publish in batch]
        return [Verdict(*each, retry_uncertain) for each in zip(batch, errors, strict=True)]

    def note_silence(self, publish: Publish, address: str) -> None:
        """Note that nsqd has not answered a publish that had a connection of its own."""

    def dial_at_once(self, error: ServerError) -> bool:
        """Whether to dial nsqd again at once after it has closed the connection with this error: it was the
        caller's, and nothing is wrong with nsqd.
        """
        return not error.retry


PLAIN = Rules()
