"""gnsq under load, with gevent's monkey patching. It calls its handler for one message after the other, on
the greenlet that reads.
"""

from __future__ import annotations

# ruff: noqa: E402  gevent patches before anything else is imported
import importlib
from typing import Any

importlib.import_module("gevent.monkey").patch_all()

import time
from collections.abc import Callable, Sequence

import work  # type: ignore[import-not-found]  # beside this program

gevent: Any = importlib.import_module("gevent")
importlib.import_module("gevent.event")
gnsq: Any = importlib.import_module("gnsq")
blocking_sleep: Callable[[float], None] = importlib.import_module("gevent.monkey").get_original(
    "time", "sleep"
)


def consumer(port: int, max_in_flight: int, handler: Callable[[object, Any], object]) -> None:
    gnsq.Consumer(
        work.TOPIC,
        work.CHANNEL,
        nsqd_tcp_addresses=[f"127.0.0.1:{port}"],
        message_handler=handler,
        max_in_flight=max_in_flight,
    ).start(block=False)


def consume(port: int, count: int, max_in_flight: int, pause: float = 0.0) -> Sequence[float]:
    over = gevent.event.Event()

    def done() -> None:
        over.set()
        gevent.sleep(1)  # while there is something to read, it reads without yielding to other greenlets

    counter = work.Counter(count, done)

    def work_and_tick(_: object, message: object) -> None:
        if pause:
            blocking_sleep(pause)
        counter.tick(message)

    consumer(port, max_in_flight, work_and_tick)
    over.wait()
    return [counter.rate]


def producer(port: int) -> Any:
    started = gnsq.Producer([f"127.0.0.1:{port}"])
    started.start()
    return started


def publish(port: int, count: int, size: int) -> Sequence[float]:
    publish_one, body = producer(port).publish, b"x" * size
    counter = work.Counter(count, lambda: None)
    for _ in range(work.WARM_UP + count):
        publish_one(work.TOPIC, body)
        counter.tick()
    return [counter.rate, counter.cpu]


def multi_publish(port: int, count: int, size: int, batch: int) -> Sequence[float]:
    publish_many, bodies = producer(port).multipublish, [b"x" * size] * batch
    publish_many(work.TOPIC, bodies)
    began = time.perf_counter()
    for _ in range(count // batch):
        publish_many(work.TOPIC, bodies)
    return [count // batch * batch / (time.perf_counter() - began)]


def latency(port: int, count: int, a_second: int, size: int, max_in_flight: int) -> Sequence[float]:
    over = gevent.event.Event()
    delays = work.Delays(count, size, over.set)
    consumer(port, max_in_flight, lambda _, message: delays.note(message.body))
    publish_one = producer(port).publish
    gevent.sleep(0.2)
    began = time.perf_counter()
    for due in work.due_times(count, a_second):
        gevent.sleep(max(0.0, began + due - time.perf_counter()))
        publish_one(work.TOPIC, delays.stamp())
    over.wait()
    return list(delays.numbers())


work.main({each.__name__: each for each in (consume, publish, multi_publish, latency)})
