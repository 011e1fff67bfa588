from __future__ import annotations

import threading
import tracemalloc

from nsq.daemons.debug.allocations import trace


class Allocating(threading.Event):
    """Stands for the time that passes: allocates on three lines."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[object] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert tracemalloc.is_tracing()
        self.kept.append(bytearray(3_000_000))
        self.kept.append(bytearray(2_000_000))
        self.kept.append(bytearray(1_000_000))
        bytearray(9_000_000)
        return False


def test_what_is_kept_is_told_by_line_the_most_first() -> None:
    first, second, header, *found = trace(1.5, 2, Allocating()).splitlines()
    assert first == "held now that was not held 1.5s ago"
    assert (second, header.split()) == ("", ["bytes", "blocks", "line"])
    sizes = [int(line.split()[0]) for line in found]
    assert [size // 1_000_000 for size in sizes] == [3, 2, 1]
    assert all(__file__ in line for line in found[:2])
    assert found[2].endswith("other lines")
    assert not tracemalloc.is_tracing()


def test_tracing_that_somebody_else_began_goes_on() -> None:
    tracemalloc.start()
    try:
        kept = bytearray(5_000_000)
        lines = trace(1.0, 1, Allocating()).splitlines()
        assert len(kept) == 5_000_000
        assert int(lines[3].split()[0]) // 1_000_000 == 3
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
