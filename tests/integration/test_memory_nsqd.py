"""Clients, threads, time, signals and forks with a ``MemoryNsqd``."""

from __future__ import annotations

import asyncio
import signal
import time
from types import FrameType

import pytest

import nsq
from nsq import aio
from nsq.errors import UsageError
from nsq.testing import MemoryNsqd
from tests.fakes.forks import in_child

from .consuming import Recorder, until


def test_it_times_messages_out_and_releases_them_when_they_are_due() -> None:
    with MemoryNsqd(msg_timeout=0.1) as nsqd:
        seen = Recorder(lambda message: message.disable_auto_response() if message.attempts == 1 else None)
        consumer = nsq.Consumer("orders", "billing", nsqd=nsqd.tcp_address, transport=nsqd)
        producer = nsq.Producer(nsqd.tcp_address, transport=nsqd)
        with consumer.add_handler(seen), producer:
            began = time.monotonic()
            producer.publish("orders", b"one", defer=0.1)
            seen.wait_for(2)
            assert time.monotonic() >= began + 0.2
            assert seen.attempts == [1, 2]
            (channel,) = nsqd.stats()["topics"][0]["channels"]
            assert channel["timeout_count"] == 1


def test_a_handlers_requeue_is_awaited_and_then_need_not_be_waited_for(memory_nsqd: MemoryNsqd) -> None:
    seen = Recorder(lambda message: message.requeue(3600.0) if message.attempts == 1 else None)
    consumer = nsq.Consumer("orders", "billing", nsqd=memory_nsqd.tcp_address, transport=memory_nsqd)
    with consumer.add_handler(seen):
        memory_nsqd.publish("orders", b"one")
        seen.wait_for(1)
        memory_nsqd.release_deferred(1)
        seen.wait_for(2)
        with pytest.raises(AssertionError, match="0 of 1 messages are deferred"):
            memory_nsqd.release_deferred(1, timeout=0.0)


def test_a_signal_handler_publishes_while_its_thread_is_in_nsqd() -> None:
    published = 0
    with MemoryNsqd() as nsqd, nsq.Producer(nsqd.tcp_address, transport=nsqd) as producer:

        def publish_too(number: int, frame: FrameType | None) -> None:
            nonlocal published
            nsqd.publish("orders", b"from the handler")
            producer.publish_async("orders", b"from the handler")
            published += 2
            signal.setitimer(signal.ITIMER_REAL, 0.001)

        before = signal.signal(signal.SIGALRM, publish_too)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            for _ in range(1000):
                producer.publish("orders", b"one")
            until("some came between", lambda: published > 10)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert producer.flush(10.0)
        assert nsqd.depth("orders") == len(nsqd.bodies("orders")) == 1000 + published


def test_a_forked_child_is_refused_and_its_parent_goes_on() -> None:
    with MemoryNsqd() as nsqd, nsq.Producer(nsqd.tcp_address, transport=nsqd) as producer:
        producer.publish("orders", b"one")

        def child() -> None:
            for call in (nsqd.stats, nsqd.restart):
                with pytest.raises(UsageError, match="or make a MemoryNsqd here"):
                    call()
            with pytest.raises(nsq.PublishFailed, match="is in the memory of process"):
                producer.publish("orders", b"two", timeout=0.2)
            nsqd.close()
            with MemoryNsqd() as own, nsq.Producer(own.tcp_address, transport=own) as publisher:
                publisher.publish("orders", b"three")
                assert own.bodies("orders") == [b"three"]

        assert in_child(child) == 0
        producer.publish("orders", b"four")
        assert nsqd.bodies("orders") == [b"one", b"four"]


def test_asyncio_uses_it_as_a_transport(memory_nsqd: MemoryNsqd) -> None:
    where = {"nsqd": memory_nsqd.tcp_address, "transport": memory_nsqd}

    async def publish_and_consume() -> bytes:
        async with aio.Producer(**where) as producer, aio.Consumer("orders", "billing", **where) as consumer:
            await producer.publish("orders", b"one")
            async for message in consumer:
                async with message:
                    return bytes(message.body)
        return b""

    assert asyncio.run(publish_and_consume()) == b"one"
