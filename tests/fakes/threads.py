"""Calls on new threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 20.0


class Running:
    """A call on a new thread; ``result`` returns its result or raises its error."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.future: Future[object] = Future()
        self.thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self.thread.start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            self.future.set_result(call())
        except BaseException as error:
            self.future.set_exception(error)

    def result(self) -> object:
        self.thread.join(3 * PATIENCE)
        return self.future.result(0)

    def blocked(self) -> Running:
        """Wait until the thread sleeps in the kernel, where /proc shows that."""
        state = Path(f"/proc/self/task/{self.thread.native_id}/stat")
        deadline = time.monotonic() + 3 * PATIENCE
        while _is_awake(state) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)  # a thread that waits for the GIL also sleeps, but not for long
        assert self.thread.is_alive()
        return self


def _is_awake(state: Path) -> bool:
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "S"
    except OSError:
        return False  # not Linux


def in_thread(call: Callable[[], object]) -> Future[object]:
    """Run a call like concurrent.futures, on a thread that ends with the call."""
    return Running(call).future


def in_threads(*calls: Callable[[], object]) -> list[Any]:
    """Make all calls at the same time; return their results."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        start.wait(PATIENCE)
        return call()

    futures = [in_thread(partial(run, call)) for call in calls]
    return [future.result(PATIENCE) for future in futures]


def leave_handlers_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stopping consumers wait for no handlers, but for their own threads without limit.

    Otherwise the few milliseconds left of a short timeout would have to suffice for all threads.
    """
    monkeypatch.setattr("nsq.threads.owner._LEAST_TO_END", PATIENCE)
    monkeypatch.setattr("nsq.threads.owner._ENDING_SHARE", 2.0)
    monkeypatch.setattr("nsq.threads.owner._ENDING_SECONDS", 2 * PATIENCE)
