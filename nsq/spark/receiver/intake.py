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
from nsq.spark.receiver.valve import Valve
from nsq.spark.wal.store import Log, Segment

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
    """One moment's numbers. ``bytes`` counts bodies that were appended, ever; the open ones are sealed by the
    next roll."""

    received: int = 0
    bytes: int = 0
    open_rows: int = 0
    open_bytes: int = 0
    sealed: int = 0


class Intake:
    """``take`` is the consumer's batch handler; every other method is for any thread.

    ``sealed`` is told of segments that are sealed because they are full, ``changed`` that ``counts`` have
    changed: neither may block. ``wait`` pauses for so many seconds, less when the receiver is to stop, and
    says whether it is.
    """

    def __init__(
        self,
        to: Log,
        store: Store,
        valve: Valve,
        segment_bytes: int,
        *,
        sealed: Callable[[Segment], None],
        changed: Callable[[], None],
        wait: Callable[[float], bool],
        clock: Callable[[], float],
    ) -> None:
        self._log = to
        self._store = store
        self._valve = valve
        self._segment_bytes = segment_bytes
        self._tell_sealed = sealed
        self._changed = changed
        self._wait = wait
        self._clock = clock
        # Not for state alone: the log is not for two threads, so whoever uses it has this, for as long as one
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
                self._well_again()
                return
            self._valve.shut(_LOG, "the log cannot be written")
            self._complain(_LOG, f"cannot write the log: {fault}")
            left = min(_latest(message) for message in fresh) - self._clock()
            if left <= 0 or self._wait(min(pause, left)):
                break
            pause = min(2 * pause, LONGEST_PAUSE)
        if self._troubles:
            self._valve.test(True)
            self._valve.open(_LOG)
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
            size = sum(len(message.body) for message in messages)
            received, total = self.counts.received + len(messages), self.counts.bytes + size
            self._count(received=received, bytes=total)
            full = self._log.open_bytes >= self._segment_bytes
            # The messages are safe, so a segment that cannot be sealed is no reason to have them again.
            segment = self._seal()[0] if full else None
        if segment is not None:
            self._tell_sealed(segment)
        self._changed()
        return None

    def _well_again(self) -> None:
        if _LOG in self._troubles:
            self._settle(_LOG, "the log can be written again")
            self._valve.test(False)
            self._valve.open(_LOG)

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

    def roll(self) -> tuple[Segment | None, str]:
        """What was sealed, and why it was not when it could not be."""
        with self._turn:
            return self._seal()

    def close(self) -> Segment | None:
        """After the last batch: seal, and leave the log. Raises WalError."""
        with self._turn:
            segment = self._log.close()
            self._count(sealed=self.counts.sealed + (segment is not None), open_rows=0, open_bytes=0)
        return segment

    def _seal(self) -> tuple[Segment | None, str]:
        try:
            segment = self._log.roll()
        except (WalError, OSError) as error:
            self._complain(_SEAL, f"cannot seal a segment: {error}")
            return None, str(error)
        self._settle(_SEAL, "segments can be sealed again")
        self._count(sealed=self.counts.sealed + (segment is not None))
        if segment is not None:
            log.debug("sealed segment %d: %d messages, %d bytes", segment.number, segment.rows, segment.bytes)
        return segment, ""

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
