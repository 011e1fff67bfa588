"""A program whose logging raises: consumers and producers go on."""

from __future__ import annotations

import logging
from typing import NoReturn

from nsq import Consumer, Message, Producer
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory

from .consuming import Recorder, create, expect_drained, logging_to, publish


class Broken(logging.Handler):
    """Raises where logging itself would not: in ``handle``, as a filter does."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.loggers: set[str] = set()

    def handle(self, record: logging.LogRecord) -> NoReturn:
        self.loggers.add(record.name)
        raise RuntimeError("the program's logging is broken")


def test_a_consumer_goes_on_when_every_log_line_raises(
    nsqd_factory: Factory[Nsqd], nsqlookupd_factory: Factory[Nsqlookupd]
) -> None:
    """Failing handlers, a lost nsqd and an nsqlookupd that is away make each of its threads log."""
    dead, nsqlookupd, first = nsqlookupd_factory(), nsqlookupd_factory(), nsqd_factory()
    dead.stop()
    create(first)

    def handle(message: Message) -> None:
        if message.attempts == 1:
            raise ValueError("x")

    seen = Recorder(handle)
    consumer = Consumer(
        "orders",
        "billing",
        nsqd=first.tcp_address,
        nsqlookupd=[dead.http_address, nsqlookupd.http_address],
        default_requeue_delay=0.0,
        backoff_multiplier=0.01,
        reconnect_max=0.5,
        lookupd_poll_interval=0.2,
    )
    with logging_to(Broken(), logging.DEBUG) as broken, consumer.add_handler(seen):
        publish(first, [b"before"])
        seen.wait_for(2)
        expect_drained(first, requeues=1)
        first.restart()
        publish(first, [b"after"])
        seen.wait_for(4)
        second = nsqd_factory(lookupd_tcp_addresses=[nsqlookupd.tcp_address])
        create(second)
        publish(second, [b"found"])
        seen.wait_for(6)
        assert {"nsq.consumer", "nsq.discovery"} <= broken.loggers
    assert seen.bodies == [b"before", b"before", b"after", b"after", b"found", b"found"]


def test_a_producer_goes_on_when_every_log_line_raises(nsqd: Nsqd) -> None:
    with (
        logging_to(Broken(), logging.DEBUG) as broken,
        Producer(nsqd.tcp_address, reconnect_max=0.5) as producer,
    ):
        for _ in range(2):
            producer.publish("orders", b"body", timeout=60.0)
            nsqd.restart()
        producer.publish("orders", b"body", timeout=60.0)
    assert "nsq.producer" in broken.loggers
