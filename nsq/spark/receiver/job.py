"""Receivers as a job of Spark: tasks on the executors, each of which receives into a log until it is
asked to stop.

    options = {"topic": "orders", "channel": "spark", "lookupd": "…", "wal": "s3://bucket/orders-wal"}
    with nsq.spark.receivers(spark, options, n=8):
        orders = spark.readStream.format("nsq").options(**options, receivers=0).load()
        …

A task never fails because of nsqd or the log: it tries again. If its executor is lost, Spark starts this one
task elsewhere, where it receives under a new name. If Spark gives the job up, it is submitted again. The
driver cannot reach a task, so it asks them to stop by a file in the log. This works with Spark Connect too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from nsq.errors import ConfigError, NsqError, UsageError
from nsq.log import Logger
from nsq.spark.receiver.protocol import packed, unpacked
from nsq.spark.receiver.standing import FIRST_PAUSE, GRACE, LONGEST_PAUSE, Share, ended_by, stand
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.names import ReceiverState, Subject
from nsq.spark.wal.status import Status, merge_statuses
from nsq.spark.wal.store import directory_of, open_wal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = Logger("nsq.spark.receiver")

#: The scheduler pool of the job, where the session has pools.
POOL = "nsq-receivers"
#: Seconds to wait for the executors of a cluster that has just started.
REGISTERING = 30.0
#: Seconds to wait for the tasks after their interruption.
_INTERRUPTED = 15.0
#: Our errors that another attempt cannot mend, as they are spelt in one of Spark's.
_PERMANENT = ("nsq.errors.ConfigError: ", "nsq.errors.WalForeign: ", "nsq.errors.UsageError: ")


def receivers(spark: SparkSession, options: Mapping[str, Any], n: int = 2) -> ReceiverJob:
    """Start ``n`` receivers on the executors; returns at once. ``options`` are those of ``format("nsq")``.
    Use the result in a ``with`` block, or call its ``stop``.

    Each receiver holds one of the cluster's slots. Raises UsageError when they would leave none for the
    query, and when Spark copies slow tasks (``spark.speculation``).
    """
    parsed = SourceOptions.of(
        {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in options.items()
        }
    )
    if n < 1:
        raise ConfigError(f"n is {n}, but must be 1 or more")
    if parsed.topics_pattern and n > 1:
        raise ConfigError("topicsPattern cannot be shared among receivers: name the topics, or use n=1")
    if directory_of(parsed.wal) is not None and not _is_local(spark):
        log.warning("wal is the directory %s: all executors must reach it, and lock files there", parsed.wal)
    refuse_full_cluster(spark, n)
    running = ReceiverJob(spark, parsed, n)
    running.start()
    return running


def refuse_full_cluster(spark: SparkSession, n: int) -> None:
    """Raise UsageError if Spark's settings, or the number of its slots, do not allow ``n`` receivers."""
    if spark.conf.get("spark.speculation", "false") == "true":
        raise UsageError(
            "spark.speculation is true: Spark would start a copy of every receiver, because none ends; "
            "set it to false for this application"
        )
    until = time.monotonic() + REGISTERING
    while (slots := count_slots(spark)) <= n and time.monotonic() < until and not _is_local(spark):
        time.sleep(1)  # executors may still be registering
    if slots <= n:
        raise UsageError(
            f"{n} receivers would hold {n} of Spark's {slots} slots, and leave none for a query: use fewer "
            "receivers, or give the application more cores (spark.executor.instances, spark.executor.cores)"
        )


def count_slots(spark: SparkSession) -> int:
    """The tasks that Spark runs at once."""
    per_task = int(spark.conf.get("spark.task.cpus", "1") or 1)
    if hasattr(spark, "sparkContext"):
        return int(spark.sparkContext.defaultParallelism) // per_task
    # In Spark Connect: by default a range has a partition for each core.
    from pyspark.sql import functions as f

    cores = spark.range(1 << 20).select(f.spark_partition_id().alias("id")).distinct().count()
    return cores // per_task


