"""One Spark session for all Spark benchmarks, in its own process, because starting one takes seconds."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
import time

from benchmarks.processes import ROOT, Broken

#: Cores of the session, and so tasks of a batch, and files that it writes.
CORES = 2

_PATIENCE = 600.0  # the first answer comes after millions of rows of warming up
_FAREWELL = 20.0


def ask(load: str, **arguments: object) -> list[float]:
    """Have ``benchmarks.drivers.spark`` run a load; return its numbers."""
    return _session().ask(load, arguments)


@functools.cache
def _session() -> _Session:
    """Starts at the first request, and ends with the program."""
    made = _Session()
    atexit.register(made.end)
    return made


class _Session:
    def __init__(self) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - until the end
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.drivers.spark"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
        )

    def ask(self, load: str, arguments: dict[str, object]) -> list[float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = json.dumps([load, arguments])
        try:
            self._process.stdin.write(question.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Broken(f"there is no Spark session any more: {self._last_words()}") from None
        answer = self._read_line(time.monotonic() + _PATIENCE)
        if not answer:
            raise Broken(f"the Spark session gave no answer to {question}: {self._last_words()}")
        return [float(word) for word in answer.split()]

    def _read_line(self, deadline: float) -> bytes:
        """Read a line; return an empty one at the end, or after the timeout."""
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], left)
            some = os.read(self._process.stdout.fileno(), 4096) if ready else b""
            if not some:
                return b""
            line += some
        return line

    def _last_words(self) -> str:
        self._words.seek(0)
        return self._words.read().decode(errors="replace").strip()[-1500:]

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._words.close()
