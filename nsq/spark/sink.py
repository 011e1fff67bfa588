"""The sink: ``df.write.format("nsq")`` and ``writeStream`` publish the ``body`` of every row as a message.

A task packs its rows into MPUBs, and keeps several of them in flight. This module imports pyspark, so it is
loaded only when something is written; the first rows load pyarrow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from nsq.config import Config
from nsq.errors import ConfigError, InvalidMessage, NsqError, UsageError
from nsq.log import Logger
from nsq.options import closest
from nsq.producer.producer import Producer
from nsq.producer.publishes import NO_OPTIONS, PublishOptions
from nsq.spark.options import SinkOptions, plain_name
from nsq.wire.commands import batches
from nsq.wire.frames import Published
from nsq.wire.names import check_topic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = Logger("nsq.spark")

# The classes that Spark calls


#: The reports of a write's tasks; None for a task that failed.
Messages = list[WriterCommitMessage | None]


@dataclasses.dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """The number of messages and bytes that a task has published."""

    messages: int
    bytes: int


class _Writer:
    """Publishes every row. Raises ConfigError, in one line, for a schema or options that it cannot use."""

    append = '.mode("append")'
    ignored: tuple[str, ...] = ()

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError(f"published messages cannot be overwritten: {self.append}")
        self._options = SinkOptions.of(given, ignored=self.ignored)
        columns = [(field.name, field.dataType.typeName()) for field in schema.fields]
        self._columns = Columns.of(columns, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return publish_rows(self._options, self._columns, iterator)

    def commit(self, messages: Messages, batchId: int | None = None) -> None:  # noqa: N803 - Spark's name
        what, done = _outcome(messages, batchId)
        count, size = sum(report.messages for report in done), sum(report.bytes for report in done)
        log.info("%s: %d messages, %d bytes published by %d tasks", what, count, size, len(done))

    def abort(self, messages: Messages, batchId: int | None = None) -> None:  # noqa: N803 - Spark's name
        what, done = _outcome(messages, batchId)
        log.warning(
            "%s failed: %d of its %d tasks have reported their %d messages as published, others may have "
            "published theirs; all these stay published, and are published again when it is run again",
            *(what, len(done), len(messages), sum(report.messages for report in done)),
        )


def _outcome(messages: Messages, batch: int | None) -> tuple[str, list[TaskReport]]:
    what = "the write" if batch is None else f"batch {batch}"
    return what, [message for message in messages if isinstance(message, TaskReport)]


class BatchWriter(_Writer, DataSourceArrowWriter):
    pass


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    append = '.outputMode("append")'
    ignored = ("checkpointLocation", "queryName")


# The work of a task


def publish_rows(options: SinkOptions, columns: Columns, given: Iterable[pa.RecordBatch]) -> TaskReport:
    """Publish a task's rows. ``columns`` come from ``Columns.of``, which has checked them."""
    producer = Producer(*options.nsqd, nsqlookupd=options.lookupd, config=options.config)
    room = options.pipeline * options.mpub_messages
    pipeline = Pipeline(producer, room=room, retries=options.retries, timeout=options.timeout)
    try:
        for rows in (rows for batch in given for rows in read(batch, columns, options)):
            for single in rows.singles:
                pipeline.publish(rows.topic, [single.body], single)
            for pack in batches(rows.bodies, len, options.mpub_messages, options.mpub_bytes):
                pipeline.publish(rows.topic, pack)
        pipeline.drain()
    except BaseException:
        log.warning("a task failed when at least %d of its messages were published", pipeline.messages)
        raise
    finally:
        producer.close(1.0)  # a short timeout will do: no publish is pending
    return TaskReport(pipeline.messages, pipeline.bytes)


# Which columns are published


_TEXTS = ("string", "char", "varchar")
_DEFER, _KEY, _HEADERS = "deferMs", "key", "headers"
#: The allowed Spark types of each column, and how error messages call them.
_TYPES = {
    "body": (("binary", *_TEXTS), "binary or string; for example to_json(struct(*)) AS body"),
    "topic": (_TEXTS, "string"),
    _DEFER: (("byte", "short", "integer", "long"), "a whole number of milliseconds"),
    _KEY: (("binary", *_TEXTS), "binary or string"),
    _HEADERS: (("map",), "map<string,string>"),
}


