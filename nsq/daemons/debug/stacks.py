"""What every thread and every task is doing at the moment, as text.

Reads no source files: this runs on the event loop.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

#: More tasks than this are only counted.
_TASKS = 2000
_NAMES = 10

_AWAITS = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))


def describe() -> str:
    """For a caller on the event loop whose tasks are wanted."""
    return "\n".join([*_threads(), *_tasks()]) + "\n"


def stack(frame: FrameType | None) -> list[FrameType]:
    """Innermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    yield f"{len(frames)} threads"
    for ident, frame in frames.items():
        yield ""
        yield f'thread {ident} "{names.get(ident, "?")}"'
        yield from map(_line, stack(frame))


def _tasks() -> Iterator[str]:
    tasks = list(asyncio.all_tasks())
    alike: dict[tuple[str, ...], list[str]] = {}
    for task in tasks[:_TASKS]:
        alike.setdefault(tuple(_awaits(task)), []).append(task.get_name())
    yield ""
    yield f"{len(tasks)} tasks"
    for lines, names in sorted(alike.items(), key=lambda entry: len(entry[1]), reverse=True):
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        yield ""
        yield f"{len(names)} x {', '.join(names[:_NAMES])}{more}"
        yield from lines
    if len(tasks) > _TASKS:
        yield ""
        yield f"and {len(tasks) - _TASKS} tasks that were not looked at"


def _awaits(task: asyncio.Task[Any]) -> list[str]:
    """What the task waits for, innermost first. The task that runs is among the threads."""
    if task is asyncio.current_task():
        return ["  running: see its thread"]
    lines = []
    waiting: object = task.get_coro()
    while (found := _frame_and_next(waiting)) is not None:
        frame, waiting = found
        lines.append(_line(frame))
    return lines[::-1]


def _frame_and_next(waiting: object) -> tuple[FrameType, object] | None:
    """Of a coroutine or generator; None for a future, at which all waiting ends."""
    for frame_name, next_name in _AWAITS:
        frame = getattr(waiting, frame_name, None)
        if frame is not None:
            return frame, getattr(waiting, next_name)
    return None


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"  {code.co_filename}:{frame.f_lineno} {code.co_qualname}"
