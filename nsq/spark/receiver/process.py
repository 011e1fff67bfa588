"""The receiver's process as an owner has it: commands on stdin, events on stdout, its log on stderr.

The main thread waits for commands, signals and news from the other threads, and alone writes events. The end
of stdin is the end of the owner, and so of the receiver: gracefully, like SIGTERM.
Start-up time counts. Must not import pyspark.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import time

from nsq.collector import calm_collector
from nsq.errors import NsqError, UsageError, WalForeign
from nsq.spark.receiver import protocol
from nsq.spark.receiver.bell import Bell
from nsq.spark.receiver.protocol import Begin, Event, Fault, Garbled, Lines, Roll, Rolled, Status, Stop
from nsq.spark.receiver.receiving import Receiving
from nsq.spark.receiver.settings import unpacked
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import names
from nsq.spark.wal.places import open_wal
from nsq.spark.wal.store import Segment

log = logging.getLogger("nsq.spark.receiver")

#: Seconds between two statuses at least, and at most.
_SOONEST, _LATEST = 0.05, 1.0
#: For a graceful end, in seconds. The owner, if there is one, has less patience.
_GRACE = 30.0
#: For the owner to take the last events.
_LAST_WORDS = 2.0
_CHUNK = 1 << 16

ENDED, FAILED, REFUSED = 0, 1, 2


class Outlet:
    """Events on their way to the owner. One that does not read holds up nothing here but its own events."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting = b""
        os.set_blocking(descriptor, False)

    @property
    def descriptor(self) -> int:
        """While something waits; else -1."""
        return self._descriptor if self._waiting else -1

    def say(self, event: Event) -> None:
        self._waiting += protocol.encoded(event)
        self.flush()

    def flush(self) -> None:
        """Write what can be written; raises BrokenPipeError when there is nobody any more."""
        try:
            while self._waiting:
                written = os.write(self._descriptor, self._waiting)
                self._waiting = self._waiting[written:]
        except BlockingIOError:
            pass


class Servant:
    """Between an owner and a ``Receiving``."""

    def __init__(self, inlet: int, outlet: Outlet, bell: Bell) -> None:
        self._inlet = inlet
        self._outlet = outlet
        self._bell = bell
        self._lines = Lines()
        self._commands: list[protocol.Command] = []
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()  # from other threads
        self._over = False  # there is no owner any more, or it has said stop
        self._parent = os.getppid()
        self._told = Status()
        self._told_at = 0.0
        self._stale = False  # something may have changed since, and it was too soon to tell
        self._refusal = ""

    def run(self) -> int:
        try:
            begin = self._first_command()
            return ENDED if begin is None else self._receive(unpacked(begin.settings))
        except (UsageError, WalForeign) as error:
            return self._fail(Fault(str(error), settings=True), REFUSED)
        except NsqError as error:
            return self._fail(Fault(str(error)), FAILED)
        except ImportError as error:
            return self._fail(Fault(f"this Python cannot receive: {error}", settings=True), REFUSED)

    def _fail(self, fault: Fault, status: int) -> int:
        log.error("%s", fault.text)
        self._say(fault)
        self._say_last_words()
        return status

    def _first_command(self) -> Begin | None:
        """None when nothing is wanted of this process any more."""
        while not self._ending:
            self._listen(_LATEST)
            while self._commands:
                command = self._commands.pop(0)
                if isinstance(command, Begin):
                    return command
        return None

    def _receive(self, options: SourceOptions) -> int:
        wal = open_wal(options.wal, fsync=options.fsync)
        with wal.log(names.new_receiver()) as to:
            receiving = Receiving(options, wal, to, changed=self._changed, sealed=self._sealed)
            try:
                self._say(receiving.start())
                while not self._ending and not self._refusal:
                    self._serve(receiving)
            finally:
                stopped = receiving.stop(_GRACE)
        self._pass_on()
        if self._refusal:
            return self._fail(Fault(f"nsqd refuses: {self._refusal}", settings=True), REFUSED)
        self._say(stopped)
        self._say_last_words()
        return ENDED

    def _serve(self, receiving: Receiving) -> None:
        pause = _SOONEST if self._stale else _LATEST
        self._listen(self._told_at + pause - time.monotonic())
        for command in self._commands:
            if isinstance(command, Roll):
                self._say(receiving.roll(command.token))
        self._commands.clear()
        self._pass_on()
        self._tell(receiving)

    def _tell(self, receiving: Receiving) -> None:
        """How it is: often while that changes, and not at all to an owner that is behind with reading."""
        now = time.monotonic()
        self._stale = now < self._told_at + _SOONEST
        if self._stale or self._outlet.descriptor >= 0:
            return
        status = receiving.status()
        if status != self._told or now >= self._told_at + _LATEST:
            self._told, self._told_at = status, now
            self._say(status)
        if status.error and not status.connections:
            self._refusal = receiving.refusal()

    # The pipes.

    @property
    def _ending(self) -> bool:
        return self._over or self._bell.signals > 0

    def _listen(self, timeout: float) -> None:
        """Wait for something to happen, and take in what the owner says."""
        ready = self._bell.wait(timeout, readable=self._inlet, writable=self._outlet.descriptor)
        if self._outlet.descriptor in ready:
            self._flush()
        # A process that its owner has forked since holds on to our stdin: then only this tells.
        self._over = self._over or os.getppid() != self._parent
        if self._inlet in ready:
            data = os.read(self._inlet, _CHUNK)
            self._over = self._over or not data
            for line in self._lines.feed(data):
                self._hear(protocol.command(line))

    def _hear(self, said: protocol.Command | Garbled) -> None:
        if isinstance(said, Garbled):
            log.warning("ignored a command: %s", said.why)
        elif isinstance(said, Stop):
            self._over = True
        else:
            self._commands.append(said)

    def _changed(self) -> None:
        """Called by any thread. Where it is about to be told anyway there is nothing to wake up for."""
        if not self._stale:
            self._bell.ring()

    def _sealed(self, segment: Segment) -> None:
        """Called by the handler thread."""
        self._events.put(Rolled(0, segment))
        self._bell.ring()

    def _pass_on(self) -> None:
        while not self._events.empty():
            self._say(self._events.get_nowait())

    def _say(self, event: Event) -> None:
        try:
            self._outlet.say(event)
        except OSError:
            self._over = True

    def _flush(self) -> None:
        try:
            self._outlet.flush()
        except OSError:
            self._over = True

    def _say_last_words(self) -> None:
        deadline = time.monotonic() + _LAST_WORDS
        while self._outlet.descriptor >= 0 and (left := deadline - time.monotonic()) > 0:
            try:
                self._bell.wait(left, writable=self._outlet.descriptor)
                self._outlet.flush()
            except OSError:
                return


def main() -> int:
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Whatever prints to stdout would garble the events: from here on it prints to stderr.
    events = os.dup(1)
    os.dup2(2, 1)
    calm_collector()
    with Bell() as bell:
        return Servant(0, Outlet(events), bell).run()