class Columns(NamedTuple):
    """The indexes of the columns to publish; None for a column that is missing or not needed."""

    body: int
    topic: int | None
    defer: int | None
    key: int | None = None
    headers: int | None = None

    @classmethod
    def of(cls, fields: Sequence[tuple[str, str]], topic: str) -> Columns:
        """Find and check the columns. ``fields`` are Spark's names and types; ``topic`` is the option, or "".

        Other columns are ignored, so rows of the source can be published as they are.
        """
        body, defer = _place(fields, "body"), _place(fields, _DEFER)
        place = None if topic else _place(fields, "topic")
        there = f" (there are: {', '.join(name for name, _ in fields)})" if fields else ""
        if body is None:
            raise ConfigError(f"there is no column body, which has the messages to publish{there}")
        if not topic and place is None:
            hint = f".option('topic', …), or a column of that name{there}"
            raise ConfigError(f"there is no column topic and no option topic: {hint}")
        # Refuse a misspelled deferMs, which would otherwise be ignored silently.
        plain = {plain_name(name): name for name, _ in fields}
        close = closest(_DEFER, plain, 0.75)
        if defer is None and close:
            raise ConfigError(f"column {plain[close]} is not known; did you mean {_DEFER}?")
        return cls(body, place, defer, _place(fields, _KEY), _place(fields, _HEADERS))


def _place(fields: Sequence[tuple[str, str]], name: str) -> int | None:
    found = [place for place, (each, _) in enumerate(fields) if plain_name(each) == plain_name(name)]
    if not found:
        return None
    if len(found) > 1:
        raise ConfigError(f"there are {len(found)} columns {name}, must be one")
    column, kind = fields[found[0]]
    types, wanted = _TYPES[name]
    if kind not in types:
        raise ConfigError(f"column {column} is of type {kind}, must be {wanted}")
    return found[0]


# From an Arrow batch to bodies by topic, after checking all rows


class Single(NamedTuple):
    """A message that is published by itself: after ``delay`` seconds, or with a key or headers."""

    body: bytes
    delay: float
    options: PublishOptions


class Rows(NamedTuple):
    """The messages for one topic: bodies that can be published together, and the others."""

    topic: str
    bodies: list[bytes]
    singles: list[Single]


def read(batch: pa.RecordBatch, columns: Columns, options: SinkOptions) -> Iterator[Rows]:
    """Split a batch by topic. Checks all rows first: raises InvalidMessage or InvalidName for a bad one."""
    import pyarrow as pa

    if not batch.num_rows:
        return
    # 64-bit offsets, whichever width Spark sends; the cast does not copy the bodies.
    array = batch.column(columns.body).cast(pa.large_binary())
    topics = None if columns.topic is None else batch.column(columns.topic)
    delays = None if columns.defer is None else _delays(batch.column(columns.defer), options.config)
    given = _publish_options(batch, columns)
    _check_sizes(array, options.topic if topics is None else topics, options.config.max_msg_size)
    bodies = _values(array)
    if topics is None:
        yield _rows(options.topic, range(len(bodies)), bodies, delays, given)
        return
    if topics.null_count:
        raise InvalidMessage("a row has null in column topic: leave such rows out, or give the option topic")
    encoded = topics.dictionary_encode()
    found = [check_topic(name) for name in encoded.dictionary.to_pylist()]
    places: list[list[int]] = [[] for _ in found]
    for place, index in enumerate(encoded.indices.to_pylist()):
        places[index].append(place)
    for topic, own in zip(found, places, strict=True):
        yield _rows(topic, own, bodies, delays, given)


def _rows(
    topic: str,
    places: Sequence[int],
    bodies: list[bytes],
    delays: list[float] | None,
    given: list[PublishOptions] | None,
) -> Rows:
    if delays is None and given is None:
        return Rows(topic, [bodies[place] for place in places], [])
    together, singles = [], []
    for place in places:
        delay = delays[place] if delays else 0.0
        own = given[place] if given else NO_OPTIONS
        if delay or own:
            singles.append(Single(bodies[place], delay, own))
        else:
            together.append(bodies[place])
    return Rows(topic, together, singles)


def _publish_options(batch: pa.RecordBatch, columns: Columns) -> list[PublishOptions] | None:
    """Each row's key and headers; None when all are null."""
    places = [place for place in (columns.key, columns.headers) if place is not None]
    if all(batch.column(place).null_count == batch.num_rows for place in places):
        return None
    nulls = [None] * batch.num_rows
    keys = nulls if columns.key is None else batch.column(columns.key).to_pylist()
    headers = nulls if columns.headers is None else batch.column(columns.headers).to_pylist()
    found: list[PublishOptions] = []
    for key, entries in zip(keys, headers, strict=True):
        given: PublishOptions = {"key": key, "headers": None if entries is None else dict(entries)}
        found.append(NO_OPTIONS if key is None and entries is None else given)
    return found


