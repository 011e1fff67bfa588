"""A receiver without an owner, for hosts that only receive: no JVM, until a signal comes.

Nobody asks it to seal what it has, so it does that by itself, every ``roll_interval``. Must not import
pyspark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from nsq.errors import ConfigError
from nsq.spark.receiver.bell import Bell
from nsq.spark.receiver.protocol import Status, Stopped
from nsq.spark.receiver.receiving import Receiving
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import names
from nsq.spark.wal.places import open_wal
from nsq.spark.wal.subject import Subject

log = logging.getLogger("nsq.spark.receiver")


def standalone(
    options: SourceOptions,
    *,
    roll_interval: float = 1.0,
    progress: Callable[[str], None] | None = None,
    progress_interval: float = 10.0,
    grace: float = 30.0,
) -> Stopped:
    """Receive until SIGTERM or SIGINT, then end gracefully; a second signal ends the process at once.

    For the main thread. ``progress`` gets a line for people every ``progress_interval`` seconds, and a last
    one at the end. Raises ConfigError, WalError and whatever nsqd has to say about the settings.
    """
    wal = open_wal(options.wal, fsync=options.fsync)
    wal.prepare(Subject(options.topic, options.channel))
    with Bell() as bell, wal.log(names.new_receiver()) as to:
        receiving = Receiving(options, wal, to, changed=_nothing, sealed=_nothing)
        report = Report(progress or log.info, progress_interval, time.monotonic())
        try:
            receiving.start()
            while not bell.signals:
                bell.wait(roll_interval)
                if receiving.open_rows:
                    receiving.roll(0)
                report.turn(receiving.status(), time.monotonic())
                refusal = receiving.refusal()
                if refusal:
                    raise ConfigError(f"nsqd refuses: {refusal}")
        finally:
            stopped = receiving.stop(grace)
        report.end(receiving.status(), stopped)
        return stopped


class Report:
    """Says every now and then how it goes. Pure but for ``tell``."""

    def __init__(self, tell: Callable[[str], None], interval: float, now: float) -> None:
        self._tell = tell
        self._interval = interval
        self._at = now
        self._received = 0
        self._amiss = ""

    def turn(self, status: Status, now: float) -> None:
        """A line when it is time for one, or when something is wrong that was not before."""
        amiss = status.paused or status.error
        passed = now - self._at
        if passed < self._interval and (not amiss or amiss == self._amiss):
            return
        rate = (status.received - self._received) / passed if passed > 0 else 0.0
        self._at, self._received, self._amiss = now, status.received, amiss
        self._tell(progress_line(status, rate))

    def end(self, status: Status, stopped: Stopped) -> None:
        left = f", {stopped.in_flight} left in flight" if stopped.in_flight else ""
        self._tell(f"stopped: {status.received:,} messages received, {status.sealed:,} segments sealed{left}")


def progress_line(status: Status, rate: float) -> str:
    words = [
        f"{status.received:,} messages received ({rate:,.0f}/s)",
        f"{status.sealed:,} segments sealed",
        f"{status.connections} connections",
    ]
    words += [f"paused: {status.paused}"] if status.paused else []
    words += [f"error: {status.error}"] if status.error else []
    return ", ".join(words)


def _nothing(*_: object) -> None:
    """Nobody is waiting for news."""
