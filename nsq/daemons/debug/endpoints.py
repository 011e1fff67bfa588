"""/debug/ of a daemon: answers callers on its own machine alone, and looks for one of them at a time."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import math
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nsq.daemons.debug import allocations, sampling, stacks
from nsq.daemons.routes import HttpError, Reply, Request, Route
from nsq.daemons.worker_thread import in_thread

LONGEST = 60.0
_DEFAULT_SECONDS = 10.0
_DEFAULT_LIMIT = 25
_MAX_LIMIT = 1000

_INDEX = f"""\
What Go's daemons show under /debug/pprof/, for Python. All of it is text.

/debug/threads                               stacks of all threads and tasks
/debug/profile?seconds=10&format=text        where the event loop's time goes; collapsed for flame graphs
/debug/tracemalloc?seconds=10&limit=25       what is allocated meanwhile and kept, by line

At most {LONGEST:g} seconds, one at a time. Under Go's names:

/debug/pprof/goroutine, threadcreate         /debug/threads
/debug/pprof/profile                         /debug/profile
/debug/pprof/heap, allocs                    /debug/tracemalloc
/debug/pprof/cmdline                         the command line
"""

T = TypeVar("T")
_Async = Callable[[Request], Awaitable[Reply]]


class Debugging:
    def __init__(self) -> None:
        self._busy = False

    def routes(self) -> list[Route]:
        handlers = {
            "/debug/threads": self.threads,
            "/debug/profile": self.profile,
            "/debug/tracemalloc": self.tracemalloc,
            "/debug/pprof/": self.index,
            "/debug/pprof/goroutine": self.threads,
            "/debug/pprof/threadcreate": self.threads,
            "/debug/pprof/profile": self.profile,
            "/debug/pprof/heap": self.tracemalloc,
            "/debug/pprof/allocs": self.tracemalloc,
            "/debug/pprof/cmdline": self.command_line,
        }
        return [
            *(Route("GET", path, _for_neighbours(handler), plain=True) for path, handler in handlers.items()),
            Route("PUT", "/debug/setblockrate", self.set_block_rate, plain=True),
        ]

    async def index(self, request: Request) -> Reply:
        return Reply.text(_INDEX)

    async def threads(self, request: Request) -> Reply:
        return Reply.text(stacks.describe())

    async def profile(self, request: Request) -> Reply:
        seconds, form = _seconds(request), request.args.get("format", "text")
        if form not in ("text", "collapsed"):
            raise HttpError(400, "INVALID_ARG_FORMAT")
        here = threading.get_ident()
        profile = await self._alone("profile", functools.partial(sampling.sample, here, seconds))
        return Reply.text(profile.collapsed() if form == "collapsed" else profile.table())

    async def tracemalloc(self, request: Request) -> Reply:
        seconds, limit = _seconds(request), _limit(request)
        return Reply.text(
            await self._alone("tracemalloc", functools.partial(allocations.trace, seconds, limit))
        )

    async def command_line(self, request: Request) -> Reply:
        return Reply.text("\0".join(sys.argv))

    def set_block_rate(self, request: Request) -> Reply:
        rate = request.args.get("rate", "")
        if not rate.removeprefix("-").isdecimal():
            return Reply.text(f"invalid block rate {rate!r}: it must be a whole number", 400)
        return Reply.text("there is no block profile here; /debug/threads shows what waits", 404)

    async def _alone(self, what: str, look: Callable[[threading.Event], T]) -> T:
        if self._busy:
            raise HttpError(409, "BUSY")
        self._busy = True
        enough = threading.Event()
        looking = in_thread(functools.partial(look, enough), f"debug-{what}")
        looking.add_done_callback(self._looked)
        try:
            # Shielded: while the thread still looks, nobody else may.
            return await asyncio.shield(looking)
        finally:
            enough.set()

    def _looked(self, looking: asyncio.Future[T]) -> None:
        self._busy = False
        if not looking.cancelled():
            looking.exception()  # seen, even if nobody waits for it any more


def _for_neighbours(handler: _Async) -> _Async:
    """Stacks and allocations tell too much for strangers, and looking costs time."""

    async def guarded(request: Request) -> Reply:
        if not _on_this_machine(request.remote):
            return Reply.text("/debug/ answers callers on this machine alone", 403)
        return await handler(request)

    return guarded


def _on_this_machine(remote: str) -> bool:
    if remote == "@":
        return True  # a Unix socket
    address = ipaddress.ip_address(remote.rpartition(":")[0].strip("[]"))
    mapped = getattr(address, "ipv4_mapped", None)  # as a socket for both families shows IPv4
    return (mapped or address).is_loopback


def _seconds(request: Request) -> float:
    try:
        seconds = float(request.args.get("seconds", _DEFAULT_SECONDS))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST:
        raise HttpError(400, "INVALID_ARG_SECONDS")
    return seconds


def _limit(request: Request) -> int:
    text = request.args.get("limit", str(_DEFAULT_LIMIT))
    if not (text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= _MAX_LIMIT):
        raise HttpError(400, "INVALID_ARG_LIMIT")
    return int(text)
