"""The stream reader, as Spark drives it.

One instance lives on the driver, in a process of its own, as long as the query runs: it owns the log and
starts receivers, at the first question that needs them. Copies that were never asked anything are sent to the
tasks, and only ``read``. So making one does nothing, and every method begins what it needs.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from nsq.errors import NsqError
from nsq.spark import rows
from nsq.spark.receiver.crew import Crew
from nsq.spark.rows import Field
from nsq.spark.source.admission import Limits
from nsq.spark.source.backlog import Backlog, measure
from nsq.spark.source.feed import Feed
from nsq.spark.source.gauge import BacklogGauge
from nsq.spark.source.offsets import Slice
from nsq.spark.source.options import SourceOptions
from nsq.spark.source.receivers import NoReceivers, OwnReceivers
from nsq.spark.source.termination import Termination

if TYPE_CHECKING:
    import pyarrow as pa

    from nsq.spark.source.reading import Portion
    from nsq.spark.wal.store import Wal

P = ParamSpec("P")
R = TypeVar("R")

#: For whoever owns the log to say that it is leaving, in seconds; from then on it has half a minute.
PATIENCE = 5.0
_BACKLOG_EVERY = 3.0
_BACKLOG_OFTEN = 0.5


def _plainly(method: Callable[P, R]) -> Callable[P, R]:
    """Spark shows the user the whole traceback; of what our errors say, none of it is part."""

    @functools.wraps(method)
    def plain(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except NsqError as error:
            raise error.with_traceback(None) from None

    return plain


class ReadTask(InputPartition):
    def __init__(self, portion: Portion) -> None:
        super().__init__(None)
        self.portion = portion


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, given: Mapping[str, str], columns: Sequence[Field]) -> None:
        self._given = dict(given)
        self._columns = list(columns)
        self._running: _Running | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_running": None}

    # On the driver

    @_plainly
    def prepareForTriggerAvailableNow(self) -> None:
        running = self._run(_BACKLOG_OFTEN)
        running.feed.aim()

    @_plainly
    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark hands it back to ``latestOffset``, or another one where the trigger says so."""
        options = self._run().options
        if options.max_messages_per_trigger is not None:
            return ReadMaxRows(options.max_messages_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    @_plainly
    def initialOffset(self) -> dict[str, Any]:
        return self._run().feed.initial()

    @_plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        running = self._run()
        return dict(running.feed.latest(start, limits(running.options, limit)))

    @_plainly
    def reportLatestOffset(self) -> dict[str, Any]:
        return self._run().feed.report()

    @_plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        running = self._run()
        return [ReadTask(running.portion(task)) for task in running.feed.plan(start, end)]

    @_plainly
    def commit(self, end: dict[str, Any]) -> None:
        self._run().feed.commit(end)

    def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _run(self, backlog_every: float = _BACKLOG_EVERY) -> _Running:
        if self._running is None:
            options = SourceOptions.of(self._given)
            rows.checked(self._columns)
            self._running = _Running(options, backlog_every)
        return self._running

    # In a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from nsq.spark.source.reading import read

        assert isinstance(partition, ReadTask)
        return read(partition.portion, self._columns)


def limits(options: SourceOptions, asked_for: ReadLimit) -> Limits:
    """Spark knows one limit at a time; ours hold beside it, unless the trigger wants everything at once."""
    ours = Limits(options.max_messages_per_trigger, options.max_bytes_per_trigger)
    if isinstance(asked_for, ReadMaxRows):
        return ours.tightened(rows=asked_for.max_rows)
    if isinstance(asked_for, ReadMaxBytes):
        return ours.tightened(size=asked_for.max_bytes)
    return Limits()


class _Running:
    """What there is while a query runs: the feed with all that belongs to it."""

    def __init__(self, options: SourceOptions, backlog_every: float) -> None:
        from nsq.spark.source.reading import published
        from nsq.spark.wal import Subject, open_wal

        _speak()
        self.options = options
        self._wal = open_wal(options.wal, fsync=options.fsync)
        subject = Subject(options.topic, options.channel)
        identity = self._wal.prepare(subject)
        claim = self._wal.own(f"the query that reads {subject}", PATIENCE)

        @functools.lru_cache(maxsize=64)
        def since_when(piece: Slice) -> float | None:
            return published(self._wal, piece)

        def age(piece: Slice) -> float | None:
            since = since_when(piece)
            return None if since is None else max(0.0, time.time() - since)

        receivers = _receivers(options, self._wal)

        def backlog() -> Backlog:
            received = receivers.received()  # first: what comes meanwhile must not count twice
            return dataclasses.replace(measure(options), received=received)

        try:
            self.feed = Feed(
                options,
                self._wal,
                identity,
                claim,
                receivers,
                BacklogGauge("backlog", backlog, backlog_every, time.monotonic),
                age,
                wanted=_same_parent(),
            )
        except BaseException:
            claim.release()
            raise
        self._termination = Termination(self.feed.leaving)
        self._termination.begin()

    def portion(self, task: Sequence[Slice]) -> Portion:
        from nsq.spark.source.reading import Portion

        return Portion(self._wal.location, tuple(task), self.options.fail_on_data_loss)

    def stop(self) -> None:
        self._termination.ignore()
        try:
            self.feed.close()
        finally:
            self._termination.end()


def _receivers(options: SourceOptions, wal: Wal) -> OwnReceivers | NoReceivers:
    if not options.receivers:
        return NoReceivers()
    return OwnReceivers(Crew(options, wal), options.receivers)


def _same_parent() -> Callable[[], bool]:
    """Whether the JVM that asks is still there: who waits for a long time would not notice otherwise."""
    parent = os.getppid()
    return lambda: os.getppid() == parent


def _speak() -> None:
    """What there is to tell goes to stderr, which Spark passes on, where nobody has said anything else."""
    ours = logging.getLogger("nsq")
    if logging.getLogger().handlers or ours.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    ours.addHandler(handler)
    logging.getLogger("nsq.spark").setLevel(logging.INFO)
