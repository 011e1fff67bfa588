"""``tune_gc`` makes the garbage collector run less often, but it still runs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from nsq.gc_settings import tune_gc


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


def collections_while_making(count: int) -> int:
    """Return how often the collector runs while this makes and keeps so many objects."""
    before = gc.get_stats()[0]["collections"]
    kept = [Cycle() for _ in range(count)]
    runs = gc.get_stats()[0]["collections"] - before
    del kept
    return runs


def test_objects_that_stay_do_not_start_the_collector() -> None:
    assert collections_while_making(10_000) > 1
    tune_gc()
    assert collections_while_making(10_000) <= 1


def test_cycles_are_still_collected() -> None:
    tune_gc()
    first = weakref.ref(Cycle())
    collections_while_making(50_000)
    assert first() is None
