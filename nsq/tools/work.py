"""``nsq work``: runs the consumers of a module in several processes, and supervises them.

    the supervisor   imports the module, forks the workers, and restarts those that die. It has no threads
    a worker         runs the consumers until SIGTERM, or until it has reached a limit
    the health page  an optional process of its own; reads the last report of each worker

Once a second each worker writes a report into its slot of shared memory.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import mmap
import os
import resource
import signal
import struct
import sys
import sysconfig
import time
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from nsq import Consumer
from nsq.errors import ConfigError, UsageError
from nsq.tools.listening import HttpServer, listen_address
from nsq.tools.program import (
    LogFlags,
    SignalWatch,
    check_ranges,
    duration,
    flag,
    log,
    run_command,
    stop_all,
)

#: Seconds of work after which the pauses before a restart begin anew; the first and the longest pause.
_STEADY, _FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 0.1, 30.0
#: Seconds after its deadline at which a worker is killed.
_GRACE = 5.0
#: Seconds between two reports of a worker, and between two checks of children and files by the supervisor.
_STEP = 1.0
#: Seconds for a new worker to connect before the old one is stopped.
_CONNECT = 10.0
#: Seconds without a report after which a worker counts as stuck.
_STALE = 15.0
_SLOT = 16 * 1024
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1}
_HEAD = struct.Struct(">II")


@dataclass(frozen=True, kw_only=True)
class WorkOptions(LogFlags):
    processes: int = flag(lambda: processors(), "number of processes", low=1, high=1000)
    threads: int = flag(
        0,
        "threads of each handler that was added without a number (0: as in the program)",
        low=0,
        high=10_000,
    )
    timeout: float = duration(30.0, "time to finish messages in work at the end", low=0.0, high=86400.0)
    max_messages: int = flag(
        0, "number of messages after which a process is replaced (0 for no limit)", low=0, high=2**63 - 1
    )
    max_memory: int = flag(
        0, "MiB of memory above which a process is replaced (0 for no limit)", low=0, high=2**31
    )
    reload: bool = flag(False, "replace the processes when a file of the program changes (for development)")
    health_address: str = flag("", "host:port of an HTTP page with the health of all processes")
    log_prefix: str = flag("[<PID>] ", "start of every log line")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.health_address:
            listen_address(self.health_address)


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main(argv: Sequence[str]) -> int:
    synopsis = (
        "MODULE[:CONSUMER] [MORE...]\nRuns consumers in several processes. CONSUMER is a Consumer, a list of "
        "them, or a function\nthat returns either; without it, all consumers of the module run.\n"
        "SIGTERM finishes the messages in work and exits; SIGHUP reloads the program, one process at a time."
    )
    return run_command(WorkOptions, argv, "nsq work", synopsis, _work)


def _work(options: WorkOptions, targets: tuple[str, ...]) -> int:
    sys.path.insert(0, os.getcwd())
    program = Program(targets)
    program.load()
    return Supervisor(options, program).run()


class Program:
    """The user's modules, and the consumers in them."""

    def __init__(self, targets: Sequence[str]) -> None:
        self._targets = targets
        self._before = set(sys.modules)

    def load(self) -> None:
        """Import the modules; UsageError when a named consumer is missing or was started."""
        for target in self._targets:
            found = self._named(target)
            if not callable(found) or isinstance(found, Consumer):
                for consumer in _checked_consumers(target, found):
                    if consumer.health().state != "new":
                        raise UsageError(
                            f"{target.partition(':')[0]} runs or starts {consumer!r} while it is imported: "
                            'put that below `if __name__ == "__main__":`; nsq work starts the consumer itself'
                        )
        if logging.getLogger().handlers:  # the program has configured logging itself
            logging.getLogger("nsq").handlers.clear()

    def consumers(self) -> list[Consumer]:
        """Return the consumers; call functions. For the process that runs the consumers."""
        consumers = []
        for target in self._targets:
            found = self._named(target)
            if callable(found) and not isinstance(found, Consumer):
                found = found()
            consumers += _checked_consumers(target, found)
        return list(dict.fromkeys(consumers))

    def _named(self, target: str) -> Any:
        name, colon, path = target.partition(":")
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise
            raise UsageError(f"there is no module {name} in {os.getcwd()} or in Python's path") from None
        if not colon:
            return [each for each in vars(found).values() if isinstance(each, Consumer)]
        for part in path.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise UsageError(f"{target}: there is no {part}") from None
        return found

    def load_again(self) -> None:
        """Import the user's own modules again, but no library. For a new process."""
        for name, module in list(sys.modules.items()):
            if name not in self._before and _is_users(module):
                del sys.modules[name]
        importlib.invalidate_caches()
        self.load()

    def files(self) -> dict[str, float]:
        """The user's own files, and when they were changed."""
        found = {}
        for name, module in list(sys.modules.items()):
            if name not in self._before and _is_users(module):
                path = str(module.__file__)
                try:
                    found[path] = os.stat(path).st_mtime
                except OSError:
                    found[path] = math.nan
        return found


