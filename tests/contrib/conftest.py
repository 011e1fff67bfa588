"""Daemons for the tests of nsq.contrib and of frameworks, and waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from nsq.testing.plugin import nsqd, nsqd_factory, nsqlookupd, nsqlookupd_factory

from .postgres import postgres, postgres_template

__all__ = [
    "nsqd",
    "nsqd_factory",
    "nsqlookupd",
    "nsqlookupd_factory",
    "postgres",
    "postgres_template",
]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0


def until(condition: Callable[[], object]) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + PATIENCE
        time.sleep(0.02)
