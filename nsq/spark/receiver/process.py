"""A receiver process: with an owner, it reads commands on stdin, writes events to stdout and logs to stderr;
without one (``standalone``), it runs on a host that only receives.

The main thread waits for commands, signals and news from the other threads, and only it writes events. When
the owner ends, stdin ends, and the receiver stops gracefully, as after SIGTERM.
It must start fast, and must not import pyspark.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from nsq.errors import NsqError, UsageError, WalForeign
from nsq.gc_settings import tune_gc
from nsq.log import Logger
from nsq.spark.receiver import protocol
from nsq.spark.receiver.protocol import Begin, Event, Failed, Ready, Stop, Stopped, unpacked
from nsq.spark.receiver.receiving import Receiving
from nsq.spark.receiver.standing import GRACE, WHOLE, Share, stand
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.status import Status
from nsq.spark.wal.store import open_wal
from nsq.threads.signals import SignalWatch
from nsq.threads.stop_signals import StopSignals

log = Logger("nsq.spark.receiver")


class SignalWakeup(SignalWatch):
    """Wakes the main thread when there are bytes to read, when another thread asks, at SIGTERM and SIGINT.

    The first signal only increments ``signals``; one that comes more than a second later exits the process at
    once. That loses nothing: finished messages are in the log, and nsqd delivers the others again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signals = 0
        self._arrivals = StopSignals()

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._arrivals.repeats(time.monotonic()):
            return
        self.signals += 1
        if self.signals > 1:
            os._exit(128 + number)


# With an owner


#: The shortest and the longest time between two statuses, in seconds.
_SOONEST, _LATEST = 0.05, 1.0
_CHUNK = 1 << 16

ENDED, FAILED, REFUSED = 0, 1, 2


class ReceiverLoop:
    """The loop of a receiver that has an owner: carries out its commands on a ``Receiving``, sends events."""

    def __init__(self, inlet: int, outlet: int, wakeup: SignalWakeup) -> None:
        self._inlet = inlet
        self._outlet = outlet
        os.set_blocking(inlet, False)
        os.set_blocking(outlet, False)
        self._wakeup = wakeup
        self._line = b""  # an incomplete line
        self._unsent = b""  # the end of an event
        self._begin: Begin | None = None  # the settings, when they have arrived
        self._stop_requested = False  # the owner is gone, or has sent Stop
        self._parent = os.getppid()
        self._named = False  # the owner knows the receiver's name
        self._last_status = Status()
        self._last_status_at = 0.0
        self._stale = False  # something may have changed, but it was too soon for another status
        self._refusal = ""

    def run(self) -> int:
        try:
            begin = self._first_command()
            return ENDED if begin is None else self._receive(unpacked(begin.settings))
        except (UsageError, WalForeign) as error:
            return self._fail(Failed(str(error), settings=True), REFUSED)
        except NsqError as error:
            return self._fail(Failed(str(error)), FAILED)
        except ImportError as error:
            return self._fail(Failed(f"this Python cannot receive: {error}", settings=True), REFUSED)

    def _fail(self, failure: Failed, status: int) -> int:
        log.error("%s", failure.text)
        self._send(failure)
        return status

    def _first_command(self) -> Begin | None:
        """Wait for the settings; None when the process must end before they arrive."""
        while self._begin is None and not self._ending:
            self._listen(_LATEST)
        return None if self._ending else self._begin

    def _receive(self, options: SourceOptions) -> int:
        wal = open_wal(options.wal, fsync=options.fsync)
        receiving = Receiving(options, wal, changed=self._changed)
        try:
            receiving.start()
            while not self._ending and not self._refusal and not receiving.broken:
                self._serve(receiving)
        finally:
            stopped = receiving.stop(GRACE)
        if self._refusal:
            return self._fail(Failed(f"nsqd refuses: {self._refusal}", settings=True), REFUSED)
        if receiving.broken:  # the owner starts another one, under a new name
            return self._fail(Failed(receiving.broken), FAILED)
        self._send(stopped)
        return ENDED

    def _serve(self, receiving: Receiving) -> None:
        self._named = self._named or self._send(Ready(receiving.name))
        self._send_status(receiving)
        pause = _SOONEST if self._stale else _LATEST
        self._listen(self._last_status_at + pause - time.monotonic())

    def _send_status(self, receiving: Receiving) -> None:
        """Send a status: every ``_LATEST`` seconds, and sooner when it changes."""
        now = time.monotonic()
        self._stale = now < self._last_status_at + _SOONEST
        if self._stale:
            return
        status = receiving.status()
        if status != self._last_status or now >= self._last_status_at + _LATEST:
            self._last_status, self._last_status_at = status, now
            self._send(status)
        if status.error and not status.connections:
            self._refusal = receiving.refusal()

    # The pipes.

    @property
    def _ending(self) -> bool:
        return self._stop_requested or self._wakeup.signals > 0

    def _listen(self, timeout: float) -> None:
        """Wait for news, and read the owner's commands."""
        self._wakeup.wait(max(0.0, timeout), self._inlet)
        # If the owner has forked a child, that child keeps our stdin open, so only the parent's id tells.
        self._stop_requested = self._stop_requested or os.getppid() != self._parent
        with suppress(BlockingIOError):
            data = os.read(self._inlet, _CHUNK)
            self._stop_requested = self._stop_requested or not data
            *lines, self._line = (self._line + data).split(b"\n")
            for said in map(protocol.decoded, lines):
                if isinstance(said, Stop):
                    self._stop_requested = True
                elif isinstance(said, Begin):
                    self._begin = said
                else:
                    log.warning("ignored a command: %s", said)

    def _changed(self) -> None:
        """Wake the main thread, unless it is about to send a status anyway. Any thread may call this."""
        if not self._stale:
            self._wakeup.wake()

    def _send(self, event: Event) -> bool:
        """Send an event; return False if it was dropped because the owner does not read: the receiver never
        blocks. The end of an event that did not fit into the pipe goes before the next one.
        """
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._outlet, self._unsent) :]
            line = protocol.encoded(event)
            self._unsent = line[os.write(self._outlet, line) :]
            return True
        except BlockingIOError:
            log.warning("the owner does not read events; one was dropped")
        except OSError:
            self._stop_requested = True
        return False