def _checked_consumers(target: str, found: Any) -> list[Consumer]:
    consumers = [found] if isinstance(found, Consumer) else list(found) if isinstance(found, Iterable) else []
    if not consumers or not all(isinstance(each, Consumer) for each in consumers):
        raise UsageError(f"{target} is {found!r}: it must be or give a Consumer, or several")
    return consumers


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _is_users(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and not str(file).startswith(_LIBRARIES)


# Reports of the workers


class Slots:
    """Memory shared with children. One process at a time writes each slot."""

    def __init__(self, count: int) -> None:
        self._memory = mmap.mmap(-1, count * _SLOT)
        self.count = count

    def write(self, slot: int, told: dict[str, Any]) -> None:
        data = json.dumps(told).encode()[: _SLOT - _HEAD.size]
        self._memory[slot * _SLOT : slot * _SLOT + _HEAD.size + len(data)] = (
            _HEAD.pack(len(data), zlib.crc32(data)) + data
        )

    def clear(self, slot: int) -> None:
        self._memory[slot * _SLOT : slot * _SLOT + _HEAD.size] = bytes(_HEAD.size)

    def read(self, slot: int) -> dict[str, Any]:
        """Return a report; empty if none was written, or if one is being written."""
        start = slot * _SLOT
        length, check = _HEAD.unpack_from(self._memory, start)
        data = self._memory[start + _HEAD.size : start + _HEAD.size + min(length, _SLOT)]
        if not length or zlib.crc32(data) != check:
            return {}
        try:
            told: dict[str, Any] = json.loads(data)
        except ValueError:
            return {}
        return told


# A worker


def _run_worker(
    options: WorkOptions, consumers: list[Consumer], slots: Slots, slot: int, supervisor: int
) -> str:
    """Run until SIGTERM or a limit; return the reason."""
    # The supervisor sends SIGTERM for a stop, and SIGUSR1 to end it at once.
    with SignalWatch(signal.SIGUSR1) as watch:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # again, because the watch has set a handler for it
        log.info("consuming %s", ", ".join(f"{each.topic}/{each.channel}" for each in consumers))
        for consumer in consumers:
            if options.threads:
                consumer.set_threads(options.threads)
            consumer.start()
        deadline = time.monotonic() + _CONNECT
        reason = ""
        for consumer in consumers:
            consumer.wait_until_connected(min(1.0, max(0.0, deadline - time.monotonic())))
            if watch.wait(0.0) is not None:
                reason = "it was asked to"
                break
        slots.write(slot, _told(consumers))
        if os.getppid() == supervisor:
            with suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGUSR1)
        while not reason:
            if watch.wait(_STEP) is not None:
                reason = "it was asked to"
            elif os.getppid() != supervisor:
                reason = "its supervisor is gone"
            else:
                told = _told(consumers)
                slots.write(slot, told)
                reason = _limit_reached(options, told)
        stop_all(consumers, watch, options.timeout)
    return reason


def _told(consumers: Sequence[Consumer]) -> dict[str, Any]:
    several = []
    for consumer in consumers:
        stats, health = consumer.stats(), consumer.health()
        several.append(
            {
                "topic": consumer.topic,
                "channel": consumer.channel,
                "ok": health.ok or health.paused or health.backoff_level > 0,
                "summary": health.summary[:500],
                "finished": stats.finished,
                "requeued": stats.requeued,
                "in_flight": stats.in_flight,
            }
        )
    return {"pid": os.getpid(), "at": time.time(), "memory": memory_used(), "consumers": several}


