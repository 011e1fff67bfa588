"""Interrupts a call of the package at each of its lines, by tracing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import nsq

PACKAGE = str(Path(nsq.__file__).parent) + "/"
DAEMONS = PACKAGE + "daemons/"


class Interrupted(BaseException):
    """The exception of the signal handler."""


def interrupt() -> None:
    raise Interrupted


class AtLine:
    """Calls ``handler`` at the n-th line of ours that the thread comes to, as a signal handler would be.
    Clean-up bodies do not count: no Python code is safe in there.
    """

    def __init__(self, number: int, handler: Callable[[], object] = interrupt) -> None:
        self.left = number
        self._handler = handler

    def __enter__(self) -> AtLine:
        self._tracer_before = sys.gettrace()  # coverage, perhaps
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._tracer_before)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        path = frame.f_code.co_filename  # an nsqd in this process has a callback of the garbage collector
        ours = path.startswith(PACKAGE) and not path.startswith(DAEMONS)
        return self._line if ours and frame.f_code.co_name not in ("__exit__", "__del__") else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and frame.f_lineno not in clean_up_lines(frame.f_code.co_filename):
            self.left -= 1
            if self.left == 0:
                sys.settrace(self._tracer_before)
                self._handler()
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


def each_line(call: Callable[[], Any]) -> Iterator[bool]:
    """Interrupt the call at its first line, its second, and so on; whether it was, each time."""
    number = 0
    interrupted = True
    while interrupted:
        number += 1
        try:
            with AtLine(number):
                call()
            interrupted = False
        except Interrupted:
            pass
        yield interrupted
