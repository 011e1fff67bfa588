"""Other clients with an nsqd that requires AUTH."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import factory

from . import nsqds
from .auth_server import running_auth_server
from .driver import DriverFailed, Drivers

CAN = ["pynsq", "gnsq", "asyncnsq"]

#: Not tested, because it does not work with any nsqd.
CANNOT = {"ansq": "its auth() never notes that it succeeded: every later command raises NSQUnauthorized"}

SECRET = "open sesame"
RULES = [{"topic": "^allowed", "channels": [".*"], "permissions": ["subscribe", "publish"]}]
BODIES = [b"one", b"two"]


@pytest.fixture(scope="module")
def guarded_nsqd() -> Iterator[Nsqd]:
    with running_auth_server({SECRET: RULES}) as address, factory(Nsqd) as make:
        yield make(process=True, auth_http_addresses=(address,), log_level="debug")


@pytest.mark.parametrize("client", CAN)
def test_the_right_secret_authorizes_a_client(
    client: str, drivers: Drivers, guarded_nsqd: Nsqd, topic: str
) -> None:
    driver, address, topic = drivers.required(client), guarded_nsqd.tcp_address, f"allowed-{topic}"
    with (
        driver.producer(address, auth_secret=SECRET) as producer,
        driver.consumer(topic, nsqd=address, auth_secret=SECRET) as consumer,
    ):
        producer.multi_publish(topic, BODIES)
        assert consumer.bodies(len(BODIES)) == BODIES
        (subscribed,) = nsqds.consumers(guarded_nsqd, topic)
        assert (subscribed["authed"], subscribed["auth_identity"]) == (True, "tester")
        nsqds.expect_drained(guarded_nsqd, topic, len(BODIES))
    assert nsqds.trouble(guarded_nsqd.log) == []


@pytest.mark.parametrize("client", CAN)
def test_a_topic_that_is_not_granted_is_refused(
    client: str, drivers: Drivers, guarded_nsqd: Nsqd, topic: str
) -> None:
    with (
        drivers.required(client).producer(guarded_nsqd.tcp_address, auth_secret=SECRET) as producer,
        pytest.raises(DriverFailed, match="AUTH failed for MPUB"),
    ):
        producer.multi_publish(f"forbidden-{topic}", BODIES)


@pytest.mark.parametrize("client", CAN)
def test_a_wrong_secret_is_refused(client: str, drivers: Drivers, guarded_nsqd: Nsqd, topic: str) -> None:
    topic, before = f"allowed-{topic}", len(guarded_nsqd.log)

    def refused() -> bool:
        return "AUTH no authorizations found" in guarded_nsqd.log[before:]

    with (
        suppress(DriverFailed),  # asyncnsq raises, pynsq and gnsq try again
        drivers.required(client).consumer(topic, nsqd=guarded_nsqd.tcp_address, auth_secret="wrong"),
    ):
        nsqds.eventually(refused, True)
    assert refused()
    assert nsqds.consumers(guarded_nsqd, topic) == []
