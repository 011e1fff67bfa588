"""Interrupts a thread in the middle of our code, as signal handlers do: at a chosen line, or by real signals.

    for line in each_line():          # the first line of ours, the second, and so on, to the last one
        with line:
            producer.publish(...)     # ends at that line, with an exception that ``line`` catches
        assert unharmed(producer)

``line.act`` may be another function, as a signal handler may do anything.
"""

from __future__ import annotations

import ast
import random
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

import nsq

PACKAGE = str(Path(nsq.__file__).parent) + "/"
DAEMONS = PACKAGE + "daemons/"

#: For tests that interrupt by signals. An exception that comes up in a weak reference's callback, of the
#: threading module for example, is ignored by Python: then the call comes through.
ignored_by_python = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupted(BaseException):
    """The exception of the signal handler."""


def interrupt() -> None:
    raise Interrupted


class AtLine:
    """Calls ``act`` at the n-th line of ours that the thread comes to; clean-up lines do not count: no Python
    code is safe in there.
    """

    def __init__(self, number: int, below: str) -> None:
        self.number = number
        self.act: Callable[[], object] = interrupt
        self.reached = False
        self._left = number
        self._below = below

    def __enter__(self) -> AtLine:
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(self._before)
        return kind is Interrupted

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        path = frame.f_code.co_filename  # an nsqd in this process has a callback of the garbage collector
        ours = path.startswith(self._below) and not path.startswith(DAEMONS)
        if not ours or frame.f_code.co_name in ("__exit__", "__del__"):
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and frame.f_lineno not in clean_up_lines(frame.f_code.co_filename):
            self._left -= 1
            if self._left == 0:
                self.reached = True
                sys.settrace(None)
                self.act()
                return None
        return self._line


@cache
def clean_up_lines(path: str) -> frozenset[int]:
    """The lines of ``finally``, ``except BaseException``, and the exit of ``with``."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(Path(path).read_text())):
        bodies: list[ast.stmt] = []
        if isinstance(node, ast.Try):
            bodies += node.finalbody
            for handler in node.handlers:
                if isinstance(handler.type, ast.Name) and handler.type.id == "BaseException":
                    bodies += handler.body
        for each in bodies:
            lines.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
        if isinstance(node, ast.With):
            lines.add(node.lineno)
    return frozenset(lines)


def each_line(below: str = PACKAGE) -> Iterator[AtLine]:
    """Yield a block for each line of the files below a path, until what runs in the block has
    no such line.
    """
    for number in count(1):
        line = AtLine(number, below)
        yield line
        if not line.reached:
            return


class _Alarms:
    """Handles SIGALRM in the block, where no tracer runs: one that is interrupted, such as coverage's, would
    keep its lock.
    """

    def __enter__(self) -> Self:
        self._tracer = sys.gettrace()
        sys.settrace(None)
        self._before = signal.signal(signal.SIGALRM, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
        sys.settrace(self._tracer)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError


class Signals(_Alarms):
    """Sends this process a signal at a random moment of a call, and interrupts the call."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._inside = False
        self.hits = 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._inside:
            self._inside = False
            self.hits += 1
            raise Interrupted

    def during(self, call: Callable[[], Any]) -> bool:
        """Interrupt a call, at a moment chosen so that about half of the calls succeed; return whether it
        did.
        """
        try:
            self._inside = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, self._longest))
            call()
            self._inside = False
        except Interrupted:
            return False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return True


class Ticking(_Alarms):
    """Calls ``call`` in a signal handler of the main thread, again and again."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.results: list[Any] = []
        self._call = call
        self._over = False

    def __enter__(self) -> Self:
        super().__enter__()
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        super().__exit__()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.results.append(self._call())
        if not self._over:
            self._arm()  # not before: handlers would interrupt each other without an end

    def _arm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1e-3))
