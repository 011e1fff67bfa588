"""The owner's side: starts receiver processes, keeps them alive, asks them to seal, knows how they are.

    with ReceiverPool(options, wal) as pool:    # nothing runs yet
        pool.start()
        pool.wait(10.0)                         # something to read?
        pool.roll(5.0)                          # then it is in segments now
        wal.segments()

Each process has a slot, whose thread reads what it says and starts the next one when it dies. Must not import
pyspark or pyarrow.
"""

from __future__ import annotations

import itertools
import logging
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
from nsq.spark.receiver import protocol
from nsq.spark.receiver.protocol import (
    Begin,
    Command,
    Event,
    Fault,
    Garbled,
    Ready,
    Roll,
    Rolled,
    Status,
    Stop,
    Stopped,
    packed,
    together,
)
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.store import Wal

log = logging.getLogger("nsq.spark.receiver")

#: What is left of a stop's time for processes to die once they are killed.
_LAST_MOMENTS = 5.0
#: Pauses before a receiver that died is started again double from the first to the longest, and begin anew
#: after so many seconds of work: then a death is bad luck.
FIRST_PAUSE, LONGEST_PAUSE, STEADY = 0.1, 5.0, 10.0
#: So many processes in a row that ended before they said anything at all, and the next one would too.
MOST_STILLBORN = 5
#: A wait takes that long where there is something already: who asks again at once has seen it.
_LOOK = 0.05


@dataclass(frozen=True)
class PoolStatus(Status):
    """Of all receivers together. ``received`` and ``sealed`` count over all lives, the rest the present ones.

    ``alive`` of ``wanted`` are receiving; ``deaths`` ended unasked.
    """

    wanted: int = 0
    alive: int = 0
    deaths: int = 0
    receivers: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        return self.alive == self.wanted


