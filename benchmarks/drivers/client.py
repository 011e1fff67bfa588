"""Our client under load: ``client LOAD ARGUMENTS``, see benchmarks/peers/work.py."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import nsq
from benchmarks.peers import work
from benchmarks.usage import resident_memory


def consume(
    port: int, count: int, max_in_flight: int, threads: int = 1, pause: float = 0.0, **options: Any
) -> Sequence[float]:
    over = threading.Event()
    counter = work.Counter(count, over.set)

    def work_and_tick(_: nsq.Message) -> None:
        time.sleep(pause)
        counter.tick()

    handler = work_and_tick if pause else counter.tick
    consumer(port, max_in_flight, handler, threads=threads, **options)
    over.wait()
    return [counter.rate]


def consumer(
    port: int, max_in_flight: int, handler: Callable[[nsq.Message], object], **options: Any
) -> nsq.Consumer:
    made = nsq.Consumer(
        work.TOPIC, work.CHANNEL, nsqd=f"127.0.0.1:{port}", max_in_flight=max_in_flight, **options
    )
    made.add_handler(handler)
    made.start()
    return made


def publish(port: int, count: int, size: int, callers: int = 1, **options: Any) -> Sequence[float]:
    producer, body = nsq.Producer(f"127.0.0.1:{port}", **options), b"x" * size
    return work.calls(count, [lambda: producer.publish(work.TOPIC, body)] * callers)


def publish_async(port: int, count: int, size: int, window: int, callbacks: bool = False) -> Sequence[float]:
    """Publish without waiting; ``max_pending`` limits the unanswered publishes."""
    failures: list[object] = []
    producer, body = (
        nsq.Producer(f"127.0.0.1:{port}", max_pending=window, on_failed=failures.append),
        b"x" * size,
    )
    producer.publish(work.TOPIC, body)
    began = time.perf_counter()
    for _ in range(count):
        future = producer.publish_async(work.TOPIC, body)
        if callbacks:
            future.add_done_callback(_check)
    report = producer.flush()
    took = time.perf_counter() - began
    if failures or not report:
        raise SystemExit(f"{report}, failed: {failures[:1]}")
    return [count / took]


def _check(future: Future[Any]) -> None:
    future.result()


def multi_publish(port: int, count: int, size: int, batch: int) -> Sequence[float]:
    producer, bodies = nsq.Producer(f"127.0.0.1:{port}"), [b"x" * size] * batch
    producer.multi_publish(work.TOPIC, bodies)
    began = time.perf_counter()
    for _ in range(count // batch):
        producer.multi_publish(work.TOPIC, bodies)
    return [count // batch * batch / (time.perf_counter() - began)]


def latency(port: int, count: int, a_second: int, size: int, max_in_flight: int) -> Sequence[float]:
    over = threading.Event()
    delays = work.Delays(count, size, over.set)
    consumer(port, max_in_flight, lambda message: delays.note(message.body)).wait_until_connected()
    producer = nsq.Producer(f"127.0.0.1:{port}")
    producer.ping()
    began = time.perf_counter()
    for due in work.due_times(count, a_second):
        time.sleep(max(0.0, began + due - time.perf_counter()))
        producer.publish(work.TOPIC, delays.stamp())
    over.wait()
    return delays.numbers()


def memory(port: int, count: int) -> Sequence[float]:
    """Return the memory that a consumer needs for this number of messages."""
    pid = os.getpid()
    held: list[nsq.Message] = []
    over = threading.Event()

    def hold(message: nsq.Message) -> None:
        message.disable_auto_response()
        held.append(message)
        if len(held) == count:
            over.set()

    paused = nsq.Consumer(work.TOPIC, work.CHANNEL, nsqd=f"127.0.0.1:{port}", max_in_flight=count)
    paused.add_handler(hold)
    paused.pause()
    paused.start()
    paused.wait_until_connected()
    before = resident_memory(pid)
    paused.resume()
    over.wait()
    return [resident_memory(pid) - before]


if __name__ == "__main__":
    work.main(
        {each.__name__: each for each in (consume, publish, publish_async, multi_publish, latency, memory)}
    )
