"""Drives asyncnsq 2."""

from __future__ import annotations

import asyncio
from importlib import metadata
from typing import Any

import asyncnsq
import orders

writers: dict[str, Any] = {}
readers: dict[str, Any] = {}
treatments: dict[str, orders.Treatment] = {}
tasks: dict[str, set[asyncio.Task[None]]] = {}


async def about() -> dict[str, str]:
    return {"version": metadata.version("asyncnsq"), "module": asyncnsq.__file__}


async def produce(name: str, nsqd: str, options: dict[str, Any]) -> None:
    host, _, port = nsqd.rpartition(":")
    writers[name] = await asyncnsq.create_writer(host=host, port=int(port), **options)


async def connected(name: str) -> bool:
    return not writers[name]._conn.closed


async def publish(name: str, topic: str, bodies: list[str]) -> None:
    await asyncio.gather(*(writers[name].pub(topic, body) for body in orders.bodies_of(bodies)))


async def multi_publish(name: str, topic: str, bodies: list[str]) -> None:
    await writers[name].mpub(topic, *orders.bodies_of(bodies))


async def defer(name: str, topic: str, bodies: list[str], delay_ms: int) -> None:
    await asyncio.gather(*(writers[name].dpub(topic, delay_ms, body) for body in orders.bodies_of(bodies)))


async def consume(
    name: str,
    topic: str,
    channel: str,
    max_in_flight: int,
    treatment: dict[str, Any],
    options: dict[str, Any],
    nsqd: str | None = None,
    lookupd: str | None = None,
) -> None:
    treatments[name] = orders.Treatment(**treatment)
    reader = readers[name] = await asyncnsq.create_reader(
        nsqd_tcp_addresses=[nsqd] if nsqd else None,
        lookupd_http_addresses=[lookupd] if lookupd else None,
        max_in_flight=max_in_flight,
        **options,
    )
    reader._lookupd_poll_time = 0.3  # no option sets it; half a minute by default
    await reader.subscribe(topic, channel)
    tasks[name] = set()
    start(name, read(name, reader, treatments[name]))


def start(name: str, work: Any) -> None:
    tasks[name].add(asyncio.ensure_future(work))


async def read(name: str, reader: Any, treatment: orders.Treatment) -> None:
    async for message in reader.messages():
        step = treatment(message)
        if step == "finish":
            await message.fin()
        elif step == "requeue":
            await message.req(treatment.requeue_ms)
        elif step == "touch":
            start(name, touched(message, *treatment.touch))


async def touched(message: Any, interval: float, times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(interval)
        await message.touch()
    await message.fin()


async def received(name: str, count: int, within: float) -> list[Any]:
    treatment = treatments[name]
    await orders.until(lambda: len(treatment.received) >= count, f"{count} messages", within)
    return treatment.received


async def release(name: str) -> None:
    for message in treatments[name].release():
        await message.fin()


async def close(name: str) -> None:
    if name in writers:
        writers.pop(name).close()
        return
    if name not in readers:  # it could not connect
        return
    readers.pop(name).close()
    treatments.pop(name)
    for task in (mine := tasks.pop(name, set())):
        task.cancel()
    # Raise the error of a reading task only now.
    for result in await asyncio.gather(*mine, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


served = (about, produce, connected, publish, multi_publish, defer, consume, received, release, close)
asyncio.run(orders.serve({each.__name__: each for each in served}))
