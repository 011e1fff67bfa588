"""Messages as Arrow columns: as the log stores them, and as Spark wants them. Imports pyarrow, never pyspark.

Columns are built from whole lists and joined buffers: a Python loop per message would cost more than the
disk.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from nsq.errors import WalError

ID_BYTES = 16
TOPIC = b"nsq.topic"

SPLIT_BYTES = 64 << 20
"""``batches`` begins another batch when the bodies of one exceed this: offsets in a column have 31 bits."""

STORED = pa.schema(
    [
        pa.field("id", pa.binary(ID_BYTES), nullable=False),
        pa.field("timestamp_ns", pa.int64(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("nsqd", pa.string(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""The topic stands in the schema's metadata: a log has one."""

ROW = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("nsqd", pa.string()),
        pa.field("id", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_ns", pa.int64()),
        pa.field("attempts", pa.int32()),
        pa.field("body", pa.binary()),
    ]
)
"""What Spark sees, if it asks for everything."""

COLUMNS = tuple(ROW.names)


def stored_schema(topic: str) -> pa.Schema:
    return STORED.with_metadata({TOPIC: topic.encode()})


def topic_of(schema: pa.Schema) -> str:
    """The topic of a stored schema; empty when it names none."""
    return bytes((schema.metadata or {}).get(TOPIC, b"")).decode()


def stored(
    topic: str,
    ids: Sequence[bytes],
    timestamps: Sequence[int],
    attempts: Sequence[int],
    nsqds: Sequence[str],
    bodies: Sequence[bytes],
) -> pa.RecordBatch:
    """One batch of parallel lists; timestamps in nanoseconds, nsqds as host:port. Bodies of 2 GiB and more
    in all do not fit into one: ``batches``.
    """
    joined = b"".join(ids)
    if len(joined) != ID_BYTES * len(ids):
        wrong = next(one for one in ids if len(one) != ID_BYTES)
        raise WalError(f"message id {wrong!r} has {len(wrong)} bytes, not {ID_BYTES}")
    body = pa.array(bodies, pa.binary())
    if isinstance(body, pa.ChunkedArray):
        raise WalError(f"{len(bodies)} bodies of more than 2 GiB do not fit into one batch: use batches()")
    columns = [
        pa.Array.from_buffers(pa.binary(ID_BYTES), len(ids), [None, pa.py_buffer(joined)]),
        pa.array(timestamps, pa.int64()),
        pa.array(attempts, pa.int32()),
        pa.array(nsqds, pa.string()),
        body,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=stored_schema(topic))


def batches(
    topic: str,
    ids: Sequence[bytes],
    timestamps: Sequence[int],
    attempts: Sequence[int],
    nsqds: Sequence[str],
    bodies: Sequence[bytes],
    split_bytes: int = SPLIT_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The same in as many batches as it needs: usually one; of no messages, none."""
    for start, end in _portions(bodies, split_bytes):
        part = slice(start, end)
        yield stored(topic, ids[part], timestamps[part], attempts[part], nsqds[part], bodies[part])


def _portions(bodies: Sequence[bytes], limit: int) -> Iterator[tuple[int, int]]:
    ends = list(accumulate(map(len, bodies)))
    if not ends or ends[-1] <= limit:
        if ends:
            yield 0, len(ends)
        return
    start, before = 0, 0
    for index, end in enumerate(ends):
        if end - before > limit and index > start:
            yield start, index
            start, before = index, ends[index - 1]
    yield start, len(ends)


def body_bytes(batch: pa.RecordBatch) -> int:
    return pc.sum(pc.binary_length(batch.column("body"))).as_py() or 0


def checksum(batch: pa.RecordBatch) -> int:
    """Of the values of a stored batch, however it is laid out: a tail that never reached the disk can look
    like a complete batch with zeros for bodies.
    """
    value = 0
    for column in batch.columns:
        for part in _content(column):
            value = zlib.crc32(part, value)
    return value


def _content(column: pa.Array) -> Iterator[pa.Buffer]:
    count, start = len(column), column.offset
    buffers = column.buffers()
    if len(buffers) == 2:
        width = column.type.bit_width // 8
        yield buffers[1].slice(start * width, count * width)
        return
    yield pc.binary_length(column).buffers()[1].slice(0, 4 * count)
    if buffers[2] is not None and count:
        first, last = _bounds(buffers[1], start, count)
        yield buffers[2].slice(first, last - first)


def _bounds(offsets: pa.Buffer, start: int, count: int) -> tuple[int, int]:
    numbers = memoryview(offsets.slice(4 * start, 4 * count + 4)).cast("i")
    return numbers[0], numbers[count]


def rows(batch: pa.RecordBatch, topic: str, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """Those columns of Spark's row, in that order, without copying what need not be."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise WalError(f"there is no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    schema = pa.schema([ROW.field(name) for name in columns])
    arrays = [
        _topic(batch, topic) if name == "topic" else _MADE.get(name, _as_is(name))(batch) for name in columns
    ]
    if not arrays:  # a batch without columns has no length of its own
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _topic(batch: pa.RecordBatch, topic: str) -> pa.Array:
    return pa.repeat(pa.scalar(topic, pa.string()), batch.num_rows)


def _id(batch: pa.RecordBatch) -> pa.Array:
    column = batch.column("id")
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:  # nsqd sends hexadecimal digits; whatever another server sends is shown somehow
        return pa.array([one.decode("latin-1") for one in column.to_pylist()], pa.string())


def _timestamp(batch: pa.RecordBatch) -> pa.Array:
    exact = batch.column("timestamp_ns").view(pa.timestamp("ns", tz="UTC"))
    return exact.cast(pa.timestamp("us", tz="UTC"), safe=False)


def _as_is(name: str) -> Callable[[pa.RecordBatch], pa.Array]:
    return lambda batch: batch.column(name)


_MADE: dict[str, Callable[[pa.RecordBatch], pa.Array]] = {"id": _id, "timestamp": _timestamp}
