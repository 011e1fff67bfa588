"""The bytes of a segment: an Arrow IPC stream of stored batches, each with a checksum in its metadata.

How far a sealed file is valid is said by its name: reading stops at the last row it promises, so what a
failed write left behind it does no harm, and the closing mark may be missing. Of a file that is not sealed,
everything up to the first batch that is cut short or does not match its checksum is valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from pyarrow import ipc

from nsq.errors import SegmentLost
from nsq.spark.wal import records

CHECKSUM = b"crc32"
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Complete(NamedTuple):
    """The valid beginning of a file: where it ends, and what it holds."""

    end: int
    rows: int
    bytes: int


def begin(schema: pa.Schema) -> bytes:
    """What a file starts with."""
    return bytes(schema.serialize())


def encode(batch: pa.RecordBatch) -> pa.Buffer:
    """One batch, to be put behind ``begin(batch.schema)`` or another batch."""
    sink, start = pa.BufferOutputStream(), len(begin(batch.schema))
    with ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch, custom_metadata={CHECKSUM: _checksum(batch)})
        end = sink.tell()
    return sink.getvalue().slice(start, end - start)


def complete(source: pa.NativeFile) -> Complete:
    """Reads until something is wrong; that is the end, not an error."""
    rows = size = 0
    end = 0
    try:
        stream = ipc.open_stream(source)
        while True:
            end = source.tell()
            batch, metadata = stream.read_next_batch_with_custom_metadata()
            if not matches(batch, metadata):
                break
            rows += batch.num_rows
            size += records.body_bytes(batch)
    except (StopIteration, OSError, pa.ArrowException):
        pass
    return Complete(end, rows, size) if rows else Complete(0, 0, 0)


def matches(batch: pa.RecordBatch, metadata: pa.KeyValueMetadata | None) -> bool:
    expected = metadata.get(CHECKSUM) if metadata is not None else None
    if expected is None or not batch.schema.equals(records.STORED):
        return False
    try:
        batch.validate(full=True)
    except pa.ArrowException:
        return False
    return bool(expected == _checksum(batch))


def _checksum(batch: pa.RecordBatch) -> bytes:
    return b"%08x" % records.checksum(batch)


def decode(source: pa.NativeFile | pa.Buffer, rows: int, path: str) -> Iterator[pa.RecordBatch]:
    """The batches of a sealed segment of so many rows; raises SegmentLost when it does not hold them."""
    found = 0
    reason = "its batches do not add up"
    try:
        with ipc.open_stream(source) as stream:
            while found < rows:
                batch, metadata = stream.read_next_batch_with_custom_metadata()
                if not matches(batch, metadata):
                    reason = "the next batch does not match its checksum"
                    break
                found += batch.num_rows
                yield batch
    except StopIteration:
        reason = "there it ends"
    except (OSError, pa.ArrowException) as error:
        reason = str(error)
    if found != rows:
        raise SegmentLost(f"{path}: {found} of {rows} rows can be read: {reason}")
