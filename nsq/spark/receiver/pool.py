"""The owner's side: starts receiver processes, restarts them, and reports their status.

    with ReceiverPool(options) as pool:         # nothing runs yet
        pool.start()
        pool.wait(10.0)                         # wait for news: segments, or an error
        wal.segments()

Each slot runs one process at a time. The slot's thread reads the process's events, and starts a new process
when it dies. Slots publish snapshots of their state, and share no lock with the caller's thread, in which a
signal handler may raise at any moment. Must not import pyspark or pyarrow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import nsq
from nsq.errors import Closed, ConfigError, NsqError
from nsq.log import Logger
from nsq.spark.receiver import protocol
from nsq.spark.receiver.protocol import (
    Begin,
    Command,
    Event,
    Failed,
    Ready,
    Stop,
    Stopped,
    UnparsableLine,
    packed,
)
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.status import Status, merge_statuses
from nsq.threads.waiters import SafeEvent

log = Logger("nsq.spark.receiver")

#: Seconds to wait for killed processes to end.
_LAST_MOMENTS = 5.0
#: The pause before a dead receiver is restarted doubles from the first to the longest. It starts over once a
#: receiver has worked for ``STEADY`` seconds.
FIRST_PAUSE, LONGEST_PAUSE, STEADY = 0.1, 5.0, 10.0
#: After this many processes in a row that end without sending anything, the slot gives up.
MOST_SILENT = 5


@dataclass(frozen=True)
class PoolStatus(Status):
    """The status of all receivers together. ``received`` and ``sealed`` include processes that have ended.

    ``alive`` of ``wanted`` processes are receiving; ``deaths`` counts those that ended on their own.
    """

    wanted: int = 0
    alive: int = 0
    deaths: int = 0
    receivers: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        return self.alive == self.wanted


class ReceiverPool:
    """Runs ``count`` receiver processes, by default ``options.receivers``; thread-safe. With 0, receivers on
    other hosts write the log. ``command`` starts a receiver.
    """

    def __init__(
        self, options: SourceOptions, count: int | None = None, *, command: Sequence[str] | None = None
    ) -> None:
        # Encoded here, so that options which cannot be pickled raise here.
        begin = protocol.encoded(Begin(packed(options)))
        if len(begin) > LONGEST_BEGIN:
            raise ConfigError(f"options of {len(begin):,} bytes are more than a receiver can be handed")
        self._news = SafeEvent()  # a slot's state has changed
        self._closing = SafeEvent()  # start no more processes
        name = f"nsq-spark-{options.subscription}/{options.channel}"
        self._slots = [
            Slot(f"{name}-{place}", begin, self._news, self._closing, command or receiver_command())
            for place in range(options.receivers if count is None else count)
        ]

    @property
    def fatal_error(self) -> NsqError | None:
        """Why some receiver is not restarted any more: it cannot work with these settings, or on this
        machine; else None."""
        return next((slot.state.fatal_error for slot in self._slots if slot.state.fatal_error), None)

    def start(self) -> None:
        """Start the processes; returns at once. A second call does nothing. For one thread."""
        if self._closing.is_set():
            raise Closed("this pool has been stopped")
        for slot in self._slots:
            if slot.thread.ident is None:
                slot.thread.start()

    def wait(self, timeout: float) -> None:
        """Wait until receivers have sealed segments, come or gone since the last call. Returns at once when
        there is a ``fatal_error``, or the pool is stopped. For one thread.
        """
        if not self._closing.is_set() and self.fatal_error is None:
            self._news.wait(timeout)
            self._news.clear()

    def state(self) -> PoolStatus:
        """Return the status; raises the ``fatal_error`` if there is one."""
        if self.fatal_error is not None:
            raise self.fatal_error
        return self.status()

    def status(self) -> PoolStatus:
        states = [slot.state for slot in self._slots]
        return PoolStatus(
            **vars(merge_statuses(state.total for state in states)),
            wanted=len(states),
            alive=sum(state.ready for state in states),
            deaths=sum(state.deaths for state in states),
            receivers=tuple(state.receiver for state in states if state.receiver),
        )

    def stop(self, timeout: float = 30.0) -> bool:
        """Have the receivers finish the messages in flight; whether all did.

        Kills those that do not end in time: the messages that they had finished are in the log.
        """
        deadline = time.monotonic() + timeout
        started = [slot for slot in self._slots if slot.thread.ident is not None]
        self._closing.set()
        self._news.set()
        for child in filter(None, [slot.child for slot in started]):
            child.terminate()
        for slot in started:
            slot.thread.join(max(0.0, deadline - time.monotonic()))
        for child in filter(None, [slot.child for slot in started]):
            child.kill()
        for slot in started:
            slot.thread.join(_LAST_MOMENTS)
        return all(slot.state.graceful for slot in started)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


# Slots: each runs one process after the other


@dataclass(frozen=True)
class SlotState:
    """A snapshot of a slot. ``received_before`` and ``sealed_before`` count what earlier processes did."""

    ready: bool = False
    receiver: str = ""
    status: Status = field(default_factory=Status)
    deaths: int = 0
    received_before: int = 0
    sealed_before: int = 0
    error: str = ""  # why there is no receiver now
    fatal_error: NsqError | None = None  # why this slot starts no more receivers
    graceful: bool = True  # whether the last process ended gracefully

    @property
    def total(self) -> Status:
        """The status, with what all processes of this slot have done."""
        return replace(
            self.status,
            received=self.received_before + self.status.received,
            sealed=self.sealed_before + self.status.sealed,
            error=self.error or self.status.error,
        )


class Slot:
    """Runs one process after the other, in its thread. Other threads read ``state`` and ``child``."""

    def __init__(
        self, name: str, begin: bytes, news: SafeEvent, closing: SafeEvent, command: Sequence[str]
    ) -> None:
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.child: Child | None = None
        self.state = SlotState()
        self._begin = begin
        self._news = news
        self._closing = closing
        self._command = command
        self._failures = 0  # processes in a row that did not work for STEADY seconds
        self._silent = 0  # processes in a row that sent nothing
        self._end_event: Failed | Stopped | None = None  # why the process says that it ends

    def _change(self, **news: Any) -> None:
        before, self.state = self.state, replace(self.state, **news)
        sealed = self.state.status.sealed != before.status.sealed
        if sealed or replace(self.state, status=before.status) != before:
            self._news.set()

    def _run(self) -> None:
        pause: float | None = 0.0
        while pause is not None and not self._closing.wait(pause):
            began = time.monotonic()
            self._end_event = None
            try:
                child = Child(self._command)
            except OSError as error:
                problem = f"cannot start {self._command[0]}: {error}"
            else:
                problem = self._serve(child)
            pause = self._end(problem, time.monotonic() - began)

    def _serve(self, child: Child) -> str:
        """Serve one process until it ends; return why it ended, as text."""
        self.child = child
        if self._closing.is_set() or not child.send(self._begin):
            child.terminate()
        try:
            for event in child.events():
                self._take(event)
        except OSError as error:
            log.warning("cannot read the events of receiver %d: %s", child.pid, error)
            child.kill()
        status = child.reap()
        self.child = None
        if isinstance(self._end_event, Failed):
            return self._end_event.text
        stage = "" if self.state.ready else " before it was ready"
        return f"receiver process {child.pid} ended with status {status}{stage}; its stderr may say why"

    def _take(self, event: Event | Command | UnparsableLine) -> None:
        match event:
            case Ready(receiver=receiver):
                self._change(ready=True, receiver=receiver, error="")
            case Status():
                self._change(status=event)
            case Failed():
                self._end_event = event
            case Stopped(sealed=sealed):
                self._end_event = event
                self._change(status=replace(self.state.status, sealed=sealed))
            case _:
                name = self.state.receiver or self.thread.name
                log.warning("receiver %s sent an unparsable line: %s", name, event)

    def _end(self, problem: str, lived: float) -> float | None:
        """Note that a process has ended; return the pause before the next one, or None for no next one."""
        before, said = self.state, self._end_event
        closing = self._closing.is_set()
        self._change(
            # A process that was asked to stop before it was ready has no messages to lose.
            graceful=isinstance(said, Stopped) or (closing and not before.ready),
            received_before=before.total.received,
            sealed_before=before.total.sealed,
            ready=False,
            receiver="",
            status=Status(),
            deaths=before.deaths + (not closing),
            error="" if closing else problem,
        )
        if closing:
            return None
        if before.ready and lived >= STEADY:
            self._failures = 0
        self._silent = 0 if before.ready or said is not None else self._silent + 1
        if isinstance(said, Failed) and said.settings:
            fatal: NsqError = ConfigError(problem)
        elif self._silent >= MOST_SILENT:
            fatal = NsqError(f"receivers cannot be started: {problem}")
        else:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures, 62))
            self._failures += 1
            log.warning("%s; another one starts in %.1f s", problem, pause)
            return pause
        log.error("%s", fatal)
        self._change(fatal_error=fatal)
        return None


# The owner's end of one process


#: The longest first line, so that it fits into an empty pipe at once.
LONGEST_BEGIN = 60_000
#: The longest line that the owner reads.
_LONGEST_LINE = 1 << 20
#: Seconds to wait for a process to exit after it has closed its stdout.
_EXIT_TIMEOUT = 5.0


def receiver_command() -> list[str]:
    """The command of a receiver; -P keeps Python from importing files in the working directory."""
    return [sys.executable, "-P", "-m", "nsq.spark.receiver.process"]


class Child:
    """A receiver process; the constructor starts it, or raises OSError. ``events`` and ``reap`` are for one
    thread; the other methods are thread-safe."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(os.environ),
            # A Ctrl-C in the terminal must reach only the owner, who then stops the receivers.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid, self._stdin, self._stdout = self._process.pid, self._process.stdin, self._process.stdout
        self._lock = threading.Lock()  # no write while stdin is being closed; writes never block
        os.set_blocking(self._stdin.fileno(), False)

    def send(self, line: bytes) -> bool:
        """Write a line to the process's stdin; whether it was written."""
        with self._lock:
            if self._stdin.closed:
                return False
            try:
                # Atomic, because lines are short.
                return os.write(self._stdin.fileno(), line) == len(line)
            except OSError:
                return False

    def terminate(self) -> None:
        """Ask the process to stop gracefully, and close its stdin, which means the same if Stop is lost."""
        self.send(protocol.encoded(Stop()))
        with self._lock, suppress(OSError):
            self._stdin.close()

    def events(self) -> Iterator[Event | Command | UnparsableLine]:
        """Yield the process's events until it closes its stdout."""
        while line := self._stdout.readline(_LONGEST_LINE):
            yield protocol.decoded(line)

    def kill(self) -> None:
        self._process.kill()

    def reap(self) -> int:
        """Wait for the process to exit after the last event, or kill it; return its exit status."""
        try:
            return self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait(_EXIT_TIMEOUT)
        finally:
            self._stdout.close()
            with self._lock, suppress(OSError):
                self._stdin.close()


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Our environment, with PYTHONPATH set so that the process imports this same package."""
    root = str(Path(nsq.__file__).resolve().parents[1])
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(ours)  # it is installed: PYTHONPATH would put site-packages before the standard library
    return {**ours, "PYTHONPATH": os.pathsep.join(filter(None, [root, ours.get("PYTHONPATH")]))}
