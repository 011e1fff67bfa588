"""A Spark session under load. Reads requests from stdin, one ``["load", {arguments}]`` per line, and answers
each with a line of numbers on stdout. Logs to stderr. Ends at the end of stdin.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.drivers.spark_tuples import NsqTuples
from benchmarks.peers.work import CHANNEL, TOPIC
from benchmarks.spark.session import CORES
from benchmarks.usage import MEGABYTE, resident_memory
from nsq.http.nsqd import NsqdApi
from nsq.spark import register
from nsq.spark.session import local_session
from nsq.spark.wal import new_receiver, open_wal
from nsq.spark.wal.records import stored

_PATIENCE = 110
_SEGMENT_BYTES = 32 << 20
_DIFFERENT, _AT_ONCE = 50_000, 5000
_NOBODY = "127.0.0.1:1"
_SAMPLE_EVERY = 0.5
_LOOK_EVERY = 0.1


class Loads:
    """``folder`` is for all files, and is deleted with the session."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._numbers = itertools.count(1)
        self._kept: dict[str, Path] = {}  # the sources of ``copy``, by the load that wrote them

    def warm_up(self, rows: int) -> None:
        """Warm up, because the first query of a session is slower than all others."""
        for _ in range(6):  # until the JIT compilers are done
            self.read_log("nsq", rows, rows // 4, 200)
            self.store_log(rows, rows // 4, 200)
        self.read_log("nsq_tuples", rows // 4, rows // 20, 200)
        self.copy("log", CORES)
        self.copy_at_once("log")

    def read_log(self, form: str, rows: int, a_batch: int, size: int) -> Sequence[float]:
        """Read the log's rows into the noop sink: rows per second of batches, and of their tasks alone."""
        batches = self._drain_log(self._place(), form, "noop", rows, a_batch, size)
        return [rows / _seconds(batches, "triggerExecution"), rows / _seconds(batches, "addBatch")]

    def store_log(self, rows: int, a_batch: int, size: int) -> Sequence[float]:
        """Store the log's rows in Parquet; see ``_rates``."""
        place = self._place()
        batches = self._drain_log(place, "nsq", "parquet", rows, a_batch, size)
        self._keep("log", place)
        return _rates(batches)

    def _drain_log(
        self, place: Path, form: str, sink: str, rows: int, a_batch: int, size: int
    ) -> list[dict[str, Any]]:
        shutil.copytree(self._filled(rows, size), place / "wal", copy_function=os.link)
        limits = {"maxMessagesPerTrigger": a_batch, "minPartitions": CORES}
        frame = self._stream(form, place, receivers=0, nsqd=_NOBODY, **limits)
        batches = _drained(frame, sink, place)
        assert _rows(batches) == rows, batches
        return batches

    def floor(self, batches: int, a_batch: int) -> Sequence[float]:
        """Run small batches: median milliseconds, and those of its parts."""
        log = self._place()
        _fill(log / "wal", batches * a_batch, 200, a_batch)
        frame = self._stream("nsq", log, receivers=0, nsqd=_NOBODY, maxMessagesPerTrigger=a_batch)
        durations = [each["durationMs"] for each in _drained(frame, "noop", log)][1:]
        parts = ("triggerExecution", "latestOffset", "addBatch", "walCommit", "commitOffsets")
        return [median(duration[part] for duration in durations) for part in parts]

    def from_nsqd(self, port: int, http_port: int, rows: int, size: int, a_batch: int) -> Sequence[float]:
        """Store a backlog in Parquet; see ``_rates``."""
        _publish(http_port, rows, size)
        place = self._place()
        frame = self._live(place, port, a_batch, nsqdHttp=f"127.0.0.1:{http_port}")
        batches = _drained(frame, "parquet", place)
        assert _rows(batches) == rows, batches
        shutil.rmtree(place)
        return _rates(batches)

    def from_stream(self, port: int, rows: int, size: int, a_batch: int) -> Sequence[float]:
        """Store at least this number of rows of an endless topic in Parquet; see ``_rates``."""
        place = self._place()
        query = _start(self._live(place, port, a_batch), "parquet", place, processingTime="0 seconds")
        try:
            batches = _watched(query, rows + a_batch)
        finally:
            query.stop()
        self._keep("stream", place)
        return _rates(batches)

    def copy(self, of: str, files_a_batch: int) -> Sequence[float]:
        """Copy the Parquet files that a load has written to Parquet, by a query with batches; see ``_rates``.
        The same rows: how fast Parquet is read and written depends on what is in them.
        """
        place, source = self._place(), f"{self._kept[of]}/out"
        schema = self._spark.read.parquet(source).schema
        files = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", files_a_batch)
        batches = _drained(files.parquet(source), "parquet", place)
        shutil.rmtree(place)
        return _rates(batches)

    def copy_at_once(self, of: str) -> Sequence[float]:
        """Copy them by one job: rows per second."""
        place, source = self._place(), f"{self._kept[of]}/out"
        rows = self._spark.read.parquet(source).count()
        began = time.monotonic()
        self._spark.read.parquet(source).write.parquet(str(place / "copy"))
        rate = rows / (time.monotonic() - began)
        shutil.rmtree(place)
        return [rate, rate, rate]

    def endure(self, port: int, http_port: int, a_second: int, seconds: float, size: int) -> Sequence[float]:
        """Measure memory of this process, the source's and the receiver's together, in megabytes: the medians
        of the second and of the last third.
        """
        place = self._place()
        where = {"nsqd": f"127.0.0.1:{port}", "nsqdHttp": f"127.0.0.1:{http_port}"}
        frame = self._stream("nsq", place, **where)
        query = _start(frame, "parquet", place, processingTime="1 second")
        try:
            with _trickle(http_port, a_second, size):
                samples = _sampled(seconds, lambda: sum(map(resident_memory, _source_processes())))
            if fault := query.exception():
                raise fault
        finally:
            query.stop()
        third = len(samples) // 3
        return [median(samples[third : 2 * third]) / MEGABYTE, median(samples[2 * third :]) / MEGABYTE]

    # Directories and logs.

    def _place(self) -> Path:
        made = self._folder / str(next(self._numbers))
        made.mkdir()
        return made

    def _keep(self, load: str, place: Path) -> None:
        """Keep what a load has written, and delete what it wrote before."""
        if load in self._kept:
            shutil.rmtree(self._kept[load])
        self._kept[load] = place

    def _filled(self, rows: int, size: int) -> Path:
        log = self._folder / f"log-{rows}-{size}"
        if not log.exists():
            _fill(log, rows, size, 0)
        return log

    def _live(self, place: Path, port: int, a_batch: int, **more: object) -> DataFrame:
        limits = {"maxMessagesPerTrigger": a_batch, "minPartitions": CORES}
        return self._stream("nsq", place, nsqd=f"127.0.0.1:{port}", **limits, **more)

    def _stream(self, form: str, place: Path, **options: object) -> DataFrame:
        given = {"topic": TOPIC, "channel": CHANNEL, "wal": place / "wal", "availableNowIdle": "0s"} | options
        reader = self._spark.readStream.format(form)
        return reader.options(**{name: str(value) for name, value in given.items()}).load()


def _fill(location: Path, rows: int, size: int, a_segment: int) -> None:
    """Write a log as a receiver does, with segments of ``a_segment`` rows or of the usual size."""
    wal = open_wal(str(location), fsync=False)
    wal.prepare()
    body = _bodies(size)
    log = wal.log(new_receiver())
    step = a_segment or max(1, _SEGMENT_BYTES // size)
    named = threading.Semaphore(0)
    starts = range(0, rows, step)
    for first in starts:
        numbers = range(first, min(first + step, rows))
        count = len(numbers)
        batch = stored(
            TOPIC,
            [b"%016x" % number for number in numbers],
            [10**18 + number for number in numbers],
            [1] * count,
            [_NOBODY] * count,
            [body(number) for number in numbers],
        )
        log.put(batch, named.release)
    for _ in starts:
        named.acquire()
    log.close()


def _bodies(size: int) -> Callable[[int], bytes]:
    """Yield distinct bodies, half of each hard to compress."""
    chance = random.Random(0)
    digits = b"%x" % chance.getrandbits(4 << 20)

    def body(number: int) -> bytes:
        start = chance.randrange(len(digits) - size)
        text = b'{"order": %d, "note": "%s", "' % (number, digits[start : start + size // 2])
        return (text + b'article", "' * (size // 10))[:size]

    return body


def _publish(http_port: int, rows: int, size: int) -> None:
    """Return enough distinct bodies that compression does not see one twice."""
    api, body = NsqdApi(f"127.0.0.1:{http_port}", timeout=60.0), _bodies(size)
    api.create_topic(TOPIC)
    api.create_channel(TOPIC, CHANNEL)
    bodies = [body(number) for number in range(_DIFFERENT)]
    for first in range(0, rows, _AT_ONCE):
        start = first % _DIFFERENT
        api.multi_publish(TOPIC, bodies[start : start + min(_AT_ONCE, rows - first)])


# Queries.


def _start(frame: DataFrame, sink: str, place: Path, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.format(sink).option("checkpointLocation", str(place / "checkpoint"))
    writer = writer.trigger(**trigger)
    return writer.start() if sink == "noop" else writer.start(str(place / "out"))


def _drained(frame: DataFrame, sink: str, place: Path) -> list[dict[str, Any]]:
    """Return the progress of batches with rows."""
    query = _start(frame, sink, place, availableNow=True)
    if not query.awaitTermination(_PATIENCE):
        raise SystemExit(f"not at its end: {query.status}")
    return _with_rows(query)


def _watched(query: StreamingQuery, rows: int) -> list[dict[str, Any]]:
    """Do the same for an endless query, until it has read this number of rows."""
    deadline = time.monotonic() + _PATIENCE
    while _rows(batches := _with_rows(query)) < rows:
        if not query.isActive or time.monotonic() > deadline:
            raise SystemExit(f"{_rows(batches)} rows of {rows}: {query.exception() or query.status}")
        time.sleep(_LOOK_EVERY)
    return batches


def _with_rows(query: StreamingQuery) -> list[dict[str, Any]]:
    batches = [json.loads(progress.json) for progress in query.recentProgress]
    return [batch for batch in batches if batch["numInputRows"]]


def _rates(batches: Sequence[dict[str, Any]]) -> Sequence[float]:
    """Return three rates in rows per second: of all batches but the first; of these without waiting for rows;
    and of all batches.
    """
    warm = batches[1:]
    rows, seconds = _rows(warm), _seconds(warm, "triggerExecution")
    busy = seconds - _seconds(warm, "latestOffset")
    return [rows / seconds, rows / busy, _rows(batches) / _seconds(batches, "triggerExecution")]


def _rows(batches: Sequence[dict[str, Any]]) -> int:
    return sum(int(batch["numInputRows"]) for batch in batches)


def _seconds(batches: Sequence[dict[str, Any]], part: str) -> float:
    return sum(float(batch["durationMs"][part]) for batch in batches) / 1000


# Endurance.


@contextlib.contextmanager
def _trickle(http_port: int, a_second: int, size: int) -> Iterator[None]:
    """Publish at this rate, ten times a second."""
    enough = threading.Event()
    body = _bodies(size)
    api = NsqdApi(f"127.0.0.1:{http_port}", timeout=30.0)

    def publish() -> None:
        while not enough.wait(0.1):
            api.multi_publish(TOPIC, [body(number) for number in range(a_second // 10)])

    thread = threading.Thread(target=publish, name="trickling")
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def _sampled(seconds: float, look: Callable[[], int]) -> list[int]:
    samples: list[int] = []
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        with contextlib.suppress(OSError):  # one of them has just ended
            samples.append(look())
        time.sleep(_SAMPLE_EVERY)
    return samples


def _source_processes() -> list[int]:
    """Return the pids of this process, the source's and the receiver's."""
    found = [os.getpid()]
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{name}/cmdline").read_bytes()
            ours = b"python_streaming_source_runner" in command or b"nsq.spark.receiver" in command
            if ours and _descends(int(name)):
                found.append(int(name))
    return found


def _descends(pid: int) -> bool:
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == os.getpid()


def main() -> None:
    # Nothing else may print to stdout, where the answers go.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        conf = {"spark.local.dir": folder, "spark.sql.warehouse.dir": f"{folder}/warehouse"}
        spark = local_session(master=f"local[{CORES}]", app="benchmarks", conf=conf)
        register(spark)
        spark.dataSource.register(NsqTuples)
        loads = Loads(spark, Path(folder))
        for number, line in enumerate(sys.stdin):
            load, arguments = json.loads(line)
            if number == 0:
                loads.warm_up(arguments.get("rows", 1_000_000))  # less for a short benchmark
            print(*getattr(loads, load)(**arguments), file=answers, flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
