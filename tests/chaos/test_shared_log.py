"""A log in S3 and in a directory, without Spark: receivers are killed and suspended, the store fails, stalls
and loses replies, and the reader's name is taken over. Then a rate that one receiver sustains, and how late
its messages are stored.

make chaos ARGS='-k shared_log'                     # tells what happened
NSQ_SUSTAIN=600 make chaos ARGS='-k sustained'      # for ten minutes instead of one
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nsq.errors import WalError, WalOwned
from nsq.http.nsqd import NsqdApi
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.chaos.telling import Tell
from tests.fakes.s3 import S3
from tests.fakes.s3 import running as running_s3
from tests.integration.patience import eventually

pytest.importorskip("obstore", reason="pip install 'nsq[s3]'")

from nsq.spark.wal import log, manifest, open_wal
from nsq.spark.wal.log import Wal
from nsq.spark.wal.names import Position
from nsq.spark.wal.readers import ReaderState

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 180.0
TOPIC, CHANNEL = "orders", "spark"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3() as server:
        open_wal(server.uri("first")).identity()  # obstore keeps the descriptors of its first use
        yield server


class Receiver:
    """A process of ``nsq-spark receive``."""

    def __init__(self, wal: str, nsqd: Nsqd, log: Path, **options: str) -> None:
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        command = ["receive", TOPIC, "--channel", CHANNEL, "--wal", wal, "--nsqd", nsqd.tcp_address, *given]
        with log.open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nsq.spark", *command], cwd=_ROOT, stdout=said, stderr=said
            )

    def end(self, number: int) -> None:
        with self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)


class Reader(threading.Thread):
    """Reads a log as a query does: counts what is behind its position, then notes the position. ``rows`` and
    ``at`` are its sink and its checkpoint; another reader may go on from them."""

    def __init__(self, uri: str, before: Reader | None = None) -> None:
        super().__init__(name="reader", daemon=True)
        self.deliveries: Counter[tuple[bytes, bytes, int]] = before.deliveries if before else Counter()
        self.at: dict[str, Position] = before.at if before else {}
        self.rows = before.rows if before else 0
        self.planning: list[float] = []
        self.taken_over = ""
        self.stalled = threading.Event()
        self._uri = uri
        self._ending = threading.Event()

    def run(self) -> None:
        wal = open_wal(self._uri)
        wal.prepare()
        claim = wal.own("default", "the test", 60.0)
        try:
            while not self._ending.wait(0.5):
                while self.stalled.is_set():
                    time.sleep(0.1)
                try:
                    claim.check()
                    self._step(wal)
                except WalOwned as error:
                    self.taken_over = str(error)
                    return
                except WalError:
                    continue  # the store fails: the next round tries again
        finally:
            claim.release()

    def _step(self, wal: Wal) -> None:
        began = time.monotonic()
        listing = wal.listing(self.at)
        self.planning.append(time.monotonic() - began)
        wal.save_reader("default", ReaderState(self.at, True, "", time.time()))
        for file in listing.files:
            segment = file.segment
            batch = wal.read(segment)
            self.rows += batch.num_rows
            columns = (batch.column(name).to_pylist() for name in ("body", "id", "attempts"))
            self.deliveries.update(zip(*columns, strict=True))
            self.at = {**self.at, segment.receiver: Position(segment.number)}
        wal.save_reader("default", ReaderState(self.at, True, "", time.time()))
        if any(not each.alive and not each.closed for each in listing.receivers):
            wal.close_dead()
        wal.delete([file.segment for file in wal.files_of_readers() if self._has(file.segment)])
        wal.discard_empty(wal.readers().values())

    def _has(self, segment: object) -> bool:
        receiver, number, *_ = segment  # type: ignore[misc]
        return bool(number <= self.at.get(receiver, Position()).segment)

    def end(self) -> None:
        self.stalled.clear()
        self._ending.set()
        self.join(_PATIENCE)


@contextmanager
def publishing(nsqd: Nsqd, rate: int, size: int) -> Iterator[list[int]]:
    """Publish numbered bodies until the block ends; the list's only item counts them."""
    enough, published = threading.Event(), [0]
    at_once = max(1, rate // 50)

    def publish() -> None:
        api = NsqdApi(nsqd.http_address, timeout=60.0)
        due = time.monotonic()
        while not enough.wait(max(0.0, due - time.monotonic())):
            due += at_once / rate
            first = published[0]
            numbers = range(first, first + at_once)
            api.multi_publish(TOPIC, [b"%012d" % number + b"." * (size - 12) for number in numbers])
            published[0] += at_once

    thread = threading.Thread(target=publish, name="publishing")
    thread.start()
    try:
        yield published
    finally:
        enough.set()
        thread.join(_PATIENCE)


def prepared(nsqd: Nsqd) -> NsqdApi:
    api = NsqdApi(nsqd.http_address, timeout=60.0)
    api.create_topic(TOPIC)
    api.create_channel(TOPIC, CHANNEL)
    return api


def left(api: NsqdApi) -> int:
    (channel,) = api.stats(TOPIC)["topics"][0]["channels"]
    return channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]


