"""``examine()``: whether this machine can run the pipelines, asked before Spark takes a quarter of a minute
to answer in a stack trace. Every check looks at the real thing, and says in a line what to do about it.

Imports neither pyspark nor pyarrow into this process, except to look at an object store.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nsq.config import Config
from nsq.connection.handshake import dial
from nsq.errors import ConfigError, NsqError
from nsq.http.nsqlookupd import NsqlookupdApi
from nsq.spark.wal.places import directory_of, shown
from nsq.transport.dialing import transport_of
from nsq.transport.tls import context_of

OK, WARNING, WRONG = "ok", "warning", "wrong"
JAVA = 17
PYSPARK = ((4, 2), (5, 0))
PYARROW = (18, 0)
#: Seconds for another program to say its version: a JVM on a busy machine needs some of them.
PATIENCE = 30.0
LITTLE_SPACE = 1 << 30
INSTALL = "pip install 'nsq[spark]'"
_CHOOSE = f"export PYSPARK_PYTHON={sys.executable}"


class Finding(NamedTuple):
    """``remedy`` is empty when all is well."""

    what: str
    state: str
    text: str
    remedy: str = ""


def examine(
    *,
    nsqd: Iterable[str] = (),
    lookupd: Iterable[str] = (),
    wal: str | None = None,
    max_in_flight: int = 2500,
    config: Config | None = None,
) -> Iterator[Finding]:
    """What there is to be said, one after the other, as it is found out."""
    settings = config or Config()
    yield check_java(os.environ)
    yield from check_packages(_installed_version)
    yield from check_workers(os.environ)
    yield from check_default_python(os.environ)
    if wal is not None:
        yield check_wal(wal)
    for address in lookupd:
        yield _reached(f"nsqlookupd {address}", lambda address=address: _ask_lookupd(address))  # type: ignore[misc]
    for address in nsqd:
        yield from check_nsqd(address, max_in_flight, settings)


def obstacles(environ: Mapping[str, str], *, workers: bool = True) -> Iterator[Finding]:
    """What would keep Spark from starting on this machine, and its ``workers`` from working here: a quick
    look, without asking NSQ anything.
    """
    for found in check_packages(_installed_version):
        if found.state == WRONG:
            yield found
    if (java := check_java(environ)).state == WRONG:
        yield java
    for found in check_workers(environ) if workers else ():
        if found.state == WRONG:
            yield found


# Java


def check_java(environ: Mapping[str, str]) -> Finding:
    remedy = (
        f"install Java {JAVA} or later (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    )
    java = _java(environ)
    if java is None:
        return Finding("java", WRONG, "there is none on PATH, and JAVA_HOME is not set", remedy)
    status, said = _ask([java, "-version"])
    version = java_version(said)
    if status != 0 or version is None:
        return Finding("java", WRONG, f"{java} does not say its version: {_first_line(said)}", remedy)
    if version < JAVA:
        return Finding("java", WRONG, f"{java} is Java {version}; Spark 4 needs {JAVA}", remedy)
    return Finding("java", OK, f"{java} is Java {version}")


def _java(environ: Mapping[str, str]) -> str | None:
    """The one that Spark's own scripts would start."""
    home = environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else shutil.which("java", path=environ.get("PATH"))


def java_version(said: str) -> int | None:
    """17 for ``openjdk version "17.0.15" …``, and 8 for ``"1.8.0_292"``."""
    found = re.search(r'version "(?:1\.)?([0-9]+)', said)
    return int(found[1]) if found else None


# Python


def check_packages(installed: Callable[[str], str | None]) -> Iterator[Finding]:
    ranges = {"pyspark": PYSPARK, "pyarrow": (PYARROW, None), "pandas": ((2, 2), None)}
    for package, (least, below) in ranges.items():
        found = installed(package)
        if found is None:
            yield Finding(package, WRONG, f"not installed for {sys.executable}", INSTALL)
        elif not _between(found, least, below):
            yield Finding(package, WRONG, f"{found}; needs {_range(least, below)}", INSTALL)
        else:
            yield Finding(package, OK, found)


