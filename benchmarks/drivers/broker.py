"""One load on one broker: ``broker CLIENT PORT LOAD NUMBER…``. Prints messages a second and the client's CPU
time in microseconds for each, or p50 and p99 in milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.brokers.clients import CLIENTS, NAME, JetStream, age, publish_for

BODY = b"x" * 200


def publish(client: Any, callers: float, seconds: float, batch: float) -> Sequence[float]:
    began, used = time.monotonic(), time.process_time()
    count = publish_for(client, int(callers), seconds, int(batch), BODY)
    return count / (time.monotonic() - began), (time.process_time() - used) / count * 1e6


def fill(client: Any, count: float, seconds: float) -> Sequence[float]:
    """Store so many messages, or for so many seconds, in batches, with several callers. Return the rate and
    the number.
    """
    began = time.monotonic()
    if hasattr(client, "filler"):
        fill_some, stored = client.filler(), 0
        while stored < count and time.monotonic() < began + seconds:
            fill_some([BODY] * 1000)
            stored += 1000
    else:
        stored = publish_for(client, 4, seconds, 1000, BODY, most=int(count) // 4)
    return stored / (time.monotonic() - began), stored


def consume(client: Any, prefetch: float, seconds: float, most: float) -> Sequence[float]:
    """Consume for some seconds from the first message on, or until ``most`` have come: so many are there."""
    times: list[float] = []
    used: list[float] = []

    def handle(_body: bytes) -> bool:
        if not times:
            used.append(time.process_time())
        times.append(time.monotonic())
        return len(times) < most and times[-1] < times[0] + seconds

    client.consume(handle, int(prefetch))
    used.append(time.process_time())
    count = len(times) - 1
    return count / (times[-1] - times[0]), (used[1] - used[0]) / count * 1e6


def latency(client: Any, a_second: float, seconds: float) -> Sequence[float]:
    """Publish at a rate, and measure until the handler has the message. Prefetch is 200."""
    ages: list[float] = []
    count = int(a_second * seconds)

    def handle(body: bytes) -> bool:
        ages.append(age(body))
        return len(ages) < count

    consumer = threading.Thread(target=client.consume, args=(handle, 200), daemon=True)
    consumer.start()
    time.sleep(0.5)
    publish_for(type(client)(client_port), 1, seconds + 0.1, 1, BODY, a_second)
    consumer.join(10.0)
    hundredths = statistics.quantiles(ages, n=100)
    return hundredths[49] * 1000, hundredths[98] * 1000


def idle(client: Any, seconds: float) -> Sequence[float]:
    """Wait for messages that do not come; return the client's CPU time in percent of a core."""
    threading.Thread(target=client.consume, args=(lambda _: True, 200), daemon=True).start()
    time.sleep(1.0)
    used = time.process_time()
    time.sleep(seconds)
    return ((time.process_time() - used) / seconds * 100,)


def number(client: Any, first: float) -> Sequence[float]:
    """Publish numbers from ``first`` on, one after the other, until the broker is gone. Return the number
    after the last one that was stored.
    """
    count = int(first)
    if isinstance(client, JetStream):
        return (asyncio.run(_number_in_a_task(client, count)),)
    try:
        publish, _ = client.publisher()
        while True:
            publish(b"%d" % count)
            count += 1
    except Exception:  # each client has its own errors
        return (count,)


async def _number_in_a_task(client: JetStream, count: int) -> int:
    try:
        _, stream = await client.connect()
        while True:
            await stream.publish(NAME, b"%d" % count, timeout=1.0)
            count += 1
    except Exception:
        return count


def lost(client: Any, *ranges: float) -> Sequence[float]:
    """Consume until nothing comes for two seconds; return how many numbers of the ranges did not come."""
    seen: set[int] = set()
    at = [time.monotonic()]

    def handle(body: bytes) -> bool:
        seen.add(int(body))
        at[0] = time.monotonic()
        return True

    threading.Thread(target=client.consume, args=(handle, 200), daemon=True).start()
    while time.monotonic() < at[0] + 2.0:
        time.sleep(0.1)
    wanted = [
        each
        for first, end in zip(ranges[::2], ranges[1::2], strict=True)
        for each in range(int(first), int(end))
    ]
    return (len(set(wanted) - seen),)


LOADS: dict[str, Callable[..., Sequence[float]]] = {
    each.__name__: each for each in (publish, fill, consume, latency, idle, number, lost)
}

if __name__ == "__main__":
    name, port, load, *numbers = sys.argv[1:]
    client_port = int(port)
    made = CLIENTS[name](client_port)
    if load == "prepare":
        made.prepare()
    else:
        print(*LOADS[load](made, *map(float, numbers)), flush=True)
    # At once: the load is over, but its threads may still wait for messages.
    os._exit(0)
