"""Our client with a partitioned cluster and, for comparison, with one nsqd: ``partitioned LOAD ARGUMENTS``.

Prints the CPU time of this process for each message, in microseconds. ``where`` has the addresses as the
options of Producer and Consumer: ``nsqlookupd`` or ``nsqd``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import nsq
from benchmarks.peers import work


def publish(where: Mapping[str, Any], count: int, size: int) -> Sequence[float]:
    producer, body = nsq.Producer(**where), b"x" * size
    for _ in range(work.WARM_UP):
        producer.publish(work.TOPIC, body)
    began = time.process_time()
    for _ in range(count):
        producer.publish(work.TOPIC, body)
    return [_each(began, count)]


def publish_async(where: Mapping[str, Any], count: int, size: int, window: int) -> Sequence[float]:
    producer, body = nsq.Producer(**where, max_pending=window), b"x" * size
    producer.publish(work.TOPIC, body)
    began = time.process_time()
    for _ in range(count):
        producer.publish_async(work.TOPIC, body)
    report = producer.flush()
    if not report:
        raise SystemExit(repr(report))
    return [_each(began, count)]


def consume(where: Mapping[str, Any], count: int, threads: int = 1, **options: Any) -> Sequence[float]:
    over = threading.Event()
    counter = work.Counter(count, over.set, clock=time.process_time)
    consumer = nsq.Consumer(work.TOPIC, work.CHANNEL, **where, **options)
    consumer.add_handler(counter.tick, threads=threads)
    consumer.start()
    over.wait()
    return [1e6 / counter.rate]


def _each(began: float, count: int) -> float:
    return (time.process_time() - began) * 1e6 / count


if __name__ == "__main__":
    work.main({each.__name__: each for each in (publish, publish_async, consume)})
