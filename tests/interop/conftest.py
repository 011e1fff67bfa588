"""Fixtures for other clients, each in a driver of its own, and for the daemons that they share.

The daemons are processes: a thread of ours would compete with the clients' tests for one interpreter, and
its connections would be ours.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import factory
from tests.integration.authority import Authority

from . import installed
from .driver import Driver, Drivers
from .nsqds import trouble

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    made = Drivers(tmp_path_factory.mktemp("drivers"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(params=installed.CLIENTS)
def driver(request: pytest.FixtureRequest, drivers: Drivers) -> Driver:
    """Each client in turn."""
    return drivers.required(request.param)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def shared_nsqlookupd() -> Iterator[Nsqlookupd]:
    with factory(Nsqlookupd) as make:
        yield make(process=True)


@pytest.fixture(scope="session")
def session_nsqd(shared_nsqlookupd: Nsqlookupd, authority: Authority) -> Iterator[Nsqd]:
    with factory(Nsqd) as make:
        yield make(
            process=True,
            lookupd=[shared_nsqlookupd],
            log_level="debug",  # ours tells of a failed FIN there
            **authority.server_options,
        )


@pytest.fixture
def shared_nsqd(session_nsqd: Nsqd) -> Iterator[Nsqd]:
    """An nsqd with TLS, registered with the shared nsqlookupd. Fails a test that makes it log an error."""
    before = len(session_nsqd.log)
    yield session_nsqd
    assert trouble(session_nsqd.log[before:]) == []


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a topic that only this test uses."""
    name = re.sub(r"\W+", "-", request.node.name)[:50]
    return f"{name}-{next(_NUMBERS)}"
