"""Daemons for integration tests: the public plugin's, by name, as only a root conftest may name plugins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory, nsqd, nsqd_factory, nsqlookupd, nsqlookupd_factory
from tests.integration.running_tools import tmux

from .consuming import create, numbered, publish

pytest.register_assert_rewrite("tests.golden.web")  # its asserts explain themselves as a test's do


@pytest.fixture(scope="module")
def roomy_nsqd() -> Iterator[Nsqd]:
    """A process that keeps in memory whatever a whole module publishes."""
    with Nsqd(process=True, mem_queue_size=10_000_000) as nsqd:
        yield nsqd


@pytest.fixture
def loaded(nsqd: Nsqd) -> Nsqd:
    """An nsqd whose channel has one message."""
    create(nsqd)
    publish(nsqd, [b"hello"])
    return nsqd


@pytest.fixture
def three(nsqd_factory: Factory[Nsqd]) -> list[Nsqd]:
    """nsqds with twenty messages each."""
    nsqds = [nsqd_factory() for _ in range(3)]
    for each in nsqds:
        create(each)
        publish(each, numbered(20))
    return nsqds


__all__ = ["nsqd", "nsqd_factory", "nsqlookupd", "nsqlookupd_factory", "tmux"]
