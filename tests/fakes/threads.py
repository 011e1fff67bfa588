"""Calls on threads of their own."""

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
    """A call on a thread of its own; its result or its error comes out of ``result``."""

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
        """Once the thread sleeps in the kernel, where that can be seen."""
        state = Path(f"/proc/self/task/{self.thread.native_id}/stat")
        deadline = time.monotonic() + 3 * PATIENCE
        while _is_awake(state) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)  # a thread that waits for the GIL sleeps as well, but not for long
        assert self.thread.is_alive()
        return self


def _is_awake(state: Path) -> bool:
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "S"
    except OSError:
        return False  # no Linux


def in_thread(call: Callable[[], object]) -> Future[object]:
    """As concurrent.futures would, with a thread that is gone when its call returns."""
    return Running(call).future


def in_threads(*calls: Callable[[], object]) -> list[Any]:
    """What the calls return, all made at the same time."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        start.wait(PATIENCE)
        return call()

    futures = [in_thread(partial(run, call)) for call in calls]
    return [future.result(PATIENCE) for future in futures]


def leave_handlers_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a consumer that stops waits for no handler, and for its own threads as long as they need.

    Otherwise what is left of a short timeout, milliseconds, would have to do for all of them.
    """
    monkeypatch.setattr("nsq.consumer.engine._LEAST_TO_STOP", PATIENCE)
    monkeypatch.setattr("nsq.consumer.engine._ENDING_SHARE", 2.0)
    monkeypatch.setattr("nsq.consumer.engine._ENDING_SECONDS", 2 * PATIENCE)
