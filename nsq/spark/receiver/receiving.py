"""One life of a receiver: consumers whose messages go to logs of their own, until these hold too much.

The same in a process that an owner started and in one that a person did. Must not import pyspark.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from nsq.config import Config
from nsq.consumer.consumer import Consumer
from nsq.consumer.handlers import DeadLetterTopic, Requeue
from nsq.errors import NsqError, WalError
from nsq.message import Message, finish_all
from nsq.spark.receiver.protocol import Ready, Rolled, Status, Stopped, together
from nsq.spark.source.backlog import topics as find_topics
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import names
from nsq.spark.wal.store import Log, Wal

if TYPE_CHECKING:
    import pyarrow as pa

    from nsq.producer.producer import Producer

log = logging.getLogger("nsq.spark.receiver")

#: How often the log is listed, in seconds.
_LOOK_EVERY = 1.0
#: Of the most bytes it may hold: below this receiving goes on.
_RESUME_AT = 0.9
_FULL = "full"
#: What is left of a stop's time for the log once the consumer has ended.
_FOR_THE_LOG = 2.0
#: Of what a consumer tells of its servers, the lines with one of these tell of a fault.
_TROUBLES = ("error:", " failed ", "has not answered")
#: nsqd's word for settings that will not do, however often they are tried.
_REFUSALS = ("E_UNAUTHORIZED", "E_AUTH_DISABLED", "requires AUTH")


class Receiving:
    """All topics of one receiver, each with a consumer and a log of its own. ``changed`` is called, by any
    thread, when ``status`` is worth another look.
    """

    def __init__(self, options: SourceOptions, wal: Wal, *, changed: Callable[[], None]) -> None:
        self._options = options
        self._wal = wal
        self._changed = changed
        self._lock = threading.Lock()  # guards the topics
        self._topics: dict[str, TopicReceiver] = {}
        self._others = 0  # bytes the log held at the last look, without what was written here until then
        self._unlisted = ""  # why it could not be listed at the last look
        self._watching = threading.Thread(target=self._watch, name="nsq-spark-limit", daemon=True)
        self._ending = threading.Event()
        self._searching = threading.Thread(target=self._search, name="nsq-spark-topics", daemon=True)
        self._trouble = ""
        self._dead_letters: Producer | None = None
        if options.dead_letter_topic:
            from nsq.producer.producer import Producer  # only those who want it pay for it

            self._dead_letters = Producer(*options.nsqd, nsqlookupd=options.lookupd, config=options.config)
        elif options.config.max_attempts != Config().max_attempts:
            log.warning("maxAttempts has no effect without deadLetterTopic: no message is given up")

    def start(self) -> Ready:
        for topic in self._options.named_topics:
            self._add(topic)
        self._watching.start()
        if self._options.topics_pattern:
            self._searching.start()
        return Ready(",".join(each.log.receiver for each in self._all()))

    def _add(self, topic: str) -> None:
        to = self._wal.log(names.new_receiver())
        try:
            one = TopicReceiver(self._options, topic, to, self._dead_letters, self._appended)
        except BaseException:
            to.close()
            raise
        with self._lock:
            self._topics[topic] = one
        self._look()  # before the first message: the log may be full already
        one.start()

    def _appended(self) -> None:
        self._pause_at(self._others + self._written)
        self._changed()

    @property
    def _written(self) -> int:
        """Bytes of files, by all topics of this receiver."""
        return sum(each.intake.counts.written for each in self._all())

    def _look(self) -> None:
        """See how full the whole log is, whichever receiver filled it, and stop or go on."""
        # Before listing: what is appended meanwhile counts twice until the next look, rather than not at all.
        written = self._written
        try:
            held = sum(file.size for file in self._wal.files())
            held += sum(folder.open_bytes for folder in self._wal.receivers())
        except (WalError, OSError) as error:
            if self._unlisted != str(error):
                self._unlisted = str(error)
                log.warning("cannot see how full the log is: %s", error)
            return
        self._unlisted = ""
        self._others = held - written
        self._pause_at(held)
        if held < _RESUME_AT * self._options.wal_max_bytes:
            for each in self._all():
                each.gate.open(_FULL)

    def _pause_at(self, held: int) -> None:
        most = self._options.wal_max_bytes
        if held >= most:
            for each in self._all():
                each.gate.shut(
                    _FULL, f"the log holds {held:,} bytes, of {most:,} at most: Spark has to catch up first"
                )

    def _watch(self) -> None:
        before = ""
        while not self._ending.wait(_LOOK_EVERY):
            self._look()
            why = self.status().paused
            if why != before:
                before = why
                log.info("receiving %s", f"is paused: {why}" if why else "goes on")
                self._changed()

    def _search(self) -> None:
        """Add topics as they appear. A topic keeps its messages until its first channel, ours, is there."""
        while not self._ending.is_set():
            try:
                for topic in find_topics(self._options):
                    if topic not in self._topics and not self._ending.is_set():
                        self._add(topic)
                self._trouble = ""
            except NsqError as error:
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    log.warning("%s", error)
                    self._changed()
            self._ending.wait(self._options.config.lookupd_poll_interval)

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
        return together([Status(error=self._trouble), *(each.status() for each in self._all())])

    def refusal(self) -> str:
        """Why another try with these settings is no use; empty as long as any topic may still come."""
        found = [each.refusal() for each in self._all()]
        return "; ".join(dict.fromkeys(found)) if found and all(found) else ""

    def stop(self, timeout: float) -> Stopped:
        """Take no more, finish what is in flight, seal. Raises WalError when that cannot be sealed: it is
        then left to the next recovery of the log.
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
            if self._dead_letters is not None:
                self._dead_letters.close(max(0.0, deadline - time.monotonic()))
            if self._watching.ident is not None:  # last: a log that is slow to list must not cost messages
                self._watching.join(max(0.0, deadline - time.monotonic()))
        return Stopped(self._sealed, in_flight)


