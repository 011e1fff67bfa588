"""Asks many daemons at once, from one thread that waits for their answers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from nsq.errors import NsqError

K = TypeVar("K")
T = TypeVar("T")

#: How many daemons are asked at the same time.
_AT_ONCE = 16


class Answers(NamedTuple, Generic[K, T]):
    """The answers, and the errors of those that gave none, both in the order of the questions."""

    found: dict[K, T]
    errors: dict[K, NsqError]


def ask_all(asked: Iterable[K], question: Callable[[K], T]) -> Answers[K, T]:
    """Call ``question`` with each of ``asked``, such as addresses, at the same time.

    Uses daemon threads, because the end of a program would wait for those of a ThreadPoolExecutor.
    """
    keys = list(dict.fromkeys(asked))
    waiting = deque(keys)
    answers: dict[K, T] = {}
    errors: dict[K, NsqError] = {}
    unexpected: list[BaseException] = []

    def ask() -> None:
        while not unexpected:
            try:
                key = waiting.popleft()
            except IndexError:
                return
            try:
                answers[key] = question(key)
            except NsqError as error:
                errors[key] = error

    def ask_in_thread() -> None:
        try:
            ask()
        except BaseException as error:
            unexpected.append(error)

    threads: list[threading.Thread] = []
    with suppress(RuntimeError):  # no more threads: fewer are asked at the same time
        for _ in range(min(len(keys), _AT_ONCE) - 1):
            thread = threading.Thread(target=ask_in_thread, name="nsq-ask", daemon=True)
            thread.start()
            threads.append(thread)
    ask()  # the caller asks too: a single daemon needs no thread
    for thread in threads:
        thread.join()
    if unexpected:
        raise unexpected[0]
    return Answers(
        {key: answers[key] for key in keys if key in answers},
        {key: errors[key] for key in keys if key in errors},
    )
