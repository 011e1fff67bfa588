"""Daemons for integration tests: the public plugin's, by name, as only a root conftest may name plugins."""

from __future__ import annotations

import pytest

from nsq.testing.plugin import nsqd, nsqd_factory, nsqlookupd, nsqlookupd_factory

pytest.register_assert_rewrite("tests.golden.web")  # its asserts explain themselves as a test's do

__all__ = ["nsqd", "nsqd_factory", "nsqlookupd", "nsqlookupd_factory"]
