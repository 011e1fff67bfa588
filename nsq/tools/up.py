"""``nsq up``: an nsqlookupd, an nsqd and an nsqadmin on this machine, until Ctrl-C.

Each is a process in a group of its own, so that Ctrl-C reaches only this program, which then stops them in
order. On Linux they stop also when this program is killed.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nsq.errors import NsqError, UsageError, how_to_install
from nsq.http.nsqd import NsqdApi
from nsq.tools.program import LEVELS, SignalWatch, check_ranges, flag, log, run_command
from nsq.transport.addresses import join
from nsq.transport.dialing import default_transport
from nsq.work.binding import bound, environment

#: How long a daemon may take to answer after its start; a slow machine needs seconds.
_START_SECONDS = 60.0
_LOOK_EVERY = 0.05
#: Seconds after which a wait says that it goes on.
_SILENCE = 8.0
#: The statuses of a daemon that was stopped; the second one before it had begun its work.
_CLEAN = (0, -signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    data_path: str = flag("nsq-data", "directory of nsqd's messages; it is created if it is missing")
    host: str = flag("127.0.0.1", "IP address that the daemons listen on")
    port: int = flag(
        4150,
        "nsqd's TCP port; the others follow it: nsqd's HTTP port 1 higher, nsqlookupd's ports 10 and 11, "
        "nsqadmin's 21",
        low=1,
        high=65535 - 21,
    )
    log_level: str = flag(
        "warn",
        "what the daemons log: debug, info, warn, error or fatal",
        parse=str.lower,
        choices=tuple(LEVELS),
    )

    def __post_init__(self) -> None:
        check_ranges(self)


class Daemon(NamedTuple):
    name: str
    label: str
    ports: dict[str, str]  # addresses by protocol; "http" is among them
    flags: list[str]


def main(argv: Sequence[str]) -> int:
    synopsis = (
        "\nRuns an nsqlookupd, an nsqd and an nsqadmin on this machine until Ctrl-C. nsqd keeps its\n"
        "messages in --data-path for the next run. With the usual ports, other commands need no address flag."
    )
    return run_command(UpOptions, argv, "nsq up", synopsis, _up)


def _up(options: UpOptions, _: tuple[str, ...]) -> int:
    if importlib.util.find_spec("aiohttp") is None:
        raise UsageError(f"nsq up needs the daemons: {how_to_install('server')}")
    _say("starting nsqlookupd, nsqd and nsqadmin")
    data = Path(options.data_path).absolute()
    daemons = _daemons(options, data)
    for daemon in daemons:
        _refuse_taken_ports(daemon, options.host)
    data.mkdir(parents=True, exist_ok=True)
    with SignalWatch(signal.SIGHUP) as watch:
        running = Running(watch)
        try:
            nsqlookupd, *others = daemons
            for several in ([nsqlookupd], others):  # nsqd registers when it starts
                for daemon in several:
                    running.start(daemon)
                for daemon in several:
                    if not running.await_answer(daemon, options.host):
                        return 0
                    _say(daemon.label)
            _say("SIGTERM or Ctrl-C stops them")
            running.wait()
        finally:
            status = running.stop()
    return status


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _daemons(options: UpOptions, data: Path) -> list[Daemon]:
    """Return the daemons in the order of their start."""
    host, port = options.host, options.port
    tcp, http, lookup_tcp, lookup_http, admin = (join(host, port + more) for more in (0, 1, 10, 11, 21))
    lookup_here, lookup_http_here = (join(_dialed(host), port + more) for more in (10, 11))
    log_flag = f"--log-level={options.log_level}"
    # The address by which others find nsqd: where it listens, or if that is everywhere its host's name.
    broadcast = [] if _dialed(host) != host else [f"--broadcast-address={host}"]
    return [
        Daemon(
            "nsqlookupd",
            f"nsqlookupd  tcp {lookup_tcp}  http {lookup_http}",
            {"tcp": lookup_tcp, "http": lookup_http},
            [f"--tcp-address={lookup_tcp}", f"--http-address={lookup_http}", log_flag],
        ),
        Daemon(
            "nsqd",
            f"nsqd        tcp {tcp}  http {http}  data {data}",
            {"tcp": tcp, "http": http},
            [
                f"--tcp-address={tcp}",
                f"--http-address={http}",
                f"--lookupd-tcp-address={lookup_here}",
                f"--data-path={data}",
                *broadcast,
                log_flag,
            ],
        ),
        Daemon(
            "nsqadmin",
            f"nsqadmin    http://{join(_dialed(host), port + 21)}/",
            {"http": admin},
            [f"--http-address={admin}", f"--lookupd-http-address={lookup_http_here}", log_flag],
        ),
    ]


def _dialed(host: str) -> str:
    """Return the address at which this machine reaches a daemon that listens at ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _refuse_taken_ports(daemon: Daemon, host: str) -> None:
    for address in daemon.ports.values():
        try:
            default_transport.connect(_here(address, host), timeout=1.0).close()
        except NsqError:
            continue
        raise UsageError(
            f"{address}, for {daemon.name}, is in use: stop what runs there, or give another --port"
        )


