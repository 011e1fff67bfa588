"""Runs a daemon as a program: its flags, the event loop, signals, systemd, exit statuses.

Imports only errors, flags, gc_settings and the daemons' log of this package, and never aiohttp:
``--version`` works without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import platform
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.serve.logs import DaemonLog, LogOptions
from nsq.errors import NsqError, how_to_install
from nsq.flags import parse_or_exit
from nsq.gc_settings import tune_gc
from nsq.threads.stop_signals import SIGNALS, StopSignals, release_signals

OptionsT = TypeVar("OptionsT", bound=LogOptions)


class Orders:
    """What a daemon was told to do, by signals or over HTTP. The code that runs the daemon obeys."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.stop = asyncio.Event()


class Daemon(Protocol):
    orders: Orders

    async def start(self) -> None:
        """Listen. If that fails, raise and leave nothing open."""

    async def drain(self) -> None:
        """Accept nothing new and let clients finish. May be cancelled; ``stop`` follows in any case."""

    async def stop(self) -> bool:
        """End what start() began; a second call does nothing. Returns whether nothing was lost."""

    def hurry(self) -> None:
        """Have ``stop`` wait no longer for clients and requests, and log what is not on disk yet."""

    async def reload(self) -> None:
        """Read changed files again. If one cannot be read, log that and keep the old content."""


def run_program(
    program: str,
    options_class: type[OptionsT],
    make_daemon: Callable[[OptionsT, DaemonLog], Daemon],
    argv: Sequence[str] | None,
    *,
    drains_on_sigterm: Callable[[OptionsT], bool] = lambda _: False,
) -> int:
    """Read the flags, run the daemon, return the exit status. --help, --version, errors: SystemExit."""
    version = f"{program} v{COMPATIBLE_VERSION} (built w/python{platform.python_version()})"
    parsed = parse_or_exit(options_class, argv, prog=program, version=version)
    if importlib.util.find_spec("aiohttp") is None:
        raise SystemExit(f"{program} needs the server extra: {how_to_install('server')}")
    try:
        log = DaemonLog.of(parsed.options)
    except NsqError as error:
        raise SystemExit(f"{program}: {error}") from None
    with contextlib.closing(log):
        for warning in parsed.warnings:
            log.warning("%s", warning)
        if parsed.rest:
            log.warning("ignored, as %r is not a flag: %s", parsed.rest[0], " ".join(parsed.rest))
        log.info("%s", version)
        drains = drains_on_sigterm(parsed.options)
        return run(lambda: make_daemon(parsed.options, log), log, drains_on_sigterm=drains)


def run(make_daemon: Callable[[], Daemon], log: DaemonLog, *, drains_on_sigterm: bool = False) -> int:
    """Run until SIGTERM, SIGINT, an order to stop or the end of a drain, and return the exit status."""
    tune_gc()
    _allow_many_files()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(_serve(make_daemon, log, drains_on_sigterm))
        finally:
            # The loop's end restores the signals' default action, which would replace the exit status.
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _allow_many_files() -> None:
    """Raise the limit of open files to the user's maximum, as Go's runtime does; 1024 is too low."""
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


async def _serve(make_daemon: Callable[[], Daemon], log: DaemonLog, drains_on_sigterm: bool) -> int:
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: log.error("%s", context["message"], exc=context.get("exception"))
    )
    systemd = Systemd(os.environ)
    signals = _Signals(log, systemd, drains_on_sigterm)
    try:
        daemon = make_daemon()
        signals.hurry = daemon.hurry
        daemon.orders = signals.orders
        await daemon.start()
    except (NsqError, OSError) as error:
        log.fatal("%s", error)
        return 1
    except Exception as error:
        log.error("cannot start", exc=error)
        return 1
    watchdog = asyncio.get_running_loop().create_task(systemd.feed_watchdog(), name="systemd-watchdog")
    systemd.notify("READY=1")
    await signals.obey(daemon)
    systemd.notify("STOPPING=1")
    try:
        return 0 if await daemon.stop() else 1
    finally:
        watchdog.cancel()


class _Signals:
    """SIGTERM and SIGINT stop, SIGUSR1 drains, SIGHUP reloads. Signals during start() take effect later.

    With ``drains_on_sigterm`` the first SIGTERM drains too, and a later one stops.
    No signal cuts a stop short: a later SIGTERM or SIGINT only ends its waiting for clients and requests.
    """

    def __init__(self, log: DaemonLog, systemd: Systemd, drains_on_sigterm: bool) -> None:
        self.hurry: Callable[[], None] = lambda: None
        self.orders = Orders()
        self._sigterm_drains = drains_on_sigterm
        self._log = log
        self._systemd = systemd
        self._reload = asyncio.Event()
        self._stop_signals = StopSignals()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop, number)
        loop.add_signal_handler(signal.SIGUSR1, self._asked_to_drain, signal.SIGUSR1)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        release_signals()

    async def obey(self, daemon: Daemon) -> None:
        """Drain and reload when told to; return when the daemon must stop."""
        loop = asyncio.get_running_loop()
        jobs = [self.orders.stop.wait(), self._drain_when_told(daemon), self._reload_on_signal(daemon)]
        tasks: list[asyncio.Task[Any]] = [loop.create_task(job) for job in jobs]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                self._log.error("handling a signal failed: stopping", exc=outcome)

    def _asked_to_stop(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if self._stop_signals.repeats(now):
            return
        if number == signal.SIGTERM and self._sigterm_drains:
            self._sigterm_drains = False
            self._asked_to_drain(number)
        elif not self.orders.stop.is_set():
            self._stop_signals.first_at = now  # those that repeat this one do not hurry the stop
            self._log.info("received %s, stopping", number.name)
            self.orders.stop.set()
        else:
            self._log.warning("received %s again: not waiting for clients and requests", number.name)
            self.hurry()

    def _asked_to_drain(self, number: signal.Signals) -> None:
        stopping = "a second SIGTERM" if number == signal.SIGTERM or self._sigterm_drains else "SIGTERM"
        self._log.info("received %s, draining; %s stops at once", number.name, stopping)
        self.orders.drain.set()

    async def _drain_when_told(self, daemon: Daemon) -> None:
        await self.orders.drain.wait()
        self._systemd.notify("STATUS=draining")
        await daemon.drain()

    async def _reload_on_signal(self, daemon: Daemon) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            self._systemd.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            self._log.reopen()
            self._log.info("received SIGHUP, reloading")
            try:
                await daemon.reload()
            except Exception as error:
                self._log.error("reloading failed", exc=error)
            self._systemd.notify("READY=1")


class Systemd:
    """Notifies systemd of the daemon's state, as sd_notify(3) does. Without systemd it does nothing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = environment.get("WATCHDOG_USEC", "")
        self._watchdog = int(microseconds) / 1_000_000 if mine and microseconds.isdigit() else 0.0

    def notify(self, state: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(state.encode(), self._address)

    async def feed_watchdog(self) -> None:
        """Report that the event loop is running, twice as often as systemd expects it."""
        while self._watchdog:
            self.notify("WATCHDOG=1")
            await asyncio.sleep(self._watchdog / 2)