@pytest.mark.parametrize(("place", "seed"), [("s3", 0), ("s3", 1), ("directory", 2)])
def test_nothing_is_lost_whatever_dies_or_stalls(
    place: str,
    seed: int,
    nsqd_factory: Factory[Nsqd],
    s3: S3,
    tmp_path: Path,
    tell: Tell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "SILENCE", 12.0)
    chance = random.Random(seed)
    nsqd = nsqd_factory(process=True)
    api, said = prepared(nsqd), tmp_path / "said"
    uri = s3.uri(f"log-{seed}") if place == "s3" else str(tmp_path / "wal")
    options = {"msgTimeout": "5s", "maxInFlight": "5000", "commitInterval": "250ms"}
    happened: Counter[str] = Counter()
    readers = [Reader(uri)]
    with ExitStack() as stack:
        receivers = [Receiver(uri, nsqd, said, **options) for _ in range(2)]
        stack.callback(lambda: [one.end(signal.SIGKILL) for one in receivers])
        readers[0].start()
        s3.control(delay=0.02, errors=0.05, lost=0.03, conflicts=0.03)
        with publishing(nsqd, 3000, 100) as published:
            until = time.monotonic() + 60.0
            while time.monotonic() < until:
                time.sleep(chance.uniform(1.0, 4.0))
                faults = ["kill", "kill", "suspend", "take over", *(["stall"] if place == "s3" else [])]
                fault = chance.choice(faults)
                victim = chance.randrange(2)
                happened[fault] += 1
                if fault == "kill":
                    receivers[victim].end(signal.SIGKILL)
                    receivers[victim] = Receiver(uri, nsqd, said, **options)
                elif fault == "suspend":
                    receivers[victim].process.send_signal(signal.SIGSTOP)
                    time.sleep(chance.uniform(2.0, 8.0))
                    receivers[victim].process.send_signal(signal.SIGCONT)
                elif fault == "stall":
                    s3.control(stall=chance.uniform(1.0, 8.0))
                elif happened[fault] == 1:  # it takes the silence of the first one
                    readers[-1].end()
                    readers.append(Reader(uri, readers[-1]))
                    readers[-1].start()
        s3.control(errors=0, lost=0, conflicts=0)
        try:
            eventually(lambda: left(api), lambda count: count == 0, _PATIENCE)
            wanted = {b"%012d" % number for number in range(published[0])}
            seen = lambda: {body[:12] for body, _, _ in list(readers[-1].deliveries)}  # noqa: E731
            eventually(lambda: wanted - seen(), lambda missing: not missing, _PATIENCE)
        finally:
            readers[-1].end()
    rows = readers[-1].deliveries
    bodies = Counter(body for body, _, _ in rows)
    twice = sum(bodies.values()) - len(bodies)
    tell(f"a log in {place}: {dict(happened)}; {published[0]:,} published, 0 missing, {twice:,} twice")
    assert sum(rows.values()) == len(rows)  # the same delivery of nsqd's is never there twice
    assert {body[:12] for body in bodies} == wanted


@pytest.mark.parametrize(
    ("place", "most_ready"), [("directory", 30_000), ("directory", 2_500), ("s3", 30_000)]
)
def test_a_rate_is_sustained_and_deletes_keep_up(
    place: str, most_ready: int, nsqd_factory: Factory[Nsqd], s3: S3, tmp_path: Path, tell: Tell
) -> None:
    rate, seconds = 10_000, float(os.environ.get("NSQ_SUSTAIN", "30"))
    # nsqd measures from the publish until its answer, which comes when the message is stored.
    nsqd = nsqd_factory(
        process=True,
        max_rdy_count=most_ready,
        mem_queue_size=200_000,
        e2e_processing_latency_percentiles=(0.5, 0.99),
        e2e_processing_latency_window_time=max(seconds, 1.0),
    )
    api, uri = prepared(nsqd), s3.uri("sustained") if place == "s3" else str(tmp_path / "wal")
    s3.control(delay=0.05)
    reader = Reader(uri)
    reader.start()
    receiver = Receiver(uri, nsqd, tmp_path / "said")
    try:
        eventually(lambda: api.stats(TOPIC)["topics"][0]["channels"][0]["client_count"], bool, _PATIENCE)
        began, most = time.monotonic(), 0
        with publishing(nsqd, rate, 200) as published:
            while time.monotonic() - began < seconds:
                time.sleep(1.0)
                most = max(most, left(api))
            took = time.monotonic() - began
            (channel,) = api.stats(TOPIC)["topics"][0]["channels"]
        late = {
            each["quantile"]: each["value"] / 1e9 for each in channel["e2e_processing_latency"]["percentiles"]
        }
        eventually(lambda: reader.rows, lambda count: count >= published[0], _PATIENCE)
        eventually(lambda: left(api), lambda count: count == 0, _PATIENCE)
        kept = len(open_wal(uri)._store.list_after(manifest.SEGMENTS))
    finally:
        receiver.end(signal.SIGTERM)
        reader.end()
    planning = sorted(reader.planning)
    tell(
        f"a log in {place}: {published[0] / took:,.0f} msg/s for {took:.0f} s, stored after "
        f"{late[0.5]:.2f} s, p99 {late[0.99]:.2f} s, at most {most:,} in nsqd, {kept} segments left, "
        f"planning {planning[len(planning) // 2]:.2f} s"
    )
    assert reader.rows == published[0] == len(reader.deliveries)
    assert kept <= 100  # a receiver deletes every ten seconds
