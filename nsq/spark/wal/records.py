"""Messages as Arrow columns, in the log's schema and in Spark's, and the bytes of a segment: an Arrow IPC
stream of a compressed batch, with a checksum of each column in its metadata. So a column can be read and
checked alone. Imports pyarrow, never pyspark.

Columns are built from whole lists and joined buffers: a Python loop per message would cost more than the
disk.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from nsq.errors import SegmentLost, WalError
from nsq.message import Message

ID_BYTES = 16

STORED = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("id", pa.binary(ID_BYTES), nullable=False),
        pa.field("timestamp_ns", pa.int64(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("nsqd", pa.string(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""The schema of stored batches."""

STORED_WITH_HEADERS = pa.schema([*STORED, pa.field("key", pa.binary()), pa.field("headers", pa.string())])
"""The same where a message has headers, as on a partitioned NSQ. ``headers`` is a JSON object of strings."""

STORED_COLUMNS = tuple(STORED_WITH_HEADERS.names)

ROW = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("nsqd", pa.string()),
        pa.field("id", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_ns", pa.int64()),
        pa.field("attempts", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("body", pa.binary()),
    ]
)
"""The schema of Spark's rows, with all columns."""

COLUMNS = tuple(ROW.names)


def stored(
    topic: str,
    ids: Sequence[bytes],
    timestamps: Sequence[int],
    attempts: Sequence[int],
    nsqds: Sequence[str],
    bodies: Sequence[bytes],
) -> pa.RecordBatch:
    """Make a stored batch of parallel lists: timestamps in nanoseconds, nsqds as host:port. Raises WalError
    when the bodies have 2 GiB or more in all.
    """
    return _stored(_repeated(topic, len(ids)), ids, timestamps, attempts, nsqds, bodies)


def stored_messages(
    parts: Sequence[tuple[str, Sequence[Message]]], key_header: str = "key"
) -> pa.RecordBatch:
    """Make a stored batch of the messages of several topics. A message's key is what its header
    ``key_header`` says."""
    topics = [_repeated(topic, len(messages)) for topic, messages in parts]
    messages = [message for _, listed in parts for message in listed]
    batch = _stored(
        pa.concat_arrays(topics),
        [message.id for message in messages],
        [message.timestamp for message in messages],
        [message.attempts for message in messages],
        [message.nsqd_address for message in messages],
        [message.body for message in messages],
    )
    headers = [message.headers for message in messages]
    return batch if headers.count(None) == len(headers) else _with_headers(batch, headers, key_header)


def _with_headers(
    batch: pa.RecordBatch, headers: Sequence[Mapping[str, Any] | None], key_header: str
) -> pa.RecordBatch:
    texts = list(map(_texts, headers))
    keys = [None if each is None else each.get(key_header) for each in texts]
    key = pa.array([None if each is None else each.encode() for each in keys], pa.binary())
    shown = [None if each is None else json.dumps(each, ensure_ascii=False) for each in texts]
    joined = pa.array(shown, pa.string())
    if isinstance(key, pa.ChunkedArray) or isinstance(joined, pa.ChunkedArray):
        raise WalError(f"{len(headers)} headers of more than 2 GiB do not fit into one batch")
    return pa.RecordBatch.from_arrays([*batch.columns, key, joined], schema=STORED_WITH_HEADERS)


def _texts(headers: Mapping[str, Any] | None) -> dict[str, str | None] | None:
    """Headers as text: values that are not text as JSON, and question marks for what UTF-8 cannot hold."""
    if headers is None:
        return None
    found: dict[str, str | None] = {}
    for name, value in headers.items():
        try:
            text = value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        except RecursionError:  # a receiver must be able to store every message
            text = None
        found[_utf8(name)] = None if text is None else _utf8(text)
    return found


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _repeated(topic: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(topic, pa.string()), count)


def _stored(
    topics: pa.Array,
    ids: Sequence[bytes],
    timestamps: Sequence[int],
    attempts: Sequence[int],
    nsqds: Sequence[str],
    bodies: Sequence[bytes],
) -> pa.RecordBatch:
    joined = b"".join(ids)
    if len(joined) != ID_BYTES * len(ids):
        wrong = next(one for one in ids if len(one) != ID_BYTES)
        raise WalError(f"message id {wrong!r} has {len(wrong)} bytes, not {ID_BYTES}")
    body = pa.array(bodies, pa.binary())
    if isinstance(body, pa.ChunkedArray):
        raise WalError(f"{len(bodies)} bodies of more than 2 GiB do not fit into one batch")
    columns = [
        topics,
        pa.Array.from_buffers(pa.binary(ID_BYTES), len(ids), [None, pa.py_buffer(joined)]),
        pa.array(timestamps, pa.int64()),
        pa.array(attempts, pa.int32()),
        pa.array(nsqds, pa.string()),
        body,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STORED)


