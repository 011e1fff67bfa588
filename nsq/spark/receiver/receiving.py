"""A running receiver: a consumer for each topic, and one log for all, which pauses them when it is full.

``ReceiverPool``'s processes, ``nsq-spark receive`` and the tasks of a job use this. Must not import pyspark.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nsq.config import Config
from nsq.consumer.consumer import Consumer
from nsq.errors import OrderIsMust, WalError
from nsq.log import Logger
from nsq.message import Message
from nsq.spark.receiver.intake import MOST_BYTES, Intake, PauseGate
from nsq.spark.receiver.protocol import Stopped
from nsq.spark.source.backlog import topics as find_topics
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import names
from nsq.spark.wal.status import Status, merge_statuses

if TYPE_CHECKING:
    from nsq.spark.wal.log import Wal
    from nsq.spark.wal.receiver_log import ReceiverLog

log = Logger("nsq.spark.receiver")

#: Seconds between two looks at how full the log is; of the second kind if it is less than half full.
MEASURE_EVERY, MEASURE_SELDOM = 1.0, 10.0
#: The longest between two searches for new topics: messages go to other channels until the topic is found.
_SEARCH_EVERY = 5.0
#: Receiving resumes when the log holds less than this fraction of walMaxBytes.
_RESUME_AT = 0.9
_FULL = "full"
#: Seconds of a stop's timeout that are reserved for closing the log after the consumers.
_FOR_THE_LOG = 2.0
#: Messages in flight of a topic until the size of its bodies is known.
_FIRST_WINDOW = 256
#: A line of a consumer's discovery health that contains one of these reports an error.
_TROUBLES = ("error:", " failed ", "has not answered")
#: nsqd's errors for settings that fail however often a client tries.
_REFUSALS = ("E_UNAUTHORIZED", "E_AUTH_DISABLED", "requires AUTH")


class Receiving:
    """All topics of one receiver, each with its own consumer. Calls ``changed``, from any thread, when
    ``status`` may have changed.
    """

    def __init__(self, options: SourceOptions, wal: Wal, *, changed: Callable[[], None]) -> None:
        self._options = options
        self._wal = wal
        self._changed = changed
        self._lock = threading.Lock()  # guards the topics
        self._topics: dict[str, TopicReceiver] = {}
        self._gate = PauseGate(self._apply_windows)
        self._log: ReceiverLog | None = None
        self._intake: Intake | None = None
        self._deleted = 0  # bytes that this receiver had written and that were gone at the last look
        self._most = options.wal_max_bytes  # our share, as of the last look
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
    def name(self) -> str:
        """The receiver's name in the log; empty before the start."""
        return self._log.receiver if self._log else ""

    def start(self) -> None:
        self._open_log()
        self._measure_log()  # before the first message: the log may be full already
        for topic in self._options.named_topics:
            self._add(topic)
        self._gate.apply(self._apply_windows)
        self._watching.start()
        if self._options.topics_pattern:
            self._searching.start()

    def _open_log(self) -> None:
        from nsq.spark.wal import records  # slow to load: pyarrow

        # The first conversion of a list takes pyarrow up to six seconds, in which messages would time out.
        records.encode(records.stored("", [b"0" * 16], [0], [1], [""], [b""]))
        options = self._options
        self._log = self._wal.log(names.new_receiver())
        self._intake = Intake(
            self._log,
            functools.partial(records.stored_messages, key_header=options.key_header),
            self._gate,
            largest=options.segment_bytes,
            interval=options.commit_interval,
            changed=self._stored,
            clock=time.monotonic,
        )
        self._log.status = self.status

    def _add(self, topic: str) -> None:
        assert self._intake is not None
        one = TopicReceiver(self._options, topic, self._intake, self._resized)
        with self._lock:
            self._topics[topic] = one
        try:
            one.start()
            self._resized(one)  # the log may be full
        except BaseException:
            with self._lock:
                del self._topics[topic]
            one.stop(_FOR_THE_LOG)
            raise

    def _apply_windows(self, paused: bool) -> None:
        """Pause or resume all topics, and divide the bytes that may be in flight among them."""
        topics = self._all()
        for each in topics:
            each.apply_window(MOST_BYTES // len(topics), paused)

    def _resized(self, topic: TopicReceiver) -> None:
        share = MOST_BYTES // max(1, len(self._topics))
        self._gate.apply(lambda paused: topic.apply_window(share, paused))

    def _stored(self) -> None:
        self._pause_at(self._held)
        self._changed()

    @property
    def _held(self) -> int:
        """The bytes of this receiver's segments, less what it may have deleted since the last look."""
        return (self._log.written if self._log else 0) - self._deleted

    def _measure_log(self) -> None:
        """See how much of its share this receiver's log holds, and pause or resume receiving."""
        assert self._log is not None
        # Read this before measuring: what is put meanwhile then counts twice, rather than not at all.
        written = self._log.written
        try:
            with self._measuring:
                held, self._most = self._wal.measure(self._log, self._options.wal_max_bytes)
        except (WalError, OSError) as error:
            if self._unlisted != str(error):
                self._unlisted = str(error)
                log.warning("cannot see how full the log is: %s", error)
            return
        self._unlisted = ""
        self._deleted = written - held
        self._measured = time.monotonic()
        self._pause_at(held)
        if held < _RESUME_AT * self._most:
            self._gate.open(_FULL)

    def _pause_at(self, held: int) -> None:
        most = self._most
        if held >= most:
            why = f"the log holds {held:,} bytes, of {most:,} at most: Spark has to catch up first"
            self._gate.shut(_FULL, why)

    def _watch(self) -> None:
        before = ""
        while not self._ending.wait(MEASURE_EVERY):
            seldom = 2 * self._held < self._most and not (self._log and self._log.full)
            if time.monotonic() - self._measured >= (MEASURE_SELDOM if seldom else MEASURE_EVERY):
                self._measure_log()
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
                        self._gate.apply(self._apply_windows)
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

    def status(self) -> Status:
        intake, to = self._intake, self._log
        if intake is None or to is None:
            return Status()
        own = Status(
            received=intake.received,
            sealed=to.named,
            paused=self._gate.why,
            full=int(to.full or self._gate.is_shut_for(_FULL)),
            error=intake.trouble or self._trouble,
        )
        return merge_statuses([own, *(each.status() for each in self._all())])

    @property
    def broken(self) -> str:
        """Why this receiver has to start again under a new name; empty while it works."""
        return self._log.broken if self._log else ""

    def refusal(self) -> str:
        """Why no topic can be received with these settings; empty while any topic may still connect."""
        found = [each.refusal() for each in self._all()]
        return "; ".join(dict.fromkeys(found)) if found and all(found) else ""

    def stop(self, timeout: float) -> Stopped:
        """Stop receiving, finish the messages in flight, and close the log."""
        deadline = time.monotonic() + timeout
        self._ending.set()
        if self._searching.ident is not None:
            self._searching.join(timeout)
        receivers = self._all()
        left = max(0.0, deadline - time.monotonic() - _FOR_THE_LOG)
        in_flight = 0
        try:
            with ThreadPoolExecutor(max(1, len(receivers)), "nsq-spark-stop") as pool:
                in_flight = sum(pool.map(lambda one: one.stop(left), receivers))
        finally:
            self._close_log()
            if self._watching.ident is not None:  # last: it may be listing a slow log
                self._watching.join(max(0.0, deadline - time.monotonic()))
        log.info("receiver %s ends, with %d messages in flight", self.name, in_flight)
        return Stopped(self._log.named if self._log else 0, in_flight)

    def _close_log(self) -> None:
        if self._intake is not None and self._log is not None:
            if not self._log.trouble:
                self._measure_log()  # which deletes what the query has just committed
            self._intake.close()
        elif self._log is not None:
            self._log.close()


class TopicReceiver:
    """Receives one topic into an intake. Calls ``resized`` when the size of its bodies has changed."""

    def __init__(
        self, options: SourceOptions, topic: str, intake: Intake, resized: Callable[[TopicReceiver], None]
    ) -> None:
        self._topic = topic
        self._intake = intake
        self._resized = resized
        self._most = options.max_in_flight
        self._size = 0  # average of the bodies, lately; 0: not known yet
        self._ever_connected = False
        self._consumer = Consumer(
            topic,
            options.channel,
            nsqd=options.nsqd,
            nsqlookupd=options.lookupd,
            dead_letters=options.dead_letter_topic or None,
            config=consumer_config(options),
        )
        self._consumer.add_batch_handler(
            self._take, size=max(1, options.max_in_flight // 2), wait=options.commit_interval
        )

    def start(self) -> None:
        self._consumer.start()
        log.info("receiver %s receives %s", self._intake.log.receiver, self._consumer)

    def _take(self, messages: list[Message]) -> None:
        size = 1 + sum([len(message.body) for message in messages]) // len(messages)
        if not self._size / 2 <= size <= self._size * 2:
            self._size = size
            self._resized(self)
        self._intake.take(self._topic, messages)

    def apply_window(self, share: int, paused: bool) -> None:
        """Have at most so many bytes in flight, or none."""
        window = share // self._size if self._size else _FIRST_WINDOW
        self._consumer.set_max_in_flight(max(1, min(self._most, window)))
        if paused:
            self._consumer.pause()
        else:
            self._consumer.resume()

    def status(self) -> Status:
        stats = self._consumer.stats()
        self._ever_connected = self._ever_connected or stats.connections > 0
        lines = () if stats.connections else self._consumer.health().discovery
        errors = [line for line in lines if any(word in line for word in _TROUBLES)]
        errors += filter(None, [self._why_unfit()])
        return Status(connections=stats.connections, in_flight=stats.in_flight, error="; ".join(errors))

    def refusal(self) -> str:
        """The errors if the topic cannot be read, or every nsqd refuses these settings; else empty."""
        if unfit := self._why_unfit():
            return unfit
        if self._ever_connected or self._consumer.stats().connections:
            return ""
        nsqds = [line for line in self._consumer.health().discovery if line.startswith("nsqd ")]
        refused = [line for line in nsqds if any(code in line for code in _REFUSALS)]
        return "; ".join(refused) if refused and len(refused) == len(nsqds) else ""

    def _why_unfit(self) -> str:
        if not isinstance(self._consumer.refusal, OrderIsMust):
            return ""
        return (
            f"the topic {self._topic} is ordered, and cannot be read by Spark: a receiver has many messages "
            "of a partition in flight at a time"
        )

    def stop(self, timeout: float) -> int:
        """Stop the consumer, when what it has handed over is stored. Returns how many messages are left in
        flight."""
        return self._consumer.stop(timeout).in_flight


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
