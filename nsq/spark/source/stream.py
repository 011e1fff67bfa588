"""The classes that Spark calls: format "nsq" and its stream reader.

Spark makes an ``NsqDataSource`` for every step of planning, in short-lived processes, so it holds no state.
One stream reader lives on the driver, in its own process, as long as the query runs. It takes the reader's
name and starts the receivers at the first call that needs them. Spark also sends unused copies of it to the
tasks, which only call ``read``. So the constructor does nothing, and every method starts what it needs.
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

from nsq.errors import NsqError
from nsq.spark import rows
from nsq.spark.receiver.pool import ReceiverPool
from nsq.spark.rows import Field, require_arrow
from nsq.spark.source.backlog import Poller, measure
from nsq.spark.source.feed import Feed
from nsq.spark.source.offsets import Limits
from nsq.spark.source.options import ReadOptions, SourceOptions
from nsq.spark.source.reader import Reader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds to wait until the reader's previous owner announces that it is leaving; then it gets 30 s to leave.
PATIENCE = 5.0
#: Less than ``feed.RECENT``.
_BACKLOG_EVERY = 2.0


class NsqDataSource(DataSource):
    """``readStream`` consumes a topic, ``read`` reads its log; ``write`` and ``writeStream`` publish."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        require_arrow()

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        """The default schema. Checks the options here, so that ``load()`` reports wrong ones. Spark does not
        tell whether it is to be a stream: its first call reports options that only a batch read has, and
        those that are missing."""
        ReadOptions.of(self.options)
        return rows.SCHEMA

    def streamReader(self, schema: StructType) -> NsqStreamReader:
        # Spark would hide an error raised here below one of its own, so the reader's first call raises it.
        return NsqStreamReader(self.options, rows.fields(schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        from nsq.spark.source.batch import reader_of

        log_to_stderr()
        return reader_of(self.options, rows.fields(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from nsq.spark.sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from nsq.spark.sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite)


def _plainly(method: Callable[P, R]) -> Callable[P, R]:
    """Remove the traceback from our errors: Spark would show all of it to the user."""

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
        self._run().start_available_now()

    @_plainly
    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that Spark passes to ``latestOffset``, which adds our own limits. Not ReadAllAvailable,
        which Spark passes only with trigger(once=True).
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
    """Take the reader's name, and make the feed; receivers start later."""
    from nsq.spark.wal import Subject, open_wal

    log_to_stderr()
    wal = open_wal(options.wal, fsync=options.fsync)
    subject = Subject(options.subscription, options.channel)
    identity = wal.prepare(subject)
    claim = wal.own(options.reader, f"the query that reads {subject}", PATIENCE)
    try:
        feed = Feed(
            options,
            wal,
            Reader(options, wal, identity, claim),
            ReceiverPool(options),
            Poller("backlog", lambda: measure(options, feed.received()), _BACKLOG_EVERY),
        )
        return feed
    except BaseException:
        claim.release()
        raise


def limits(options: SourceOptions, asked_for: ReadLimit) -> Limits:
    """Spark's limit combined with ours; none if Spark wants everything at once."""
    if isinstance(asked_for, ReadAllAvailable):
        return Limits()
    ours = Limits(options.max_messages_per_trigger, options.max_bytes_per_trigger)
    return ours.tightened(asked_for.max_rows) if isinstance(asked_for, ReadMaxRows) else ours


def log_to_stderr() -> None:
    """Log to stderr, which Spark passes on, unless logging is already configured."""
    ours = logging.getLogger("nsq")
    if logging.getLogger().handlers or ours.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    ours.addHandler(handler)
    logging.getLogger("nsq.spark").setLevel(logging.INFO)


#: The exit status that a shell reports for a process ended by SIGTERM.
_STATUS = 128 + signal.SIGTERM


class Termination:
    """A SIGTERM handler that calls ``leave``, then the previous handler, and then ``sys.exit``, so that
    ``finally`` blocks run. Spark stops a stream reader's process by SIGTERM: without this handler the process
    would end at once, and nsqd would deliver the messages in flight again.

    Only the main thread can install a signal handler; in other threads this does nothing.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._owner = os.getpid()
        self._leaving = False
        self._closed = False
        self._previous: Any = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._handle)

    @contextlib.contextmanager
    def ignored(self) -> Iterator[None]:
        """Ignore SIGTERM inside the block, so that a close is not interrupted; then restore the handler."""
        self._leaving = True
        try:
            yield
        finally:
            self._closed = True
            # Another one may have been installed after this one, and may close later: it then removes both.
            installed = handler = signal.getsignal(signal.SIGTERM)
            while isinstance(one := getattr(handler, "__self__", None), Termination) and one._closed:
                handler = one._previous
            if handler is not installed:
                signal.signal(signal.SIGTERM, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        ours = os.getpid() == self._owner and not self._closed  # the process may be a forked child
        if ours and self._leaving:
            return
        if ours:
            self._leaving = True
            self._leave()
        if callable(self._previous):
            self._previous(number, frame)
        sys.exit(_STATUS)
