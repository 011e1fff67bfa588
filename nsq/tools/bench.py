"""``nsq bench``: publishes to the nsqds of a cluster, consumes what was published, and reports both."""

from __future__ import annotations

import json
import random
import struct
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from nsq import Consumer, Message, NsqError, Producer
from nsq.http.nsqd import NsqdApi
from nsq.http.nsqlookupd import NsqlookupdApi
from nsq.tables import table
from nsq.tools.cluster import Cluster, ClusterFlags
from nsq.tools.destinations import percentile
from nsq.tools.program import (
    ConsumerOptFlags,
    ProducerFlags,
    SignalWatch,
    duration,
    flag,
    log,
    run_command,
    stop_all,
)

_STAMP = struct.Struct(">d")
_CHANNEL = "bench"
#: How many times are kept for the percentiles; if there are more, a random sample.
_KEPT = 100_000


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ClusterFlags, ConsumerOptFlags, ProducerFlags):
    seconds: float = duration(5.0, "time to publish", low=0.1, high=3600.0)
    size: int = flag(200, "bytes of a message", low=_STAMP.size, high=2**20)
    batch: int = flag(100, "messages per publish", low=1, high=10_000)
    publishers: int = flag(4, "threads that publish", low=1, high=1000)
    subscribers: int = flag(1, "consumers (0 only publishes)", low=0, high=100)
    max_in_flight: int = flag(2500, "maximum messages in flight of each consumer", low=1, high=2**31 - 1)


def main(argv: Sequence[str]) -> int:
    synopsis = (
        "\nPublishes to all nsqds for a while and consumes, on a topic that it deletes at the end.\n"
        "Reports messages per second and the times of publishes and deliveries."
    )
    return run_command(BenchOptions, argv, "nsq bench", synopsis, _bench)


def _bench(options: BenchOptions, _: tuple[str, ...]) -> int:
    cluster = Cluster(options)
    addresses = cluster.tcp_addresses
    topic = f"nsq_bench_{random.randrange(10**9):09d}"
    try:
        for nsqd in cluster.nsqds.values():
            nsqd.create_topic(topic)
            nsqd.create_channel(topic, _CHANNEL)
        with SignalWatch() as watch, options.producer("nsq-bench", *addresses) as producer:
            delivered = Times()
            consumers = [_consumer(options, topic, addresses, delivered) for _ in range(options.subscribers)]
            for consumer in consumers:
                consumer.start().wait_until_connected(10.0, len(addresses))
            published, took = _publish(options, topic, producer, watch)
            caught_up = _wait_for(published.count, delivered, watch) if consumers else took
            stop_all(consumers, watch)
    finally:
        _delete(cluster, topic)
    rows = [_row("published", published, took, options.size, options.batch)]
    if consumers:
        rows.append(_row("delivered", delivered, took + caught_up, options.size, 1))
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        shown = table([name.upper() for name in rows[0]], ([*row.values()] for row in rows))
        sys.stdout.write(f"{shown}\n")
    return 0 if not consumers or delivered.count >= published.count else 1


class Times:
    """Counts operations and their times, for any number of threads."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds: list[float] = []
        self._lock = threading.Lock()

    def add(self, seconds: float, count: int = 1) -> None:
        with self._lock:
            self.count += count
            if len(self.seconds) < _KEPT:
                self.seconds.append(seconds)
            elif random.random() < _KEPT / self.count:
                self.seconds[random.randrange(_KEPT)] = seconds


def _consumer(options: BenchOptions, topic: str, addresses: Sequence[str], delivered: Times) -> Consumer:
    def handle(message: Message) -> None:
        delivered.add(time.time() - _STAMP.unpack_from(message.body)[0])

    consumer = options.consumer_of(
        "nsq-bench", topic, _CHANNEL, nsqd=addresses, max_in_flight=options.max_in_flight
    )
    return consumer.add_handler(handle)


def _publish(
    options: BenchOptions, topic: str, producer: Producer, watch: SignalWatch
) -> tuple[Times, float]:
    times, rest = Times(), bytes(options.size - _STAMP.size)
    over = threading.Event()
    failures: list[NsqError] = []

    def publish() -> None:
        while not over.is_set():
            began = time.monotonic()
            bodies = [_STAMP.pack(time.time()) + rest] * options.batch
            try:
                producer.multi_publish(topic, bodies)
            except NsqError as error:
                failures.append(error)
                over.set()
                return
            times.add(time.monotonic() - began, options.batch)

    began = time.monotonic()
    threads = [threading.Thread(target=publish, name=f"nsq-bench-{n}") for n in range(options.publishers)]
    for thread in threads:
        thread.start()
    watch.wait(options.seconds)
    over.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return times, time.monotonic() - began


def _wait_for(count: int, delivered: Times, watch: SignalWatch) -> float:
    """Wait until everything is delivered, or nothing has arrived for 10 s; return how long that took."""
    began = last = time.monotonic()
    seen = -1
    while delivered.count < count and time.monotonic() < last + 10.0:
        if delivered.count != seen:
            seen, last = delivered.count, time.monotonic()
        if watch.wait(0.05) is not None:
            break
    return time.monotonic() - began


def _delete(cluster: Cluster, topic: str) -> None:
    def on_lookupd(lookupd: NsqlookupdApi) -> None:
        lookupd.delete_topic(topic)

    def on_nsqd(nsqd: NsqdApi) -> None:
        nsqd.delete_topic(topic)

    for outcome in cluster.change(on_lookupd, on_nsqd, cluster.nsqds):
        if outcome.error:
            log.warning("%s was not deleted: %s: %s", topic, outcome.where, outcome.error)


def _row(what: str, times: Times, seconds: float, size: int, together: int) -> dict[str, object]:
    ordered = sorted(times.seconds) or [0.0]
    rate = times.count / seconds
    return {
        "what": what,
        "messages": times.count,
        "per_second": round(rate),
        "mb_per_second": round(rate * size / 1e6, 1),
        "together": together,
        "p50_ms": round(percentile(50, ordered) * 1000, 2),
        "p99_ms": round(percentile(99, ordered) * 1000, 2),
    }
