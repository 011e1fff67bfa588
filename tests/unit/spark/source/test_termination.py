from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

import pytest

from nsq.spark.source.stream import Termination


@pytest.fixture
def before() -> Iterator[list[str]]:
    """The calls of the SIGTERM handler that was there before; restored afterwards."""
    called: list[str] = []

    def theirs(number: int, frame: FrameType | None) -> None:
        called.append("theirs")

    previous = signal.signal(signal.SIGTERM, theirs)
    yield called
    signal.signal(signal.SIGTERM, previous)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_announces_the_leave_calls_the_previous_handler_and_exits(before: list[str]) -> None:
    Termination(lambda: before.append("ours"))
    with pytest.raises(SystemExit) as ended:
        terminate()
    assert (before, ended.value.code) == (["ours", "theirs"], 143)


def test_a_second_signal_does_not_cut_a_termination_short(before: list[str]) -> None:
    Termination(lambda: before.append("ours"))
    with pytest.raises(SystemExit):
        terminate()
    terminate()
    assert before == ["ours", "theirs"]


def test_a_second_sigterm_does_not_interrupt_a_close(before: list[str]) -> None:
    termination = Termination(lambda: before.append("ours"))
    with termination.ignored():
        terminate()
    assert before == []


def test_the_previous_handler_is_restored_after_a_close(before: list[str]) -> None:
    termination = Termination(lambda: before.append("ours"))
    with termination.ignored():
        pass
    terminate()
    assert before == ["theirs"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_readers_of_one_process_close_in_any_order(order: Sequence[int], before: list[str]) -> None:
    readers = [Termination(lambda name=name: before.append(name)) for name in "abc"]  # type: ignore[misc]
    for number in order[:2]:
        with readers[number].ignored():
            pass
    with pytest.raises(SystemExit):
        terminate()
    assert before == ["abc"[order[2]], "theirs"]
    with readers[order[2]].ignored():
        pass
    terminate()
    assert before[2:] == ["theirs"]


def test_a_thread_other_than_the_main_one_installs_no_handler(before: list[str]) -> None:
    made: list[Termination] = []
    thread = threading.Thread(target=lambda: made.append(Termination(lambda: before.append("ours"))))
    thread.start()
    thread.join()
    with made[0].ignored():
        pass
    terminate()
    assert before == ["theirs"]
