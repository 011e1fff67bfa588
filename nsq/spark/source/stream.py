"""Format "nsq", and its stream reader, as Spark drives them.

Spark makes an ``NsqDataSource`` for every step of planning, in processes that come and go: it says what there
is, and no more. One stream reader lives on the driver, in a process of its own, as long as the query runs: it
holds the reader's name and starts receivers, at the first question that needs them. Copies that were never
asked anything are sent to the tasks, and only ``read``. So making one does nothing, and every method begins
what it needs.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from nsq.errors import ConfigError, NsqError
from nsq.spark import rows
from nsq.spark.receiver.pool import ReceiverPool
from nsq.spark.rows import Field, require_arrow
from nsq.spark.source.backlog import Poller, measure
from nsq.spark.source.feed import Feed
from nsq.spark.source.offsets import Limits
from nsq.spark.source.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds for the reader's last query to say that it is leaving; from then on it has half a minute.
PATIENCE = 5.0
_BACKLOG_EVERY = 3.0
#: The option that tells a batch read, which looks without taking anything, from a stream.
MODE = "mode"


class NsqDataSource(DataSource):
    """``readStream`` consumes a topic, ``read`` with mode=peek looks at one, ``write`` and ``writeStream``
    publish."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        require_arrow()

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        """Only called for reading, and where the error of a wrong option can still be that of ``load()``."""
        if MODE not in self.options:
            try:
                SourceOptions.of(self.options)
            except NsqError as error:
                raise ConfigError(
                    f"{error} (this is about readStream; spark.read wants .option('{MODE}', 'peek'))"
                ) from None
        return rows.SCHEMA

    def streamReader(self, schema: StructType) -> NsqStreamReader:
        # An error here would be buried below one of Spark's own: it is raised by the first question.
        return NsqStreamReader(self.options, rows.fields(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        from nsq.spark.batch import PeekReader

        return PeekReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from nsq.spark.sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from nsq.spark.sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite)


def _plainly(method: Callable[P, R]) -> Callable[P, R]:
    """Spark shows the user the whole traceback; of what our errors say, none of it is part."""

    @functools.wraps(method)
    def plain(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except NsqError as error:
            raise error.with_traceback(None) from None

    return plain


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, given: Mapping[str, str], columns: Sequence[Field]) -> None:
        self._given = dict(given)
        self._columns = list(columns)
        self._running: tuple[Feed, Termination] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_running": None}

    # On the driver

    @_plainly
    def prepareForTriggerAvailableNow(self) -> None:
        self._run().aim()

    @_plainly
    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark hands it back to ``latestOffset``, where our own limits hold beside it. Not ReadAllAvailable:
        Spark asks for that with trigger(once=True) alone.
        """
        self._run()
        return ReadMaxRows(sys.maxsize)

    @_plainly
    def initialOffset(self) -> dict[str, Any]:
        return self._run().initial()

    @_plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        feed = self._run()
        once = isinstance(limit, ReadAllAvailable)
        return dict(feed.latest(start, limits(feed.options, limit), once=once))

    @_plainly
    def reportLatestOffset(self) -> dict[str, Any]:
        return self._run().report()

    @_plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from nsq.spark.source.reading import Portion

        feed = self._run()
        place, strict = feed.wal.location, feed.options.fail_on_data_loss
        return [InputPartition(Portion(place, tuple(task), strict)) for task in feed.plan(start, end)]

    @_plainly
    def commit(self, end: dict[str, Any]) -> None:
        self._run().commit(end)

    def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            feed, termination = running
            with termination.ignored():
                feed.close()

    def _run(self) -> Feed:
        if self._running is None:
            options = SourceOptions.of(self._given)
            rows.checked(self._columns)
            feed = start_feed(options)
            self._running = feed, Termination(feed.leaving)
        return self._running[0]

    # In a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from nsq.spark.source.reading import read

        return read(partition.value, self._columns)


def start_feed(options: SourceOptions) -> Feed:
    """Take the reader's name; nothing is received yet."""
    from nsq.spark.source.reading import newest, published
    from nsq.spark.wal import Subject, open_wal

    _speak()
    wal = open_wal(options.wal, fsync=options.fsync)
    subject = Subject(options.subscription, options.channel)
    identity = wal.prepare(subject)
    claim = wal.own(options.reader, f"the query that reads {subject}", PATIENCE)
    try:
        receivers = ReceiverPool(options, wal)
        return Feed(
            options,
            wal,
            identity,
            claim,
            receivers,
            Poller("backlog", lambda: measure(options, receivers.status().received), _BACKLOG_EVERY),
            functools.lru_cache(maxsize=64)(functools.partial(published, wal)),
            functools.partial(newest, wal),
        )
    except BaseException:
        claim.release()
        raise


def limits(options: SourceOptions, asked_for: ReadLimit) -> Limits:
    """Spark's and ours beside it, unless the trigger wants everything at once."""
    if isinstance(asked_for, ReadAllAvailable):
        return Limits()
    ours = Limits(options.max_messages_per_trigger, options.max_bytes_per_trigger)
    return ours.tightened(asked_for.max_rows) if isinstance(asked_for, ReadMaxRows) else ours


def _speak() -> None:
    """Log to stderr, which Spark passes on, unless logging is set up already."""
    ours = logging.getLogger("nsq")
    if logging.getLogger().handlers or ours.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    ours.addHandler(handler)
    logging.getLogger("nsq.spark").setLevel(logging.INFO)


#: What a shell reports for a process that SIGTERM has ended.
_STATUS = 128 + signal.SIGTERM


class Termination:
    """From now on, SIGTERM calls ``leave``, then the handler that was there before, and then exits as
    ``sys.exit`` does, so that ``finally`` blocks run. Spark stops the process of a stream reader by SIGTERM:
    without a handler it would end on the spot, and what is in flight would come again.

    Only the main thread of a process may say what a signal does; elsewhere nothing happens.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._owner = os.getpid()
        self._leaving = False
        self._previous: Any = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._handle)

    @contextlib.contextmanager
    def ignored(self) -> Iterator[None]:
        """What is on its way out must not be cut short. Afterwards the handler is the former one."""
        self._leaving = True
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        ours = os.getpid() == self._owner  # and not a child that was forked from it
        if ours and self._leaving:
            return
        self._leaving = True
        if ours:
            self._leave()
        if callable(self._previous):
            self._previous(number, frame)
        sys.exit(_STATUS)
