"""``NSQ_TEST_LATE=7 pytest tests/unit/producer`` delays one line in forty, in whichever thread runs it;
the number chooses the lines.

A test that asks what another thread is about to do passes a thousand times, and fails on a machine that has
something else to do just then. So may a program. Between any two lines a thread can stand still for as long
as the system likes: here it does, by choice, and always at the same lines, so that a failure can be had
again. Whoever waits for what has happened, and not for as long as it usually takes, notices nothing.

``NSQ_TEST_LATE_PAUSE`` is how many seconds late (0.01), a few times in each test. With a test that fails it
is told what was late.
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ONE_IN = 40  # lines is late
TIMES = 3  # in each test
PLACES = ("nsq", "tests")

Hook = Generator[None, Any, Any]


class LateLines:
    """A pytest plugin: of the product and of its tests, as long as a test is called."""

    def __init__(self, seed: str, pause: float, root: Path) -> None:
        self._seed = seed
        self._pause = pause
        self._root = f"{root}/"
        self._below = tuple(f"{root}/{place}/" for place in PLACES)
        self._places: dict[tuple[str, int], str] = {}  # what is said of it; nothing of one that is never late
        self._times: Counter[tuple[str, int]] = Counter()
        self._told: list[str] = []

    def pytest_report_header(self) -> str:
        return f"late lines: NSQ_TEST_LATE={self._seed}, {self._pause:g} s each"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Hook:
        self._times.clear()
        self._told.clear()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Hook:
        report = yield
        if report.failed:
            report.sections.append(("late lines", "\n".join(self._told)))
        return report

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._pass if frame.f_code.co_filename.startswith(self._below) else None

    def _pass(self, frame: FrameType, event: str, argument: object) -> Any:
        place = frame.f_code.co_filename, frame.f_lineno
        words = self._places.get(place)
        if words is None:
            words = self._places[place] = self._choose(*place)
        if words and event == "line" and self._times[place] < TIMES:
            self._times[place] += 1
            self._told.append(f"{words} in {threading.current_thread().name}")
            time.sleep(self._pause)
        return self._pass

    def _choose(self, path: str, line: int) -> str:
        name = f"{path.removeprefix(self._root)}:{line}"
        return "" if zlib.crc32(f"{self._seed}:{name}".encode()) % ONE_IN else name