def memory_used() -> int:
    """Return the resident memory of this process in bytes."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


def _limit_reached(options: WorkOptions, told: dict[str, Any]) -> str:
    answered = sum(each["finished"] + each["requeued"] for each in told["consumers"])
    if 0 < options.max_messages <= answered:
        return f"it has answered {answered} messages"
    if 0 < options.max_memory < told["memory"] / 2**20:
        return f"it uses {told['memory'] // 2**20} MiB"
    return ""


# The health page


def health_of(slots: Slots, processes: int, now: float) -> tuple[bool, dict[str, Any]]:
    """Return whether all workers are healthy, and their reports."""
    told = [each for each in map(slots.read, range(slots.count)) if each]
    for each in told:
        each["ok"] = now - each["at"] < _STALE and all(consumer["ok"] for consumer in each["consumers"])
    ok = sum(each["ok"] for each in told) >= processes
    return ok, {"ok": ok, "wanted": processes, "processes": told}


def _health_server(options: WorkOptions, slots: Slots) -> HttpServer:
    class Page(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            ok, told = health_of(slots, options.processes, time.time())
            body = json.dumps(told, indent=2).encode() + b"\n"
            self.send_response(200 if ok else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    supervisor = os.getpid()

    class HealthServer(HttpServer):
        def service_actions(self) -> None:
            if os.getppid() != supervisor:  # the supervisor was killed, and a new one may need the port
                os._exit(1)

    try:
        return HealthServer(options.health_address, Page)
    except OSError as error:
        raise ConfigError(f"--health-address {options.health_address}: {error}") from None


# The supervisor


@dataclass
class Worker:
    pid: int
    slot: int
    started_at: float
    ready: bool = False
    kill_at: float = math.inf  # set when it is told to end
    replaced: bool = False  # another one runs, or will run, in its place


class Supervisor:
    def __init__(self, options: WorkOptions, program: Program) -> None:
        self._options = options
        self._program = program
        self._slots = Slots(options.processes + 1)
        self._workers: dict[int, Worker] = {}
        self._deaths = 0  # consecutive deaths soon after the start
        self._start_at = 0.0
        self._stale = False  # the program on disk is newer than the one that was imported here
        self._to_replace: list[int] = []
        self._files = program.files()
        self._page: HttpServer | None = None
        self._page_pid = 0
        self._pid = os.getpid()

    def run(self) -> int:
        if self._options.health_address:
            self._page = _health_server(self._options, self._slots)
        with SignalWatch(signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1) as self._watch:
            try:
                self._supervise()
                return self._drain()
            finally:
                for pid in [*self._workers, *([self._page_pid] if self._page_pid else [])]:
                    os.kill(pid, signal.SIGKILL)
                if self._page is not None:
                    self._page.server_close()

    def _supervise(self) -> None:
        """Run until SIGTERM or SIGINT."""
        while True:
            self._reap()
            if self._page is not None and not self._page_pid:
                self._page_pid = self._fork(self._serve_page)
            self._keep_the_number()
            self._replace_the_next()
            number = self._watch.wait(_STEP)
            if number in (signal.SIGTERM, signal.SIGINT):
                return
            if number is signal.SIGHUP or (self._options.reload and self._files_changed()):
                self._begin_to_replace()

    # Forking

    def _fork(self, work: Any) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal must not reach the child while it still has our pipe.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
            if not pid:
                self._watch.abandon()
                for ignored in (signal.SIGINT, signal.SIGHUP):  # which reach all processes of a terminal
                    signal.signal(ignored, signal.SIG_IGN)
                self._workers, self._page_pid = {}, 0  # siblings, which are not ours to end
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if not pid:
            work()
        return pid

    def _serve_page(self) -> NoReturn:
        assert self._page is not None
        self._page.serve_forever(_STEP)
        os._exit(0)

    def _start(self) -> Worker:
        slot = min(set(range(self._slots.count)) - {each.slot for each in self._workers.values()})
        self._slots.clear(slot)
        worker = Worker(self._fork(lambda: self._work(slot)), slot, time.monotonic())
        self._workers[worker.pid] = worker
        return worker

    def _work(self, slot: int) -> NoReturn:
        """Run a worker in the child process."""
        status = 1
        try:
            if self._page is not None:
                self._page.socket.close()
            if self._stale:
                self._program.load_again()
            reason = _run_worker(self._options, self._program.consumers(), self._slots, slot, self._pid)
            log.info("ended, as %s", reason)
            status = 0
        except BaseException:
            log.exception("the worker failed")
        logging.shutdown()
        # Also run the program's atexit functions.
        raise SystemExit(status)

    # Starting and reaping workers

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._page_pid:
                self._page_pid = 0
            worker = self._workers.pop(pid, None)
            if worker is not None:
                self._slots.clear(worker.slot)
                self._ended(worker, os.waitstatus_to_exitcode(status))

    def _ended(self, worker: Worker, status: int) -> None:
        expected = status == 0 or worker.kill_at < math.inf
        if expected:
            self._deaths = 0
            return
        now = time.monotonic()
        steady = now - worker.started_at >= _STEADY
        self._deaths = 1 if steady else self._deaths + 1
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._deaths - 1, 62))
        self._start_at = now + pause
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        log.error("worker %d ended %s; the next one starts in %.1f s", worker.pid, how, pause)

    def _keep_the_number(self) -> None:
        now = time.monotonic()
        for worker in self._workers.values():
            worker.ready = worker.ready or bool(self._slots.read(worker.slot))
            if now >= worker.kill_at:
                log.error("worker %d does not end: killing it", worker.pid)
                os.kill(worker.pid, signal.SIGKILL)
        wanted = self._options.processes + sum(worker.replaced for worker in self._workers.values())
        while len(self._workers) < min(wanted, self._slots.count) and now >= self._start_at:
            try:
                log.info("worker %d started", self._start().pid)
            except OSError as error:
                self._start_at = now + _LONGEST_PAUSE
                log.error("no worker can be started: %s; the next attempt is in %g s", error, _LONGEST_PAUSE)

    def _stop(self, worker: Worker) -> None:
        worker.kill_at = time.monotonic() + self._options.timeout + _GRACE
        os.kill(worker.pid, signal.SIGTERM)

    # Loading the program again

    def _files_changed(self) -> bool:
        files = self._program.files()
        if files == self._files:
            return False
        self._files = files
        return True

    def _begin_to_replace(self) -> None:
        log.info("reloading the program, one process at a time")
        self._stale = True
        self._to_replace = [pid for pid, worker in self._workers.items() if worker.kill_at == math.inf]

    def _replace_the_next(self) -> None:
        """Start a new worker; when it is ready, stop the old one. Then replace the next."""
        self._to_replace = [pid for pid in self._to_replace if pid in self._workers]
        if not self._to_replace:
            return
        old = self._workers[self._to_replace[0]]
        if not old.replaced:
            old.replaced = True
            return
        fresh = [each for pid, each in self._workers.items() if pid not in self._to_replace]
        if (
            old.kill_at == math.inf
            and len(self._workers) > self._options.processes
            and all(each.ready and each.kill_at == math.inf for each in fresh)
        ):
            self._stop(old)

    # Stopping

    def _drain(self) -> int:
        """Stop all workers at the same time, within one deadline. A later signal ends them at once."""
        log.info("stopping %d workers", len(self._workers))
        for worker in self._workers.values():
            self._stop(worker)
        clean = True
        while self._workers:
            number = self._watch.wait(_STEP)
            for worker in self._workers.values():
                if number in (signal.SIGTERM, signal.SIGINT):
                    os.kill(worker.pid, signal.SIGUSR1)
                if time.monotonic() >= worker.kill_at:
                    clean = False
                    log.error(
                        "worker %d does not end: killing it; nsqd will deliver its messages again", worker.pid
                    )
                    os.kill(worker.pid, signal.SIGKILL)
            self._reap()
        return 0 if clean else 1
