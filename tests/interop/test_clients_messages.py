"""Other clients publish to nsqd and consume from it, with all their commands, bodies and windows.

What a client cannot do is listed where it would be tested, with the reason; nothing is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import factory
from tests.golden.recordings import others_are_judged

from . import installed, nsqds
from .driver import Consumer, Driver, DriverFailed, Drivers

#: Text, bytes that are no text, what the protocol itself is made of, and the shortest there is.
BODIES = sorted([b"text", bytes(range(256)), b"\n", b"FIN 0123456789abcdef\n", b"\0\0\0\0", "ö".encode()])

MEGABYTE = 1 << 20  # what nsqd takes at most
LARGE = [bytes([number]) * MEGABYTE for number in range(3)]

DELAY = 0.4
MSG_TIMEOUT = 3.0
# ansq cannot send an MPUB of a single message: it writes neither the number of messages nor the inner size.


class TestAboutTheClient:
    def test_each_client_is_the_pinned_release_in_its_own_environment(self, driver: Driver) -> None:
        about = driver.ask("about")
        assert f"=={about['version']}" == str(installed.pin(driver.client).specifier)
        assert about["module"].startswith(str(installed.ENVIRONMENTS / driver.client))


class TestPublishing:
    @pytest.mark.parametrize("bodies", [BODIES, LARGE], ids=["any-bytes", "a-megabyte"])
    def test_a_client_receives_what_it_publishes_alone_and_together(
        self, driver: Driver, shared_nsqd: Nsqd, topic: str, bodies: list[bytes]
    ) -> None:
        address = shared_nsqd.tcp_address
        with driver.producer(address) as producer, driver.consumer(topic, nsqd=address) as consumer:
            producer.publish(topic, bodies)
            producer.multi_publish(topic, bodies)
            assert consumer.bodies(2 * len(bodies)) == sorted(2 * bodies)
            nsqds.expect_drained(shared_nsqd, topic, 2 * len(bodies))

    def test_a_deferred_message_comes_after_its_delay(
        self, driver: Driver, shared_nsqd: Nsqd, topic: str
    ) -> None:
        address = shared_nsqd.tcp_address
        with driver.producer(address) as producer, driver.consumer(topic, nsqd=address) as consumer:
            sent = time.monotonic()
            producer.defer(topic, [b"later", b"too"], DELAY)
            received = consumer.received(2)
            assert {each.body for each in received} == {b"later", b"too"}
            assert all(each.at - sent >= DELAY for each in received)
            nsqds.expect_drained(shared_nsqd, topic, 2)

    def test_a_message_a_byte_over_the_limit_is_refused_and_the_client_gets_the_reason(
        self, driver: Driver, shared_nsqd: Nsqd, topic: str
    ) -> None:
        # Go's nsqd closes without reading the rest. The reset can overtake its answer, and then ansq waits
        # for ever.
        reason = None if others_are_judged() and driver.client == "ansq" else "message too big"
        with (
            driver.producer(shared_nsqd.tcp_address) as producer,
            pytest.raises(DriverFailed, match=reason),
        ):
            producer.publish(topic, [bytes(MEGABYTE + 1)], patience=20.0)
        assert nsqds.topic_stats(shared_nsqd, topic)["message_count"] == 0


class TestAnswering:
    def test_a_requeued_message_comes_again_after_its_delay(
        self, driver: Driver, shared_nsqd: Nsqd, topic: str
    ) -> None:
        address, requeue = shared_nsqd.tcp_address, {"requeue_ms": round(DELAY * 1000)}
        with (
            driver.producer(address) as producer,
            driver.consumer(topic, nsqd=address, treatment=requeue) as consumer,
        ):
            producer.publish(topic, [b"again"])
            first, second = consumer.received(2)
            assert (first.body, first.attempts) == (b"again", 1)
            assert (second.body, second.attempts) == (b"again", 2)
            assert second.at - first.at >= DELAY
            nsqds.expect_drained(shared_nsqd, topic, 1, requeues=1)

    def test_touch_keeps_a_message_beyond_its_timeout(
        self, driver: Driver, touching: dict[str, Consumer], impatient_nsqd: Nsqd
    ) -> None:
        """The other message shows that the timeout is in force: it is not touched, and comes again."""
        attempts = sorted((each.body, each.attempts) for each in touching[driver.client].received(3))
        assert attempts == [(b"ignored once", 1), (b"ignored once", 2), (b"touched", 1)]
        nsqds.expect_drained(impatient_nsqd, f"touch-{driver.client}", 2, timeouts=1)
        assert nsqds.trouble(impatient_nsqd.log) == []


#: ansq always asks for one: a minute, unless it is given.
MSG_TIMEOUT_OPTION: dict[str, dict[str, Any]] = {
    "pynsq": {"msg_timeout": MSG_TIMEOUT},
    "gnsq": {},
    "ansq": {"msg_timeout": round(MSG_TIMEOUT * 1000)},
    "asyncnsq": {},
}


@pytest.fixture(scope="module")
def impatient_nsqd() -> Iterator[Nsqd]:
    with factory(Nsqd) as make:
        yield make(process=True, msg_timeout=MSG_TIMEOUT, log_level="debug")


@pytest.fixture(scope="module")
def touching(drivers: Drivers, impatient_nsqd: Nsqd) -> Iterator[dict[str, Consumer]]:
    """Each client's consumer, which has two messages. All are started at once, because each takes seconds."""
    address, treatment = impatient_nsqd.tcp_address, {"touch": (MSG_TIMEOUT * 0.3, 5), "ignore": True}
    with ExitStack() as stack:
        consumers = {}
        for client, driver in drivers.running():
            topic, option = f"touch-{client}", MSG_TIMEOUT_OPTION[client]
            producer = stack.enter_context(driver.producer(address))
            consumers[client] = stack.enter_context(
                driver.consumer(topic, nsqd=address, treatment=treatment, **option)
            )
            producer.multi_publish(topic, [b"ignored once", b"touched"])
        yield consumers


class TestManyMessages:
    @pytest.mark.parametrize(("max_in_flight", "count"), [(1, 500), (200, 5000)])
    def test_all_messages_arrive_and_never_more_are_in_flight_than_allowed(
        self, driver: Driver, shared_nsqd: Nsqd, topic: str, max_in_flight: int, count: int
    ) -> None:
        address = shared_nsqd.tcp_address
        wanted = sorted(b"message %d" % number for number in range(count))
        with (
            driver.producer(address) as producer,
            driver.consumer(
                topic, nsqd=address, max_in_flight=max_in_flight, treatment={"hold": True}
            ) as consumer,
        ):
            producer.publish(topic, wanted[: count // 2])
            producer.multi_publish(topic, wanted[count // 2 :])
            # The first message is answered at once: pynsq and gnsq begin with RDY 1, to try the connection.
            held = consumer.received(1 + max_in_flight)
            nsqds.eventually(
                lambda: [
                    (each["ready_count"], each["in_flight_count"])
                    for each in nsqds.consumers(shared_nsqd, topic)
                ],
                [(max_in_flight, max_in_flight)],
            )
            assert len(consumer.received(0)) == len(held) == 1 + max_in_flight
            consumer.release()
            assert consumer.bodies(count) == wanted
            nsqds.expect_drained(shared_nsqd, topic, count)