class NoPandas:
    """Hides pandas: pyarrow would load it (0.4 s, 46 MB) to look for its objects, and a receiver has none."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("a receiver does without pandas", name=name)


def prepare_process() -> None:
    """Prepare a process that does nothing but receive."""
    tune_gc()
    sys.meta_path.insert(0, NoPandas())


def main() -> int:
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Redirect stdout to stderr, so that a stray print cannot garble the events.
    events = os.dup(1)
    os.dup2(2, 1)
    prepare_process()
    with SignalWakeup() as wakeup:
        return ReceiverLoop(0, events, wakeup).run()


# Without an owner


def standalone(
    options: SourceOptions,
    *,
    progress: Callable[[str], None],
    share: Share = WHOLE,
    interval: float = 1.0,
) -> Stopped:
    """Receive until SIGTERM or SIGINT, then stop gracefully; another signal, more than a second later, exits
    the process at once.

    For the main thread. Every ``interval`` seconds it passes a line of text to ``progress``. Raises
    ConfigError, also when nsqd refuses the settings, and WalForeign.
    """
    with SignalWakeup() as wakeup:
        received, since = 0, time.monotonic()

        def ended(seconds: float) -> bool:
            if not wakeup.signals:
                wakeup.wait(seconds)
            return wakeup.signals > 0

        def report(status: Status) -> None:
            nonlocal received, since
            now = time.monotonic()
            progress(progress_line(status, (status.received - received) / max(now - since, 0.001)))
            received, since = status.received, now

        stopped = stand(options, ended=ended, report=report, share=share, interval=interval)
        left = f", {stopped.in_flight} left in flight" if stopped.in_flight else ""
        progress(f"stopped: {received:,} messages received, {stopped.sealed:,} segments sealed{left}")
        return stopped


def progress_line(status: Status, rate: float) -> str:
    words = [
        f"{status.received:,} messages received ({rate:,.0f}/s)",
        f"{status.sealed:,} segments sealed",
        f"{status.connections} connections",
    ]
    words += [f"paused: {status.paused}"] if status.paused else []
    words += [f"error: {status.error}"] if status.error else []
    return ", ".join(words)


if __name__ == "__main__":  # a ReceiverPool starts this; users run nsq-spark receive
    sys.exit(main())
