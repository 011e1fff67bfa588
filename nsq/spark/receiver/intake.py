"""From nsqd into the log: what a batch of messages goes through before it is finished.

Called by the consumer's handler thread, whose return finishes the batch: nothing is finished that is not in
the log. While the log cannot be written the batch is held and tried again, for as long as nsqd leaves it with
us; then it is requeued, and one message at a time tests the log until it takes it.
Must not import pyspark.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from nsq.consumer.handlers import Requeue
from nsq.errors import WalError
from nsq.message import Message, finish_all
from nsq.spark.wal.store import Log

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("nsq.spark.receiver")

#: Bytes of bodies that are appended at a time; far below what one Arrow array of bytes can hold.
LARGEST_APPEND = 256 << 20
#: Pauses between attempts to append, in seconds: doubling from the first to the longest.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
#: Of a message's time, kept so that its requeuing still finds it in flight.
_RESERVE = 0.1
_LOG, _SEAL = "log", "seal"

#: Makes a batch of the log's of messages.
Store = Callable[[list[Message]], "pa.RecordBatch"]


class Counts(NamedTuple):
    """One moment's numbers. ``written`` counts the bytes of files, ever. The open rows, with so many bytes of
    bodies, are sealed by the next roll.
    """

    received: int = 0
    written: int = 0
    open_rows: int = 0
    open_bytes: int = 0
    sealed: int = 0


class PauseGate:
    """For any thread."""

    def __init__(self, full: int, apply: Callable[[int], None]) -> None:
        self._full = full
        self._apply = apply
        # Held while the window is applied, too: that only queues RDYs, and orders that overtake each other
        # would leave a window that no reason asks for.
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        self._testing = False
        self._window = full

    @property
    def why(self) -> str:
        """Why nothing may come, for people; empty when it may."""
        return "; ".join(list(self._reasons.values()))

    @property
    def window(self) -> int:
        return self._window

    def shut(self, about: str, why: str) -> None:
        with self._lock:
            self._reasons[about] = why
            self._adjust()

    def open(self, about: str) -> None:
        """That reason is gone."""
        with self._lock:
            self._reasons.pop(about, None)
            self._adjust()

    def test(self, testing: bool) -> None:
        """One message at a time, until it is known that all is well again."""
        with self._lock:
            self._testing = testing
            self._adjust()

    def _adjust(self) -> None:
        window = 0 if self._reasons else min(1, self._full) if self._testing else self._full
        if window != self._window:
            self._window = window
            self._apply(window)


class Intake:
    """``take`` is the consumer's batch handler; every other method is for any thread.

    ``changed`` is told that ``counts`` have changed, and may not block. ``wait`` pauses for so many seconds,
    less when the receiver is to stop, and says whether it is.
    """

    def __init__(
        self,
        to: Log,
        store: Store,
        gate: PauseGate,
        segment_bytes: int,
        *,
        changed: Callable[[], None],
        wait: Callable[[float], bool],
        clock: Callable[[], float],
    ) -> None:
        self._log = to
        self._store = store
        self._gate = gate
        self._segment_bytes = segment_bytes
        self._changed = changed
        self._wait = wait
        self._clock = clock
        # Not for state alone: the log is not for two threads, so its user holds this, for as long as one
        # append takes.
        self._turn = threading.Lock()
        self.counts = Counts()  # replaced, never changed
        self._troubles: dict[str, str] = {}  # likewise

    # The handler.

    def take(self, messages: list[Message]) -> None:
        """Return when they are in the log; raises Requeue for what has to come again."""
        portions = list(_portions(messages))
        for portion in portions:
            self._keep(portion)
            if len(portions) > 1:
                finish_all(portion)  # whatever becomes of the next one

    def _keep(self, messages: list[Message]) -> None:
        pause = FIRST_PAUSE
        while fresh := self._fresh(messages):
            fault = self._append(fresh)
            if fault is None:
                if _LOG in self._troubles:
                    self._settle(_LOG, "the log can be written again")
                    self._gate.test(False)
                    self._gate.open(_LOG)
                return
            self._gate.shut(_LOG, "the log cannot be written")
            self._complain(_LOG, f"cannot write the log: {fault}")
            left = min(_latest(message) for message in fresh) - self._clock()
            if left <= 0 or self._wait(min(pause, left)):
                break
            pause = min(2 * pause, LONGEST_PAUSE)
        if self._troubles:
            self._gate.test(True)
            self._gate.open(_LOG)
        if fresh:
            raise Requeue(0.0, backoff=False)

    def _fresh(self, messages: list[Message]) -> list[Message]:
        """Without those whose time is up: nsqd has them again, and would let us finish what is nowhere."""
        now = self._clock()
        fresh = [message for message in messages if message.expires_at > now]
        if len(fresh) < len(messages):
            kept = set(map(id, fresh))
            for message in messages:
                if id(message) not in kept:
                    message.disable_auto_response()
        return fresh

    def _append(self, messages: list[Message]) -> Exception | None:
        """What kept them out of the log."""
        batch = self._store(messages)
        with self._turn:
            try:
                self._log.append(batch)
            except (WalError, OSError) as error:
                self._count()
                return error
            self._count(received=self.counts.received + len(messages), written=self._log.written)
            if self._log.open_bytes >= self._segment_bytes:
                self._seal()  # the messages are safe: if it fails, that is no reason to have them again
        self._changed()
        return None

    @property
    def trouble(self) -> str:
        """What is wrong at the moment, for people; empty when nothing is."""
        return "; ".join(list(self._troubles.values()))

    def _complain(self, about: str, trouble: str) -> None:
        if self._troubles.get(about) != trouble:
            self._troubles = self._troubles | {about: trouble}
            log.error("%s", trouble)
            self._changed()

    def _settle(self, about: str, text: str) -> None:
        if about in self._troubles:
            self._troubles = {name: told for name, told in self._troubles.items() if name != about}
            log.warning("%s", text)
            self._changed()

    # Everybody else.

    def roll(self) -> str:
        """Seal what is open; why that could not be done, empty when it was."""
        with self._turn:
            return self._seal()

    def close(self) -> None:
        """After the last batch: seal, and leave the log. Raises WalError."""
        with self._turn:
            segment = self._log.close()
            self._count(sealed=self.counts.sealed + (segment is not None), open_rows=0, open_bytes=0)

    def _seal(self) -> str:
        try:
            segment = self._log.roll()
        except (WalError, OSError) as error:
            self._complain(_SEAL, f"cannot seal a segment: {error}")
            return str(error)
        self._settle(_SEAL, "segments can be sealed again")
        self._count(sealed=self.counts.sealed + (segment is not None))
        if segment is not None:
            log.debug("sealed segment %d: %d messages, %d bytes", segment.number, segment.rows, segment.bytes)
        return ""

    def _count(self, **news: int) -> None:
        now = {"open_rows": self._log.open_rows, "open_bytes": self._log.open_bytes} | news
        self.counts = self.counts._replace(**now)


def _latest(message: Message) -> float:
    """When it is high time to give it back."""
    return message.expires_at - _RESERVE * (message.expires_at - message.received_at)


def _portions(messages: list[Message], largest: int = LARGEST_APPEND) -> Iterator[list[Message]]:
    """All of them, unless their bodies are too much for one append."""
    if len(messages) > 1 and sum(len(message.body) for message in messages) > largest:
        middle = len(messages) // 2
        yield from _portions(messages[:middle], largest)
        yield from _portions(messages[middle:], largest)
    else:
        yield messages
