"""Daemons for integration tests, from the public plugin, imported by name: only a root conftest may list
plugins.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import (
    nsqd,
    nsqd_factory,
    nsqlookupd,
    nsqlookupd_factory,
    partitioned_cluster,
)
from tests.integration.running_tools import tmux

pytest.register_assert_rewrite("tests.golden.web", "tests.transcripts")  # like asserts of tests


@pytest.fixture(scope="module")
def roomy_nsqd() -> Iterator[Nsqd]:
    """An nsqd process that keeps all messages of a module in memory."""
    with Nsqd(process=True, mem_queue_size=10_000_000) as nsqd:
        yield nsqd


__all__ = [
    "nsqd",
    "nsqd_factory",
    "nsqlookupd",
    "nsqlookupd_factory",
    "partitioned_cluster",
    "tmux",
]
