"""Drives pynsq. Its module is called ``nsq`` like ours, which must not be on the path here."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import orders

import nsq

SOON = 0.3
"""Seconds until a Writer dials again, in place of 15."""

writers: dict[str, Any] = {}
readers: dict[str, Any] = {}
treatments: dict[str, orders.Treatment] = {}


async def about() -> dict[str, str]:
    return {"version": nsq.__version__, "module": nsq.__file__}


async def produce(name: str, nsqd: str, options: dict[str, Any]) -> None:
    writer = writers[name] = nsq.Writer([nsqd], reconnect_interval=SOON, **options)
    await orders.until(lambda: writer.conns, f"Writer connected to {nsqd}")


async def connected(name: str) -> bool:
    return bool(writers[name].conns)


async def publish(name: str, topic: str, bodies: list[str]) -> None:
    await confirmed([functools.partial(writers[name].pub, topic, body) for body in orders.bodies_of(bodies)])


async def multi_publish(name: str, topic: str, bodies: list[str]) -> None:
    await confirmed([functools.partial(writers[name].mpub, topic, orders.bodies_of(bodies))])


async def defer(name: str, topic: str, bodies: list[str], delay_ms: int) -> None:
    await confirmed(
        [functools.partial(writers[name].dpub, topic, delay_ms, body) for body in orders.bodies_of(bodies)]
    )


async def confirmed(sends: list[Any]) -> None:
    """Send all, then wait until nsqd has confirmed all: the future that pynsq returns is about
    writing only.
    """
    waiting = [asyncio.get_running_loop().create_future() for _ in sends]
    for send, future in zip(sends, waiting, strict=True):
        send(callback=functools.partial(answered, future))
    await asyncio.gather(*waiting)


def answered(future: asyncio.Future[bytes], conn: object, data: Any) -> None:
    if isinstance(data, Exception):
        future.set_exception(data)
    elif data == b"OK":
        future.set_result(data)
    else:
        future.set_exception(RuntimeError(f"nsqd answered {data!r}"))


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
    addresses = {"nsqd_tcp_addresses": [nsqd]} if nsqd else {"lookupd_http_addresses": [lookupd]}
    readers[name] = nsq.Reader(
        topic,
        channel,
        message_handler=functools.partial(handle, treatments[name]),
        max_in_flight=max_in_flight,
        lookupd_poll_interval=1,
        lookupd_poll_jitter=0.0,
        **addresses,
        **options,
    )


def handle(treatment: orders.Treatment, message: Any) -> Any:
    step = treatment(message)
    if step == "finish":
        return True
    message.enable_async()
    if step == "requeue":
        message.requeue(backoff=False, time_ms=treatment.requeue_ms)
    elif step == "touch":
        return touched(message, *treatment.touch)
    return None


async def touched(message: Any, interval: float, times: int) -> bool:
    for _ in range(times):
        await asyncio.sleep(interval)
        message.touch()
    return True


async def received(name: str, count: int, within: float) -> list[Any]:
    treatment = treatments[name]
    await orders.until(lambda: len(treatment.received) >= count, f"{count} messages", within)
    return treatment.received


async def release(name: str) -> None:
    for message in treatments[name].release():
        message.finish()


async def close(name: str) -> None:
    client = writers.pop(name, None) or readers.pop(name)
    # Neither kind can be told to stay closed: a closed connection is dialled again.
    client.connect_to_nsqd = lambda *args, **kwargs: None
    if isinstance(client, nsq.Reader):
        client.close()
        treatments.pop(name)
    for conn in client.conns.values():
        conn.close()
    await orders.until(lambda: not client.conns, f"{name} closed")


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
