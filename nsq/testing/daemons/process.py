"""A daemon as a child process: our own program or any binary with the same flags.

The child writes its log to a file (a pipe could fill up), has its own process group, and is killed when this
process exits; on Linux also when this process is killed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from nsq.work.binding import bound, environment

from .addresses import Addresses, is_taken
from .errors import AddressTaken, DaemonFailed

KILL_TIMEOUT = 20.0
#: The text in the logs of our daemons and Go's.
_IN_USE = "address already in use"


class ProcessRun:
    """One run of a child process, from its start to its exit."""

    def __init__(self, command: Sequence[str], addresses: Addresses, log_path: Path) -> None:
        self.addresses = addresses
        self._command = list(command)
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log_path.read_text("utf-8", errors="replace") if self._log_path.exists() else ""

    def start(self, timeout: float) -> None:
        """Start the child. It may not be ready when this returns."""
        if shutil.which(self._command[0]) is None:
            raise DaemonFailed(f"cannot run {self._command[0]}: it does not exist, or is not executable")
        with self._log_path.open("wb") as log_file:
            try:
                self._process = subprocess.Popen(
                    bound(self._command, signal.SIGKILL),
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=subprocess.STDOUT,
                    env={**environment(), "PYTHONUNBUFFERED": "1"},  # the log is read at once
                    start_new_session=True,  # its own group: can be killed as a whole, gets no Ctrl-C
                )
            except OSError as error:
                raise DaemonFailed(f"cannot run {self._command[0]}: {error}") from error
        _CHILDREN.add(self._process)

    def failure(self) -> DaemonFailed:
        """Return the error that says why the child ended before it was ready."""
        taken = [address for address in self.addresses if address is not None and is_taken(address)]
        status = f"{self._command[0]} exited with status {self._started().poll()} before it was ready"
        if taken:
            return AddressTaken(f"{status}; in use: {', '.join(taken)}", self.log)
        if _IN_USE in self.log:  # the other program has ended meanwhile
            return AddressTaken(f"{status}; {_IN_USE}", self.log)
        return DaemonFailed(status, self.log)

    def stop(self, timeout: float) -> int:
        """Send SIGTERM, after ``timeout`` SIGKILL to the whole group; return the exit status."""
        process = self._started()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                late = f"pid {process.pid} did not end {timeout:g} s after SIGTERM"
                raise DaemonFailed(late, self.log) from None
        return self.kill()

    def abandon(self) -> None:
        """Kill a child that did not become ready."""
        if self._process is not None:
            self.kill()

    def kill(self) -> int:
        """Send SIGKILL to the child and its process group; return the exit status."""
        process = self._started()
        _kill_group(process)
        _CHILDREN.discard(process)
        return process.wait(KILL_TIMEOUT)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise DaemonFailed(f"{self._command[0]} was never started")
        return self._process


def our_program(name: str) -> list[str]:
    return [sys.executable, "-m", f"nsq.daemons.{name}"]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # Signal only a living child: once it was reaped, its pid may belong to another process.
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()


class _Children:
    """The running children; the first one registers the atexit hook that kills those left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._owner: int | None = None

    def add(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            if self._owner is None:
                self._owner = os.getpid()
                atexit.register(self._kill_all)
            self._processes.add(process)

    def discard(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.discard(process)

    def _kill_all(self) -> None:
        if self._owner != os.getpid():  # a fork of the test process ends, but its parent owns the daemons
            return
        with self._lock:
            processes = list(self._processes)
        for process in processes:
            _kill_group(process)
            process.wait(KILL_TIMEOUT)


_CHILDREN = _Children()
