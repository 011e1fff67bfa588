"""One life of a receiver: a consumer whose messages go to a log of their own.

The same in a process that an owner started (``process.py``) and in one that a person did (``standalone.py``).
Must not import pyspark.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from nsq.consumer.consumer import Consumer
from nsq.consumer.handlers import DeadLetterTopic
from nsq.message import Message
from nsq.spark.receiver.gauge import Gauge, held_bytes
from nsq.spark.receiver.intake import Intake, Store
from nsq.spark.receiver.protocol import Ready, Rolled, Status, Stopped
from nsq.spark.receiver.settings import consumer_config
from nsq.spark.receiver.valve import Valve
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.store import Log, Segment, Wal

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("nsq.spark.receiver")

#: How often the log is listed, in seconds.
_LOOK_EVERY = 1.0
#: What is left of a stop's time for the log once the consumer has ended.
_FOR_THE_LOG = 2.0
#: nsqd's word for settings that will not do, however often they are tried.
_REFUSALS = ("E_UNAUTHORIZED", "E_AUTH_DISABLED", "requires AUTH")


class Receiving:
    """``wal`` and ``to`` are its own: the log is closed by ``stop``. ``changed`` is called, by any thread,
    when ``status`` is worth another look, ``sealed`` with segments that were sealed unasked.
    """

    def __init__(
        self,
        options: SourceOptions,
        wal: Wal,
        to: Log,
        *,
        changed: Callable[[], None],
        sealed: Callable[[Segment], None],
    ) -> None:
        self._log = to
        self._changed = changed
        self._ending = threading.Event()
        self._ever_connected = False
        with ExitStack() as stack:
            config = consumer_config(options)
            self._consumer = Consumer(
                options.topic,
                options.channel,
                nsqd=options.nsqd,
                nsqlookupd=options.lookupd,
                give_up=_dead_letters(options, stack),
                config=config,
            )
            self._valve = Valve(options.max_in_flight, self._consumer.set_max_in_flight)
            self._intake = Intake(
                to,
                _store_of(options.topic),
                self._valve,
                options.segment_bytes,
                sealed=sealed,
                changed=self._appended,
                wait=self._ending.wait,
                clock=time.monotonic,
            )
            self._consumer.add_batch_handler(
                self._intake.take, size=max(1, options.max_in_flight // 2), wait=options.commit_interval
            )
            self._closing = stack.pop_all()
        self._gauge = Gauge(
            lambda: held_bytes(wal), options.wal_max_bytes, self._valve, lambda: self._intake.counts.bytes
        )
        self._watching = threading.Thread(target=self._watch, name="nsq-spark-gauge", daemon=True)
        _warn_of(options)

    def start(self) -> Ready:
        self._gauge.look()  # before the first message: it may be full already
        self._consumer.start()
        self._watching.start()
        log.info("receiver %s receives %s", self._log.receiver, self._consumer)
        return Ready(self._log.receiver, os.getpid())

    def _appended(self) -> None:
        self._gauge.note()
        self._changed()

    def _watch(self) -> None:
        while not self._ending.wait(_LOOK_EVERY):
            before = self._valve.why
            self._gauge.look()
            if self._valve.why != before:
                why = self._valve.why
                log.info("receiving %s", f"is paused: {why}" if why else "goes on")
                self._changed()

    def roll(self, token: int) -> Rolled:
        segment, error = self._intake.roll()
        return Rolled(token, segment, error)

    @property
    def open_rows(self) -> int:
        return self._intake.counts.open_rows

    def status(self) -> Status:
        stats, counts = self._consumer.stats(), self._intake.counts
        self._ever_connected = self._ever_connected or stats.connections > 0
        return Status(
            received=counts.received,
            open_rows=counts.open_rows,
            open_bytes=counts.open_bytes,
            sealed=counts.sealed,
            paused=self._valve.why,
            connections=stats.connections,
            in_flight=stats.in_flight,
            error=self._intake.trouble or ("" if stats.connections else self._lonely()),
        )

    def _lonely(self) -> str:
        return "; ".join(line for line in self._consumer.health().discovery if _tells_of_fault(line))

    def refusal(self) -> str:
        """Why another try with these settings is no use, as far as every nsqd says; else empty."""
        if self._ever_connected or self._consumer.stats().connections:
            return ""
        nsqds = [line for line in self._consumer.health().discovery if line.startswith("nsqd ")]
        hopeless = [line for line in nsqds if any(code in line for code in _REFUSALS)]
        return "; ".join(hopeless) if hopeless and len(hopeless) == len(nsqds) else ""

    def stop(self, timeout: float) -> Stopped:
        """Take no more, finish what is in flight, seal. Raises WalError when that cannot be sealed: it is
        then left to whoever recovers the log.
        """
        deadline = time.monotonic() + timeout
        self._ending.set()
        try:
            report = self._consumer.stop(max(0.0, timeout - _FOR_THE_LOG))
        finally:
            if self._watching.ident is not None:
                self._watching.join(max(0.0, deadline - time.monotonic()))
            self._closing.close()
        segment = self._intake.close()
        log.info("receiver %s ends, with %d messages in flight", self._log.receiver, report.in_flight)
        return Stopped(segment, report.in_flight)


def _store_of(topic: str) -> Store:
    from nsq.spark.wal.records import stored

    def store(messages: list[Message]) -> pa.RecordBatch:
        return stored(
            topic,
            [message.id for message in messages],
            [message.timestamp for message in messages],
            [message.attempts for message in messages],
            [message.nsqd_address for message in messages],
            [message.body for message in messages],
        )

    return store


def _dead_letters(options: SourceOptions, stack: ExitStack) -> Callable[[Message], None] | None:
    if not options.dead_letter_topic:
        return None
    from nsq.producer.producer import Producer  # only those who want it pay for it

    producer = Producer(*options.nsqd, nsqlookupd=options.lookupd, config=options.config)
    stack.callback(producer.close)
    return DeadLetterTopic(producer, options.dead_letter_topic)


def _warn_of(options: SourceOptions) -> None:
    if not options.dead_letter_topic and options.config.max_attempts != type(options.config).max_attempts:
        log.warning("maxAttempts has no effect without deadLetterTopic: no message is given up")


def _tells_of_fault(line: str) -> bool:
    return "error:" in line or " failed " in line or "has not answered" in line
