"""pynsq under load. It calls its handler for one message after the other, on the event loop that reads."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import work  # type: ignore[import-not-found]  # beside this program

nsq: Any = importlib.import_module("nsq")  # theirs: ours is not on this program's path


async def consume(port: int, count: int, max_in_flight: int, pause: float = 0.0) -> Sequence[float]:
    over = asyncio.Event()
    counter = work.Counter(count, over.set)

    def work_and_tick(_: object) -> bool:
        if pause:
            time.sleep(pause)
        counter.tick()
        return True

    reader(port, max_in_flight, work_and_tick)
    await over.wait()
    return [counter.rate]


def reader(port: int, max_in_flight: int, handler: Callable[[Any], bool]) -> Any:
    return nsq.Reader(
        work.TOPIC,
        work.CHANNEL,
        message_handler=handler,
        nsqd_tcp_addresses=[f"127.0.0.1:{port}"],
        max_in_flight=max_in_flight,
    )


async def writer(port: int) -> Any:
    started = nsq.Writer([f"127.0.0.1:{port}"])
    while not started.conns:  # noqa: ASYNC110 - it has no event for that
        await asyncio.sleep(0.01)
    return started


async def publish_async(port: int, count: int, size: int, window: int) -> Sequence[float]:
    """Keep a number of publishes unanswered: each callback sends the next one."""
    publish, body = (await writer(port)).pub, b"x" * size
    over = asyncio.Event()
    counter = work.Counter(count, over.set)
    left = work.WARM_UP + count - window

    def answered(_: object, data: object) -> None:
        nonlocal left
        if data != b"OK":
            raise RuntimeError(f"a publish was answered by {data!r}")
        counter.tick()
        if left:
            left -= 1
            publish(work.TOPIC, body, callback=answered)

    for _ in range(window):
        publish(work.TOPIC, body, callback=answered)
    await over.wait()
    return [counter.rate]


async def latency(port: int, count: int, a_second: int, size: int, max_in_flight: int) -> Sequence[float]:
    over = asyncio.Event()
    delays = work.Delays(count, size, over.set)

    def note(message: Any) -> bool:
        delays.note(message.body)
        return True

    reader(port, max_in_flight, note)
    publish = (await writer(port)).pub
    await asyncio.sleep(0.2)
    began = time.perf_counter()
    for due in work.due_times(count, a_second):
        await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
        publish(work.TOPIC, delays.stamp())
    await over.wait()
    return list(delays.numbers())


def running(load: Callable[..., Awaitable[Sequence[float]]]) -> Callable[..., Sequence[float]]:
    async def run(**arguments: Any) -> Sequence[float]:
        return await load(**arguments)

    return lambda **arguments: asyncio.run(run(**arguments))


work.main({each.__name__: running(each) for each in (consume, publish_async, latency)})
