from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
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


def test_a_thread_other_than_the_main_one_installs_no_handler(before: list[str]) -> None:
    made: list[Termination] = []
    thread = threading.Thread(target=lambda: made.append(Termination(lambda: before.append("ours"))))
    thread.start()
    thread.join()
    with made[0].ignored():
        pass
    terminate()
    assert before == ["theirs"]
