"""``NSQ_TEST_LATE=7 pytest tests/unit/producer`` delays one line in forty, in the thread that runs it; the
number selects the lines.

The system can suspend a thread between any two lines. A test that expects another thread to be quick passes
on an idle machine and fails on a busy one. With these delays it fails on an idle machine too, as races in the
code do. A number always delays the same lines, so a failure can be repeated. Tests that wait for an event are
unaffected.

``NSQ_TEST_LATE_PAUSE`` is the length of a delay in seconds (0.01); each test has a few. A failed test lists
the delayed lines.
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
    """A pytest plugin that delays lines of the package and of its tests while a test runs."""

    def __init__(self, seed: str, pause: float, root: Path) -> None:
        self._seed = seed
        self._pause = pause
        self._root = f"{root}/"
        self._below = tuple(f"{root}/{place}/" for place in PLACES)
        self._places: dict[tuple[str, int], str] = {}  # what a report says; empty if it is not delayed
        self._times: Counter[tuple[str, int]] = Counter()
        self._delays: list[str] = []

    def pytest_report_header(self) -> str:
        return f"late lines: NSQ_TEST_LATE={self._seed}, {self._pause:g} s each"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Hook:
        self._times.clear()
        self._delays.clear()
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
            report.sections.append(("late lines", "\n".join(self._delays)))
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
            self._delays.append(f"{words} in {threading.current_thread().name}")
            time.sleep(self._pause)
        return self._pass

    def _choose(self, path: str, line: int) -> str:
        name = f"{path.removeprefix(self._root)}:{line}"
        return "" if zlib.crc32(f"{self._seed}:{name}".encode()) % ONE_IN else name
