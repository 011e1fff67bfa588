"""A running receiver: for each topic a consumer that writes messages into a log, and pauses when it is full.

``ReceiverPool``'s processes and ``nsq-spark receive`` both use this. Must not import pyspark.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from nsq.config import Config
from nsq.consumer.consumer import Consumer
from nsq.consumer.decisions import Requeue
from nsq.errors import WalError
from nsq.log import Logger
from nsq.message import Message, finish_all
from nsq.spark.receiver.protocol import Rolled, Status, Stopped, merge_statuses
from nsq.spark.source.backlog import topics as find_topics
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import names
from nsq.spark.wal.store import Log, Wal

if TYPE_CHECKING:
    import pyarrow as pa

    from nsq.spark.receiver.shared_intake import SharedIntake
    from nsq.spark.wal.directory import DirectoryLog

log = Logger("nsq.spark.receiver")

#: Seconds between two looks at how full the log is; of the second kind if it is less than half full.
MEASURE_EVERY, MEASURE_SELDOM = 1.0, 10.0
#: The longest between two searches for new topics: messages go to other channels until the topic is found.
_SEARCH_EVERY = 5.0
#: Receiving resumes when the log holds less than this fraction of walMaxBytes.
_RESUME_AT = 0.9
_FULL = "full"
#: Seconds of a stop's timeout that are reserved for closing the log after the consumer.
_FOR_THE_LOG = 2.0
#: A line of a consumer's discovery health that contains one of these reports an error.
_TROUBLES = ("error:", " failed ", "has not answered")
#: nsqd's errors for settings that fail however often a client tries.
_REFUSALS = ("E_UNAUTHORIZED", "E_AUTH_DISABLED", "requires AUTH")


class Receiving:
    """All topics of one receiver, each with its own consumer and log. Calls ``changed``, from any thread,
    when ``status`` may have changed.
    """

    def __init__(self, options: SourceOptions, wal: Wal, *, changed: Callable[[], None]) -> None:
        self._options = options
        self._wal = wal
        self._changed = changed
        self._lock = threading.Lock()  # guards the topics
        self._topics: dict[str, TopicReceiver] = {}
        self._others = 0  # bytes in the log at the last look, less what this receiver had written
        self._most = options.wal_max_bytes  # that the log may hold; in an object store, our share
        self._measured = float("-inf")
        self._measuring = threading.Lock()  # one look at the log at a time: the log remembers what it saw
        self._unlisted = ""  # why the log could not be listed at the last look
        self._watching = threading.Thread(target=self._watch, name="nsq-spark-limit", daemon=True)
        self._ending = threading.Event()
        self._searching = threading.Thread(target=self._search, name="nsq-spark-topics", daemon=True)
        self._trouble = ""
        if not options.dead_letter_topic and options.config.max_attempts != Config().max_attempts:
            log.warning("maxAttempts has no effect without deadLetterTopic: no message is given up")
        if not options.dead_letter_topic and options.config.max_age:
            log.warning("maxAge has no effect without deadLetterTopic: no message is given up")

    @property
    def names(self) -> str:
        """The names of all topics' receivers, separated by commas."""
        return ",".join(each.log.receiver for each in self._all())

    def start(self) -> None:
        for topic in self._options.named_topics:
            self._add(topic)
        self._watching.start()
        if self._options.topics_pattern:
            self._searching.start()

    def _add(self, topic: str) -> None:
        to = self._wal.log(names.new_receiver())
        try:
            one = TopicReceiver(self._options, topic, to, self._appended)
        except BaseException:
            to.close()
            raise
        with self._lock:
            self._topics[topic] = one
        self._measure_log()  # before the first message: the log may be full already
        try:
            one.start()
        except BaseException:
            with self._lock:
                del self._topics[topic]
            one.stop(_FOR_THE_LOG)
            raise

    def _appended(self) -> None:
        self._pause_at(self._others + self._written)
        self._changed()

    @property
    def _written(self) -> int:
        """Bytes of files that all topics of this receiver have written."""
        return sum(each.intake.counts.written for each in self._all())

    def _measure_log(self) -> None:
        """Measure the whole log, including other receivers' files, and pause or resume receiving."""
        # Read this before listing: appends made meanwhile then count twice, rather than not at all.
        written = self._written
        logs: list[Any] = [each.log for each in self._all()]
        try:
            with self._measuring:
                held, self._most = self._wal.measure(logs, self._options.wal_max_bytes)
        except (WalError, OSError) as error:
            if self._unlisted != str(error):
                self._unlisted = str(error)
                log.warning("cannot see how full the log is: %s", error)
            return
        self._unlisted = ""
        self._others = held - written
        self._measured = time.monotonic()
        self._pause_at(held)
        if held < _RESUME_AT * self._most:
            for each in self._all():
                each.gate.open(_FULL)

    def _pause_at(self, held: int) -> None:
        most = self._most
        if held >= most:
            for each in self._all():
                each.gate.shut(
                    _FULL, f"the log holds {held:,} bytes, of {most:,} at most: Spark has to catch up first"
                )

    def _watch(self) -> None:
        before = ""
        while not self._ending.wait(MEASURE_EVERY):
            seldom = 2 * (self._others + self._written) < self._most
            if time.monotonic() - self._measured >= (MEASURE_SELDOM if seldom else MEASURE_EVERY):
                self._measure_log()
            for each in self._all():
                each.report()
            why = self.status().paused
            if why != before:
                before = why
                log.info("receiving %s", f"is paused: {why}" if why else "goes on")
                self._changed()

    def _search(self) -> None:
        """Add topics as they appear. A new topic keeps its messages until its first channel exists; what is
        published between the creation of another channel and that of ours, ours does not get.
        """
        while not self._ending.is_set():
            try:
                for topic in find_topics(self._options):
                    if topic not in self._topics and not self._ending.is_set():
                        self._add(topic)
                self._trouble = ""
            except Exception as error:  # perhaps there can be no more threads now; the next round tries again
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    log.warning("cannot receive all topics: %s", error)
                    self._changed()
            self._ending.wait(min(_SEARCH_EVERY, self._options.config.lookupd_poll_interval))

    def _all(self) -> list[TopicReceiver]:
        with self._lock:
            return list(self._topics.values())

    def roll(self, token: int) -> Rolled:
        errors = [each.intake.roll() for each in self._all()]
        return Rolled(token, self._sealed, "; ".join(filter(None, errors)))

    @property
    def _sealed(self) -> int:
        return sum(each.intake.counts.sealed for each in self._all())

    @property
    def open_rows(self) -> int:
        return sum(each.intake.counts.open_rows for each in self._all())

    def status(self) -> Status:
        return merge_statuses([Status(error=self._trouble), *(each.status() for each in self._all())])

    @property
    def broken(self) -> str:
        """Why this receiver has to start again under new names; empty while it works."""
        return "; ".join(filter(None, [each.broken for each in self._all()]))

    def refusal(self) -> str:
        """Why no topic can be received with these settings; empty while any topic may still connect."""
        found = [each.refusal() for each in self._all()]
        return "; ".join(dict.fromkeys(found)) if found and all(found) else ""

    def stop(self, timeout: float) -> Stopped:
        """Stop receiving, finish the messages in flight, and seal. Raises WalError when a log cannot be
        sealed; the next recovery then seals it.
        """
        deadline = time.monotonic() + timeout
        self._ending.set()
        if self._searching.ident is not None:
            self._searching.join(timeout)
        receivers = self._all()
        left = max(0.0, deadline - time.monotonic())
        try:
            with ThreadPoolExecutor(max(1, len(receivers)), "nsq-spark-stop") as pool:
                in_flight = sum(pool.map(lambda one: one.stop(left), receivers))
        finally:
            if self._watching.ident is not None:  # last: it may be listing a slow log
                self._watching.join(max(0.0, deadline - time.monotonic()))
        return Stopped(self._sealed, in_flight)


