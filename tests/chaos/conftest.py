"""Daemons by name, and NSQ_TEST_SWITCH_INTERVAL as for the unit tests: the programs obey it too."""

from __future__ import annotations

from nsq.testing.plugin import nsqd, nsqd_factory, nsqlookupd, nsqlookupd_factory
from tests.chaos.telling import pytest_terminal_summary, tell, verdicts
from tests.unit.conftest import switch_interval

__all__ = [
    "nsqd",
    "nsqd_factory",
    "nsqlookupd",
    "nsqlookupd_factory",
    "pytest_terminal_summary",
    "switch_interval",
    "tell",
    "verdicts",
]
