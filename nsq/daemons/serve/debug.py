"""Inspects a running daemon over HTTP: stacks of threads and tasks, allocations.

``Debugging`` serves /debug/ to callers on the same machine, one trace at a time. The functions below it know
no HTTP. They read no source files, because stacks are formatted on the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import math
import sys
import threading
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

from nsq.daemons.serve.routes import HttpError, Reply, Request, Route
from nsq.daemons.serve.sites import on_this_machine, own_names, refuse_other_sites, unknown_name
from nsq.daemons.serve.worker_thread import in_thread

_LONGEST = 60.0
_DEFAULT_SECONDS = 10.0
_DEFAULT_LIMIT = 25
_MAX_LIMIT = 1000

_Async = Callable[[Request], Awaitable[Reply]]


class Debugging:
    """The handlers and routes of /debug/."""

    def __init__(self) -> None:
        self._busy = False

    def routes(self) -> list[Route]:
        handlers = {"/debug/threads": self.threads, "/debug/tracemalloc": self.tracemalloc}
        return [Route("GET", path, local_only(handler), plain=True) for path, handler in handlers.items()]

    async def threads(self, request: Request) -> Reply:
        return Reply.text(describe())

    async def tracemalloc(self, request: Request) -> Reply:
        seconds, limit = _seconds(request), _limit(request)
        if self._busy:
            raise HttpError(409, "BUSY")
        stop = threading.Event()
        running = in_thread(functools.partial(trace, seconds, limit, stop), "debug-tracemalloc")
        self._busy = True
        running.add_done_callback(self._ended)
        try:
            # Shielded: no other request may start before this thread has ended.
            return Reply.text(await asyncio.shield(running))
        finally:
            stop.set()

    def _ended(self, running: asyncio.Future[str]) -> None:
        self._busy = False
        if not running.cancelled():
            running.exception()  # otherwise asyncio logs that the error was never retrieved


def local_only(handler: _Async) -> _Async:
    """Refuse callers on other machines, and web pages of other sites in a browser on this one: the output is
    confidential, and producing it costs time.
    """

    async def guarded(request: Request) -> Reply:
        if not on_this_machine(request.remote):
            return Reply.text("/debug is only for callers on this machine", 403)
        refuse_other_sites(request)
        name = unknown_name(request, own_names())
        if name is not None:
            return Reply.text(f"/debug is not shown under the name {name}: use localhost", 403)
        return await handler(request)

    return guarded


def _seconds(request: Request) -> float:
    try:
        seconds = float(request.args.get("seconds", _DEFAULT_SECONDS))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _LONGEST:
        raise HttpError(400, "INVALID_ARG_SECONDS")
    return seconds


def _limit(request: Request) -> int:
    text = request.args.get("limit", str(_DEFAULT_LIMIT))
    if not (text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= _MAX_LIMIT):
        raise HttpError(400, "INVALID_ARG_LIMIT")
    return int(text)


# Stacks

#: Tasks whose stacks are shown; further ones are only counted.
_TASKS = 2000
_NAMES = 10

_AWAITS = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))


def describe() -> str:
    """Describe all threads and the tasks of the running event loop."""
    return "\n".join([*_threads(), *_tasks()]) + "\n"


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    yield f"{len(frames)} threads"
    for ident, frame in frames.items():
        yield ""
        yield f'thread {ident} "{names.get(ident, "?")}"'
        caller: FrameType | None = frame
        while caller is not None:
            yield _line(caller)
            caller = caller.f_back


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
    """Return the frames the task is suspended in, innermost first. The running task is among the threads."""
    if task is asyncio.current_task():
        return ["  running: see its thread"]
    lines = []
    waiting: object = task.get_coro()
    while (found := _frame_and_next(waiting)) is not None:
        frame, waiting = found
        lines.append(_line(frame))
    return lines[::-1]


def _frame_and_next(waiting: object) -> tuple[FrameType, object] | None:
    """Return the frame of a coroutine or generator and the object it awaits; None for a future."""
    for frame_name, next_name in _AWAITS:
        frame = getattr(waiting, frame_name, None)
        if frame is not None:
            return frame, getattr(waiting, next_name)
    return None


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"  {code.co_filename}:{frame.f_lineno} {code.co_qualname}"


# Allocations


def trace(seconds: float, limit: int, stop: threading.Event) -> str:
    """Trace allocations for ``seconds``, or until ``stop`` is set. Tracing slows allocations down."""
    traced_before = tracemalloc.is_tracing()
    if not traced_before:
        tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        stop.wait(seconds)
        after = tracemalloc.take_snapshot()
    finally:
        if not traced_before:
            tracemalloc.stop()
    ours = tracemalloc.Filter(False, tracemalloc.__file__)
    grown = [
        line
        for line in after.filter_traces([ours]).compare_to(before.filter_traces([ours]), "lineno")
        if line.size_diff > 0
    ]
    lines = [f"held now that was not held {seconds:g}s ago", "", "      bytes    blocks  line"]
    for line in grown[:limit]:
        where = line.traceback[0]
        lines.append(f"{line.size_diff:11} {line.count_diff:9}  {where.filename}:{where.lineno}")
    if len(grown) > limit:
        rest = sum(line.size_diff for line in grown[limit:])
        lines.append(f"{rest:11}            {len(grown) - limit} other lines")
    return "\n".join(lines) + "\n"
