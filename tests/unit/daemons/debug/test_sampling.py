from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from nsq.daemons.debug.sampling import Profile, sample

PROFILE = Profile(2.0, Counter({("m:run", "m:work"): 6, ("m:run", "m:work", "m:deep"): 3, ("m:run",): 1}))


class Looks(threading.Event):
    """Is enough after so many looks, and waits for nothing."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left < 0


def test_collapsed_stacks() -> None:
    assert PROFILE.collapsed() == "m:run 1\nm:run;m:work 6\nm:run;m:work;m:deep 3\n"


def test_a_table_of_functions() -> None:
    assert PROFILE.table() == (
        "10 samples in 2.0s\n"
        "\n"
        "   own%  total%  function\n"
        "   60.0    90.0  m:work\n"
        "   30.0    30.0  m:deep\n"
        "   10.0   100.0  m:run\n"
    )


def test_recursion_counts_once() -> None:
    assert "  100.0   100.0  m:f\n" in Profile(1.0, Counter({("m:f", "m:f"): 5})).table()


def test_nothing_seen() -> None:
    assert Profile().collapsed() == ""
    assert Profile().table() == "0 samples in 0.0s\n\n   own%  total%  function\n"


def test_a_thread_is_looked_at_until_there_is_enough() -> None:
    profile = sample(threading.get_ident(), 1000.0, Looks(7))
    (names,) = profile.stacks
    assert profile.stacks[names] == 7
    here = "test_a_thread_is_looked_at_until_there_is_enough"
    assert f"{__name__}:{here}" in names
    assert names[-1] == "nsq.daemons.debug.sampling:_sample"


@pytest.fixture
def usual() -> Iterator[float]:
    """The interpreter's switch interval, whatever it is for the other tests."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield 0.005
    sys.setswitchinterval(before)


def test_the_interpreter_switches_sooner_only_meanwhile(usual: float) -> None:
    seen = []

    class Watching(Looks):
        def wait(self, timeout: float | None = None) -> bool:
            seen.append(sys.getswitchinterval())
            return super().wait(timeout)

    sample(threading.get_ident(), 1000.0, Watching(3))
    assert max(seen) < usual
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_or_until_the_time_is_over() -> None:
    clock = iter(range(100))
    profile = sample(threading.get_ident(), 4.0, Looks(1000), now=lambda: float(next(clock)))
    assert (profile.seconds, profile.stacks.total()) == (4.0, 4)


def test_a_thread_that_is_gone() -> None:
    assert sample(-1, 1000.0, Looks(1000)).stacks.total() == 0
