"""The owner's side: starts receiver processes, restarts them, asks them to seal, and reports their status.

    with ReceiverPool(options, wal) as pool:    # nothing runs yet
        pool.start()
        pool.wait(10.0)                         # wait for rows
        pool.roll(5.0)                          # seal them into segments
        wal.segments()

Each slot runs one process at a time. The slot's thread reads the process's events, and starts a new process
when it dies. Must not import pyspark or pyarrow.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

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
    Roll,
    Rolled,
    Status,
    Stop,
    Stopped,
    UnparsableLine,
    merge_statuses,
    packed,
)
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.store import Wal

log = Logger("nsq.spark.receiver")

#: Seconds to wait for killed processes to end.
_LAST_MOMENTS = 5.0
#: The pause before a dead receiver is restarted doubles from the first to the longest. It starts over once a
#: receiver has worked for ``STEADY`` seconds.
FIRST_PAUSE, LONGEST_PAUSE, STEADY = 0.1, 5.0, 10.0
#: After this many processes in a row that end without sending anything, the slot gives up.
MOST_STILLBORN = 5
#: How long ``wait`` blocks when there is news already, so that a caller in a loop does not spin.
_NEWS_PAUSE = 0.05


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
    other hosts write the log.

    Only ``roll`` uses ``wal``, in the caller's thread, to seal the open files of dead receivers.
    ``command`` starts a receiver.
    """

    def __init__(
        self,
        options: SourceOptions,
        wal: Wal,
        count: int | None = None,
        *,
        command: Sequence[str] | None = None,
    ) -> None:
        self._wal = wal
        # Encoded here, so that options which cannot be pickled raise here.
        begin = protocol.encoded(Begin(packed(options)))
        if len(begin) > LONGEST_BEGIN:
            raise ConfigError(f"options of {len(begin):,} bytes are more than a receiver can be handed")
        self._changed = threading.Condition()  # guards everything below, and the slots
        self._tokens = itertools.count(1)
        self._over = False  # stopped
        name = f"nsq-spark-{options.subscription}/{options.channel}"
        self._slots = [
            Slot(f"{name}-{place}", begin, self._changed, command or receiver_command())
            for place in range(options.receivers if count is None else count)
        ]

    @property
    def fatal_error(self) -> NsqError | None:
        """Why some receiver is not restarted any more: it cannot work with these settings, or on this
        machine; else None."""
        return next((slot.fatal_error for slot in self._slots if slot.fatal_error is not None), None)

    def start(self) -> None:
        """Start the processes; returns at once. A second call does nothing."""
        with self._changed:
            if self._over:
                raise Closed("this pool has been stopped")
            for slot in self._slots:
                if slot.thread.ident is None:
                    slot.thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait for rows that a roll would seal, or segments that receivers sealed since the last roll;
        whether there are any. Returns at once when there is a ``fatal_error``, or the pool is stopped.
        """
        with self._changed:
            if self._news():
                self._changed.wait_for(lambda: self.fatal_error or self._over, min(_NEWS_PAUSE, timeout))
            else:
                self._changed.wait_for(
                    lambda: self._news() or self.fatal_error or self._over, max(0.0, timeout)
                )
            return self._news()

    def roll(self, timeout: float) -> bool:
        """Have the receivers seal all rows; whether everything is sealed.

        False when a receiver does not answer in time, or cannot seal. Recovers the logs of dead receivers;
        raises WalError when that fails.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            for slot in self._slots:
                slot.seen = slot.sealed
            token = next(self._tokens)
            asked = [(slot, slot.child) for slot in self._slots if slot.ready and slot.child]
        # Without the lock, because this is I/O, even if it never blocks.
        for _, child in asked:
            child.send(protocol.encoded(Roll(token)))
        with self._changed:

            def unanswered() -> list[Slot]:
                # A receiver that has died need not answer: _recover seals its rows.
                return [slot for slot, child in asked if slot.child is child and slot.answered < token]

            self._changed.wait_for(
                lambda: not unanswered() or self._over, max(0.0, deadline - time.monotonic())
            )
            failed = [slot for slot, child in asked if slot.child is child and slot.roll_error]
            complete = not unanswered() and not failed
        self._recover()
        return complete

    def _recover(self) -> None:
        """Recover the log if any receiver has died since the last recovery."""
        with self._changed:
            left = [slot.unrecovered for slot in self._slots]
            if not any(left):
                return
        self._wal.recover()
        with self._changed:
            for slot, lives in zip(self._slots, left, strict=True):
                slot.unrecovered -= lives

    def state(self) -> PoolStatus:
        """Return the status; raises the ``fatal_error`` if there is one."""
        if self.fatal_error is not None:
            raise self.fatal_error
        return self.status()

    def status(self) -> PoolStatus:
        with self._changed:
            slots = self._slots
            return PoolStatus(
                **vars(merge_statuses(slot.of_all_lives for slot in slots)),
                wanted=len(slots),
                alive=sum(slot.ready for slot in slots),
                deaths=sum(slot.deaths for slot in slots),
                receivers=tuple(slot.receiver for slot in slots if slot.receiver),
            )

    def stop(self, timeout: float = 30.0) -> bool:
        """Have the receivers finish the messages in flight and seal; whether all did.

        Kills those that do not end in time: the messages that they had finished are in the log.
        """
        deadline = time.monotonic() + timeout
        with suppress(RuntimeError):  # this thread does not hold the lock
            while True:  # it does if SIGTERM's handler has raised while a ``with`` began
                self._changed.release()
        with self._changed:
            started = [slot for slot in self._slots if slot.thread.ident is not None]
            self._over = True
            for slot in self._slots:
                slot.closing = True
            children = [slot.child for slot in started if slot.child is not None]
            self._changed.notify_all()
        for child in children:
            child.terminate()
        for slot in started:
            slot.thread.join(max(0.0, deadline - time.monotonic()))
        for last in [slot.child for slot in started]:
            if last is not None:
                last.kill()
        for slot in started:
            slot.thread.join(_LAST_MOMENTS)
        return all(slot.graceful for slot in started)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _news(self) -> bool:
        """Whether there is something to read; the caller holds the lock."""
        return any(
            slot.sealed > slot.seen or slot.unrecovered or slot.status.open_rows for slot in self._slots
        )


