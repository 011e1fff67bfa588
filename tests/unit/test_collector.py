"""The garbage collector of a program."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from nsq.collector import tune_gc


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def looks_while_making(count: int) -> int:
    """How often the collector has looked, while so many objects came to stay."""
    before = gc.get_stats()[0]["collections"]
    kept = [Cycle() for _ in range(count)]
    looks = gc.get_stats()[0]["collections"] - before
    del kept
    return looks


def test_messages_in_flight_are_not_looked_at() -> None:
    assert looks_while_making(10_000) > 1
    tune_gc()
    assert looks_while_making(10_000) <= 1


def test_cycles_still_go_away() -> None:
    tune_gc()
    first = weakref.ref(Cycle())
    looks_while_making(50_000)
    assert first() is None
