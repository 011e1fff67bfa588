"""A place for one receiver process, filled again when the one in it dies.

Its thread starts a process, takes in what that says until it ends, and begins anew. What it learns is guarded
by the crew's condition, which is notified of every change. Must not import pyspark or pyarrow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nsq.errors import ConfigError, NsqError
from nsq.spark.receiver.child import Child
from nsq.spark.receiver.protocol import Event, Fault, Garbled, Ready, Rolled, Status, Stopped
from nsq.spark.receiver.restarts import Restarts

log = logging.getLogger("nsq.spark.receiver")


class Berth:
    """Everything without an underscore is for those who hold ``changed``, except for ``kill``."""

    def __init__(
        self,
        name: str,
        begin: bytes,
        changed: threading.Condition,
        command: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._begin = begin
        self._changed = changed
        self._command = command
        self._environment = environment
        self._restarts = Restarts()
        self.closing = False  # nobody is started any more
        self.child: Child | None = None
        self.ready = False
        self.receiver = ""
        self.status = Status()
        self.answered = 0  # the token of the last roll it answered
        self.roll_error = ""  # why that could not be done
        self.unread = False  # it has sealed something by itself since the last roll
        self.unrecovered = 0  # lives that left a log behind which nobody has looked after
        self.deaths = 0
        self.received_before = 0  # in earlier lives
        self.sealed_before = 0
        self.error = ""  # why there is no receiver here at the moment
        self.fault: NsqError | None = None  # why there will not be one any more
        self.graceful = True  # the last one ended as it should
        self._last_words: Fault | Stopped | None = None

    def kill(self) -> None:
        child = self.child
        if child is not None:
            child.kill()

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            self._last_words = None
            try:
                child = Child(self._command, self._environment)
            except OSError as error:
                problem = f"cannot start {self._command[0]}: {error}"
            else:
                problem = self._live(child)
            with self._changed:
                was_ready = self._end(problem)
                pause = self._next_pause(time.monotonic() - began, was_ready, problem)
                self._changed.notify_all()
                if pause is None or self._changed.wait_for(lambda: self.closing, pause):
                    return

    def _live(self, child: Child) -> str:
        """One life; what it died of, in words."""
        with self._changed:
            self.child, self.answered, self.roll_error = child, 0, ""
            late = self.closing
        if late or not child.say_line(self._begin):
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

    def _take(self, event: Event | Garbled) -> None:
        if isinstance(event, Garbled):
            log.warning(
                "receiver %s sent what cannot be read: %s", self.receiver or self.thread.name, event.why
            )
            return
        with self._changed:
            match event:
                case Ready(receiver=receiver):
                    self.ready, self.receiver, self.error = True, receiver, ""
                case Status():
                    self.status = event
                case Rolled(token=0):
                    self.unread = True
                case Rolled(token=token, error=error):
                    self.answered, self.roll_error = token, error
                    if not error:  # the next status would say so, a moment later
                        self.status = replace(self.status, open_rows=0, open_bytes=0)
                case Fault() | Stopped():
                    self._last_words = event
            self._changed.notify_all()

    def _end(self, problem: str) -> bool:
        """Forget the life that is over; whether it had been ready."""
        was_ready, last_words = self.ready, self._last_words
        # One that was told to end before it was ready has nothing to lose.
        self.graceful = isinstance(last_words, Stopped) or (self.closing and not was_ready)
        if isinstance(last_words, Stopped):
            self.unread = self.unread or last_words.segment is not None
        elif was_ready and not (isinstance(last_words, Fault) and last_words.settings):
            self.unrecovered += 1
        self.received_before += self.status.received
        self.sealed_before += self.status.sealed
        self.child, self.ready, self.receiver, self.status = None, False, "", Status()
        if not self.closing:
            self.deaths += 1
            self.error = problem
        return was_ready

    def _next_pause(self, lived: float, was_ready: bool, problem: str) -> float | None:
        """Until the next life; None when this was the last one."""
        if self.closing:
            return None
        said = self._last_words
        if isinstance(said, Fault) and said.settings:
            self.fault = ConfigError(said.text)
        else:
            pause = self._restarts.pause(lived, ready=was_ready, explained=said is not None)
            if pause is not None:
                log.warning("%s; another one starts in %.1f s", problem, pause)
                return pause
            self.fault = NsqError(f"receivers cannot be started: {problem}")
        log.error("%s", self.fault)
        return None
