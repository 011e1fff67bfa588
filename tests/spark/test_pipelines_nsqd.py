"""The pipelines from nsqd to nsqd, with all parts in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsq.spark
from nsq.http.nsqd import NsqdApi
from nsq.spark.pipelines.streaming import Progress
from nsq.testing import Nsqd
from tests.integration.pages import ROOT
from tests.integration.patience import eventually
from tests.spark.running import EXACT, PATIENCE, TOPIC, bodies, difference, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def options(nsqd: Nsqd) -> dict[str, str]:
    """The options of an nsqd whose HTTP port does not follow its TCP port."""
    return {"nsqdHttp": nsqd.http_address}


def channel(nsqd: Nsqd, name: str, topic: str = TOPIC) -> None:
    """There before the first message, so that it gets all of them."""
    api = NsqdApi(nsqd.http_address, timeout=100.0)
    api.create_topic(topic)
    api.create_channel(topic, name)


def stored(spark: SparkSession, path: Path) -> list[bytes]:
    return [bytes(row.body) for row in spark.read.parquet(str(path)).select("body").collect()]


def consumed(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    """The bodies in the order in which a consumer gets them, which with one nsqd is that of publishing."""
    got: list[bytes] = []
    enough = threading.Event()

    def handle(message: nsq.Message) -> None:
        got.append(message.body)
        if len(got) >= count:
            enough.set()

    consumer = nsq.Consumer(topic, "check", nsqd=nsqd.tcp_address, max_in_flight=200)
    consumer.add_handler(handle)
    with consumer:
        assert enough.wait(200), f"{len(got)} of {count} came"
    return got


def test_an_archive_is_replayed_to_another_topic(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    channel(nsqd, "archive")
    channel(nsqd, "check", "again")
    wanted = bodies(5000)
    publish(nsqd, wanted)
    heard: list[Progress] = []

    result = nsq.spark.archive(
        TOPIC,
        to=tmp_path / "out",
        nsqd=nsqd.tcp_address,
        options=options(nsqd),
        spark=spark,
        progress=heard.append,
    )

    assert (result.rows, result.bytes) == (5000, 40_000)
    assert difference(stored(spark, tmp_path / "out"), wanted) == EXACT
    assert heard[-1].rows == 5000

    stop = threading.Event()

    def interrupt(progress: Progress) -> None:
        if progress.rows:
            stop.set()

    first = nsq.spark.replay(
        tmp_path / "out",
        "again",
        nsqd=nsqd.tcp_address,
        rate=1500,
        spark=spark,
        stop=stop,
        progress=interrupt,
    )
    assert 0 < first.rows < 5000
    assert not first.complete
    # Another rate is the same replay.
    left = nsq.spark.replay(tmp_path / "out", "again", dry_run=True, spark=spark)
    assert (left.rows, left.before, left.bytes) == (5000 - first.rows, first.rows, 40_000 - first.bytes)
    rest = nsq.spark.replay(tmp_path / "out", "again", nsqd=nsqd.tcp_address, spark=spark)
    assert (rest.rows, rest.before, rest.complete) == (5000 - first.rows, first.rows, True)
    assert not Path(rest.state).exists()

    again = consumed(nsqd, "again", 5000)
    assert sorted(again) == wanted


def test_an_error_of_the_source_is_heard(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    (tmp_path / "wal").write_text("a file")
    with pytest.raises(Exception, match="wal"):
        nsq.spark.archive(
            TOPIC, to=tmp_path / "out", wal=str(tmp_path / "wal"), nsqd=nsqd.tcp_address, spark=spark
        )


def test_a_signal_to_the_whole_process_group_lets_a_pipeline_end_in_order(
    java: None, nsqd: Nsqd, tmp_path: Path
) -> None:
    """As ``kill %1`` and ``timeout`` signal: Spark's JVM must not end first."""
    channel(nsqd, "archive")
    publish(nsqd, bodies(100))
    command = [sys.executable, "-m", "nsq.spark", "archive", TOPIC, "--follow", "--every", "1s"]
    command += ["--nsqd", nsqd.tcp_address, "-o", f"nsqdHttp={nsqd.http_address}"]
    command += ["--to", str(tmp_path / "out")]
    said = tmp_path / "said"
    with said.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, start_new_session=True)
    try:
        eventually(lambda: list((tmp_path / "out").glob("date=*/*/*.parquet")), within=PATIENCE)
        os.killpg(process.pid, signal.SIGTERM)
        status = process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
    shown = said.read_text()
    assert (status, shown.splitlines()[-1].partition(",")[0]) == (0, "100 messages"), shown
