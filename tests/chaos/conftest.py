"""Daemons by name, and NSQ_TEST_SWITCH_INTERVAL as for the unit tests: the programs obey it too."""

from __future__ import annotations

from nsq.testing.plugin import nsqd, nsqd_factory, nsqlookupd, nsqlookupd_factory
from tests.unit.conftest import switch_interval

__all__ = ["nsqd", "nsqd_factory", "nsqlookupd", "nsqlookupd_factory", "switch_interval"]
