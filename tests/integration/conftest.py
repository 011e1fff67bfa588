"""Daemons for integration tests: the public plugin's, by name, as only a root conftest may name plugins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import nsqd, nsqd_factory, nsqlookupd, nsqlookupd_factory

pytest.register_assert_rewrite("tests.golden.web")  # its asserts explain themselves as a test's do


@pytest.fixture(scope="module")
def roomy_nsqd() -> Iterator[Nsqd]:
    """A process that keeps in memory whatever a whole module publishes."""
    with Nsqd(process=True, mem_queue_size=10_000_000) as nsqd:
        yield nsqd


__all__ = ["nsqd", "nsqd_factory", "nsqlookupd", "nsqlookupd_factory"]
