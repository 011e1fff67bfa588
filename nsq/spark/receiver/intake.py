"""From nsqd into the log: messages of all topics wait until the manifest names their segment.

The consumers' handler threads only hand batches over. A few threads make segments of what waits and put them;
the log calls back when the manifest names a segment, and then its messages are finished. While they wait they
are touched, so that nsqd does not deliver them again when the store stalls for longer than their timeout.
What was not named when the log ends is given back to nsqd.
"""

from __future__ import annotations

import functools
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from nsq.errors import AlreadyResponded, NsqError
from nsq.log import Logger
from nsq.message import Message, finish_all

if TYPE_CHECKING:
    import pyarrow as pa

    from nsq.spark.wal.receiver_log import ReceiverLog

log = Logger("nsq.spark.receiver")

#: Puts under way at once.
PUTS = 3
#: The most bytes of bodies that may wait here, in all topics together.
MOST_BYTES = 256 << 20
#: Receiving resumes when less than this fraction of them waits.
_RESUME_AT = 0.5
#: A batch that was collected for less than this fraction of the interval came early.
_EARLY = 0.8
#: Seconds between two looks for messages whose timeout is near.
_TOUCH_EVERY = 1.0
#: Receiving pauses when the store has failed for so many seconds. Messages can be touched only up to nsqd's
#: --max-msg-timeout: later nsqd would send all of them here again, and they would fill the memory.
PAUSE_AFTER = 10.0
_LOG, _BYTES = "log", "bytes"
#: The delay of a requeue in seconds. Without one, nsqd would send the message back here at once, over and
#: over until this receiver has started again, and count each time as an attempt.
_DELAY = 2.0
#: Seconds for the last puts when a receiver stops.
_LAST_PUTS = 5.0
_JOIN = 30.0

#: Makes a stored batch of the messages of some topics.
Store = Callable[[Sequence[tuple[str, list[Message]]]], "pa.RecordBatch"]


class PauseGate:
    """Pauses receiving while any reason stands. ``apply`` is called with whether it is shut, when that
    changes. Thread-safe."""

    def __init__(self, apply: Callable[[bool], None]) -> None:
        self._apply = apply
        # Also held during ``_apply``, which only queues RDYs: otherwise two changes could be applied in the
        # wrong order.
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}

    @property
    def is_shut(self) -> bool:
        return bool(self._reasons)

    @property
    def why(self) -> str:
        """Why receiving is paused, as text; empty when it is not."""
        return "; ".join(list(self._reasons.values()))

    def is_shut_for(self, about: str) -> bool:
        return about in self._reasons

    def shut(self, about: str, why: str) -> None:
        with self._lock:
            was_open = not self._reasons
            self._reasons[about] = why
            if was_open:
                self._apply(True)

    def open(self, about: str) -> None:
        """Remove one reason for the pause."""
        with self._lock:
            if self._reasons.pop(about, None) is not None and not self._reasons:
                self._apply(False)

    def apply(self, to: Callable[[bool], None]) -> None:
        """Call ``to`` with whether it is shut, which does not change meanwhile."""
        with self._lock:
            to(bool(self._reasons))


class _Batch(NamedTuple):
    """Messages of a topic. ``timeout`` is nsqd's, which a touch does not change. ``early``: the consumer did
    not collect them for the whole interval, because no more can come before these are finished."""

    topic: str
    messages: list[Message]
    bytes: int
    timeout: float
    early: bool


