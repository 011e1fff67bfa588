"""Serves a cluster in one event loop, which runs in a thread or in a process of its own.

A test controls it through a pipe: it sends a place ("cluster", "nodes", "lookups"), a number there, the name
of a method and its arguments, and gets a result or an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from nsq.gc_settings import tune_gc

from .lookupd import PartitionedLookupd
from .nsqd_http import PartitionedNsqd
from .state import TICK, ClusterState

Places = dict[str, list[Any]]


def main(descriptor: int) -> None:
    """Serve in a process of its own, controlled through the inherited descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test decides when this ends
    tune_gc()
    serve(Connection(descriptor))


def serve(control: Connection) -> None:
    """Serve a cluster until the test ends it. What it consists of comes first through the pipe."""
    with control:
        settings = _receive(control)
        if settings is not None:
            asyncio.run(_serve(control, **settings))


async def _serve(control: Connection, *, nodes: int, lookups: int, **options: Any) -> None:
    loop = asyncio.get_running_loop()
    cluster = ClusterState(nodes, time.monotonic, loop.call_later, **options)
    nsqds = [PartitionedNsqd(cluster, state) for state in cluster.nodes]
    lookupds: list[PartitionedLookupd] = []
    lookupds += [PartitionedLookupd(cluster, index, nsqds, lookupds) for index in range(lookups)]
    ticking = asyncio.create_task(_tick(cluster, nsqds))
    requests: asyncio.Queue[Any] = asyncio.Queue()
    loop.add_reader(control.fileno(), lambda: requests.put_nowait(_receive(control)))
    try:
        for program in (*nsqds, *lookupds):
            await program.start()
        while (request := await requests.get()) is not None:
            answer = await _obey({"cluster": [cluster], "nodes": nsqds, "lookups": lookupds}, *request)
            with contextlib.suppress(OSError):
                control.send(answer)
    finally:
        loop.remove_reader(control.fileno())
        ticking.cancel()
        for program in (*nsqds, *lookupds):
            program.close()


def _receive(control: Connection) -> Any:
    """Return what the test sent; None when it is the end, or the test is gone."""
    try:
        return control.recv()
    except (EOFError, OSError):
        return None


async def _obey(places: Places, number: int, at: tuple[str, int], name: str, args: Any, options: Any) -> Any:
    try:
        result = getattr(places[at[0]][at[1]], name)(*args, **options)
        return number, True, await result if asyncio.iscoroutine(result) else result
    except Exception as error:
        return number, False, error


async def _tick(cluster: ClusterState, nsqds: list[PartitionedNsqd]) -> None:
    while True:
        await asyncio.sleep(TICK)
        cluster.deliver_all()  # what has timed out
        for nsqd in nsqds:
            nsqd.tick()
