"""From nsqd into a log in an object store: messages wait for their segment to be named, several segments at
once.

The consumer's handler thread only hands batches over. A few threads make segments of what waits and put them;
the log calls back when the manifest names a segment, and then its messages are finished. While they wait they
are touched, so that nsqd does not deliver them again when the store stalls for longer than their timeout.
What was not named when the log ends is given back to nsqd.
"""

from __future__ import annotations

import functools
import itertools
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from nsq.errors import AlreadyResponded, NsqError
from nsq.log import Logger
from nsq.message import Message, finish_all
from nsq.spark.receiver.receiving import Counts, PauseGate, Store, portions
from nsq.spark.wal.shared_log import SharedLog

log = Logger("nsq.spark.receiver")

#: Puts under way at once.
PUTS = 3
#: The most bytes of bodies in a segment, if it has more than one message.
LARGEST_SEGMENT = 64 << 20
#: Seconds between two looks for messages whose timeout is near.
_TOUCH_EVERY = 1.0
#: Receiving pauses when the store has failed for so many seconds. Messages can be touched only up to nsqd's
#: --max-msg-timeout: later nsqd would send all of them here again, and they would fill the memory.
PAUSE_AFTER = 10.0
_LOG = "log"
#: The delay of a requeue in seconds. Without one, nsqd would send the message back here at once, over and
#: over until this receiver has started again, and count each time as an attempt.
_DELAY = 2.0
#: Seconds for the last puts when a receiver stops.
_LAST_PUTS = 5.0
_JOIN = 30.0


class SharedIntake:
    """Stores messages. ``take`` is the consumer's batch handler, and never blocks."""

    def __init__(
        self,
        to: SharedLog,
        store: Store,
        gate: PauseGate,
        *,
        changed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.log = to
        self._store = store
        self._gate = gate
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()  # guards what follows
        self._received = 0
        self._timeout = 0.0
        self._batches: dict[int, list[Message]] = {}  # not finished yet
        self._numbers = itertools.count()
        self._waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        name = to.receiver[-24:]
        self._threads = [
            threading.Thread(target=work, name=f"nsq-spark-{what}-{name}", daemon=True)
            for what, work in [*[("put", self._put)] * PUTS, ("touch", self._touch)]
        ]
        for thread in self._threads:
            thread.start()

    @property
    def counts(self) -> Counts:
        return Counts(received=self._received, written=self.log.written, sealed=self.log.named)

    @property
    def broken(self) -> str:
        return self.log.broken

    @property
    def trouble(self) -> str:
        if self.log.broken or not self.log.trouble:
            return self.log.broken
        return f"cannot write the log: {self.log.trouble}"

    def roll(self) -> str:
        """Do nothing: a segment is sealed when it is put."""
        return ""

    # The handler thread

    def take(self, messages: list[Message]) -> None:
        for message in messages:
            message.disable_auto_response()
        if self.log.broken:
            _give_back(messages)
            return
        if not self._timeout:  # nsqd's, which a touch does not change yet
            self._timeout = messages[0].expires_at - messages[0].received_at
        for portion in portions(messages, LARGEST_SEGMENT // 2):
            with self._lock:
                number = next(self._numbers)
                self._batches[number] = portion
            self._waiting.put(number)

    # The threads that put

    def _put(self) -> None:
        while (first := self._waiting.get()) is not None:
            numbers = self._gathered(first)
            with self._lock:
                batches = [self._batches[number] for number in numbers]
            now = self._clock()
            # nsqd delivers the others again.
            fresh = [message for batch in batches for message in batch if message.expires_at > now]
            if not fresh:
                self._forget(numbers)
                continue
            try:
                self.log.put(self._store(fresh), functools.partial(self._named, numbers, fresh))
            except Exception as error:
                log.warning("%d messages go back to nsqd: %s", len(fresh), error)
                _give_back(self._forget(numbers))

    def _gathered(self, number: int) -> list[int]:
        """The batch and more that wait, as many as fit into a segment."""
        numbers, size = [number], 0
        while True:
            with self._lock:
                size += sum(len(message.body) for message in self._batches[numbers[-1]])
            if size >= LARGEST_SEGMENT // 2:
                return numbers
            try:
                another = self._waiting.get_nowait()
            except queue.Empty:
                return numbers
            if another is None:  # the end, for another thread
                self._waiting.put(None)
                return numbers
            numbers.append(another)

    def _named(self, numbers: list[int], messages: list[Message]) -> None:
        finish_all(messages)
        self._forget(numbers)
        with self._lock:
            self._received += len(messages)
        self._changed()

    def _forget(self, numbers: list[int]) -> list[Message]:
        with self._lock:
            return [message for number in numbers for message in self._batches.pop(number, ())]

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
                touch_expiring(batch, self._timeout, self._clock())

    # The end

    def close(self) -> None:
        """Put what waits, after the last batch, and end. Messages that are not named go back to nsqd."""
        for _ in range(PUTS):
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
