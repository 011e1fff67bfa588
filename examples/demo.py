"""A whole NSQ in one program: nsqlookupd, two nsqds, a shop that publishes orders, two services that consume.

``make run`` starts this. Billing fails now and then and is given the order again; the archive writes every
order to a file. Everything listens on free ports of 127.0.0.1 and is gone at the end, except for the file.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import nsq
from nsq.testing import Nsqd, Nsqlookupd

TOPIC = "orders"
CHANNELS = ("billing", "archive")


class Service:
    """Counts the orders of one channel, and knows when all of them have come."""

    def __init__(self, name: str, expected: int, failing: float = 0.0, file: Path | None = None) -> None:
        self.name = name
        self.retries = 0
        self.seen: Counter[int] = Counter()
        self.complete = threading.Event()
        self._expected = expected
        self._failing = failing
        self._file = file.open("ab") if file else None
        self._lock = threading.Lock()

    def handle(self, message: nsq.Message) -> None:
        if message.attempts == 1 and random.random() < self._failing:
            self.retries += 1
            raise nsq.Requeue(delay=0.05, backoff=False)
        with self._lock:
            if self._file is not None:
                self._file.write(message.body + b"\n")
            self.seen[json.loads(message.body)["order"]] += 1
            if len(self.seen) == self._expected:
                self.complete.set()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish orders; bill and archive each of them.")
    parser.add_argument("--messages", type=int, default=20_000, help="how many orders (default: %(default)s)")
    count: int = parser.parse_args().messages
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Nsqlookupd() as lookupd, Nsqd(lookupd=[lookupd]) as first, Nsqd(lookupd=[lookupd]) as second:
            demonstrate(lookupd, [first, second], count)
    except KeyboardInterrupt:
        print("\nstopped")


def demonstrate(lookupd: Nsqlookupd, nsqds: list[Nsqd], count: int) -> None:
    print(f"nsqlookupd  tcp {lookupd.tcp_address}  http {lookupd.http_address}")
    for nsqd in nsqds:
        print(f"nsqd        tcp {nsqd.tcp_address}  http {nsqd.http_address}")
        # So that both channels exist before the first order: a channel gets what is published after it.
        nsqd.post(f"/topic/create?topic={TOPIC}")
        for channel in CHANNELS:
            nsqd.post(f"/channel/create?topic={TOPIC}&channel={channel}")
    path = Path(tempfile.gettempdir()) / f"orders-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    services = [Service("billing", count, failing=0.02), Service("archive", count, file=path)]
    consumers = [consume(lookupd, service) for service in services]
    try:
        began = time.perf_counter()
        publish([nsqd.tcp_address for nsqd in nsqds], count)
        published = time.perf_counter() - began
        for service in services:
            service.complete.wait(timeout=60)
        took = time.perf_counter() - began
    finally:
        for consumer, service in zip(consumers, services, strict=True):
            consumer.stop(timeout=5)
            service.close()
    summarize(services, count, published, took, path)


def consume(lookupd: Nsqlookupd, service: Service) -> nsq.Consumer:
    consumer = nsq.Consumer(
        TOPIC, service.name, nsqlookupd=lookupd.http_address, threads=4, max_in_flight=500
    )
    consumer.add_handler(service.handle)
    consumer.start()
    return consumer


def publish(addresses: list[str], count: int, batch: int = 100) -> None:
    with nsq.Producer(*addresses) as producer:
        for start in range(0, count, batch):
            stop = min(start + batch, count)
            producer.multi_publish(TOPIC, [b'{"order": %d}' % number for number in range(start, stop)])
            show_progress(stop / count)


def show_progress(share: float) -> None:
    if sys.stdout.isatty():
        print(f"\rpublishing  [{'#' * round(40 * share):<40}] {share:4.0%}", end="", flush=True)


def summarize(services: list[Service], count: int, published: float, took: float, path: Path) -> None:
    print(f"\n\npublished   {count:>8,} orders in {published:.1f} s, {count / published:,.0f} a second")
    for service in services:
        lost, again = count - len(service.seen), sum(service.seen.values()) - len(service.seen)
        print(
            f"{service.name:<11} {len(service.seen):>8,} handled, {service.retries} retried, "
            f"{lost} lost, {again} twice"
        )
    print(f"everything was handled {took:.1f} s after the first order; the archive is {path}")
    if any(len(service.seen) != count for service in services):
        raise SystemExit("orders were lost")


if __name__ == "__main__":
    main()