class TopicReceiver:
    """One topic. The log ``to`` is closed by ``stop``. ``appended`` is called by the thread that appends."""

    def __init__(
        self,
        options: SourceOptions,
        topic: str,
        to: Log,
        dead_letters: Producer | None,
        appended: Callable[[], None],
    ) -> None:
        from nsq.spark.wal.records import stored_messages  # takes its time to load

        self.log = to
        self._ending = threading.Event()
        self._ever_connected = False
        self._consumer = Consumer(
            topic,
            options.channel,
            nsqd=options.nsqd,
            nsqlookupd=options.lookupd,
            give_up=DeadLetterTopic(dead_letters, options.dead_letter_topic) if dead_letters else None,
            config=consumer_config(options),
        )
        self.gate = PauseGate(options.max_in_flight, self._consumer.set_max_in_flight)
        self.intake = Intake(
            to,
            lambda messages: stored_messages(topic, messages),
            self.gate,
            options.segment_bytes,
            changed=appended,
            wait=self._ending.wait,
            clock=time.monotonic,
        )
        self._consumer.add_batch_handler(
            self.intake.take, size=max(1, options.max_in_flight // 2), wait=options.commit_interval
        )

    def start(self) -> None:
        self._consumer.start()
        log.info("receiver %s receives %s", self.log.receiver, self._consumer)

    def status(self) -> Status:
        stats, counts = self._consumer.stats(), self.intake.counts
        self._ever_connected = self._ever_connected or stats.connections > 0
        told = () if stats.connections else self._consumer.health().discovery
        lonely = "; ".join(line for line in told if any(word in line for word in _TROUBLES))
        return Status(
            received=counts.received,
            open_rows=counts.open_rows,
            open_bytes=counts.open_bytes,
            sealed=counts.sealed,
            paused=self.gate.why,
            connections=stats.connections,
            in_flight=stats.in_flight,
            error=self.intake.trouble or lonely,
        )

    def refusal(self) -> str:
        """Why another try with these settings is no use, as far as every nsqd says; else empty."""
        if self._ever_connected or self._consumer.stats().connections:
            return ""
        nsqds = [line for line in self._consumer.health().discovery if line.startswith("nsqd ")]
        hopeless = [line for line in nsqds if any(code in line for code in _REFUSALS)]
        return "; ".join(hopeless) if hopeless and len(hopeless) == len(nsqds) else ""

    def stop(self, timeout: float) -> int:
        """As of all receivers; how many messages are left in flight."""
        self._ending.set()
        report = self._consumer.stop(max(0.0, timeout - _FOR_THE_LOG))
        self.intake.close()
        log.info("receiver %s ends, with %d messages in flight", self.log.receiver, report.in_flight)
        return report.in_flight


def consumer_config(options: SourceOptions) -> Config:
    """What the receiver's consumer is told.

    Without a topic for dead letters no message is ever given up: to the log a message of many attempts is as
    good as any other, and giving it up would lose it.
    """
    attempts = options.config.max_attempts if options.dead_letter_topic else 0
    return dataclasses.replace(
        options.config, max_in_flight=options.max_in_flight, max_attempts=attempts, max_backoff_duration=0.0
    )


# From nsqd into the log: what a batch of messages goes through before it is finished.
#
# Called by the consumer's handler thread, whose return finishes the batch: nothing is finished that is not in
# the log. While the log cannot be written the batch is held and tried again, for as long as nsqd leaves it
# with us; then it is requeued, and one message at a time tests the log until it takes it


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
        self.window = full

    @property
    def why(self) -> str:
        """Why nothing may come, for people; empty when it may."""
        return "; ".join(list(self._reasons.values()))

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
        if window != self.window:
            self.window = window
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
            for message in messages:
                if message.expires_at <= now:
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
