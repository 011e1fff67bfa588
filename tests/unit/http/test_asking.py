"""Asking many daemons at once."""

from __future__ import annotations

import threading

import pytest

from nsq.errors import ApiError
from nsq.http.asking import ask_all


def test_answers_and_errors_keep_the_order_of_the_questions() -> None:
    def question(number: int) -> int:
        if number % 3 == 0:
            raise ApiError(f"no {number}")
        return number * number

    answers = ask_all([5, 3, 1, 0, 5], question)
    assert list(answers.found.items()) == [(5, 25), (1, 1)]
    assert {key: str(error) for key, error in answers.errors.items()} == {3: "no 3", 0: "no 0"}
    assert ask_all([], question) == ({}, {})


def test_daemons_are_asked_at_the_same_time() -> None:
    all_there = threading.Barrier(4)
    assert ask_all(range(4), lambda _: all_there.wait(60.0) is None).found.keys() == {0, 1, 2, 3}


def test_an_unexpected_error_reaches_the_caller() -> None:
    here = threading.get_ident()

    def question(number: int) -> None:
        if threading.get_ident() != here:
            asked_elsewhere.set()
            raise ZeroDivisionError
        asked_elsewhere.wait(60.0)

    asked_elsewhere = threading.Event()
    with pytest.raises(ZeroDivisionError):
        ask_all(range(2), question)


def test_without_threads_the_caller_asks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert ask_all("abc", str.upper).found == {"a": "A", "b": "B", "c": "C"}
