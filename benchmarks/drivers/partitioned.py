"""Our client with a partitioned cluster and, for comparison, with one nsqd: ``partitioned LOAD ARGUMENTS``.

``where`` has the addresses as the options of Producer and Consumer: ``nsqlookupd`` or ``nsqd``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import nsq
from benchmarks.peers import work


def publish(where: Mapping[str, Any], count: int, size: int, callers: int = 1) -> Sequence[float]:
    producer, body = nsq.Producer(**where), b"x" * size
    producer.publish(work.TOPIC, body)
    return work.calls(count, [lambda: producer.publish(work.TOPIC, body)] * callers)


def publish_async(where: Mapping[str, Any], count: int, size: int, window: int) -> Sequence[float]:
    producer, body = nsq.Producer(**where, max_pending=window), b"x" * size
    producer.publish(work.TOPIC, body)
    began = time.perf_counter()
    for _ in range(count):
        producer.publish_async(work.TOPIC, body)
    report = producer.flush()
    took = time.perf_counter() - began
    if not report:
        raise SystemExit(repr(report))
    return [count / took]


def consume(
    where: Mapping[str, Any], count: int, threads: int = 1, pause: float = 0.0, **options: Any
) -> Sequence[float]:
    over = threading.Event()
    counter = work.Counter(count, over.set)

    def handle(_: nsq.Message) -> None:
        if pause:
            time.sleep(pause)
        counter.tick()

    consumer = nsq.Consumer(work.TOPIC, work.CHANNEL, **where, **options)
    consumer.add_handler(handle, threads=threads)
    consumer.start()
    over.wait()
    return [counter.rate]


if __name__ == "__main__":
    work.main({each.__name__: each for each in (publish, publish_async, consume)})
