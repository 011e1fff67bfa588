"""Spark's rates from the log, and from nsqd, in one warm session.

Reading: the same segments into the noop sink, as Arrow batches and as tuples; ``tasks`` counts only the time
of the tasks. Storing: messages go through receiver, log and Spark into Parquet, all at the same time on the
same cores. They come from the firehose, which uses little CPU, so that the pipeline is measured; from a
backlog in an nsqd, which uses its share; or from the log. The references copy the same rows from Parquet to
Parquet: by a query of the same kind, with the same bookkeeping, and by one job. The rate leaves out the first
batch, which is mostly the start of processes. It includes waiting for rows; ``once there`` does not. ``all
batches`` includes the first batch. The time before the first batch is in none of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.client.parties import firehose, under
from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.processes import Server, serving
from benchmarks.spark.session import CORES, ask

SIZE = 200
_ROWS, _A_BATCH = 1_200_000, 400_000
_BACKLOG, _BACKLOG_A_BATCH = 1_000_000, 250_000
_SMALL_BATCHES, _SMALL = 30, 50
_END_TO_END, _END_TO_END_COPY = "firehose to Parquet", "its rows copied"
_STORE, _STORE_COPY = "log to Parquet", "the log's rows copied"


def comparisons() -> Sequence[Comparison]:
    return [_reading(), _storing(), _floor()]


def _reading() -> Comparison:
    return Comparison(
        name="log to Spark",
        figures=(Figure("", "rows/s"), Figure("tasks", "rows/s")),
        contenders={"Arrow": _read("nsq"), "tuples": _read("nsq_tuples")},
        bars=[Bar("Arrow", "tuples", 3)],
        rounds=3,
    )


def _read(form: str) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        rows, a_batch = round(_ROWS * scale), round(_A_BATCH * scale)
        return ask("read_log", form=form, rows=rows, a_batch=a_batch, size=SIZE)

    return measure


def _storing() -> Comparison:
    return Comparison(
        name=f"store {_BACKLOG:,} rows",
        figures=(Figure("", "rows/s"), Figure("once there", "rows/s"), Figure("all batches", "rows/s")),
        contenders={
            _END_TO_END: under(firehose(), _pour),
            _END_TO_END_COPY: lambda _: ask("copy", of="stream", files_a_batch=CORES),
            "nsqd to Parquet": _drain,
            _STORE: _store,
            _STORE_COPY: lambda _: ask("copy", of="log", files_a_batch=CORES),
            "the same in one job": lambda _: ask("copy_at_once", of="log"),
        },
        bars=[Bar(_END_TO_END, _END_TO_END_COPY, 0.5), Bar(_STORE, _STORE_COPY, 0.5)],
        rounds=3,
    )


def _pour(server: Server, scale: float) -> Sequence[float]:
    return ask("from_stream", port=server.port, **_backlog(scale))


def _drain(scale: float) -> Sequence[float]:
    with serving(servers.nsqd()) as nsqd:
        return ask("from_nsqd", port=nsqd.port, http_port=nsqd.http_port, **_backlog(scale))


def _store(scale: float) -> Sequence[float]:
    return ask("store_log", **_backlog(scale))


def _backlog(scale: float) -> dict[str, int]:
    return {"rows": round(_BACKLOG * scale), "a_batch": round(_BACKLOG_A_BATCH * scale), "size": SIZE}


def _floor() -> Comparison:
    """Measure small batches, one after the other, without waiting for rows. Only printed."""
    names = ("", "finding what there is", "reading it", "noting its begin", "noting its end")
    return Comparison(
        name=f"a batch of {_SMALL} rows",
        figures=[Figure(name, "ms") for name in names],
        contenders={"noop": lambda _: ask("floor", batches=_SMALL_BATCHES, a_batch=_SMALL)},
        rounds=1,
    )