def _is_local(spark: SparkSession) -> bool:
    master = spark.conf.get("spark.master", "") or ""
    return master.startswith("local") and not master.startswith("local-cluster")


def _is_stopped(spark: SparkSession) -> bool:
    if hasattr(spark, "sparkContext"):
        return spark.sparkContext._jsc is None
    return bool(getattr(spark, "is_stopped", False))


class ReceiverJob:
    """The running job. ``error`` is why it has ended for good; None while it runs."""

    def __init__(self, spark: SparkSession, options: SourceOptions, n: int) -> None:
        self.error: Exception | None = None
        self._spark = spark
        self._n = n
        self._what = f"{n} receivers of {options.subscription}/{options.channel}"
        self._job = uuid.uuid4().hex
        self._settings = packed(options)
        self._wal = open_wal(options.wal, fsync=options.fsync)
        self._wal.prepare(Subject(options.subscription, options.channel))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nsq-spark-receivers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raise the error that has ended the receivers, if there is one."""
        if self.error is not None:
            raise self.error

    def alive(self) -> list[ReceiverState]:
        """The living receivers of the log, of this job or another."""
        return [each for each in self._wal.receivers() if each.alive]

    def status(self) -> Status:
        """The reports of the living receivers of the log, of this job or another."""
        return merge_statuses(each.status for each in self.alive())

    def stop(self, timeout: float = 2 * GRACE) -> None:
        """Have the receivers finish what is in flight, and end the job. What cannot end in time is cut off:
        nsqd delivers its messages again.
        """
        if self._ending.is_set():
            return
        self._ending.set()
        try:
            self._wal.request_stop(self._job)
        except NsqError as error:
            log.warning("the receivers cannot be asked to stop, and are interrupted: %s", error)
        else:
            self._thread.join(timeout)
            if self._thread.is_alive():
                log.warning("the receivers have not ended within %.0f s, and are interrupted", timeout)
        if self._thread.is_alive():
            try:
                self._spark.interruptTag(self._tag)
            except Exception as error:  # the session may have ended
                log.warning("Spark cannot interrupt the receivers: %s", error)
            self._thread.join(_INTERRUPTED)
        with contextlib.suppress(NsqError):
            self._wal.forget_job(self._job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _tag(self) -> str:
        return f"nsq-receivers-{self._job}"

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                self._submit()
            except Exception as error:
                if self._ending.is_set():
                    return
                if _is_stopped(self._spark) or any(text in str(error) for text in _PERMANENT):
                    self.error = error
                    log.error("the receivers end: %s", error)
                    return
                log.warning("Spark has given up the %s, and starts them again: %s", self._what, error)
            if time.monotonic() - began > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            self._ending.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _submit(self) -> None:
        spark, n = self._spark, self._n
        spark.addTag(self._tag)
        if hasattr(spark, "sparkContext"):
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)
            spark.sparkContext.setJobDescription(self._what)
        task = functools.partial(receive_in_task, self._settings, self._job, n)
        numbers = spark.range(0, n, 1, n)
        numbers.mapInArrow(task, "id bigint").write.format("noop").mode("append").save()


def receive_in_task(
    settings: str, job: str, count: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Receive until the log says that the job is to stop, or this process's parent is gone."""
    from nsq.spark.source.stream import log_to_stderr  # needs pyspark

    options = unpacked(settings)
    wal = open_wal(options.wal, fsync=options.fsync)
    asked = ended_by(wal, job)
    parent = os.getppid()
    log_to_stderr()

    def ended(seconds: float) -> bool:
        return asked(seconds) or os.getppid() != parent

    for batch in batches:
        for index in batch.column(0).to_pylist():
            if not ended(0.0):
                share = Share(index, count)
                stand(options, ended=ended, report=lambda _: None, share=share, patient=True)
        yield batch.slice(0, 0)