def _here(address: str, host: str) -> str:
    return join(_dialed(host), int(address.rpartition(":")[2]))


class Patience:
    """A wait that says every eight seconds what it waits for, and since when."""

    def __init__(self, what: str, now: float) -> None:
        self._what, self._began, self._said = what, now, now

    def remind(self, now: float) -> None:
        if now - self._said >= _SILENCE:
            self._said = now
            _say(f"{self._what}, {now - self._began:.0f} s")


class Running:
    """The daemons' processes, in the order of their start."""

    def __init__(self, watch: SignalWatch) -> None:
        self._watch = watch
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, daemon: Daemon) -> None:
        command = [sys.executable, "-P", "-m", f"nsq.daemons.{daemon.name}", *daemon.flags]
        process = subprocess.Popen(
            bound(command, signal.SIGTERM), stdin=subprocess.DEVNULL, env=environment(), process_group=0
        )
        self._processes[daemon.name] = process
        threading.Thread(
            target=self._report_end, args=(process,), name=f"nsq-up-{daemon.name}", daemon=True
        ).start()

    def await_answer(self, daemon: Daemon, host: str) -> bool:
        """Wait until a daemon answers; return False if a signal comes first."""
        process = self._processes[daemon.name]
        api = NsqdApi(_here(daemon.ports["http"], host), timeout=1.0)
        deadline = time.monotonic() + _START_SECONDS
        patience = Patience(f"waiting for {daemon.name} to start", time.monotonic())
        while process.poll() is None and time.monotonic() < deadline:
            try:
                api.ping()  # all three daemons have /ping
                return True
            except NsqError:
                if self._watch.wait(_LOOK_EVERY) is not None:
                    return False
                patience.remind(time.monotonic())
        if process.poll() is None:
            raise UsageError(f"{daemon.name} did not answer within {_START_SECONDS:g} s")
        raise UsageError(f"{daemon.name} did not start; its last log line says why")

    def _report_end(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._watch.wake()

    def wait(self) -> None:
        """Return after a signal. If a daemon ends, raise UsageError."""
        while True:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise UsageError(f"{name} ended with status {process.returncode}; its log says why")
            if self._watch.wait() is not None:
                return

    def stop(self) -> int:
        """Stop the daemons, the last one first; return 1 if one of them failed, else 0. A second signal is
        passed on to those that are left, a third one kills them.
        """
        impatient = 0
        for name, process in reversed(self._processes.items()):
            if process.poll() is not None:
                continue
            process.terminate()
            patience = Patience(f"waiting for {name} to stop", time.monotonic())
            while process.poll() is None:
                if self._watch.wait(_SILENCE) is None:
                    patience.remind(time.monotonic())
                    continue
                impatient += 1
                for each in self._processes.values():
                    each.terminate() if impatient == 1 else each.kill()
            if process.returncode not in _CLEAN:
                log.error("%s ended with status %d", name, process.returncode)
        return int(any(process.returncode not in _CLEAN for process in self._processes.values()))
