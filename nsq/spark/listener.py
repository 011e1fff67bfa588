"""``Listener``: what streams that read from NSQ are doing, for a log and for Prometheus.

The source puts its own figures into ``sources[].latestOffset`` of every progress report; ``figures`` takes
them out again, and is pure. The file is replaced in one step after each report: who reads it sees it whole.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

log = logging.getLogger("nsq.spark")

#: Name, name for Prometheus, help, and what several sources of a query make together.
_FIGURES: tuple[tuple[str, str, str, Callable[[Iterable[float]], float]], ...] = (
    ("rows", "batch_rows", "Rows of the last batch.", sum),
    ("batchSeconds", "batch_seconds", "How long the last batch took.", sum),
    ("inputRowsPerSecond", "input_rows_per_second", "Rows that arrived a second, last batch.", sum),
    ("processedRowsPerSecond", "processed_rows_per_second", "Rows processed a second, last batch.", sum),
    ("lag", "lag", "Messages that are in no batch yet, in nsqd and in the write-ahead log.", sum),
    ("nsqdDepth", "depth", "Messages waiting in the channel.", sum),
    ("nsqdInFlight", "in_flight", "Messages of the channel that clients hold.", sum),
    ("walRows", "wal_rows", "Messages in the write-ahead log that are in no batch yet.", sum),
    ("walBytes", "wal_bytes", "Bytes of their bodies.", sum),
    ("oldestSeconds", "oldest_seconds", "Age of the oldest of them.", max),
    ("paused", "paused", "1 while receiving is paused, because the log is full or cannot be written.", max),
    ("received", "received_total", "Messages received since the query started.", sum),
)


def figures(progress: Mapping[str, Any]) -> dict[str, float]:
    """Of a progress report as JSON, by name; empty when none of its sources is ours."""
    own: list[Mapping[str, Any]] = []
    for source in progress.get("sources", ()):
        offset = source.get("latestOffset")
        if isinstance(offset, Mapping) and "walRows" in offset:
            # It says why; here it is a yes or a no.
            own.append({**offset, "paused": int(bool(offset.get("paused")))})
    if not own:
        return {}
    batch = {
        "rows": progress.get("numInputRows", 0),
        "batchSeconds": progress.get("durationMs", {}).get("triggerExecution", 0) / 1000,
    }
    for name in ("inputRowsPerSecond", "processedRowsPerSecond"):
        # The first report has no previous one to compare with: NaN there, which is no JSON.
        rate = progress.get(name)
        batch[name] = rate if isinstance(rate, (int, float)) and rate == rate else 0.0
    values: dict[str, float] = {}
    for name, _, _, combined in _FIGURES:
        known = [each[name] for each in (batch, *own) if each.get(name) is not None]
        values |= {name: combined(known)} if known else {}
    return values


def exposition(queries: Collection[tuple[str, Mapping[str, float]]]) -> str:
    """In Prometheus' text format: the figures of each query, with its name."""
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
        self._lock = threading.Lock()  # queries report from threads of their own
        self._latest: dict[str, tuple[str, Mapping[str, float]]] = {}  # by the id of the query

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
            # One name per process: two queries report one after the other, under the lock.
            new = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            try:
                new.write_text(exposition(self._latest.values()))
                new.replace(self._file)
            except OSError as error:
                with contextlib.suppress(OSError):
                    new.unlink()
                log.warning("%s cannot be written: %s", self._file, error)
