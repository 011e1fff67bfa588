"""``Listener`` reports the progress of streams that read from NSQ, to a log and to Prometheus.

The source puts its own figures into ``sources[].latestOffset`` of every progress report; ``figures``, which
is pure, extracts them. The listener replaces the file for Prometheus atomically after each report.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from nsq.log import Logger
from nsq.spark.wal.disk import Disk, replace_file

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

log = Logger("nsq.spark")

#: Name, Prometheus name, help text, and the function that combines several sources of a query.
_FIGURES: tuple[tuple[str, str, str, Callable[[Iterable[float]], float]], ...] = (
    ("rows", "batch_rows", "Rows of the last batch.", sum),
    ("batchSeconds", "batch_seconds", "Seconds that the last batch took.", sum),
    ("inputRowsPerSecond", "input_rows_per_second", "Rows per second that arrived, in the last batch.", sum),
    (
        "processedRowsPerSecond",
        "processed_rows_per_second",
        "Rows per second that Spark processed, in the last batch.",
        sum,
    ),
    ("lag", "lag", "Messages in nsqd and in the write-ahead log that are in no batch yet.", sum),
    ("nsqdDepth", "depth", "Messages waiting in nsqd's channel.", sum),
    ("nsqdInFlight", "in_flight", "Messages of nsqd's channel that clients have not answered yet.", sum),
    ("walRows", "wal_rows", "Messages in the write-ahead log that are in no batch yet.", sum),
    (
        "walBytes",
        "wal_bytes",
        "Bytes of the bodies of messages in the write-ahead log that are in no batch yet.",
        sum,
    ),
    (
        "oldestSeconds",
        "oldest_seconds",
        "Seconds since the oldest message in the write-ahead log that is in no batch yet was published.",
        max,
    ),
    ("paused", "paused", "1 while receiving is paused, because the log is full or cannot be written.", max),
    ("received", "received_total", "Messages received since the query started.", sum),
)


def figures(progress: Mapping[str, Any]) -> dict[str, float]:
    """The figures in a progress report (parsed JSON), by name; empty when it has no source of ours."""
    own: list[Mapping[str, Any]] = []
    for source in progress.get("sources", ()):
        offset = source.get("latestOffset")
        if isinstance(offset, Mapping) and "walRows" in offset:
            # The source gives the reason as text; here 1 or 0.
            own.append({**offset, "paused": int(bool(offset.get("paused")))})
    if not own:
        return {}
    batch = {
        "rows": progress.get("numInputRows", 0),
        "batchSeconds": progress.get("durationMs", {}).get("triggerExecution", 0) / 1000,
    }
    for name in ("inputRowsPerSecond", "processedRowsPerSecond"):
        # NaN in the first report, which has no previous one to compare with.
        rate = progress.get(name)
        batch[name] = rate if isinstance(rate, (int, float)) and rate == rate else 0.0
    values: dict[str, float] = {}
    for name, _, _, combined in _FIGURES:
        known = [each[name] for each in (batch, *own) if each.get(name) is not None]
        values |= {name: combined(known)} if known else {}
    return values


def exposition(queries: Collection[tuple[str, Mapping[str, float]]]) -> str:
    """The figures of all queries in Prometheus' text format, labelled with the query's name."""
    lines = []
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    for name, metric, text, _ in _FIGURES:
        samples = [
            f'nsq_spark_{metric}{{query="{query.translate(escapes)}"}} {_plain(values[name])}'
            for query, values in queries
            if name in values
        ]
        if samples:
            kind = "counter" if metric.endswith("_total") else "gauge"
            lines += [f"# HELP nsq_spark_{metric} {text}", f"# TYPE nsq_spark_{metric} {kind}", *samples]
    return "".join(f"{line}\n" for line in lines)


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.3f}"


class Listener(StreamingQueryListener):
    """Logs a line per batch to ``nsq.spark`` at INFO, and keeps a file for Prometheus' textfile collector."""

    def __init__(self, prometheus: str | os.PathLike[str] | None = None) -> None:
        self._file = None if prometheus is None else Path(prometheus)
        self._lock = threading.Lock()  # each query reports from its own thread
        self._latest: dict[str, tuple[str, Mapping[str, float]]] = {}  # key: the query's id

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        log.info("%s started", event.name or event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        found = figures(json.loads(event.progress.json))
        if found:
            query, identity = event.progress.name, str(event.progress.id)
            words = " ".join(f"{name}={_plain(value)}" for name, value in found.items())
            log.info("%s %s", query or identity, words)
            self._keep(identity, (query or identity, found))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if event.exception is None:
            log.info("%s ended", event.id)
        else:
            log.error("%s failed: %s", event.id, event.exception.strip().split("\n", 1)[0])
        self._keep(str(event.id), None)

    def _keep(self, query: str, found: tuple[str, Mapping[str, float]] | None) -> None:
        with self._lock:
            self._latest.pop(query, None)
            if found is not None:
                self._latest[query] = found
            if self._file is None:
                return
            text = exposition(self._latest.values())
            try:
                replace_file(Disk(fsync=False), self._file, text.encode(), 0o666)
            except OSError as error:
                log.warning("%s cannot be written: %s", self._file, error)