class ReceiverPool:
    """For any thread. ``count`` processes, by default as many as ``options.receivers``. Without any,
    receivers on other hosts write the log.

    ``wal`` is used by ``roll`` alone, in the caller's thread: what a dead receiver left is sealed there.
    ``command`` is what starts a receiver.
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
        # Made here, so that settings that cannot be handed over are an error here.
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
    def fault(self) -> NsqError | None:
        """Why there is no use in waiting: receivers cannot work with these settings, or here at all, and are
        not started any more."""
        return next((slot.fault for slot in self._slots if slot.fault is not None), None)

    def start(self) -> None:
        """Start the processes; returns at once. A second time it does nothing."""
        with self._changed:
            if self._over:
                raise Closed("this pool has been stopped")
            for slot in self._slots:
                if slot.thread.ident is None:
                    slot.thread.start()

    def wait(self, timeout: float) -> bool:
        """Whether there is something to read: rows that a roll would seal, or segments that were sealed
        unasked since the last one. Returns at once when there is a ``fault``, or no pool any more.
        """
        with self._changed:
            if self._news():
                self._changed.wait_for(lambda: self.fault or self._over, min(_LOOK, timeout))
            else:
                self._changed.wait_for(lambda: self._news() or self.fault or self._over, max(0.0, timeout))
            return self._news()

    def roll(self, timeout: float) -> bool:
        """Have everything sealed that is in the log now; whether that is so.

        False when a receiver did not answer within the time, died instead, or cannot seal. Raises WalError
        when what a dead one has left cannot be looked after.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            for slot in self._slots:
                slot.seen = slot.sealed
            token = next(self._tokens)
            asked = [(slot, slot.child) for slot in self._slots if slot.ready and slot.child]
        # Without the lock: a pipe is I/O, even one that never blocks.
        for _, child in asked:
            child.say(protocol.encoded(Roll(token)))
        with self._changed:

            def unanswered() -> list[Slot]:
                # One that has died answers by what is recovered of it.
                return [slot for slot, child in asked if slot.child is child and slot.answered < token]

            self._changed.wait_for(
                lambda: not unanswered() or self._over, max(0.0, deadline - time.monotonic())
            )
            failed = [slot for slot, child in asked if slot.child is child and slot.roll_error]
            complete = not unanswered() and not failed
        self._recover()
        return complete

    def _recover(self) -> None:
        """Have sealed what dead receivers left, if any has died since the last time."""
        with self._changed:
            left = [slot.unrecovered for slot in self._slots]
            if not any(left):
                return
        self._wal.recover()
        with self._changed:
            for slot, lives in zip(self._slots, left, strict=True):
                slot.unrecovered -= lives

    def state(self) -> PoolStatus:
        """The status; raises the ``fault`` that makes all waiting futile."""
        if self.fault is not None:
            raise self.fault
        return self.status()

    def status(self) -> PoolStatus:
        with self._changed:
            slots = self._slots
            return PoolStatus(
                **vars(together(slot.of_all_lives for slot in slots)),
                wanted=len(slots),
                alive=sum(slot.ready for slot in slots),
                deaths=sum(slot.deaths for slot in slots),
                receivers=tuple(slot.receiver for slot in slots if slot.receiver),
            )

    def stop(self, timeout: float = 30.0) -> bool:
        """Have them finish what is in flight and seal; whether all did.

        Those that have not ended within the time are killed: what they had finished is in the log.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            started = [slot for slot in self._slots if slot.thread.ident is not None]
            self._over = True
            for slot in self._slots:
                slot.closing = True
            children = [slot.child for slot in started if slot.child is not None]
            self._changed.notify_all()
        for child in children:
            child.dismiss()
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
        """With the lock held."""
        return any(
            slot.sealed > slot.seen or slot.unrecovered or slot.status.open_rows for slot in self._slots
        )


# One slot: a process after the other


class Slot:
    """Everything without an underscore is for those who hold ``changed``."""

    def __init__(self, name: str, begin: bytes, changed: threading.Condition, command: Sequence[str]) -> None:
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._begin = begin
        self._changed = changed
        self._command = command
        self._failures = 0  # lives in a row that were not long
        self._stillborn = 0  # lives in a row of which nothing was heard
        self.closing = False  # no process is started any more
        self.child: Child | None = None
        self.ready = False
        self.receiver = ""
        self.status = Status()
        self.answered = 0  # the token of the last roll it answered
        self.roll_error = ""  # why that could not be done
        self.seen = 0  # how many segments it had sealed at the last roll
        self.unrecovered = 0  # lives whose log was not recovered yet
        self.deaths = 0
        self.received_before = 0  # in earlier lives
        self.sealed_before = 0
        self.error = ""  # why there is no receiver here at the moment
        self.fault: NsqError | None = None  # why there will not be one any more
        self.graceful = True  # the last one ended as it should
        self._last_words: Fault | Stopped | None = None

    @property
    def sealed(self) -> int:
        """Segments, of all lives."""
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
        """One life; what it died of, in words."""
        with self._changed:
            self.child, self.answered, self.roll_error = child, 0, ""
            late = self.closing
        if late or not child.say(self._begin):
            child.dismiss()
        try:
            for event in child.events():
                self._take(event)
        except OSError as error:
            log.warning("lost touch with receiver %d: %s", child.pid, error)
            child.kill()
        status = child.reap()
        if isinstance(self._last_words, Fault):
            return self._last_words.text
        stage = "" if self.ready else " before it was ready"
        return f"receiver process {child.pid} ended with status {status}{stage}; its stderr may say why"

    def _take(self, event: Event | Command | Garbled) -> None:
        with self._changed:
            match event:
                case Ready(receiver=receiver):
                    self.ready, self.receiver, self.error = True, receiver, ""
                case Status():
                    self.status = event
                case Rolled(token=token, sealed=sealed, error=error):
                    self.answered, self.roll_error = token, error
                    if not error:  # the next status would say so, a moment later
                        self.status = replace(self.status, open_rows=0, open_bytes=0, sealed=sealed)
                        self.seen = self.sealed
                case Fault():
                    self._last_words = event
                case Stopped(sealed=sealed):
                    self._last_words = event
                    self.status = replace(self.status, open_rows=0, open_bytes=0, sealed=sealed)
                case _:
                    name = self.receiver or self.thread.name
                    log.warning("receiver %s sent what cannot be read: %s", name, event)
            self._changed.notify_all()

    def _end(self, problem: str, lived: float) -> float | None:
        """Forget the life that is over; the pause until the next one, or None when this was the last."""
        was_ready, said = self.ready, self._last_words
        refused = isinstance(said, Fault) and said.settings
        # One that was told to end before it was ready has nothing to lose.
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
            self.fault = ConfigError(problem)
        elif self._stillborn >= MOST_STILLBORN:
            self.fault = NsqError(f"receivers cannot be started: {problem}")
        else:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures, 62))
            self._failures += 1
            log.warning("%s; another one starts in %.1f s", problem, pause)
            return pause
        log.error("%s", self.fault)
        return None


# One process, as its owner holds it


#: An empty pipe takes so much at once; the first line has to fit.
LONGEST_BEGIN = 60_000
#: No sensible line is longer.
_LONGEST_LINE = 1 << 20
#: For a process that has closed its pipe to be gone.
_EXIT_TIMEOUT = 5.0


def receiver_command() -> list[str]:
    """With -P, so that files in the working directory are not taken for modules."""
    return [sys.executable, "-P", "-m", "nsq.spark.receiver.process"]


class Child:
    """Started by being made; raises OSError when that cannot be. ``events`` and ``reap`` are for one thread,
    the rest for any."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(os.environ),
            # A Ctrl-C in the owner's terminal is for the owner, who then says what is to happen.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid, self._stdin, self._stdout = self._process.pid, self._process.stdin, self._process.stdout
        self._lock = threading.Lock()  # guards stdin against being closed meanwhile; writing never blocks
        os.set_blocking(self._stdin.fileno(), False)

    def say(self, line: bytes) -> bool:
        """Whether that has reached its pipe."""
        with self._lock:
            if self._stdin.closed:
                return False
            try:
                # All or nothing, as short as lines are.
                return os.write(self._stdin.fileno(), line) == len(line)
            except OSError:
                return False

    def dismiss(self) -> None:
        """Ask it to end gracefully: the end of stdin says so too, if the word is lost."""
        self.say(protocol.encoded(Stop()))
        with self._lock, suppress(OSError):
            self._stdin.close()

    def events(self) -> Iterator[Event | Command | Garbled]:
        """What it says, until its end."""
        while line := self._stdout.readline(_LONGEST_LINE):
            yield protocol.decoded(line)

    def kill(self) -> None:
        self._process.kill()

    def reap(self) -> int:
        """Its exit status, after the last event."""
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
    """Ours, in which this very package is found, wherever it was found here."""
    root = str(Path(nsq.__file__).resolve().parents[1])
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(ours)  # found there anyway, and behind the standard library, where it belongs
    return {**ours, "PYTHONPATH": os.pathsep.join(filter(None, [root, ours.get("PYTHONPATH")]))}
