"""The hooks around a publish, around a handler, and at the end of a handler's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import nsq
from nsq import aio
from nsq.testing import Nsqd

from .consuming import (
    CHANNEL,
    PATIENCE,
    TOPIC,
    create,
    log_of,
    make_consumer,
    numbered,
    publish,
    running,
    until,
)

Error = BaseException | None


class Around:
    """Replaces each body, and records ends and threads."""

    def __init__(self) -> None:
        self.ends: list[tuple[list[bytes], Error]] = []
        self.threads: set[str] = set()

    def __call__(self, topic: str, bodies: list[bytes]) -> tuple[list[bytes], Callable[[Error], object]]:
        self.threads.add(threading.current_thread().name)
        return [topic.encode() + b" " + body for body in bodies], lambda error: self.ends.append(
            (bodies, error)
        )


def received(nsqd: Nsqd, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    consumer = make_consumer(nsqd).add_handler(lambda message: bodies.append(message.body))
    with running(consumer):
        until("all", lambda: len(bodies) == count)
    return sorted(bodies)


def test_every_way_to_publish_goes_through_around_publish(nsqd: Nsqd) -> None:
    create(nsqd)
    hook = Around()
    with nsq.Producer(nsqd.tcp_address, around_publish=hook) as producer:
        producer.publish(TOPIC, b"1")
        producer.publish(TOPIC, b"2", defer=0.01)
        producer.multi_publish(TOPIC, iter([b"3", b"4"]))
        producer.publish_async(TOPIC, b"5").result(PATIENCE)
        producer.multi_publish_async(TOPIC, [b"6"]).result(PATIENCE)
        assert producer.flush().clean

    async def on_a_loop() -> None:
        async with aio.Producer(nsqd.tcp_address, around_publish=hook) as producer:
            await producer.publish(TOPIC, b"7")
            await producer.multi_publish(TOPIC, [b"8"])

    asyncio.run(on_a_loop())
    assert received(nsqd, 8) == [f"orders {number}".encode() for number in range(1, 9)]
    assert [bodies for bodies, _ in hook.ends] == [
        [b"1"],
        [b"2"],
        [b"3", b"4"],
        [b"5"],
        [b"6"],
        [b"7"],
        [b"8"],
    ]
    assert {error for _, error in hook.ends} == {None}
    assert hook.threads == {"MainThread"}


def test_around_handler_runs_on_the_handlers_thread_and_sees_its_result(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(6))
    seen: list[tuple[str, object]] = []

    def around(handler: Callable[..., Any]) -> Callable[..., Any]:
        def handle(given: Any) -> Any:
            try:
                result = handler(given)
            except ValueError as error:
                seen.append((threading.current_thread().name, error))
                raise
            seen.append((threading.current_thread().name, result))
            return result

        return handle

    def fail_first(message: nsq.Message) -> None:
        if message.attempts == 1:
            raise ValueError("not yet")

    ends: list[str] = []
    consumer = make_consumer(
        nsqd, around_handler=around, at_thread_end=lambda: ends.append(threading.current_thread().name)
    )
    consumer.add_handler(fail_first, threads=2)
    consumer.add_batch_handler(lambda messages: None, 2, 0.01)
    with running(consumer):
        until("all", lambda: consumer.stats().finished == 6)
    assert all("-handler-" in name for name, _ in seen)
    assert sorted(name.rpartition("-")[2] for name in ends) == ["0", "1", "2"]


def test_a_failing_at_thread_end_is_logged(nsqd: Nsqd) -> None:
    create(nsqd)
    with (
        log_of() as log,
        running(make_consumer(nsqd, at_thread_end=lambda: 1 / 0).add_handler(lambda message: None)),
    ):
        pass
    assert "ERROR at_thread_end failed" in log.lines


def test_around_handler_of_a_loop_is_awaited(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"message"])
    seen = []

    def around(handler: aio.AsyncHandler) -> aio.AsyncHandler:
        async def handle(message: nsq.Message) -> Any:
            seen.append("before")
            await handler(message)
            seen.append("after")

        return handle

    async def main() -> None:
        consumer = aio.Consumer(TOPIC, CHANNEL, nsqd=nsqd.tcp_address, around_handler=around)

        async def handle(message: nsq.Message) -> None:
            seen.append("handler")
            await consumer.stop()

        await consumer.add_handler(handle).run()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert seen == ["before", "handler", "after"]


def test_hooks_that_are_no_functions_are_refused_by_name() -> None:
    for name in ("around_handler", "at_thread_end"):
        with pytest.raises(nsq.ConfigError, match=f"{name} is 1"):
            make_consumer("127.0.0.1:1", **{name: 1})
