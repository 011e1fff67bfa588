"""Each test here runs twice: over nsqds in memory, and over real ones (the marker ``daemons``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import factory
from nsq.transport import default_transport
from tests.fakes.memory_http import MemoryNsqdWithHttp
from tests.fakes.wire import Wire
from tests.integration.consuming import AnyNsqd, create, numbered, publish, transport_of

NsqdFactory = Callable[..., AnyNsqd]


@pytest.fixture(params=["memory", pytest.param("nsqd", marks=pytest.mark.daemons)])
def nsqd_factory(request: pytest.FixtureRequest) -> Iterator[NsqdFactory]:
    """Start nsqds whose topic and channel exist."""
    with factory(Nsqd) as start, ExitStack() as in_memory:

        def make_with_channel(**options: object) -> AnyNsqd:
            nsqd: AnyNsqd
            if request.param == "memory":
                nsqd = in_memory.enter_context(MemoryNsqdWithHttp(**options))
            else:
                nsqd = start(**options)
            create(nsqd)
            return nsqd

        yield make_with_channel


@pytest.fixture
def nsqd(nsqd_factory: NsqdFactory) -> AnyNsqd:
    return nsqd_factory()


@pytest.fixture
def loaded(nsqd: AnyNsqd) -> AnyNsqd:
    """An nsqd whose channel has one message."""
    publish(nsqd, [b"hello"])
    return nsqd


@pytest.fixture
def two(nsqd_factory: NsqdFactory) -> list[AnyNsqd]:
    return [nsqd_factory(), nsqd_factory()]


@pytest.fixture
def three(nsqd_factory: NsqdFactory) -> list[AnyNsqd]:
    """nsqds with twenty messages each."""
    nsqds = [nsqd_factory() for _ in range(3)]
    for each in nsqds:
        publish(each, numbered(20))
    return nsqds


@pytest.fixture
def wire(nsqd: AnyNsqd) -> Wire:
    """Notes the commands of a consumer that gets it as its transport."""
    return Wire(transport_of(nsqd) or default_transport)
