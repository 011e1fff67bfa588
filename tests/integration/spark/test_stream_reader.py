"""The stream reader with a real log, receiver and nsqd, called as Spark calls it, without Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any

import pytest

from nsq.errors import InvalidName, WalOwned
from nsq.http.nsqd import NsqdApi
from nsq.spark.rows import Field
from nsq.testing import Nsqd
from tests.integration.patience import eventually

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from nsq.spark.source import stream
from nsq.spark.source.stream import NsqStreamReader
from nsq.spark.wal import open_wal

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 100.0


@pytest.fixture
def queue(nsqd: Nsqd) -> Nsqd:
    api = NsqdApi(nsqd.http_address)
    api.create_topic("orders")
    api.create_channel("orders", "spark")
    return nsqd


class Asking:
    """Asks a reader as Spark does: what has gone through JSON, and always from where the last batch ended."""

    def __init__(self, nsqd: Nsqd, folder: Path, **options: object) -> None:
        given = {"topic": "orders", "channel": "spark", "wal": folder / "wal", "retention": "0"}
        given |= {"nsqd": nsqd.tcp_address, "nsqdHttp": nsqd.http_address} | options
        self.reader = NsqStreamReader(
            {name: str(text) for name, text in given.items()}, [Field("body", "binary")]
        )
        self.read: Any = None

    def begin(self) -> None:
        self.read = self.read or self.reader.initialOffset()

    def latest(self, limit: ReadLimit) -> Any:
        self.begin()
        return json.loads(json.dumps(self.reader.latestOffset(self.read, limit)))

    def rows(self, end: Any) -> list[bytes]:
        tasks = self.reader.partitions(self.read, end)
        return [
            body for task in tasks for batch in self.reader.read(task) for body in batch["body"].to_pylist()
        ]

    def batch(self, limit: ReadLimit | None = None) -> list[bytes]:
        """The rows of the next batch that has any. The first batch of a checkpoint may have none."""
        rows: list[bytes] = []
        while not rows:
            end = eventually(
                lambda: self.latest(limit or ReadMaxRows(sys.maxsize)), lambda end: end != self.read, PATIENCE
            )
            rows = self.rows(end)
            self.reader.commit(end)
            self.read = end
        return rows


@pytest.fixture
def asking(queue: Nsqd, tmp_path: Path) -> Iterator[Asking]:
    asks = Asking(queue, tmp_path)
    yield asks
    asks.reader.stop()


def publish(nsqd: Nsqd, count: int, start: int = 0) -> list[bytes]:
    bodies = [b"%d" % number for number in range(start, start + count)]
    NsqdApi(nsqd.http_address, timeout=100.0).multi_publish("orders", bodies)
    return bodies


def channel(nsqd: Nsqd) -> Any:
    """What nsqd says of the channel."""
    (topic,) = NsqdApi(nsqd.http_address).stats("orders")["topics"]
    (found,) = topic["channels"]
    return found


def test_the_lag_counts_every_message_once(queue: Nsqd, asking: Asking) -> None:
    """Nsqd tells the depth before anything is received, and the receiver has all of it a moment later."""
    publish(queue, 1000)
    asking.begin()

    def lag() -> Any:
        return asking.reader.reportLatestOffset()["lag"]

    left = 1000
    eventually(lag, partial(eq, left), PATIENCE)
    while left:
        end = asking.latest(ReadMaxRows(300))
        if end != asking.read:
            left -= len(asking.rows(end))
            asking.read = end
            # What is stored is still in flight until nsqd has heard so.
            eventually(lag, partial(eq, left), PATIENCE)


def test_a_log_has_one_owner(
    queue: Nsqd, asking: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PATIENCE", 0.1)
    asking.begin()
    other = Asking(queue, tmp_path)
    with pytest.raises(WalOwned, match="is owned by the query that reads orders/spark"):
        other.begin()
    body = publish(queue, 1)
    assert asking.batch() == body
    asking.reader.stop()
    other.begin()
    other.reader.stop()


def test_two_applications_share_a_channel(queue: Nsqd, tmp_path: Path) -> None:
    """Each has a log of its own, and gets a part of the messages."""
    both = [Asking(queue, tmp_path / name, maxInFlight="50") for name in ("one", "two")]
    try:
        for each in both:
            each.latest(ReadMaxRows(1))  # its receivers start
        eventually(lambda: channel(queue)["client_count"], partial(eq, 2), PATIENCE)
        bodies = publish(queue, 5000)
        eventually(lambda: channel(queue), lambda seen: not seen["depth"] + seen["in_flight_count"], PATIENCE)
        got = [[], []]
        for asks, own in zip(both, got, strict=True):
            while len(own) < asks.reader.reportLatestOffset()["received"]:
                own += asks.batch()
    finally:
        for each in both:
            each.reader.stop()
    assert sorted(got[0] + got[1]) == sorted(bodies)
    assert all(got)


def test_a_restart_may_change_the_number_of_receivers(queue: Nsqd, tmp_path: Path) -> None:
    """What the receivers of before have stored is read, whoever receives now."""
    got, read = list[bytes](), None
    for run, receivers in enumerate((1, 3, 0, 2)):
        publish(queue, 1000, 1000 * run)
        asks = Asking(queue, tmp_path, receivers=receivers)
        asks.read = read
        try:
            if receivers:
                got += asks.batch(ReadMaxRows(300))
            while run == 3 and len(got) < 4000:
                got += asks.batch()
        finally:
            asks.reader.stop()
        read = asks.read
    assert sorted(got) == sorted(b"%d" % number for number in range(4000))


def test_the_first_call_raises_the_error_of_wrong_options(queue: Nsqd, tmp_path: Path) -> None:
    asks = Asking(queue, tmp_path, channel="no channel")
    with pytest.raises(InvalidName, match="channel name 'no channel' contains ' '"):
        asks.begin()
    assert not (tmp_path / "wal").exists()


_LIFE = """
import sys
from pyspark.sql.streaming.datasource import ReadMaxRows
from nsq.spark.rows import Field
from nsq.spark.source.stream import NsqStreamReader
from nsq.spark.wal import open_wal

