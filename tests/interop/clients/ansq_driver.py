"""Drives ansq."""

from __future__ import annotations

import asyncio
from importlib import metadata
from typing import Any

import ansq
import orders
from ansq.tcp.types import NSQErrorSchema

writers: dict[str, Any] = {}
readers: dict[str, Any] = {}
treatments: dict[str, orders.Treatment] = {}
tasks: dict[str, set[asyncio.Task[None]]] = {}


async def about() -> dict[str, str]:
    return {"version": metadata.version("ansq"), "module": ansq.__file__}


async def produce(name: str, nsqd: str, options: dict[str, Any]) -> None:
    writers[name] = await ansq.create_writer([nsqd], options_of(options))


def options_of(features: dict[str, Any]) -> Any:
    return ansq.ConnectionOptions(features=ansq.ConnectionFeatures(**features))


async def connected(name: str) -> bool:
    return any(connection.is_connected for connection in writers[name].connections)


async def publish(name: str, topic: str, bodies: list[str]) -> None:
    await confirmed([writers[name].pub(topic, body) for body in orders.bodies_of(bodies)])


async def multi_publish(name: str, topic: str, bodies: list[str]) -> None:
    await confirmed([writers[name].mpub(topic, *orders.bodies_of(bodies))])


async def defer(name: str, topic: str, bodies: list[str], delay_ms: int) -> None:
    await confirmed([writers[name].dpub(topic, body, delay_ms) for body in orders.bodies_of(bodies)])


async def confirmed(sends: list[Any]) -> None:
    """An error frame is returned, not raised."""
    for answer in await asyncio.gather(*sends):
        if isinstance(answer, NSQErrorSchema) or not answer.is_ok:
            raise RuntimeError(f"nsqd answered {answer.code if answer.is_error else ''} {answer.text}")


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
    reader = readers[name] = await ansq.create_reader(
        topic,
        channel,
        nsqd_tcp_addresses=[nsqd] if nsqd else None,
        lookupd_http_addresses=[lookupd] if lookupd else None,
        lookupd_poll_interval=300,
        lookupd_poll_jitter=0.0,
        connection_options=options_of(options),
    )
    for connection in reader.connections:
        # The Reader itself knows RDY 1 only; its connections can do more, and keep it when they reconnect.
        await connection.rdy(max_in_flight)
    tasks[name] = set()
    start(name, read(name, reader, treatments[name]))


def start(name: str, work: Any) -> None:
    task = asyncio.ensure_future(work)
    tasks[name].add(task)


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
        await writers.pop(name).close()
        return
    await readers.pop(name).close()
    treatments.pop(name)
    for task in (mine := tasks.pop(name)):
        task.cancel()
    # Raise the error of a reading task only now.
    for result in await asyncio.gather(*mine, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


asyncio.run(
    orders.serve(
        {
            each.__name__: each
            for each in (
                about,
                produce,
                connected,
                publish,
                multi_publish,
                defer,
                consume,
                received,
                release,
                close,
            )
        }
    )
)
