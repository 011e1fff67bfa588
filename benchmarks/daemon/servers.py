"""Command lines of the servers."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.processes import ROOT, Broken, Command, Place

#: More than any load publishes, so that everything stays in memory unless the disk is measured.
_ALL_IN_MEMORY = 10_000_000

OURS = (sys.executable, "-m", "nsq.daemons.nsqd")


def nsqd(program: Sequence[str] = OURS, *options: str, mem_queue_size: int = _ALL_IN_MEMORY) -> Command:
    def command(place: Place) -> Sequence[str]:
        return [
            *program,
            f"--tcp-address=127.0.0.1:{place.port}",
            f"--http-address=127.0.0.1:{place.http_port}",
            f"--data-path={place.directory}",
            f"--mem-queue-size={mem_queue_size}",
            "--log-level=error",
            *options,
        ]

    return command


def nsqds(*options: str, mem_queue_size: int = _ALL_IN_MEMORY) -> dict[str, Command]:
    """Return our nsqd, and the one in NSQ_BIN_DIR if set."""
    found = {"nsqd": nsqd(OURS, *options, mem_queue_size=mem_queue_size)}
    if program := _given("nsqd"):
        found["NSQ_BIN_DIR"] = nsqd([program], *options, mem_queue_size=mem_queue_size)
    return found


def nsqlookupds() -> dict[str, Command]:
    """Return our nsqlookupd, and the one in NSQ_BIN_DIR if set; both with default logging."""
    found = {"nsqlookupd": _nsqlookupd([sys.executable, "-m", "nsq.daemons.nsqlookupd"])}
    if program := _given("nsqlookupd"):
        found["NSQ_BIN_DIR"] = _nsqlookupd([program])
    return found


def _nsqlookupd(program: Sequence[str]) -> Command:
    def command(place: Place) -> Sequence[str]:
        addresses = f"--tcp-address=127.0.0.1:{place.port}", f"--http-address=127.0.0.1:{place.http_port}"
        return [*program, *addresses]

    return command


def bare_nsqlookupd(place: Place) -> Sequence[str]:
    return [sys.executable, str(ROOT / "benchmarks/servers/bare_nsqlookupd.py"), str(place.port)]


def _given(name: str) -> str | None:
    directory = os.environ.get("NSQ_BIN_DIR")
    if not directory:
        return None
    program = shutil.which(name, path=directory)
    if program is None:
        raise Broken(f"NSQ_BIN_DIR is {directory!r}, and there is no program {name} in it")
    return program


def minimal(place: Place) -> Sequence[str]:
    return [sys.executable, str(ROOT / "benchmarks/servers/minimal_nsqd.py"), str(place.port)]


def raw(load: str, piece: int, window: int = 0, count: int = 0) -> Command:
    def command(place: Place) -> Sequence[str]:
        program = str(ROOT / "benchmarks/servers/raw.py")
        return [sys.executable, program, str(place.port), load, *map(str, (piece, window, count))]

    return command


@functools.cache
def understands(option: str) -> bool:
    """Whether our nsqd has this option (without dashes)."""
    done = subprocess.run([*OURS, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    return re.search(rf"^\s*-+{re.escape(option)}\b", done.stdout + done.stderr, re.MULTILINE) is not None