wal, tcp, http = sys.argv[1:]
given = {"topic": "orders", "channel": "spark", "wal": wal, "nsqd": tcp, "nsqdHttp": http, "linger": "1h"}
reader = NsqStreamReader(given, [Field("body", "binary")])
try:
    start = reader.initialOffset()
    while True:
        reader.latestOffset(start, ReadMaxRows(sys.maxsize))
        report = reader.reportLatestOffset()
        print(report["received"], flush=True)
finally:
    reader.stop()
    print("stopped", flush=True)
"""


def test_sigterm_leaves_everything_in_the_log_and_nothing_in_flight(queue: Nsqd, tmp_path: Path) -> None:
    publish(queue, 100)
    life = subprocess.Popen(
        [sys.executable, "-c", _LIFE, str(tmp_path / "wal"), queue.tcp_address, queue.http_address],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with life:
        assert life.stdout is not None
        for line in life.stdout:
            if line.strip() == "100":
                break
        os.kill(life.pid, signal.SIGTERM)
        said = life.stdout.read()
        assert life.wait(PATIENCE) == 128 + signal.SIGTERM
    assert said.splitlines()[-1] == "stopped"
    wal = open_wal(str(tmp_path / "wal"))
    assert sum(segment.rows for segment in wal.segments()) == 100
    assert [(each.alive, each.closed) for each in wal.receivers()] == [(False, True)]

    def left() -> tuple[int, int]:
        found = channel(queue)
        return found["depth"], found["in_flight_count"]

    eventually(left, lambda seen: seen == (0, 0))  # nsqd does not answer a FIN


@pytest.mark.parametrize("subscription", [{"topics": "orders,clicks"}, {"topicsPattern": "orders|cl.*"}])
def test_several_topics_in_one_log(nsqd: Nsqd, tmp_path: Path, subscription: dict[str, str]) -> None:
    api = NsqdApi(nsqd.http_address)
    for topic in ("orders", "clicks", "others"):
        api.create_topic(topic)
        api.multi_publish(topic, [f"{topic} {number}".encode() for number in range(20)])
    given = {"channel": "spark", "wal": tmp_path / "wal", "nsqd": nsqd.tcp_address} | subscription
    given |= {"nsqdHttp": nsqd.http_address, "lookupdPollInterval": "100ms"}
    asks = Asking(nsqd, tmp_path)
    asks.reader = NsqStreamReader(
        {name: str(text) for name, text in given.items()}, [Field("body", "binary"), Field("topic", "string")]
    )
    try:
        asks.reader.prepareForTriggerAvailableNow()
        got: list[bytes] = []
        while len(got) < 40:
            got += asks.batch()
    finally:
        asks.reader.stop()
    assert sorted(got) == sorted(b"%s %d" % (topic, n) for topic in (b"orders", b"clicks") for n in range(20))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("only root may make a small file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_drained_without_help(queue: Nsqd, small_disk: Path) -> None:
    """Twice its size is published at once, and retention wants to keep all of it."""
    bodies = [b"%06d" % number + os.urandom(50_000) for number in range(1000)]
    api = NsqdApi(queue.http_address, timeout=100.0)
    for first in range(0, len(bodies), 50):
        api.multi_publish("orders", bodies[first : first + 50])
    asks = Asking(queue, small_disk, retention="1d", segmentBytes="4m")
    try:
        asks.latest(ReadMaxRows(1))
        assert asks.reader._running is not None
        receivers = asks.reader._running[0].receivers
        eventually(receivers.status, lambda status: "No space left" in status.error, PATIENCE)
        found: set[bytes] = set()
        while len(found) < len(bodies):
            found.update(body[:6] for body in asks.batch(ReadMaxRows(100)))
    finally:
        asks.reader.stop()
    assert found == {body[:6] for body in bodies}
