"""Receivers as a job of Spark: tasks on the executors, each of which receives into a log until it is
asked to stop.

    options = {"topic": "orders", "channel": "spark", "lookupd": "…", "wal": "s3://bucket/orders-wal"}
    with nsq.spark.receivers(spark, options, n=8):
        orders = spark.readStream.format("nsq").options(**options, receivers=0).load()
        …

A task that has reached the log never fails because of nsqd or the log: it tries again. One that does not
reach it within a minute fails. If its executor is lost, Spark starts this one task elsewhere, where it
receives under a new name. If Spark gives the job up, it is submitted again. The driver cannot reach a task,
so it asks them to stop by an object in the log, and why they fail stands in another: ``status`` and the
query's progress show it. This works with Spark Connect too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from nsq.errors import ConfigError, NsqError, UsageError
from nsq.log import Logger
from nsq.spark.receiver.protocol import packed, unpacked
from nsq.spark.receiver.standing import FIRST_PAUSE, GRACE, LONGEST_PAUSE, Share, ended_by, stand
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.log import NOTED_EVERY
from nsq.spark.wal.names import ReceiverState, Subject
from nsq.spark.wal.status import Status, merge_statuses
from nsq.spark.wal.store import directory_of, open_wal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from nsq.spark.wal.log import Wal

log = Logger("nsq.spark.receiver")

#: The scheduler pool of the job, where the session has pools.
POOL = "nsq-receivers"
#: Seconds to wait for the first, or another, executor of a cluster that has just started.
REGISTERING = 30.0
#: Who notes an error of all receivers of a job.
_DRIVER = "driver"
#: Who notes that no slot is left.
_SLOTS = "slots"
#: Seconds until the first look for a free slot, and between two looks; and how long a task may take to begin
#: over Spark Connect, which does not tell how many slots there are.
PROBE_AFTER, PROBE_EVERY, PROBE_PATIENCE = 5.0, 30.0, 30.0
_PROBE_LOOK = 0.2
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
    elastic, found, since = _is_elastic(spark), -1, 0.0
    while (slots := count_slots(spark)) is not None and slots <= n and not _is_local(spark):
        if slots != found:
            found, since = slots, time.monotonic()
        if elastic or time.monotonic() - since >= REGISTERING:
            break
        time.sleep(1)  # executors may still be registering
    if slots is None or slots > n:
        return
    text = (
        f"{n} receivers would hold {n} of Spark's {slots} slots, and leave none for a query: use fewer "
        "receivers, or give the application more cores (spark.executor.instances, spark.executor.cores)"
    )
    if slots and not elastic:
        raise UsageError(text)
    more = "spark.dynamicAllocation adds executors" if elastic else "executors register later"
    log.warning("%s, unless %s", text, more)


def count_slots(spark: SparkSession) -> int | None:
    """The tasks that Spark can run at once, on the executors that it has now; None over Spark Connect, which
    does not tell."""
    if not hasattr(spark, "sparkContext"):
        return None
    scala: Any = spark.sparkContext._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def _is_elastic(spark: SparkSession) -> bool:
    return spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true"


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
        self._watching = threading.Thread(target=self._watch_slots, name="nsq-spark-slots", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._watching.start()

    def check(self) -> None:
        """Raise the error that has ended the receivers, if there is one."""
        if self.error is not None:
            raise self.error

    def alive(self) -> list[ReceiverState]:
        """The living receivers of the log, of this job or another."""
        return [each for each in self._wal.receivers() if each.alive]

    def status(self) -> Status:
        """The reports of the living receivers of the log, of this job or another, and why receivers of this
        job fail."""
        errors = [Status(error=error) for error in self._wal.job_errors(self._job)]
        return merge_statuses([*(each.status for each in self.alive()), *errors])

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
        self._watching.join(_INTERRUPTED)
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
                    log.error("the receivers end: %s", reason(error))
                    self._keep_noting(error)
                    return
                log.warning("Spark has given up the %s, and starts them again: %s", self._what, reason(error))
                self._note_failure(error)
            if time.monotonic() - began > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            self._ending.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _watch_slots(self) -> None:
        """Warn, in the log and in the progress of queries, while no slot is left for a query: a worker may be
        lost, and a query that waits for a slot says nothing."""
        told, seconds = "", PROBE_AFTER
        while not self._ending.wait(seconds) and self.error is None and not _is_stopped(self._spark):
            seconds = PROBE_EVERY
            try:
                slots = count_slots(self._spark)
                is_free = self._probe() if slots is None else slots > self._n
            except Exception as error:  # the session may be ending
                log.info("Spark does not say whether it has a free slot: %s", reason(error))
                continue
            of = "" if slots is None else f" of {slots}"
            text = f"receivers hold {self._n}{of} slots, so a query may wait for one for ever"
            if slots is None:
                text = f"no task began for {PROBE_PATIENCE:.0f} s: {text}"
            if is_free and told:
                log.warning("Spark has a free slot again")
                self._note(_SLOTS, "")
            elif not is_free:
                if not told:
                    log.warning("%s", text)
                self._note(_SLOTS, text)
            told = "" if is_free else text

    def _probe(self) -> bool:
        """Whether a task of its own begins in time, beside the running receivers."""
        tag = f"{self._tag}-probe"
        done = threading.Event()
        failed: list[Exception] = []

        def run() -> None:
            try:
                self._spark.addTag(tag)
                self._spark.range(0, 1, 1, 1).collect()
            except Exception as error:  # it was interrupted, or the session has ended
                failed.append(error)
            done.set()

        thread = threading.Thread(target=run, name="nsq-spark-probe", daemon=True)
        thread.start()
        until = time.monotonic() + PROBE_PATIENCE
        while not done.wait(_PROBE_LOOK) and time.monotonic() < until and not self._ending.is_set():
            pass
        if not done.is_set():
            self._spark.interruptTag(tag)
            thread.join(_INTERRUPTED)
            return self._ending.is_set()
        if failed:
            raise failed[0]
        return True

    def _note_failure(self, error: Exception) -> None:
        self._note(_DRIVER, f"{self._what} fail: {reason(error)}")

    def _note(self, who: str, text: str) -> None:
        try:
            self._wal.note_error(self._job, who, text)
        except NsqError as why:
            log.warning("the progress of queries cannot show why the receivers fail: %s", why)

    def _keep_noting(self, error: Exception) -> None:
        """Note why the receivers have ended for good, until this job is stopped."""
        while not _is_stopped(self._spark):
            self._note_failure(error)
            if self._ending.wait(NOTED_EVERY):
                return

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
                report = noted_in(wal, job, str(index))
                stand(options, ended=ended, report=report, share=share, patient=True)
        yield batch.slice(0, 0)


def noted_in(wal: Wal, job: str, who: str) -> Callable[[Status], None]:
    """Return a function for ``stand`` that notes a receiver's errors in the log. Its first call takes back
    what the driver has noted: a task works now."""
    noted: str | None = None
    noted_at = 0.0

    def note(status: Status) -> None:
        nonlocal noted, noted_at
        now = time.monotonic()
        if status.error == noted and (not noted or now - noted_at < NOTED_EVERY):
            return
        try:
            wal.note_error(job, who, status.error)
            if noted is None:
                wal.note_error(job, _DRIVER, "")
        except NsqError as error:
            log.info("an error cannot be noted in the log: %s", error)
        else:
            noted, noted_at = status.error, now

    return note


def reason(error: Exception) -> str:
    """The line of one of our errors in this one of Spark's, which has many lines; else its first line."""
    lines = str(error).splitlines() or [type(error).__name__]
    ours = [line for line in lines if line.startswith("nsq.errors.")]
    return ours[-1].partition(": ")[2] if ours else lines[0]