# Slots: each runs one process after the other


class Slot:
    """Runs one process after the other. Hold ``changed`` to use attributes without an underscore."""

    def __init__(self, name: str, begin: bytes, changed: threading.Condition, command: Sequence[str]) -> None:
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._begin = begin
        self._changed = changed
        self._command = command
        self._failures = 0  # processes in a row that did not work for STEADY seconds
        self._stillborn = 0  # processes in a row that sent nothing
        self.closing = False  # start no more processes
        self.child: Child | None = None
        self.ready = False
        self.receiver = ""
        self.status = Status()
        self.answered = 0  # token of the last roll that the process answered
        self.roll_error = ""  # why that roll failed
        self.seen = 0  # segments sealed at the last roll
        self.unrecovered = 0  # dead processes whose log is not recovered yet
        self.deaths = 0
        self.received_before = 0  # by earlier processes
        self.sealed_before = 0
        self.error = ""  # why there is no receiver now
        self.fatal_error: NsqError | None = None  # why this slot starts no more receivers
        self.graceful = True  # whether the last process ended gracefully
        self._last_words: Failed | Stopped | None = None

    @property
    def sealed(self) -> int:
        """Segments sealed by all processes of this slot."""
        return self.sealed_before + self.status.sealed

    @property
    def of_all_lives(self) -> Status:
        received = self.received_before + self.status.received
        error = self.error or self.status.error
        return replace(self.status, received=received, sealed=self.sealed, error=error)

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            self._last_words = None
            try:
                child = Child(self._command)
            except OSError as error:
                problem = f"cannot start {self._command[0]}: {error}"
            else:
                problem = self._live(child)
            with self._changed:
                pause = self._end(problem, time.monotonic() - began)
                self._changed.notify_all()
                if pause is None or self._changed.wait_for(lambda: self.closing, pause):
                    return

    def _live(self, child: Child) -> str:
        """Serve one process until it ends; return why it ended, as text."""
        with self._changed:
            self.child, self.answered, self.roll_error = child, 0, ""
            late = self.closing
        if late or not child.send(self._begin):
            child.terminate()
        try:
            for event in child.events():
                self._take(event)
        except OSError as error:
            log.warning("cannot read the events of receiver %d: %s", child.pid, error)
            child.kill()
        status = child.reap()
        if isinstance(self._last_words, Failed):
            return self._last_words.text
        stage = "" if self.ready else " before it was ready"
        return f"receiver process {child.pid} ended with status {status}{stage}; its stderr may say why"

    def _take(self, event: Event | Command | UnparsableLine) -> None:
        with self._changed:
            match event:
                case Ready(receiver=receiver):
                    self.ready, self.receiver, self.error = True, receiver, ""
                case Status():
                    self.status = event
                case Rolled(token=token, sealed=sealed, error=error):
                    self.answered, self.roll_error = token, error
                    if not error:  # do not wait for the next status
                        self.status = replace(self.status, open_rows=0, open_bytes=0, sealed=sealed)
                        self.seen = self.sealed
                case Failed():
                    self._last_words = event
                case Stopped(sealed=sealed):
                    self._last_words = event
                    self.status = replace(self.status, open_rows=0, open_bytes=0, sealed=sealed)
                case _:
                    name = self.receiver or self.thread.name
                    log.warning("receiver %s sent an unparsable line: %s", name, event)
            self._changed.notify_all()

    def _end(self, problem: str, lived: float) -> float | None:
        """Reset after a process has ended; return the pause before the next one, or None for no next one."""
        was_ready, said = self.ready, self._last_words
        refused = isinstance(said, Failed) and said.settings
        # A process that was asked to stop before it was ready has no messages to lose.
        self.graceful = isinstance(said, Stopped) or (self.closing and not was_ready)
        if was_ready and not refused and not isinstance(said, Stopped):
            self.unrecovered += 1
        self.received_before += self.status.received
        self.sealed_before += self.status.sealed
        self.child, self.ready, self.receiver, self.status = None, False, "", Status()
        if self.closing:
            return None
        self.deaths += 1
        self.error = problem
        if was_ready and lived >= STEADY:
            self._failures = 0
        self._stillborn = 0 if was_ready or said is not None else self._stillborn + 1
        if refused:
            self.fatal_error = ConfigError(problem)
        elif self._stillborn >= MOST_STILLBORN:
            self.fatal_error = NsqError(f"receivers cannot be started: {problem}")
        else:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures, 62))
            self._failures += 1
            log.warning("%s; another one starts in %.1f s", problem, pause)
            return pause
        log.error("%s", self.fatal_error)
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
