from __future__ import annotations

import gc
import itertools

import pytest

from nsq.daemons.nsqd.stats import Memory, resident_bytes

PAUSES = ("gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95")


@pytest.fixture(autouse=True)
def no_other_collections() -> object:
    gc.disable()
    yield
    gc.enable()


def test_figures_are_what_python_knows() -> None:
    figures = Memory().figures()
    assert figures["heap_objects"] > 10_000
    assert figures["gc_total_runs"] == sum(each["collections"] for each in gc.get_stats())
    zero = ("heap_idle_bytes", "heap_released_bytes", "next_gc_bytes", *PAUSES)
    assert [figures[name] for name in zero] == [0] * len(zero)


def test_memory_in_use_is_that_of_now_not_the_most_there_ever_was() -> None:
    before = resident_bytes()
    ballast = b"x" * 64_000_000
    held = resident_bytes()
    del ballast
    assert held - before > 50_000_000
    assert held - resident_bytes() > 50_000_000


def test_pauses_are_timed_between_start_and_stop() -> None:
    ticks = itertools.count(0.0, 0.25)
    memory = Memory(lambda: next(ticks))
    gc.collect()
    memory.start()
    gc.collect()
    memory.stop()
    gc.collect()
    memory.stop()
    figures = memory.figures()
    assert [figures[name] for name in PAUSES] == [250_000] * 3


def test_the_youngest_generation_is_not_worth_it() -> None:
    memory = Memory()
    memory.start()
    try:
        gc.collect(0)
    finally:
        memory.stop()
    assert memory.figures()["gc_pause_usec_100"] == 0


def test_pauses_are_ranked_and_old_ones_forgotten() -> None:
    times: list[float] = []
    memory = Memory(lambda: times.pop(0))
    memory.start()
    try:
        for pause in [99.0] + [number / 1000 for number in range(1, 257)]:
            times += [0.0, pause]
            gc.collect(1)
    finally:
        memory.stop()
    figures = memory.figures()
    assert [figures[name] for name in PAUSES] == [256_000, 254_000, 244_000]
