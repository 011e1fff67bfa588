"""nsqd restarts: other clients reconnect by themselves, and no message is lost or doubled.

One restart serves all these clients, which take different times to reconnect. gnsq and ansq dial again within
seconds. A pynsq Reader with fixed addresses would wait 15 s, and one with nsqlookupd waits
10 s since it last dialed, so this uses the latter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import NamedTuple

import pytest

from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import factory

from . import installed, nsqds
from .driver import Consumer, Driver, Drivers, Producer

BEFORE = [b"before %d" % number for number in range(50)]
AFTER = [b"after %d" % number for number in range(50)]
#: Those whose producers and consumers both reconnect.
CAN = [client for client in installed.CLIENTS if client != "asyncnsq"]

#: Not tested, because it does not work with any nsqd.
CANNOT = {"asyncnsq": "its Reader never dials an nsqd again; its Writer does"}

RETURN = 90.0
"""Seconds in which every client is back: what the slowest waits, and time to spare for slow machines."""


class Pair(NamedTuple):
    producer: Producer
    consumer: Consumer
    topic: str


@pytest.fixture(scope="module")
def own_nsqd(shared_nsqlookupd: Nsqlookupd) -> Iterator[Nsqd]:
    with factory(Nsqd) as make:
        yield make(process=True, lookupd=[shared_nsqlookupd], log_level="debug")


@pytest.fixture(scope="module")
def survivors(drivers: Drivers, own_nsqd: Nsqd, shared_nsqlookupd: Nsqlookupd) -> Iterator[dict[str, Pair]]:
    """Each client's pair, after it has brought messages through and nsqd has been restarted."""
    with ExitStack() as stack:
        pairs = {}
        for client, driver in drivers.running():
            if client in CANNOT:
                continue
            topic = f"survivor-{client}"
            producer = stack.enter_context(driver.producer(own_nsqd.tcp_address))
            producer.publish(topic, BEFORE)
            nsqds.expect_listed(shared_nsqlookupd, topic)
            consumer = stack.enter_context(consumer_of(driver, topic, own_nsqd, shared_nsqlookupd))
            pairs[client] = Pair(producer, consumer, topic)
        for pair in pairs.values():
            assert pair.consumer.bodies(len(BEFORE)) == sorted(BEFORE)
            nsqds.expect_drained(own_nsqd, pair.topic, len(BEFORE))
        own_nsqd.stop(keep_data=True)
        for pair in pairs.values():
            # ansq notices after a second; what is published before that never gets an answer.
            nsqds.eventually(partial(is_connected, pair.producer), False)
        own_nsqd.start()
        yield pairs


def consumer_of(
    driver: Driver, topic: str, nsqd: Nsqd, lookupd: Nsqlookupd
) -> AbstractContextManager[Consumer]:
    if driver.client == "pynsq":
        return driver.consumer(topic, lookupd=lookupd.http_address)
    return driver.consumer(topic, nsqd=nsqd.tcp_address)


def is_connected(producer: Producer) -> bool:
    return producer.connected


@pytest.mark.parametrize("client", CAN)
def test_producer_and_consumer_reconnect_after_a_restart(
    client: str, survivors: dict[str, Pair], drivers: Drivers, own_nsqd: Nsqd
) -> None:
    drivers.required(client)
    pair = survivors[client]
    nsqds.eventually(partial(is_connected, pair.producer), True, RETURN)
    pair.producer.publish(pair.topic, AFTER)
    assert pair.consumer.bodies(len(BEFORE) + len(AFTER), RETURN) == sorted(BEFORE + AFTER)
    nsqds.eventually(lambda: len(nsqds.consumers(own_nsqd, pair.topic)), 1)
    assert all(each.attempts == 1 for each in pair.consumer.received(0))
    assert nsqds.trouble(own_nsqd.log) == []
