"""One receiver process as its owner holds it: the pipes, and its end. Must not import pyspark or pyarrow."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import nsq
from nsq.spark.receiver import protocol
from nsq.spark.receiver.protocol import Begin, Command, Event, Garbled, Lines, Stop

#: An empty pipe takes so much at once; the first line has to fit.
LONGEST_BEGIN = 60_000
#: For a process that has closed its pipe to be gone.
_EXIT_TIMEOUT = 5.0
_CHUNK = 1 << 16


def receiver_command() -> list[str]:
    """-P: what happens to lie in the working directory is none of the receiver's modules."""
    return [sys.executable, "-P", "-m", "nsq.spark.receiver"]


class Child:
    """Started by being made; raises OSError when that cannot be. ``events`` and ``reap`` are for one thread,
    the rest for any."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=_environment(os.environ) | dict(environment),
            # A Ctrl-C in the owner's terminal is for the owner, who then says what is to happen.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._lock = threading.Lock()  # guards stdin against being closed meanwhile; writing never blocks
        os.set_blocking(self._stdin.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, command: Command) -> bool:
        """Whether that has reached its pipe."""
        return self.say_line(protocol.encoded(command))

    def say_line(self, line: bytes) -> bool:
        with self._lock:
            if self._stdin.closed:
                return False
            try:
                # All or nothing, as short as lines are; None when the pipe is full.
                return self._stdin.write(line) == len(line)
            except OSError:
                return False

    def dismiss(self) -> None:
        """Ask it to end gracefully: the end of stdin says so too, if the word is lost."""
        self.say(Stop())
        with self._lock, suppress(OSError):
            self._stdin.close()

    def events(self) -> Iterator[Event | Garbled]:
        """What it says, until its end."""
        lines = Lines()
        while data := self._stdout.read(_CHUNK):
            for line in lines.feed(data):
                yield protocol.event(line)

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


def begin_line(settings: Mapping[str, object]) -> bytes:
    """The first line, which ``say_line`` takes."""
    return protocol.encoded(Begin(settings))
