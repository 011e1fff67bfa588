"""Running a daemon as a program: the event loop, signals, exit codes.

Of the package only errors, the collector and the daemons' log are imported, and never aiohttp: ``--version``
works without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import resource
import signal
from collections.abc import Callable
from typing import Protocol

from nsq.collector import calm_collector
from nsq.daemons.logs import DaemonLog
from nsq.errors import NsqError


class Daemon(Protocol):
    async def start(self) -> None:
        """Listen. Raises when it cannot, leaving nothing open."""

    async def stop(self) -> bool:
        """End everything that start() began; a second call does nothing. Whether nothing was lost."""


def require_server_extra(program: str) -> None:
    """Exit with status 1 and one line on stderr when aiohttp is not installed."""
    if importlib.util.find_spec("aiohttp") is None:
        raise SystemExit(f"{program} needs the server extra: pip install 'nsq[server]'")


def run(make_daemon: Callable[[], Daemon], log: DaemonLog) -> int:
    """Run until SIGTERM or SIGINT and return the exit status. A second signal does not wait for the stop."""
    calm_collector()
    _allow_many_files()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(make_daemon, log))


def _allow_many_files() -> None:
    """As many as the system lets this user have, as Go's runtime does: the usual 1024 are few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems name a limit and refuse it
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(make_daemon: Callable[[], Daemon], log: DaemonLog) -> int:
    asked = asyncio.Event()
    _watch_signals(asked, log)
    try:
        daemon = make_daemon()
        await daemon.start()
    except (NsqError, OSError) as error:
        log.fatal("%s", error)
        return 1
    except Exception as error:
        log.error("cannot start", exc=error)
        return 1
    await asked.wait()
    return 0 if await daemon.stop() else 1


def _watch_signals(asked: asyncio.Event, log: DaemonLog) -> None:
    def arrived(number: signal.Signals) -> None:
        if asked.is_set():
            log.fatal("second signal (%s): exiting without waiting", number.name)
            os._exit(1)
        log.info("received %s, stopping", number.name)
        asked.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrived, number)
