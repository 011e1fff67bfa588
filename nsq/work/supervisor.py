"""Runs consumers in several processes, and supervises them.

    the supervisor   has loaded the program, forks the workers, and restarts those that die. It has no threads
    a worker         runs the consumers until SIGTERM, or until it has reached a limit
    the health page  an optional process of its own; reads the last report of each worker

After SIGHUP, or when a file has changed, new workers execute the program from its beginning, in place of the
copy that the fork has made: a module that is imported a second time could find its old self elsewhere.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn, Protocol

from nsq import Consumer
from nsq.log import Logger
from nsq.pauses import doubled
from nsq.threads.signals import SignalWatch
from nsq.work import before_forks
from nsq.work.listening import HttpServer
from nsq.work.workers import STEP, Slots, WorkFlags, health_server, run_worker

log = Logger("nsq.work")

#: Seconds of work after which the pauses before a restart begin anew; the first and the longest pause.
_STEADY, _FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 0.1, 30.0
#: Seconds after its deadline at which a worker is killed.
_GRACE = 5.0
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1}
#: Passes to a worker that has executed the program again: its slot, the number of slots, the descriptor of
#: their file, the process id of its supervisor.
_WORKER = "NSQ_WORKER"


class Program(Protocol):
    """A program that was loaded in this process."""

    def consumers(self) -> list[Consumer]:
        """Return the consumers. For the process that runs them."""

    def files(self) -> dict[str, float]:
        """Return the user's own files, and when they were changed."""


def run(options: WorkFlags, program: Program) -> int:
    """Run the program's consumers until SIGTERM or SIGINT; return the exit status."""
    worker = os.environ.pop(_WORKER, "")
    if worker:
        slot, count, descriptor, supervisor = map(int, worker.split())
        os.set_inheritable(descriptor, False)
        return _work(options, program, Slots(count, descriptor), slot, supervisor)
    return Supervisor(options, program).run()


def _work(options: WorkFlags, program: Program, slots: Slots, slot: int, supervisor: int) -> int:
    """Run a worker in its process; return the exit status."""
    status = 1
    try:
        reason = run_worker(options, program.consumers(), slots, slot, supervisor)
        log.info("ended, as %s", reason)
        status = 0
    except BaseException:
        log.exception("the worker failed")
    logging.shutdown()
    return status


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def files_of(modules: Iterable[ModuleType]) -> dict[str, float]:
    """Return the files of modules that belong to no library, and when they were changed."""
    found = {}
    for module in modules:
        path = str(getattr(module, "__file__", None) or "")
        if path and not path.startswith(_LIBRARIES):
            try:
                found[path] = os.stat(path).st_mtime
            except OSError:
                found[path] = math.nan
    return found


@dataclass
class Worker:
    pid: int
    slot: int
    started_at: float
    kill_at: float = math.inf  # set when it is asked to end
    replaced: bool = False  # another one runs, or will run, in its place


class Supervisor:
    def __init__(self, options: WorkFlags, program: Program) -> None:
        self._options = options
        self._program = program
        self._slots = Slots(options.processes + 1)
        self._workers: dict[int, Worker] = {}
        self._deaths = 0  # consecutive deaths soon after the start
        self._start_at = 0.0
        self._stale = False  # the program on disk may be newer than the one that was imported here
        self._to_replace: list[int] = []
        self._files = program.files()
        self._page: HttpServer | None = None
        self._page_pid = 0
        self._pid = os.getpid()

    def run(self) -> int:
        if self._options.health_address:
            self._page = health_server(self._options, self._slots)
        with SignalWatch(signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1) as self._watch:
            try:
                self._supervise()
                return self._drain()
            finally:
                for pid in [*self._workers, *([self._page_pid] if self._page_pid else [])]:
                    os.kill(pid, signal.SIGKILL)
                if self._page is not None:
                    self._page.server_close()
                self._slots.close()

    def _supervise(self) -> None:
        """Run until SIGTERM or SIGINT."""
        while True:
            self._reap()
            self._kill_late_workers()
            self._start_missing()
            self._replace_the_next()
            number = self._watch.wait(STEP)
            if number in (signal.SIGTERM, signal.SIGINT):
                return
            if number is signal.SIGHUP or (self._options.reload and self._files_changed()):
                self._begin_to_replace()

    # Forking

    def _fork(self, work: Any) -> int:
        for function in before_forks:
            try:
                function()
            except Exception:
                log.exception("%r, which is called before a fork, failed", function)
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
        try:
            self._page.serve_forever(STEP)
        except BaseException:  # it must not get into the supervisor's code
            log.exception("the health page failed")
        os._exit(1)

    def _start(self) -> Worker:
        slot = min(set(range(self._slots.count)) - {each.slot for each in self._workers.values()})
        self._slots.clear(slot)
        worker = Worker(self._fork(lambda: self._work(slot)), slot, time.monotonic())
        self._workers[worker.pid] = worker
        return worker

    def _work(self, slot: int) -> NoReturn:
        """Run a worker in the child process."""
        if self._stale:
            try:
                self._execute_again(slot)
            except OSError:
                log.exception("the program cannot be executed again")
                raise SystemExit(1) from None
        if self._page is not None:
            self._page.socket.close()
        # Also run the program's atexit functions.
        raise SystemExit(_work(self._options, self._program, self._slots, slot, self._pid))

    def _execute_again(self, slot: int) -> NoReturn:
        descriptor = self._slots.descriptor
        os.set_inheritable(descriptor, True)
        os.environ[_WORKER] = f"{slot} {self._slots.count} {descriptor} {self._pid}"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

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
        pause = doubled(_FIRST_PAUSE, _LONGEST_PAUSE, self._deaths - 1)
        self._start_at = now + pause
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        log.error("worker %d ended %s; the next one starts in %.1f s", worker.pid, how, pause)

    def _kill_late_workers(self) -> None:
        for worker in self._workers.values():
            if time.monotonic() >= worker.kill_at:
                log.error("worker %d does not end: killing it", worker.pid)
                os.kill(worker.pid, signal.SIGKILL)

    def _start_missing(self) -> None:
        """Start the health page and as many workers as are missing, unless it is too early after a death."""
        now = time.monotonic()
        if now < self._start_at:
            return
        wanted = self._options.processes + sum(worker.replaced for worker in self._workers.values())
        try:
            if self._page is not None and not self._page_pid:
                self._page_pid = self._fork(self._serve_page)
            while len(self._workers) < min(wanted, self._slots.count):
                log.info("worker %d started", self._start().pid)
        except OSError as error:
            self._start_at = now + _LONGEST_PAUSE
            log.error("no process can be started: %s; the next attempt is in %g s", error, _LONGEST_PAUSE)

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
            and all(self._slots.read(each.slot) and each.kill_at == math.inf for each in fresh)
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
            number = self._watch.wait(STEP)
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
