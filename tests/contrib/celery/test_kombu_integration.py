"""Kombu's own integration tests, unchanged: all but those of priorities, which NSQ does not have, and one."""

from __future__ import annotations

from collections.abc import Iterator

import kombu.serialization  # loads the entry point, as importing celery does
import pytest

from nsq.testing import Nsqd

from .kombu_sdist import common_tests

common = common_tests()
if isinstance(common, str):
    pytest.skip(common, allow_module_level=True)


@pytest.fixture
def connection(nsqd: Nsqd) -> Iterator[kombu.Connection]:
    with kombu.Connection(f"nsq://{nsqd.tcp_address}") as connection:
        yield connection


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection("nsq://127.0.0.1:1", connect_timeout=0.3)


@pytest.fixture
def failover_connection(nsqd: Nsqd) -> Iterator[kombu.Connection]:
    with kombu.Connection(f"nsq://127.0.0.1:1;nsq://{nsqd.tcp_address}") as connection:
        yield connection


class TestBasicFunctionality(common.BasicFunctionality):  # type: ignore[misc, name-defined]
    pass


class TestExchangeTypes(common.BaseExchangeTypes):  # type: ignore[misc, name-defined]
    pass


class TestTimeToLive(common.BaseTimeToLive):  # type: ignore[misc, name-defined]
    pass


class TestMessage(common.BaseMessage):  # type: ignore[misc, name-defined]
    pass


# kombu 5.5 has no tests of its event loop.
class TestEventLoop(getattr(common, "BaseEventLoop", object)):  # type: ignore[misc]
    pass


class TestSeveralUrls(common.BaseFailover):  # type: ignore[misc, name-defined]
    # It watches Connection.port change from the first URL's to the next one's. kombu sets the port only for
    # transports that leave the parsing of URLs to it, which knows neither several hosts nor options in a URL.
    # This transport never switches: it uses all URLs at once, as the other tests of this class show.
    test_failover_switches_to_alternate_url = None
