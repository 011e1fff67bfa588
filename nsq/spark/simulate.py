"""``nsq-spark simulate``: what a log in an object store costs, and how fast a batch is planned, without a
cluster.

Real manifests of simulated receivers go into a store in this process, second by second, and a real planner
reads them. Segments have no content. Requests are counted; the time of a request, and prices, are
assumptions. Imports pyarrow, never pyspark.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from nsq.spark.receiver.receiving import MEASURE_SELDOM
from nsq.spark.source.feed import LISTING
from nsq.spark.source.offsets import Limits, Offset, admitted, between, tasks
from nsq.spark.wal import manifest, readers
from nsq.spark.wal.manifest import Head, Row
from nsq.spark.wal.objects import Entry, Found, Memory
from nsq.spark.wal.readers import ReaderState
from nsq.spark.wal.shared import BEAT, THREADS, SharedWal
from nsq.work.workers import peak_memory

#: US dollars for a million requests: S3's list prices. Deletes are free.
PRICES = {"put": 5.0, "list": 5.0, "get": 0.4}
_DAY = 86_400
_PER_TASK = 32 << 20


@dataclasses.dataclass(frozen=True)
class Scene:
    """``rate`` is messages a second of each receiver, ``size`` bytes of a body, ``interval`` seconds between
    two segments of a receiver, ``delay`` the seconds that a request takes, ``retention`` seconds.
    """

    receivers: int = 80
    rate: int = 25_000
    size: int = 200
    interval: float = 1.0
    delay: float = 0.05
    retention: float = 0.0
    seconds: int = 60


class Figures(NamedTuple):
    """``requests`` are a second, by kind. ``planning`` is the seconds for one plan, of which ``computing`` is
    spent here; the rest is waiting for the store. ``memory`` is bytes of this process."""

    messages: int
    bytes: int
    requests: dict[str, float]
    planning: float
    computing: float
    largest_head: int
    memory: int
    dollars_a_day: float
    in_flight: int


class _Counting(Memory):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def put_new(self, name: str, data: bytes) -> str:
        self.calls["put"] += 1
        return super().put_new(name, data)

    def put_match(self, name: str, data: bytes, tag: str) -> str:
        self.calls["put"] += 1
        return super().put_match(name, data, tag)

    def get(self, name: str) -> Found | None:
        self.calls["get"] += 1
        return super().get(name)

    def list_after(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
        found = super().list_after(prefix, after, most)
        self.calls["list"] += max(1, math.ceil(len(found) / 1000))
        return found

    def delete_many(self, names: Iterable[str]) -> None:
        listed = list(names)
        self.calls["delete"] += math.ceil(len(listed) / 1000)
        super().delete_many(listed)


class _Receiver:
    """Does to the store what a receiver does, in simulated time."""

    def __init__(self, store: _Counting, name: str, scene: Scene) -> None:
        self.head = Head(name, "simulated")
        self._store = store
        self._scene = scene
        self._tag = store.put_new(manifest.head_name(name), manifest.encode_head(self.head))
        self.size = 0
        self._named: list[float] = []

    def receive(self, now: float) -> None:
        scene, head = self._scene, self.head
        rows = round(scene.rate * scene.interval)
        self._store.calls["put"] += 1  # the segment
        head = head.named([Row(rows, rows * scene.size, rows * scene.size, now)])
        self._named.append(now)
        while full := head.full_page():
            name = manifest.page_name(head.receiver, full[0].first)
            self._store.put_new(name, manifest.encode_page(full[1]))
            head = head.with_page(full[0])
        self._write(head)

    def _write(self, head: Head) -> None:
        self.head = dataclasses.replace(head, beat=head.beat + 1)
        data = manifest.encode_head(self.head)
        self.size = len(data)
        self._tag = self._store.put_match(manifest.head_name(head.receiver), data, self._tag)

    def tidy(self, now: float, committed: int) -> None:
        """Delete what is committed and not retained, as ``SharedWal.measure`` does."""
        self._store.list_after(manifest.HEADS)
        self._store.list_after(f"{readers.FOLDER}/")
        self._store.get(readers.file_of(readers.DEFAULT))
        first = self.head.first
        while first <= committed and now - self._named[first - 1] >= self._scene.retention:
            first += 1
        if first > self.head.first:
            gone = range(self.head.first, first)
            self._store.delete_many(manifest.segment_name(self.head.receiver, one) for one in gone)
            self.head = self.head.trimmed(first)


def simulate(scene: Scene) -> Figures:
    store = _Counting()
    wal = SharedWal(store, "memory://simulation")
    identity = wal.prepare()
    claim = wal.own(readers.DEFAULT, "the simulation", 0.0)
    try:
        return _simulate(scene, store, wal, Offset(identity))
    finally:
        claim.release()


def _simulate(scene: Scene, store: _Counting, wal: SharedWal, read: Offset) -> Figures:
    made = [_Receiver(store, f"r{number:04d}", scene) for number in range(scene.receivers)]
    # What retention has kept before: only the manifests matter.
    before = int(scene.retention / scene.interval)
    for receiver in made:
        rows = round(scene.rate * scene.interval)
        row = Row(rows, rows * scene.size, rows * scene.size, 0.0)
        head = receiver.head.named([row] * before)
        receiver._named = [-scene.interval * (before - number) for number in range(before)]
        while full := head.full_page():
            name = manifest.page_name(head.receiver, full[0].first)
            store.put_new(name, manifest.encode_page(full[1]))
            head = head.with_page(full[0])
        receiver._write(head)
    end, _ = admitted(read, [file.segment for file in wal.listing().files], set(), Limits())
    read = dataclasses.replace(end, origins={})
    store.calls.clear()

    plans: list[tuple[float, float]] = []
    due_plan = due_tidy = now = 0.0
    while now < scene.seconds:
        for receiver in made:
            receiver.receive(now)
        if now >= due_plan:
            due_plan += LISTING
            gets = store.calls["get"]
            began = time.perf_counter()
            listing = wal.listing(read.at)
            segments = [file.segment for file in listing.files]
            new, _ = admitted(read, segments, {folder.receiver for folder in listing.receivers}, Limits())
            tasks(between(read, new, segments)[0], _PER_TASK, 1)
            computing = time.perf_counter() - began
            rounds = 1 + math.ceil((store.calls["get"] - gets) / THREADS)
            plans.append((computing + rounds * scene.delay, computing))
            store.calls["get"] += len(segments)  # by the tasks
            wal.save_reader(readers.DEFAULT, ReaderState(read.at, True, "", 1.0 + now))
            read = dataclasses.replace(new, origins={})
        if now >= due_tidy:
            due_tidy += MEASURE_SELDOM
            for receiver in made:
                receiver.tidy(now, read.position(receiver.head.receiver).segment)
        now += scene.interval
    asked_to_stop = scene.receivers / 2.0  # a look every two seconds
    requests = {kind: store.calls[kind] / scene.seconds for kind in ("put", "get", "list", "delete")}
    requests["get"] += asked_to_stop
    requests["put"] += 1 / BEAT
    plans.sort()
    planning, computing = plans[len(plans) // 2]
    messages = scene.receivers * scene.rate
    return Figures(
        messages=messages,
        bytes=messages * scene.size,
        requests=requests,
        planning=planning,
        computing=computing,
        largest_head=max(receiver.size for receiver in made),
        memory=peak_memory(),
        dollars_a_day=sum(requests[kind] * price for kind, price in PRICES.items()) * _DAY / 1e6,
        in_flight=math.ceil(1.5 * scene.rate * (scene.interval + 0.2)),
    )
