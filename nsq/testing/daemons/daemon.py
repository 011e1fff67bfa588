"""Nsqd, Nsqlookupd and Nsqadmin for tests: on free ports, restarted there, stopped within a deadline.

The daemons' own modules are imported when one is made or started: this module needs nothing but the core.
"""

from __future__ import annotations

import dataclasses
import http.client
import importlib.util
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TextIO

from nsq.errors import UsageError, how_to_install
from nsq.flags import FlagExit, parse
from nsq.options import METADATA, SECONDS, closest, format_duration

from .addresses import Addresses, Ports, dial
from .errors import AddressTaken, DaemonFailed
from .http import TIMEOUT, Reply, ask
from .process import ProcessRun, our_program
from .thread import Runnable, ThreadRun

START_TIMEOUT = 30.0
STOP_TIMEOUT = 30.0
_READY_CHECK_TIMEOUT = 5.0
_PAUSE = 0.02


class Daemon:
    """The base of Nsqd, Nsqlookupd and Nsqadmin. Options are keyword arguments by their Python names, times
    in seconds.

    By default the daemon runs in a background thread. ``process=True`` runs our program in a child process,
    ``binary="/path/nsqd"`` any program with the same flags; ``flags`` are passed unchanged, for flags that
    ours does not have. Ports are chosen unless given, and then kept: after ``restart()``, or ``stop()`` and
    ``start()``, the daemon has the same addresses.
    """

    program: ClassVar[str]
    listens: ClassVar[tuple[str, ...]]
    _ping_target = "/ping"

    def __init__(
        self,
        *,
        process: bool = False,
        binary: str | Path | None = None,
        flags: Sequence[str] = (),
        start_timeout: float = START_TIMEOUT,
        stop_timeout: float = STOP_TIMEOUT,
        **options: object,
    ) -> None:
        own = our_program(self.program) if process else None
        self._command = own if binary is None else [str(binary)]
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._options = options
        self._flags = tuple(flags)
        self._ports = Ports(self.listens, options)
        self._run: ThreadRun | ProcessRun | None = None
        self._addresses = Addresses(None, None)
        self._private: Path | None = None
        self._cleanup: Callable[[], object] = lambda: None
        self._log_of_earlier_runs = ""
        _to_arguments(self._options_class(), options)  # reports a wrong name here, not in start()

    # Lifetime

    def start(self) -> Self:
        """Start, and return once HTTP and TCP ports accept. DaemonFailed has the log if that fails."""
        if self.running:
            raise UsageError(f"this {self.program} is running already")
        self._forget_run()
        try:
            self._start_on_free_ports(time.monotonic() + self._start_timeout)
        except BaseException:
            self._forget_run()
            self._remove_private()
            raise
        return self

    def stop(self, *, keep_data: bool = False) -> None:
        """Stop cleanly within the deadline and remove the private data; a second call does nothing."""
        try:
            if self._run is not None:
                self._run.stop(self._stop_timeout)
        finally:
            self._forget_run()
            if not keep_data:
                self._remove_private()

    def restart(self) -> None:
        """Stop and start with the same ports and the same data."""
        self.stop(keep_data=True)
        self.start()

    def kill(self) -> None:
        """Send SIGKILL; ``start()`` starts the daemon again on the same ports with the same data."""
        self._child().kill()

    def terminate(self) -> int:
        """Send SIGTERM; return the exit status once the process has ended."""
        return self._child().stop(self._stop_timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # State

    def __repr__(self) -> str:
        listening = [f"{kind} {each}" for kind, each in self._addresses._asdict().items() if each]
        return f"<{type(self).__name__} {', '.join(listening) if self.running else 'not running'}>"

    @property
    def running(self) -> bool:
        return self._run is not None and self._run.alive

    @property
    def pid(self) -> int:
        return self._child().pid

    @property
    def log(self) -> str:
        """The whole log of all runs."""
        return self._log_of_earlier_runs + ("" if self._run is None else self._run.log)

    @property
    def tcp_address(self) -> str:
        return self._known(self._addresses.tcp, "tcp_address")

    @property
    def http_address(self) -> str:
        return self._known(self._addresses.http, "http_address")

    # HTTP

    def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> Reply:
        """Send an HTTP request: ``status, headers, body = nsqd.request("GET", "/stats?format=json")``."""
        return ask(self.http_address, method, target, body, headers, timeout=timeout)

    def get(self, target: str, *, timeout: float = TIMEOUT) -> Reply:
        return self.request("GET", target, timeout=timeout)

    def post(self, target: str, body: bytes = b"", *, timeout: float = TIMEOUT) -> Reply:
        return self.request("POST", target, body, timeout=timeout)

    # Overridden by the subclasses

    def _options_class(self) -> type[Any]:
        raise TypeError(f"{type(self).__name__} is not a daemon class: use Nsqd or Nsqlookupd")

    def _daemon_class(self) -> Callable[..., Runnable]:
        """Import and return the daemon's class, which needs aiohttp."""
        raise TypeError(f"{type(self).__name__} is not a daemon class: use Nsqd or Nsqlookupd")

    def _all_options(self) -> dict[str, object]:
        """Return the caller's options, and defaults that are better for tests."""
        return {"broadcast_address": "127.0.0.1", **self._options, **self._ports.options}

    # Starting

    def _start_on_free_ports(self, deadline: float) -> None:
        keep_ports = self._ports.known
        while True:
            try:
                return self._start_once(deadline)
            except AddressTaken:
                if time.monotonic() > deadline or not self._ports.all_fixed_ones_free():
                    raise
            self._forget_run()
            if not keep_ports:
                self._ports.forget()
            time.sleep(_PAUSE)  # there is no notification when a port becomes free

    def _start_once(self, deadline: float) -> None:
        if self._private is None:
            self._private = Path(tempfile.mkdtemp(prefix=f"{self.program}-"))
            self._cleanup = weakref.finalize(self, _remove_tree, self._private, os.getpid())
        run = self._run = self._thread_run() if self._command is None else self._process_run(self._command)
        try:
            run.start(deadline - time.monotonic())
            self._await_ready(run, deadline)
        except BaseException:
            run.abandon()
            raise
        self._addresses = run.addresses
        self._ports.keep(run.addresses)

    def _thread_run(self) -> ThreadRun:
        if importlib.util.find_spec("aiohttp") is None:
            raise DaemonFailed(f"{self.program} needs aiohttp: {how_to_install('server')}")
        from nsq.daemons.serve.logs import DaemonLog

        options = read_options(self._options_class(), self._all_options(), self.program, self._flags)
        daemon_class = self._daemon_class()

        def make(stream: TextIO) -> Runnable:
            return daemon_class(options, log=DaemonLog.of(options, stream))

        return ThreadRun(make, self.program)

    def _process_run(self, command: Sequence[str]) -> ProcessRun:
        if not self._ports.known:
            self._ports.choose()
        options = self._all_options()
        listening = {name: str(options[name]) or None for name in self.listens}
        if "tls_cert" not in options:
            listening.pop("https_address", None)  # without a certificate it does not listen there
        arguments = _to_arguments(self._options_class(), options)
        addresses = Addresses(
            listening.get("tcp_address"), listening.get("http_address"), listening.get("https_address")
        )
        return ProcessRun([*command, *arguments, *self._flags], addresses, self._private_directory / "log")

    def _await_ready(self, run: ThreadRun | ProcessRun, deadline: float) -> None:
        while True:
            answered = _answers(
                run.addresses,
                self._ping_target,
                min(_READY_CHECK_TIMEOUT, max(0.1, deadline - time.monotonic())),
            )
            if not run.alive:  # checked last: another program may have replied on a port that was taken
                raise run.failure()
            if answered:
                return
            if time.monotonic() > deadline:
                raise DaemonFailed(f"{self.program} was not ready within {self._start_timeout:g} s", run.log)
            time.sleep(_PAUSE)  # there is no notification when a process begins to listen

    def _forget_run(self) -> None:
        """Forget the last run, but keep its log."""
        if self._run is not None:
            self._log_of_earlier_runs += self._run.log
            self._run = None

    @property
    def _private_directory(self) -> Path:
        if self._private is None:
            raise UsageError(f"this {self.program} has no files: it is stopped, or was never started")
        return self._private

    def _remove_private(self) -> None:
        self._cleanup()
        self._private = None

    def _child(self) -> ProcessRun:
        if isinstance(self._run, ProcessRun):
            return self._run
        if self._command is None:
            raise UsageError(
                f"this {self.program} runs in a thread; process=True or binary=... has a process"
            )
        raise UsageError(f"this {self.program} was not started")

    def _known(self, address: str | None, name: str) -> str:
        if address is None:
            raise UsageError(f"this {self.program} has no {name}: never started, or not listening there")
        return address


class Nsqlookupd(Daemon):
    """An nsqlookupd: ``with Nsqlookupd() as lookupd: lookupd.get("/topics")``."""

    program = "nsqlookupd"
    listens = ("tcp_address", "http_address")

    def _options_class(self) -> type[Any]:
        from nsq.daemons.nsqlookupd.options import NsqlookupdOptions

        return NsqlookupdOptions

    def _daemon_class(self) -> Callable[..., Runnable]:
        from nsq.daemons.nsqlookupd.daemon import Nsqlookupd as Program

        return Program


class Nsqadmin(Daemon):
    """An nsqadmin: ``with Nsqadmin(lookupd=[lookupd]) as admin: admin.get("/api/topics")``.

    ``lookupd`` and ``nsqd`` are running daemons of this package, or ``host:port`` of their HTTP side.
    """

    program = "nsqadmin"
    listens = ("http_address",)

    def __init__(
        self, *, lookupd: Iterable[Nsqlookupd | str] = (), nsqd: Iterable[Nsqd | str] = (), **options: Any
    ) -> None:
        for name, daemons in (("lookupd_http_addresses", lookupd), ("nsqd_http_addresses", nsqd)):
            addresses = tuple(each if isinstance(each, str) else each.http_address for each in daemons)
            if addresses:
                options[name] = (*options.get(name, ()), *addresses)
        base_path = str(options.get("base_path", "")).strip("/")
        self._ping_target = f"/{base_path}/ping" if base_path else "/ping"
        super().__init__(**options)

    def _all_options(self) -> dict[str, object]:
        return {**self._options, **self._ports.options}

    def _options_class(self) -> type[Any]:
        from nsq.daemons.nsqadmin.options import NsqadminOptions

        return NsqadminOptions

    def _daemon_class(self) -> Callable[..., Runnable]:
        from nsq.daemons.nsqadmin.daemon import Nsqadmin as Program

        return Program


class Nsqd(Daemon):
    """An nsqd: ``with Nsqd(lookupd=[lookupd], msg_timeout=1.0) as nsqd: nsqd.tcp_address``.

    ``lookupd`` names the lookup daemons it registers with: Nsqlookupd objects that are running, or
    ``host:port`` of their TCP side.
    """

    program = "nsqd"
    listens = ("tcp_address", "http_address", "https_address")

    def __init__(self, *, lookupd: Iterable[Nsqlookupd | str] = (), **options: Any) -> None:
        addresses = tuple(each if isinstance(each, str) else each.tcp_address for each in lookupd)
        if addresses:
            options["lookupd_tcp_addresses"] = (*options.get("lookupd_tcp_addresses", ()), *addresses)
        super().__init__(**options)

    @property
    def https_address(self) -> str | None:
        """The HTTPS address; None without a certificate."""
        return self._addresses.https

    @property
    def data_path(self) -> Path:
        """The directory of nsqd's files; a private one unless given."""
        if "data_path" in self._options:
            return Path(str(self._options["data_path"]))
        return self._private_directory / "data"

    def _all_options(self) -> dict[str, object]:
        if "data_path" not in self._options:
            self.data_path.mkdir(exist_ok=True)
        return {**super()._all_options(), "data_path": self.data_path}

    def _options_class(self) -> type[Any]:
        from nsq.daemons.nsqd.options import NsqdOptions

        return NsqdOptions

    def _daemon_class(self) -> Callable[..., Runnable]:
        from nsq.daemons.nsqd.daemon import Nsqd as Program

        return Program


def _to_arguments(options_class: type[Any], given: Mapping[str, object]) -> list[str]:
    """Turn ``{"msg_timeout": 1.0}`` into ``["--msg-timeout=1s"]``; a tuple or list repeats its flag."""
    fields = {field.name: field for field in dataclasses.fields(options_class) if METADATA in field.metadata}
    arguments = []
    for name, value in given.items():
        if name not in fields:
            meant = closest(name, fields, 0.6)
            hint = f" (did you mean {meant!r}?)" if meant else ""
            raise UsageError(f"no option is called {name!r}{hint}")
        flag = fields[name].metadata[METADATA]
        spelled = flag.name or name.replace("_", "-")
        values = value if flag.repeated and isinstance(value, (tuple, list)) else (value,)
        arguments += [f"--{spelled}={_text(each, flag)}" for each in values]
    return arguments


def read_options(
    options_class: type[Any], given: Mapping[str, object], program: str, flags: Sequence[str] = ()
) -> Any:
    """Make the options of a daemon in this process, as its program would."""
    arguments = [*_to_arguments(options_class, given), *flags]
    try:
        return parse(options_class, arguments, prog=program).options
    except FlagExit as refused:
        raise UsageError(refused.text.splitlines()[0]) from refused


def _text(value: object, flag: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)) and flag.kind is SECONDS:
        return format_duration(value)
    return str(value)


def _answers(addresses: Addresses, ping: str, timeout: float) -> bool:
    """Whether the TCP port accepts and the daemon replies to /ping."""
    try:
        if addresses.tcp is not None:
            dial(addresses.tcp, timeout).close()
        if addresses.http is None:
            return True
        return _is_up(ask(addresses.http, "GET", ping, timeout=timeout))
    except (OSError, http.client.HTTPException):
        return False


def _is_up(reply: Reply) -> bool:
    # An nsqd that requires TLS replies 403 to all requests on its plain HTTP port.
    return reply.status == 200 or (reply.status == 403 and b"TLS_REQUIRED" in reply.body)


def _remove_tree(path: Path, owner: int) -> None:
    """Remove private data: when a daemon is stopped or collected, or at exit, but not in a forked child."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