def check_workers(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Spark starts Python anew for its workers; ``nsq-spark`` says which, where nobody has chosen."""
    python = environ.get("PYSPARK_PYTHON")
    if python in (None, sys.executable):
        yield Finding(
            "workers", OK, f"nsq-spark starts them with {sys.executable} (PYSPARK_PYTHON is not set)"
        )
        return
    fault = _worker_fault(python)
    if fault:
        yield Finding("workers", WRONG, f"PYSPARK_PYTHON={python}{fault}", _CHOOSE)
    else:
        yield Finding("workers", OK, f"PYSPARK_PYTHON={python} has all that is needed")


def check_default_python(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Programs that do not say which Python they want get whatever ``python3`` is on PATH."""
    if environ.get("PYSPARK_PYTHON"):
        return
    python = shutil.which("python3", path=environ.get("PATH"))
    fault = _worker_fault(python) if python else ": there is none on PATH"
    if fault:
        text = f"{python or 'python3'}{fault}; Spark starts it for programs other than nsq-spark"
        yield Finding("python3", WARNING, text, _CHOOSE)


def _worker_fault(python: str) -> str:
    """What is wrong with it, as the end of a sentence that begins with its name; empty if it will do."""
    probe = "import sys, pyarrow, nsq.spark.source.format; print(*sys.version_info[:2], sep='.')"
    status, said = _ask([python, "-c", probe])
    own = ".".join(map(str, sys.version_info[:2]))
    if status != 0:
        return f": {_last_line(said)}"
    return "" if said.strip() == own else f" is Python {said.strip()}, this is {own}"


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _between(version: str, least: tuple[int, ...], below: tuple[int, ...] | None) -> bool:
    found = tuple(int(number) for number in re.findall(r"[0-9]+", version)[:2])
    return least <= found and (below is None or found < below)


def _range(least: tuple[int, ...], below: tuple[int, ...] | None) -> str:
    words = f"at least {'.'.join(map(str, least))}"
    return words if below is None else f"{words}, below {'.'.join(map(str, below))}"


# The write-ahead log


def check_wal(location: str) -> Finding:
    """Write, fsync, lock, rename and delete a file there, and leave nothing behind."""
    try:
        directory = directory_of(location)
    except ConfigError as error:
        return Finding("wal", WRONG, str(error), "correct it: a directory will do")
    if directory is None:
        return check_object_wal(location)
    place = directory.absolute()
    # It is made when a stream starts; until then its parent shows whether that will succeed.
    there = next(path for path in (place, *place.parents) if os.path.exists(path))
    try:
        with tempfile.TemporaryDirectory(prefix=".nsq-doctor-", dir=there) as trial:
            _exercise(Path(trial))
        free = shutil.disk_usage(there).free
    except OSError as error:
        text = f"{there}: {error.strerror or error} ({error.filename or there})"
        return Finding("wal", WRONG, text, "choose a directory that this user may write to, with --wal")
    if free < LITTLE_SPACE:
        text = f"{place}: {free >> 20} MiB free"
        return Finding(
            "wal", WARNING, text, "free some space, or lower walMaxBytes: receiving stops when it is full"
        )
    return Finding("wal", OK, f"{place}: can be written, synced, locked and renamed; {free >> 30} GiB free")


def _exercise(directory: Path) -> None:
    before, after = directory / "before", directory / "after"
    with before.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(b"nsq")
        file.flush()
        os.fsync(file.fileno())
    before.rename(after)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    after.unlink()


def check_object_wal(location: str) -> Finding:
    place = shown(location)
    try:
        from pyarrow import fs
    except ImportError:
        return Finding("wal", WRONG, f"{place} needs pyarrow, which is not installed", INSTALL)
    try:
        store, path = fs.FileSystem.from_uri(location)
        probe = f"{path.rstrip('/')}/.nsq-doctor-{os.getpid()}"
        began = time.monotonic()
        with store.open_output_stream(probe) as stream:
            stream.write(b"nsq")
        seconds = time.monotonic() - began
        store.delete_file(probe)
    except Exception as error:
        # Every file system there has errors of its own.
        remedy = "check the URI and the credentials that pyarrow.fs finds"
        reason = _first_line(str(error)).replace(location, place)
        return Finding("wal", WRONG, f"{place}: {reason}", remedy)
    text = f"{place}: a put takes {seconds * 1000:.0f} ms, which a whole window of messages waits for"
    return Finding("wal", OK, text)


# NSQ


def check_nsqd(address: str, max_in_flight: int, config: Config) -> Iterator[Finding]:
    what = f"nsqd {address}"
    try:
        deadline = time.monotonic() + config.handshake_timeout
        ready = dial(address, config, transport_of(config), context_of(config), deadline=deadline)
        ready.stream.close()
    except NsqError as error:
        yield Finding(what, WRONG, str(error), _remedy_for(error))
        return
    reply = ready.negotiated.reply
    yield Finding(
        what, OK, f"version {reply.version}, messages time out after {reply.msg_timeout / 1000:g} s"
    )
    if reply.max_rdy_count and reply.max_rdy_count < max_in_flight:
        text = f"takes RDY up to {reply.max_rdy_count}, maxInFlight is {max_in_flight}"
        remedy = f"start it with --max-rdy-count={max_in_flight}, or lower maxInFlight"
        yield Finding(what, WARNING, text, remedy)


def _remedy_for(fault: NsqError) -> str:
    if isinstance(fault, ConfigError):
        return "correct the option"
    return "start it, or correct the address: it is nsqd's TCP port, 4150 by default"


def _ask_lookupd(address: str) -> str:
    api = NsqlookupdApi(address)
    nodes = len(api.nodes())
    return f"version {api.info()}, knows {nodes} nsqd{'' if nodes == 1 else 's'}"


def _reached(what: str, ask: Callable[[], str]) -> Finding:
    try:
        return Finding(what, OK, ask())
    except NsqError as error:
        remedy = "start it, or correct the address: it is nsqlookupd's HTTP port, 4161 by default"
        return Finding(what, WRONG, str(error), remedy)


# Asking programs


def _ask(command: Sequence[str]) -> tuple[int, str]:
    """How it ended and what it said, on both streams."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {PATIENCE:g} s"
    except OSError as error:
        return -1, str(error)
    return done.returncode, done.stdout


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0] or "nothing"


def _last_line(text: str) -> str:
    return text.strip().rsplit("\n", 1)[-1] or "nothing"
