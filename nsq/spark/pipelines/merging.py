"""Several Parquet files become one, with pyarrow, a few megabytes at a time. Must not import pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsq.errors import NsqError

if TYPE_CHECKING:
    import pyarrow as pa

# Row groups of about this size: what one task reads at a time.
_GROUP_BYTES = 64 << 20
_BATCH_ROWS = 16_384


def merge(sources: Sequence[Path], folder: Path, prefix: str) -> int:
    """All rows of the sources, into a file below ``folder`` for each schema there is among them; how many
    rows. Checked before it returns.
    """
    import pyarrow.parquet as pq

    rows = 0
    for number, (schema, alike) in enumerate(_by_schema(sources)):
        target = folder / f"{prefix}-{number:03d}.zstd.parquet"
        with pq.ParquetWriter(target, schema, compression="zstd", store_schema=False) as writer:
            for table in _tables(alike, schema):
                writer.write_table(table)
            # Spark wants its own description of the columns back, and has no use for Arrow's.
            writer.add_key_value_metadata(schema.metadata or {})
        wanted = sum(pq.read_metadata(path).num_rows for path in alike)
        found = pq.read_metadata(target).num_rows
        if found != wanted:
            raise NsqError(f"{target} has {found} rows instead of {wanted}; nothing was replaced")
        rows += found
    return rows


def _by_schema(sources: Sequence[Path]) -> list[tuple[pa.Schema, list[Path]]]:
    import pyarrow.parquet as pq

    found: list[tuple[pa.Schema, list[Path]]] = []
    for path in sources:
        schema = pq.read_schema(path)
        for known, alike in found:
            if known.equals(schema):
                alike.append(path)
                break
        else:
            found.append((schema, [path]))
    return found


def _tables(sources: Sequence[Path], schema: pa.Schema) -> Iterator[Any]:
    """Each makes a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pending: list[pa.RecordBatch] = []
    size = 0
    for path in sources:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                pending.append(batch)
                size += batch.nbytes
                if size >= _GROUP_BYTES:
                    yield pa.Table.from_batches(pending, schema)
                    pending, size = [], 0
    if pending:
        yield pa.Table.from_batches(pending, schema)