class TopicReceiver:
    """Receives one topic into the log ``to``, which ``stop`` closes. Calls ``appended`` after each append."""

    def __init__(self, options: SourceOptions, topic: str, to: Log, appended: Callable[[], None]) -> None:
        from nsq.spark.receiver.shared_intake import SharedIntake
        from nsq.spark.wal import records  # slow to load: pyarrow
        from nsq.spark.wal.shared_log import SharedLog

        self.log = to
        self._ending = threading.Event()
        self._ever_connected = False
        self._consumer = Consumer(
            topic,
            options.channel,
            nsqd=options.nsqd,
            nsqlookupd=options.lookupd,
            dead_letters=options.dead_letter_topic or None,
            config=consumer_config(options),
        )
        self.gate = PauseGate(options.max_in_flight, self._consumer.set_max_in_flight)

        def store(messages: list[Message]) -> pa.RecordBatch:
            return records.stored_messages(topic, messages)

        # The first conversion of a list takes pyarrow up to six seconds, in which messages would time out.
        records.encode(records.stored(topic, [b"0" * 16], [0], [1], [""], [b""]))
        self.intake: Intake | SharedIntake
        wait = options.commit_interval
        if isinstance(to, SharedLog):
            self.intake = SharedIntake(to, store, self.gate, changed=appended, clock=time.monotonic)
            to.status = self.status
            wait = 0.5 if wait is None else wait
        else:
            self.intake = Intake(
                to,
                store,
                self.gate,
                options.segment_bytes,
                changed=appended,
                wait=self._ending.wait,
                clock=time.monotonic,
            )
        self._consumer.add_batch_handler(
            self.intake.take, size=max(1, options.max_in_flight // 2), wait=0.1 if wait is None else wait
        )

    @property
    def broken(self) -> str:
        """Why its log is at its end; empty while it is not."""
        return self.intake.broken

    def start(self) -> None:
        self._consumer.start()
        log.info("receiver %s receives %s", self.log.receiver, self._consumer)

    def status(self) -> Status:
        stats, counts = self._consumer.stats(), self.intake.counts
        self._ever_connected = self._ever_connected or stats.connections > 0
        lines = () if stats.connections else self._consumer.health().discovery
        lonely = "; ".join(line for line in lines if any(word in line for word in _TROUBLES))
        return Status(
            received=counts.received,
            open_rows=counts.open_rows,
            open_bytes=counts.open_bytes,
            sealed=counts.sealed,
            paused=self.gate.why,
            full=int(self.gate.is_shut_for(_FULL)),
            connections=stats.connections,
            in_flight=stats.in_flight,
            error=self.intake.trouble or lonely,
        )

    def report(self) -> None:
        """Leave a report in a directory's log; one in an object store writes it with each segment."""
        if isinstance(self.intake, Intake):
            self.intake.report(self.status())

    def refusal(self) -> str:
        """The errors if every nsqd refuses these settings; else empty."""
        if self._ever_connected or self._consumer.stats().connections:
            return ""
        nsqds = [line for line in self._consumer.health().discovery if line.startswith("nsqd ")]
        refused = [line for line in nsqds if any(code in line for code in _REFUSALS)]
        return "; ".join(refused) if refused and len(refused) == len(nsqds) else ""

    def stop(self, timeout: float) -> int:
        """Stop the consumer, then seal and close the log. Returns how many messages are left in flight."""
        self._ending.set()
        report = self._consumer.stop(max(0.0, timeout - _FOR_THE_LOG))
        self.intake.close()
        log.info("receiver %s ends, with %d messages in flight", self.log.receiver, report.in_flight)
        return report.in_flight


def consumer_config(options: SourceOptions) -> Config:
    """The configuration of the receiver's consumer.

    Without deadLetterTopic the consumer never gives up a message: the log stores an old one, or one of many
    attempts, like any other, and giving it up would lose it.
    """
    keeps = bool(options.dead_letter_topic)
    return dataclasses.replace(
        options.config,
        max_in_flight=options.max_in_flight,
        max_attempts=options.config.max_attempts if keeps else 0,
        max_age=options.config.max_age if keeps else 0.0,
        max_backoff_duration=0.0,
    )


# From nsqd into the log: how a batch of messages is stored before it is finished.
#
# The consumer's handler thread calls ``Intake.take``, and finishes the batch when that returns: so a message
# is finished only when it is in the log. While the log cannot be written, the handler keeps the batch and
# tries again until the message timeout is near. Then it requeues the batch, and the window shrinks to one
# message, which tests the log until the log accepts it


#: The most bytes of bodies per append; far below the limit of an Arrow array.
LARGEST_APPEND = 256 << 20
#: Pauses between attempts to append, in seconds: they double from the first to the longest.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
#: The fraction of the message timeout that is reserved, so that a requeue arrives in time.
_RESERVE = 0.1
_LOG, _SEAL = "log", "seal"

#: Makes a stored batch of messages.
Store = Callable[[list[Message]], "pa.RecordBatch"]


class Counts(NamedTuple):
    """A snapshot of an intake's counters. ``written`` is the bytes of all files. The next roll seals the
    open rows; ``open_bytes`` is the size of their bodies.
    """

    received: int = 0
    written: int = 0
    open_rows: int = 0
    open_bytes: int = 0
    sealed: int = 0


class PauseGate:
    """Pauses a consumer: its window of messages in flight is 0 while any reason stands. Thread-safe."""

    def __init__(self, full: int, apply: Callable[[int], None]) -> None:
        self._full = full
        self._apply = apply
        # Also held during ``_apply``, which only queues RDYs: otherwise two changes could be applied in the
        # wrong order.
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        self._testing = False
        self.window = full

    @property
    def why(self) -> str:
        """Why receiving is paused, as text; empty when it is not."""
        return "; ".join(list(self._reasons.values()))

    def is_shut_for(self, about: str) -> bool:
        return about in self._reasons

    def shut(self, about: str, why: str) -> None:
        with self._lock:
            self._reasons[about] = why
            self._adjust()

    def open(self, about: str) -> None:
        """Remove one reason for the pause."""
        with self._lock:
            self._reasons.pop(about, None)
            self._adjust()

    def test(self, testing: bool) -> None:
        """Allow one message at a time while ``testing``; then the full window again."""
        with self._lock:
            self._testing = testing
            self._adjust()

    def _adjust(self) -> None:
        window = 0 if self._reasons else min(1, self._full) if self._testing else self._full
        if window != self.window:
            self.window = window
            self._apply(window)


class Intake:
    """Stores messages in a directory's log. ``take`` is the consumer's batch handler; any thread may call the
    others.

    ``changed`` is called when ``counts`` have changed, and must not block. ``wait`` sleeps, but returns True
    as soon as the receiver stops.
    """

    broken = ""

    def __init__(
        self,
        to: DirectoryLog,
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
        self._turn = threading.Lock()  # guards the log, which is not thread-safe; held during an append
        self.counts = Counts()  # replaced, never mutated
        self._troubles: dict[str, str] = {}  # replaced, never mutated

    # The handler thread

    def take(self, messages: list[Message]) -> None:
        """Store the messages: they are in the log on return. Raises Requeue for those that are not."""
        portioned = list(portions(messages))
        for portion in portioned:
            self._keep(portion)
            if len(portioned) > 1:
                finish_all(portion)  # now, because a later portion may fail

    def _keep(self, messages: list[Message]) -> None:
        pause = FIRST_PAUSE
        while fresh := self._fresh(messages):
            error = self._append(fresh)
            if error is None:
                if _LOG in self._troubles:
                    self._clear_trouble(_LOG, "the log can be written again")
                    self._gate.test(False)
                    self._gate.open(_LOG)
                return
            self._gate.shut(_LOG, "the log cannot be written")
            self._report_trouble(_LOG, f"cannot write the log: {error}")
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
        """The messages that have not timed out. The others must not be finished: nsqd delivers them again."""
        now = self._clock()
        fresh = [message for message in messages if message.expires_at > now]
        if len(fresh) < len(messages):
            for message in messages:
                if message.expires_at <= now:
                    message.disable_auto_response()
        return fresh

    def _append(self, messages: list[Message]) -> Exception | None:
        """Append messages to the log; return the error, or None on success."""
        batch = self._store(messages)
        with self._turn:
            try:
                self._log.append(batch)
            except (WalError, OSError) as error:
                self._count()
                return error
            self._count(received=self.counts.received + len(messages), written=self._log.written)
            if self._log.open_bytes >= self._segment_bytes:
                self._seal()  # the messages are durable even if this fails
        self._changed()
        return None

    @property
    def trouble(self) -> str:
        """The current errors as text; empty when there are none."""
        return "; ".join(list(self._troubles.values()))

    def _report_trouble(self, about: str, trouble: str) -> None:
        if self._troubles.get(about) != trouble:
            self._troubles = self._troubles | {about: trouble}
            log.error("%s", trouble)
            self._changed()

    def _clear_trouble(self, about: str, text: str) -> None:
        if about in self._troubles:
            self._troubles = {name: text for name, text in self._troubles.items() if name != about}
            log.warning("%s", text)
            self._changed()

    # Any thread

    def roll(self) -> str:
        """Seal the open rows; return the error, or an empty text on success."""
        with self._turn:
            return self._seal()

    def report(self, status: Status) -> None:
        with self._turn:
            self._log.report(status)

    def close(self) -> None:
        """Seal and close the log, after the last batch. Raises WalError."""
        with self._turn:
            segment = self._log.close()
            self._count(sealed=self.counts.sealed + (segment is not None), open_rows=0, open_bytes=0)

    def _seal(self) -> str:
        try:
            segment = self._log.roll()
        except (WalError, OSError) as error:
            self._report_trouble(_SEAL, f"cannot seal a segment: {error}")
            return str(error)
        self._clear_trouble(_SEAL, "segments can be sealed again")
        self._count(sealed=self.counts.sealed + (segment is not None))
        if segment is not None:
            log.debug("sealed segment %d: %d messages, %d bytes", segment.number, segment.rows, segment.bytes)
        return ""

    def _count(self, **news: int) -> None:
        now = {"open_rows": self._log.open_rows, "open_bytes": self._log.open_bytes} | news
        self.counts = self.counts._replace(**now)


def _latest(message: Message) -> float:
    """The latest time to requeue a message."""
    return message.expires_at - _RESERVE * (message.expires_at - message.received_at)


def portions(messages: list[Message], largest: int = LARGEST_APPEND) -> Iterator[list[Message]]:
    """Split messages into lists whose bodies fit into one append."""
    if len(messages) > 1 and sum(len(message.body) for message in messages) > largest:
        middle = len(messages) // 2
        yield from portions(messages[:middle], largest)
        yield from portions(messages[middle:], largest)
    else:
        yield messages
