"""Other clients find our nsqds through our nsqlookupd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import factory

from . import installed, nsqds
from .driver import Driver, Drivers

BODIES = [b"one", b"three", b"two"]

#: Those that can consume a topic that an nsqlookupd already lists.
FINDING = [client for client in installed.CLIENTS if client != "asyncnsq"]

#: Not tested, because it does not work with any nsqd.
CANNOT = {"asyncnsq": "its Reader subscribes the connections of the first lookup twice: nsqd refuses that"}


@pytest.fixture(scope="module")
def second_nsqd(shared_nsqlookupd: Nsqlookupd) -> Iterator[Nsqd]:
    with factory(Nsqd) as make:
        yield make(process=True, lookupd=[shared_nsqlookupd])


@pytest.mark.parametrize("consuming", FINDING)
@pytest.mark.parametrize("publishing", installed.CLIENTS)
def test_what_one_client_publishes_another_consumes(
    publishing: str,
    consuming: str,
    drivers: Drivers,
    shared_nsqd: Nsqd,
    shared_nsqlookupd: Nsqlookupd,
    topic: str,
) -> None:
    source, target = drivers.required(publishing), drivers.required(consuming)
    with source.producer(shared_nsqd.tcp_address) as producer:
        producer.publish(topic, BODIES[:1])
        producer.multi_publish(topic, BODIES[1:])
    nsqds.expect_listed(shared_nsqlookupd, topic)
    with target.consumer(topic, lookupd=shared_nsqlookupd.http_address) as consumer:
        assert consumer.bodies(len(BODIES)) == BODIES
        nsqds.expect_drained(shared_nsqd, topic, len(BODIES))


def test_a_topic_that_comes_later_is_found(
    driver: Driver, shared_nsqd: Nsqd, shared_nsqlookupd: Nsqlookupd, topic: str
) -> None:
    """The first lookup is answered by 404."""
    with (
        driver.producer(shared_nsqd.tcp_address) as producer,
        driver.consumer(topic, lookupd=shared_nsqlookupd.http_address) as consumer,
    ):
        assert nsqds.consumers(shared_nsqd, topic) == []
        producer.multi_publish(topic, BODIES)
        assert consumer.bodies(len(BODIES)) == BODIES
        nsqds.expect_drained(shared_nsqd, topic, len(BODIES))


@pytest.mark.parametrize("client", FINDING)
def test_all_nsqds_with_the_topic_are_found(
    client: str,
    drivers: Drivers,
    shared_nsqd: Nsqd,
    second_nsqd: Nsqd,
    shared_nsqlookupd: Nsqlookupd,
    topic: str,
) -> None:
    driver, both = drivers.required(client), (shared_nsqd, second_nsqd)
    for number, nsqd in enumerate(both):
        with driver.producer(nsqd.tcp_address) as producer:
            producer.multi_publish(topic, [b"%d: %s" % (number, body) for body in BODIES])
    nsqds.expect_listed(shared_nsqlookupd, topic, count=2)
    with driver.consumer(topic, lookupd=shared_nsqlookupd.http_address) as consumer:
        wanted = [b"%d: %s" % (number, body) for number in (0, 1) for body in BODIES]
        assert consumer.bodies(len(wanted)) == wanted
        for nsqd in both:
            nsqds.expect_drained(nsqd, topic, len(BODIES))
