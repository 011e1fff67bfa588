"""Fixtures that make daemons by name. NSQ_TEST_SWITCH_INTERVAL works also in the programs."""

from __future__ import annotations

from nsq.testing.plugin import nsqd, nsqd_factory, nsqlookupd, nsqlookupd_factory
from tests.chaos.telling import tell

__all__ = [
    "nsqd",
    "nsqd_factory",
    "nsqlookupd",
    "nsqlookupd_factory",
    "tell",
]