class Intake:
    """Stores messages. ``take`` is the consumers' batch handler, and never blocks.

    A segment has at most ``largest`` bytes of bodies, if it has more than one message. Consumers collect
    messages for ``interval`` seconds, and so does this, so that many topics do not make many segments.
    """

    def __init__(
        self,
        to: ReceiverLog,
        store: Store,
        gate: PauseGate,
        *,
        largest: int,
        interval: float,
        changed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.log = to
        self.received = 0
        self._store = store
        self._gate = gate
        self._largest = largest
        self._interval = interval
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()  # guards ``received`` and what follows
        self._batches: dict[int, _Batch] = {}  # not finished yet
        self._bytes = 0  # of their bodies
        self._numbers = itertools.count()
        self._waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._gathering = threading.Lock()  # one thread collects a segment at a time
        self._put_at = float("-inf")
        self._ending = threading.Event()
        name = to.receiver[-24:]
        self._threads = [
            threading.Thread(target=work, name=f"nsq-spark-{what}-{name}", daemon=True)
            for what, work in [*[("put", self._put)] * PUTS, ("touch", self._touch)]
        ]
        for thread in self._threads:
            thread.start()

    @property
    def trouble(self) -> str:
        if self.log.broken or not self.log.trouble:
            return self.log.broken
        return f"cannot write the log: {self.log.trouble}"

    # The handler threads

    def take(self, topic: str, messages: list[Message]) -> None:
        for message in messages:
            message.disable_auto_response()
        if self.log.broken:
            _give_back(messages)
            return
        first = messages[0]
        timeout = first.expires_at - first.received_at
        early = self._clock() - first.received_at < _EARLY * self._interval
        for portion, size in portions(messages, self._largest // 2):
            with self._lock:
                number = next(self._numbers)
                self._batches[number] = _Batch(topic, portion, size, timeout, early)
                self._bytes += size
                much = self._bytes >= MOST_BYTES
            self._waiting.put(number)
            if much:
                self._gate.shut(_BYTES, f"{MOST_BYTES >> 20} MiB of messages wait for the log")

    # The threads that put

    def _put(self) -> None:
        while True:
            with self._gathering:
                numbers = self._gather()
            if not numbers:
                return
            with self._lock:
                batches = [self._batches[number] for number in numbers]
            now = self._clock()
            # nsqd delivers the others again.
            fresh = [(one.topic, [m for m in one.messages if m.expires_at > now]) for one in batches]
            fresh = [(topic, messages) for topic, messages in fresh if messages]
            if not fresh:
                self._forget(numbers)
                continue
            try:
                self.log.put(self._store(fresh), functools.partial(self._named, numbers, fresh))
            except Exception as error:
                messages = self._forget(numbers)
                log.warning("%d messages go back to nsqd: %s", len(messages), error)
                _give_back(messages)

    def _gather(self) -> list[int]:
        """Wait for batches, and collect as many as fit into a segment; none at the end."""
        number = self._waiting.get()
        until = self._put_at + self._interval
        numbers, size = list[int](), 0
        while number is not None:
            numbers.append(number)
            with self._lock:
                batch = self._batches[number]
            size += batch.bytes
            if size >= self._largest // 2:
                break
            until = float("-inf") if batch.early else until
            left = until - self._clock()
            try:
                number = self._waiting.get(timeout=left) if left > 0 else self._waiting.get_nowait()
            except queue.Empty:
                break
        else:
            self._waiting.put(None)  # for another thread
        self._put_at = self._clock()
        return numbers

    def _named(self, numbers: list[int], fresh: Sequence[tuple[str, list[Message]]]) -> None:
        for _, messages in fresh:
            finish_all(messages)
        self._forget(numbers)
        with self._lock:
            self.received += sum(len(messages) for _, messages in fresh)
        self._changed()

    def _forget(self, numbers: list[int]) -> list[Message]:
        with self._lock:
            gone = [self._batches.pop(number) for number in numbers if number in self._batches]
            self._bytes -= sum(batch.bytes for batch in gone)
            little = self._bytes < _RESUME_AT * MOST_BYTES
        if little and self._gate.is_shut_for(_BYTES):
            self._gate.open(_BYTES)
        return [message for batch in gone for message in batch.messages]

    # The thread that touches

    def _touch(self) -> None:
        well_at = self._clock()
        while not self._ending.wait(_TOUCH_EVERY):
            if not self.log.trouble:
                well_at = self._clock()
                self._gate.open(_LOG)
            elif self._clock() - well_at >= PAUSE_AFTER:
                self._gate.shut(_LOG, "the log cannot be written")
            with self._lock:
                batches = list(self._batches.values())
            for batch in batches:
                touch_expiring(batch.messages, batch.timeout, self._clock())

    # The end

    def close(self) -> None:
        """Put what waits, after the last batch, and end. Messages that are not named go back to nsqd."""
        self._waiting.put(None)
        until = self._clock() + _LAST_PUTS
        for thread in self._threads[:PUTS]:
            thread.join(max(0.0, until - self._clock()))
        self.log.close()  # which ends those that still wait for the store
        self._ending.set()
        for thread in self._threads:
            thread.join(_JOIN)
        with self._lock:
            left = list(self._batches)
        _give_back(self._forget(left))


def portions(messages: list[Message], largest: int) -> Iterator[tuple[list[Message], int]]:
    """Split messages into lists of at most ``largest`` bytes of bodies, or of one message."""
    size = sum([len(message.body) for message in messages])
    if len(messages) > 1 and size > largest:
        middle = len(messages) // 2
        yield from portions(messages[:middle], largest)
        yield from portions(messages[middle:], largest)
    else:
        yield messages, size


def touch_expiring(messages: list[Message], timeout: float, now: float) -> None:
    """Touch the messages that have used half of their time."""
    for message in messages:
        if 0 < message.expires_at - now < timeout / 2:
            with suppress(AlreadyResponded):
                message.touch()


def _give_back(messages: list[Message]) -> None:
    for message in messages:
        with suppress(NsqError):
            message.requeue(_DELAY, backoff=False)
