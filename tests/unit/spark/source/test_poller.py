from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nsq.spark.source.backlog import Poller

LONG = 60.0


class Source:
    """A function for a poller; it answers on request."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answers = threading.Semaphore(0)
        self.count = 0
        self.failing = False

    def __call__(self) -> int:
        self.asked.release()
        assert self.answers.acquire(timeout=LONG)
        self.count += 1
        if self.failing:
            raise ValueError("no answer")
        return self.count


@contextmanager
def gauging(source: Source, pause: float = 0.0) -> Iterator[Poller[int]]:
    gauge = Poller("test", source, pause)
    try:
        yield gauge
    finally:
        for _ in range(9):
            source.answers.release()
        gauge.stop()


def test_a_poller_asks_nothing_before_it_is_first_read() -> None:
    source = Source()
    with gauging(source):
        assert not source.asked.acquire(blocking=False)


def test_reading_the_last_answer_does_not_wait() -> None:
    source = Source()
    with gauging(source) as gauge:
        assert gauge.last_answer() is None
        assert source.asked.acquire(timeout=LONG)
        assert gauge.last_answer() is None  # it has not answered yet


def test_a_poller_asks_only_as_often_as_its_answer_is_read() -> None:
    source = Source()
    with gauging(source) as gauge:
        source.answers.release()
        gauge.last_answer(LONG)
        assert source.asked.acquire(timeout=LONG)
        assert not source.asked.acquire(timeout=0.05)
        gauge.last_answer()
        assert source.asked.acquire(timeout=LONG)


def test_a_question_that_fails_leaves_the_last_answer(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    with gauging(source) as gauge:
        source.answers.release()
        gauge.last_answer(LONG)
        source.asked.acquire(timeout=LONG)
        source.failing = True
        gauge.last_answer()
        assert source.asked.acquire(timeout=LONG)
        source.answers.release()
        gauge.last_answer()
        assert source.asked.acquire(timeout=LONG)  # it goes on
        assert gauge.last_answer() == 1
    assert "cannot measure the test" in caplog.text


def test_stopping_ends_the_thread_and_a_pause() -> None:
    source = Source()
    with gauging(source, pause=LONG * 9) as gauge:
        source.answers.release()
        gauge.last_answer(LONG)
        gauge.stop()
        assert not any(thread.name == "nsq-spark-test" for thread in threading.enumerate())
        assert gauge.last_answer() == 1
