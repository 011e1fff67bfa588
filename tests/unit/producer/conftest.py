from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsq.producer.producer import Producer
from nsq.transport import MemoryTransport
from tests.fakes.nsqd import PublishedTo

from .running import connected, producer


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def p(transport: MemoryTransport) -> Iterator[Producer]:
    """It knows nsqd A."""
    with producer(transport) as p:
        yield p


@pytest.fixture
def nsqd(p: Producer, transport: MemoryTransport) -> PublishedTo:
    """It has stored a publish."""
    return connected(p, transport)
