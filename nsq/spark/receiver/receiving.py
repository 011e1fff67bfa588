"""One life of a receiver: consumers whose messages go to logs of their own, until these hold too much.

The same in a process that an owner started and in one that a person did. Must not import pyspark.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from nsq.config import Config
from nsq.consumer.consumer import Consumer
from nsq.consumer.handlers import DeadLetterTopic
from nsq.errors import NsqError, WalError
from nsq.message import Message
from nsq.spark.receiver.intake import Intake, PauseGate
from nsq.spark.receiver.protocol import Ready, Rolled, Status, Stopped, together
from nsq.spark.source.backlog import topics as find_topics
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import names
from nsq.spark.wal.store import Log, Wal

log = logging.getLogger("nsq.spark.receiver")

#: How often the log is listed, in seconds.
_LOOK_EVERY = 1.0
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
        self._limit = SizeLimit(
            lambda: held_bytes(wal),
            options.wal_max_bytes,
            lambda: [each.gate for each in self._all()],
            lambda: sum(each.intake.counts.written for each in self._all()),
        )
        self._watching = threading.Thread(target=self._watch, name="nsq-spark-limit", daemon=True)
        self._ending = threading.Event()
        self._searching = threading.Thread(target=self._search, name="nsq-spark-topics", daemon=True)
        self._trouble = ""
        if not options.dead_letter_topic and options.config.max_attempts != Config().max_attempts:
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
            one = TopicReceiver(self._options, topic, to, self._appended)
        except BaseException:
            to.close()
            raise
        with self._lock:
            self._topics[topic] = one
        self._limit.look()  # before the first message: the log may be full already
        one.start()

    def _appended(self) -> None:
        self._limit.note()
        self._changed()

    def _watch(self) -> None:
        before = ""
        while not self._ending.wait(_LOOK_EVERY):
            self._limit.look()
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
            if self._watching.ident is not None:  # last: a log that is slow to list must not cost messages
                self._watching.join(max(0.0, deadline - time.monotonic()))
        return Stopped(self._sealed, in_flight)


class TopicReceiver:
    """One topic. The log ``to`` is closed by ``stop``. ``appended`` is called by the thread that appends."""

    def __init__(self, options: SourceOptions, topic: str, to: Log, appended: Callable[[], None]) -> None:
        from nsq.spark.wal.records import stored_messages  # takes its time to load

        self.log = to
        self._ending = threading.Event()
        self._ever_connected = False
        with ExitStack() as stack:
            config = consumer_config(options)
            self._consumer = Consumer(
                topic,
                options.channel,
                nsqd=options.nsqd,
                nsqlookupd=options.lookupd,
                give_up=_dead_letters(options, stack),
                config=config,
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
            self._closing = stack.pop_all()

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
        try:
            report = self._consumer.stop(max(0.0, timeout - _FOR_THE_LOG))
        finally:
            self._closing.close()
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


def _dead_letters(options: SourceOptions, stack: ExitStack) -> Callable[[Message], None] | None:
    if not options.dead_letter_topic:
        return None
    from nsq.producer.producer import Producer  # only those who want it pay for it

    producer = Producer(*options.nsqd, nsqlookupd=options.lookupd, config=options.config)
    stack.callback(producer.close)
    return DeadLetterTopic(producer, options.dead_letter_topic)


# How full the whole log is, whichever receiver filled it


#: Of the most it may hold: below this receiving goes on.
_RESUME_AT = 0.9
_FULL = "full"


def held_bytes(wal: Wal) -> int:
    """Bytes of all files of the log, sealed or not."""
    return sum(file.size for file in wal.files()) + sum(folder.open_bytes for folder in wal.receivers())


class SizeLimit:
    """For any thread. ``gates`` are those of all topics; ``appended`` counts this receiver's bytes."""

    def __init__(
        self,
        measure: Callable[[], int],
        most: int,
        gates: Callable[[], Iterable[PauseGate]],
        appended: Callable[[], int],
    ) -> None:
        self._measure = measure
        self._most = most
        self._gates = gates
        self._appended = appended
        self._others = 0  # what it held at the last look, without what was appended here until then
        self._said = ""  # the last error of listing it; logged once

    def look(self) -> None:
        """List the log, and stop or go on."""
        # Before listing: what is appended meanwhile counts twice until the next look, rather than not at all.
        appended = self._appended()
        try:
            found = self._measure()
        except (WalError, OSError) as error:
            if self._said != str(error):
                self._said = str(error)
                log.warning("cannot see how full the log is: %s", error)
            return
        self._said = ""
        self._others = found - appended
        if found >= self._most:
            self._shut(found)
        elif found < _RESUME_AT * self._most:
            for gate in self._gates():
                gate.open(_FULL)

    def note(self) -> None:
        """Something was appended."""
        held = self._others + self._appended()
        if held >= self._most:
            self._shut(held)

    def _shut(self, held: int) -> None:
        why = f"the log holds {held:,} bytes, of {self._most:,} at most: Spark has to catch up first"
        for gate in self._gates():
            gate.shut(_FULL, why)