def _check_sizes(bodies: pa.Array, topics: Any, most: int) -> None:
    import pyarrow.compute as pc

    sizes = pc.binary_length(bodies)
    extremes = pc.min_max(sizes)
    if not bodies.null_count and extremes["min"].as_py() > 0 and extremes["max"].as_py() <= most:
        return
    for place, length in enumerate(sizes.to_pylist()):
        if length is None or not 0 < length <= most:
            topic = topics if isinstance(topics, str) else topics[place].as_py()
            what = "a body that is null" if length is None else f"a body of {length} bytes"
            raise InvalidMessage(
                f"a row for topic {topic!r} has {what}, must have 1 to {most} (maxMsgSize, to "
                "be nsqd's --max-msg-size): leave other rows out"
            )


def _delays(column: Any, config: Config) -> list[float] | None:
    """The delays in seconds; None when all are null or 0."""
    import pyarrow.compute as pc

    limit = config.max_defer * 1000
    extremes = pc.min_max(column)
    least, most = extremes["min"].as_py() or 0, extremes["max"].as_py() or 0
    if least < 0 or most > limit:
        raise InvalidMessage(
            f"a row has {least if least < 0 else most} in column deferMs, must be 0 to "
            f"{limit:.0f} (maxDefer, to be nsqd's --max-defer-timeout)"
        )
    return [(value or 0) / 1000 for value in column.to_pylist()] if most else None


def _values(array: pa.Array) -> list[bytes]:
    """The values as a list, like ``to_pylist`` for an array without nulls, but much faster."""
    _, offsets, data = array.buffers()
    first = array.offset
    ends = memoryview(offsets).cast("q")[first : first + len(array) + 1].tolist()
    start = ends[0]
    content = memoryview(data)[start : ends[-1]].tobytes()
    return [content[begin - start : end - start] for begin, end in itertools.pairwise(ends)]


# Publishes in flight: a limited number at once, each with a limited number of retries


class Pipeline:
    """Keeps publishes in flight, at most ``room`` messages in all, and retries those that fail. ``messages``
    and ``bytes`` count what nsqds have stored. For a single thread.
    """

    def __init__(self, publisher: Producer, *, room: int, retries: int, timeout: float) -> None:
        self._publisher = publisher
        self._room = room
        self._retries = retries
        self._timeout = timeout
        self.messages = 0
        self.bytes = 0
        self._inside = 0
        self._attempts: deque[_Attempt] = deque()

    def publish(self, topic: str, bodies: Sequence[bytes], single: Single | None = None) -> None:
        """Publish bodies, after waiting for room; with ``single`` only its body."""
        while self._attempts and self._inside + len(bodies) > self._room:
            self._complete_oldest()
        self._inside += len(bodies)
        self._send(topic, bodies, single, self._retries)

    def _send(self, topic: str, bodies: Sequence[bytes], single: Single | None, retries: int) -> None:
        with _naming_the_row(topic, single):
            if single is None:
                future = self._publisher.multi_publish_async(topic, bodies, timeout=self._timeout)
            else:
                future = self._publisher.publish_async(
                    topic, single.body, defer=single.delay or None, timeout=self._timeout, **single.options
                )
        self._attempts.append(_Attempt(future, topic, bodies, single, retries))

    def drain(self) -> None:
        """Wait for all publishes; raises the error of the first one that failed for good."""
        while self._attempts:
            self._complete_oldest()

    def _complete_oldest(self) -> None:
        """Wait for the oldest publish; retry it or count it."""
        future, topic, bodies, single, retries = self._attempts.popleft()
        try:
            with _naming_the_row(topic, single):
                future.result()  # the publish has its own deadline
        except NsqError as error:
            if not error.retry or not retries:
                raise
            log.warning("publishing %d messages again: %s", len(bodies), error)
            self._send(topic, bodies, single, retries - 1)
            return
        self._inside -= len(bodies)
        self.messages += len(bodies)
        self.bytes += sum(map(len, bodies))


class _Attempt(NamedTuple):
    """A publish in flight."""

    future: Future[Published]
    topic: str
    bodies: Sequence[bytes]
    single: Single | None
    retries: int  # that are left


@contextlib.contextmanager
def _naming_the_row(topic: str, single: Single | None) -> Iterator[None]:
    """Have an error about a key or headers, as on a plain NSQ, say which row it is about."""
    try:
        yield
    except UsageError as error:
        if single is None or not single.options:
            raise
        given = {name: value for name, value in single.options.items() if value is not None}
        shown = " and ".join(f"{value!r:.200} in column {name}" for name, value in given.items())
        dropped = ", ".join(map(repr, given))
        raise InvalidMessage(
            f"a row for topic {topic!r} has {shown}: {error}. To publish without: .drop({dropped})"
        ) from None
