"""Daemons for the tests of nsq.contrib and of frameworks."""

from __future__ import annotations

from nsq.testing.plugin import nsqd, nsqd_factory, nsqlookupd, nsqlookupd_factory

__all__ = ["nsqd", "nsqd_factory", "nsqlookupd", "nsqlookupd_factory"]