def body_bytes(batch: pa.RecordBatch) -> int:
    return pc.sum(pc.binary_length(batch.column("body"))).as_py() or 0


def times(batch: pa.RecordBatch) -> tuple[int, int]:
    """The times of the oldest and the newest message, in nanoseconds since 1970; 0 when there is none."""
    found = pc.min_max(batch.column("timestamp_ns"))
    return found["min"].as_py() or 0, found["max"].as_py() or 0


def checksums(batch: pa.RecordBatch) -> list[bytes]:
    """The CRC of each column's values, independent of their memory layout. It detects a tail that never
    reached the disk: such a tail can look like a complete batch whose bodies are zeros.
    """
    return [b"%08x" % _checksum(column) for column in batch.columns]


def _checksum(column: pa.Array) -> int:
    value = 0
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
    yield pc.binary_length(column).fill_null(-1).buffers()[1].slice(0, 4 * count)
    if buffers[2] is not None and count:
        offsets = memoryview(buffers[1].slice(4 * start, 4 * count + 4)).cast("i")
        yield buffers[2].slice(offsets[0], offsets[count] - offsets[0])


def needed(columns: Iterable[str]) -> set[str]:
    """The stored columns of which Spark's are made."""
    return {"timestamp_ns" if name == "timestamp" else name for name in columns}


def rows(batch: pa.RecordBatch, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """Turn a stored batch into Spark's rows with these columns, in this order; copies only what it must."""
    schema = pa.schema([ROW.field(name) for name in columns])
    arrays = [_column(batch, name) for name in columns]
    if not arrays:  # a batch without columns has no length of its own
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name == "timestamp":
        exact = batch.column("timestamp_ns").view(pa.timestamp("ns", tz="UTC"))
        return exact.cast(pa.timestamp("us", tz="UTC"), safe=False)
    if name not in batch.schema.names:  # no message has headers
        return pa.nulls(batch.num_rows, ROW.field(name).type)
    column = batch.column(name)
    if name == "headers":
        read = [None if text is None else list(json.loads(text).items()) for text in column.to_pylist()]
        return pa.array(read, ROW.field(name).type)
    if name == "id":
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:  # nsqd sends hexadecimal digits; another server may send any bytes
            return pa.array([one.decode("latin-1") for one in column.to_pylist()], pa.string())
    return column


# The bytes of a segment


CHECKSUM = b"crc32"
#: Measured: lz4 shrinks JSON to a third and one-byte bodies to half, at 0.1 to 0.3 microseconds a row.
#: Arrow's threads would take a third more time, because batches are small.
_OPTIONS = ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def encode(batch: pa.RecordBatch) -> pa.Buffer:
    """The bytes of a segment that has this batch."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema, options=_OPTIONS) as stream:
        stream.write_batch(batch, custom_metadata={CHECKSUM: b" ".join(checksums(batch))})
    return sink.getvalue()


def decode(
    source: pa.Buffer, rows: int, path: str, columns: Collection[str] = STORED_COLUMNS
) -> pa.RecordBatch:
    """The batch of a segment; raises SegmentLost unless it is sound and has exactly ``rows`` rows. Other than
    these stored columns are neither decompressed nor checked."""
    try:
        schema = ipc.open_stream(source).schema
        sound = schema in (STORED, STORED_WITH_HEADERS)
        if sound:
            wanted = [number for number, name in enumerate(schema.names) if name in columns]
            wanted = wanted or [schema.get_field_index("attempts")]  # Arrow takes none for all
            options = ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
            stream = ipc.open_stream(source, options=options)
            batch, metadata = stream.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
            noted = dict(enumerate(metadata.get(CHECKSUM, b"").split() if metadata else ()))
            sound = checksums(batch) == [noted.get(number) for number in wanted]
    except (OSError, StopIteration, pa.ArrowException) as error:
        raise SegmentLost(f"{path} cannot be read: {str(error) or 'it has no batch'}") from None
    if not sound:
        raise SegmentLost(f"{path} does not match its checksum")
    if batch.num_rows != rows:
        raise SegmentLost(f"{path} has {batch.num_rows} rows, not {rows}")
    return batch
