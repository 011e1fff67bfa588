"""Child processes: servers that run during a measurement, and drivers that print their measurements."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parent.parent

_root = ROOT  # where servers and drivers find ``nsq`` and ``benchmarks``

_START_SECONDS = 10.0
_DRIVER_SECONDS = 300.0


class Broken(Exception):
    """A server or driver failed; the text ends with its last output."""


@dataclass(frozen=True)
class Server:
    """A listening process; its files are deleted at its end."""

    pid: int
    port: int
    http_port: int


class Place(NamedTuple):
    """The port and the directory of a server."""

    port: int
    http_port: int
    directory: str


#: Makes a server's command line.
Command = Callable[[Place], Sequence[str]]


@contextmanager
def package_of(checkout: Path) -> Iterator[None]:
    """Run servers and drivers with ``nsq`` of another checkout, and ``benchmarks`` of this one."""
    global _root
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        Path(directory, "nsq").symlink_to(checkout / "nsq")
        Path(directory, "benchmarks").symlink_to(ROOT / "benchmarks")
        _root = Path(directory)
        try:
            yield
        finally:
            _root = ROOT


@contextmanager
def serving(command: Command) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        place = new_place(directory)
        with serving_at(place, command(place)) as server:
            yield server


@contextmanager
def serving_at(
    place: Place,
    argv: Sequence[str],
    variables: Mapping[str, str] = MappingProxyType({}),
    patience: float = _START_SECONDS,
) -> Iterator[Server]:
    """Run a server at a place whose directory is kept."""
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            argv,
            cwd=_root,
            env={**os.environ, **variables},
            stdout=words,
            stderr=words,
            start_new_session=True,
        )
        try:
            _await_port(process, place.port, words, patience)
            yield Server(process.pid, place.port, place.http_port)
            if process.poll() is not None:
                raise Broken(f"{argv[0]} ended by itself: {_last(words)}")
        finally:
            # Kill it, because a stop would save data that is not needed.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def drive(driver: str, *arguments: object) -> list[float]:
    """Run ``benchmarks.drivers.<driver>`` and return the numbers it prints."""
    return numbers_of([sys.executable, "-m", f"benchmarks.drivers.{driver}", *map(str, arguments)])


def numbers_of(argv: Sequence[str]) -> list[float]:
    """Run any driver and return the numbers it prints."""
    name = " ".join(argv[1:])
    try:
        done = subprocess.run(argv, cwd=_root, capture_output=True, text=True, timeout=_DRIVER_SECONDS)
    except subprocess.TimeoutExpired:
        raise Broken(f"the driver {name} took more than {_DRIVER_SECONDS:g} s") from None
    if done.returncode:
        raise Broken(f"the driver {name} failed: {done.stderr.strip()[-500:]}")
    return [float(word) for word in done.stdout.split()]


def new_place(directory: str) -> Place:
    """Return a place in a directory, with ports that are free now."""
    port, http_port = _free_ports(2)
    return Place(port, http_port, directory)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def _await_port(process: subprocess.Popen[bytes], port: int, words: IO[bytes], patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if process.poll() is not None:
                raise Broken(f"{process.args!r} did not start: {_last(words)}") from None
            if time.monotonic() > deadline:
                raise Broken(f"{process.args!r} does not listen on port {port}: {_last(words)}") from None
            time.sleep(0.02)
        else:
            return


def _last(words: IO[bytes]) -> str:
    words.seek(0)
    return words.read().decode(errors="replace").strip()[-500:]
