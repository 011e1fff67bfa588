"""``examine()`` checks whether this machine can run the pipelines, faster than Spark, which needs 15 seconds
to fail with a stack trace. Each check tries the real thing, and says in one line what to do.

Imports neither pyspark nor pyarrow into this process, except to check an object store or an existing log.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nsq.config import Config
from nsq.connection.handshake import dial
from nsq.errors import ConfigError, NsqError, how_to_install
from nsq.findings import FAILURE, OK, SKIPPED, WARNING, Finding
from nsq.fsync import sync_path
from nsq.http.nsqlookupd import NsqlookupdApi
from nsq.spark.wal.disk import Disk
from nsq.spark.wal.ownership import acquire
from nsq.spark.wal.store import directory_of, shown
from nsq.transport.dialing import SocketTransport
from nsq.transport.tls import context_of

JAVA = 17
#: The lowest version of each package, and the first that is too new.
PACKAGES = {"pyspark": ("4.2", "5.0"), "pyarrow": ("18", ""), "pandas": ("2.2", "")}
#: Seconds to wait for another program's version: a JVM on a busy machine is slow.
PATIENCE = 30.0
LITTLE_SPACE = 1 << 30
INSTALL = how_to_install("spark")
_CHOOSE = f"export PYSPARK_PYTHON={sys.executable}"


def examine(
    *,
    nsqd: Iterable[str],
    lookupd: Iterable[str],
    wal: str | None,
    config: Config,
    sink: str = "",
    checkpoint: str = "",
) -> Iterator[Finding]:
    """Run all checks; yields each finding as soon as its check ends."""
    yield check_java()
    yield from check_packages()
    yield check_workers()
    yield from check_default_python()
    yield check_formats()
    if wal is None:
        yield Finding(SKIPPED, "wal", "no write-ahead log was given", "check one with --wal DIR")
    else:
        usable = check_wal(wal)
        yield usable
        if usable.level != FAILURE:
            yield from check_contents(wal)
    if sink:
        yield check_sink(Path(sink), Path(checkpoint))
    nsqd, lookupd = list(nsqd), list(lookupd)
    if not nsqd and not lookupd:
        remedy = "check some with --nsqd HOST:PORT or --lookupd HOST:PORT"
        yield Finding(SKIPPED, "nsq", "no nsqd or nsqlookupd was given", remedy)
    for address in lookupd:
        yield check_lookupd(address, config)
    for address in nsqd:
        yield from check_nsqd(address, config)


# Java and Python


def check_java() -> Finding:
    # The Java that Spark's own scripts would start.
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    remedy = (
        f"install Java {JAVA} or later (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    )
    if java is None:
        return Finding(FAILURE, "java", "there is none on PATH, and JAVA_HOME is not set", remedy)
    status, said = _ask([java, "-version"])
    version = java_version(said)
    if status != 0 or version is None:
        return Finding(FAILURE, "java", f"{java} does not say its version: {_lines(said)[0]}", remedy)
    if version < JAVA:
        return Finding(FAILURE, "java", f"{java} is Java {version}; Spark 4 needs {JAVA}", remedy)
    return Finding(OK, "java", f"{java} is Java {version}")


def java_version(said: str) -> int | None:
    """The major version: 17 for ``openjdk version "17.0.15" …``, and 8 for ``"1.8.0_292"``."""
    found = re.search(r'version "(?:1\.)?([0-9]+)', said)
    return int(found[1]) if found else None


def check_packages() -> Iterator[Finding]:
    for package, (least, below) in PACKAGES.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(FAILURE, package, f"not installed for {sys.executable}", INSTALL)
            continue
        if _number(found) < _number(least) or (below and _number(found) >= _number(below)):
            wanted = f"at least {least}" + (f", below {below}" if below else "")
            yield Finding(FAILURE, package, f"{found}; needs {wanted}", INSTALL)
        else:
            yield Finding(OK, package, found)


def _number(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]+", version)[:2]]


def check_workers() -> Finding:
    """Check the Python of Spark's workers: nsq-spark uses its own, unless PYSPARK_PYTHON is set."""
    python = os.environ.get("PYSPARK_PYTHON")
    if python in (None, sys.executable):
        return Finding(OK, "workers", f"nsq-spark starts them with {sys.executable}")
    if error := worker_error(python):
        return Finding(FAILURE, "workers", f"PYSPARK_PYTHON={python}{error}", _CHOOSE)
    return Finding(OK, "workers", f"PYSPARK_PYTHON={python} has all that is needed")


def check_default_python() -> Iterator[Finding]:
    """Check ``python3`` on PATH: Spark's workers use it in programs that choose no Python."""
    if os.environ.get("PYSPARK_PYTHON"):
        return
    python = shutil.which("python3")
    error = worker_error(python) if python else ": there is none on PATH"
    if error:
        text = f"{python or 'python3'}{error}; Spark starts it for programs other than nsq-spark"
        yield Finding(WARNING, "python3", text, _CHOOSE)


def worker_error(python: str) -> str:
    """What is wrong with a Python, as the end of a sentence that begins with its name; empty if it works."""
    # Everything that workers need except pyspark, which Spark puts on their path.
    probe = "import sys, pyarrow, nsq.spark.receiver.receiving; print(*sys.version_info[:2], sep='.')"
    status, said = _ask([python, "-c", probe])
    own = ".".join(map(str, sys.version_info[:2]))
    if status != 0:
        return f": {_lines(said)[-1]}"
    return "" if said.strip() == own else f" is Python {said.strip()}, this is {own}"


def check_formats() -> Finding:
    """Check whether Spark finds format("nsq") by itself. Like Spark, this lists the modules called
    ``pyspark_*``, from another directory; an editable install can hide them.
    """
    python = os.environ.get("PYSPARK_PYTHON") or sys.executable
    probe = "import pkgutil; print(*(one.name for one in pkgutil.iter_modules()))"
    with tempfile.TemporaryDirectory(prefix="nsq-doctor-") as elsewhere:
        status, said = _ask([python, "-c", probe], elsewhere)
    missing = sorted({"pyspark_nsq", "pyspark_nsq_stats"} - set(said.split()))
    if status == 0 and not missing:
        return Finding(OK, "formats", 'Spark finds format("nsq") and format("nsq_stats") from any directory')
    text = f"{python}: Spark does not find {' and '.join(missing)} there" if status == 0 else _lines(said)[-1]
    remedy = (
        f"{INSTALL}, in a clone with --config-settings editable_mode=compat; "
        "or call nsq.spark.register(spark) in every program"
    )
    return Finding(WARNING, "formats", text, remedy)


# The write-ahead log


def check_wal(location: str) -> Finding:
    """Check the log's directory: write, fsync, lock, rename, link and delete a file there."""
    try:
        directory = directory_of(location)
    except ConfigError as error:
        return Finding(FAILURE, "wal", str(error), "correct it: a directory will do")
    if directory is None:
        return check_object_wal(location)
    place = directory.absolute()
    # A stream creates the directory; until then, test the nearest parent that exists.
    there = next(path for path in (place, *place.parents) if os.path.exists(path))
    try:
        with tempfile.TemporaryDirectory(prefix=".nsq-doctor-", dir=there) as trial:
            _exercise(Path(trial))
        free = shutil.disk_usage(there).free
    except OSError as error:
        text = f"{there}: {error.strerror or error} ({error.filename or there})"
        return Finding(FAILURE, "wal", text, "choose a directory that this user may write to, with --wal")
    if free < LITTLE_SPACE:
        remedy = "free some space, or lower walMaxBytes: receiving stops when it is full"
        return Finding(WARNING, "wal", f"{place}: {free >> 20} MiB free", remedy)
    return Finding(
        OK, "wal", f"{place}: can be written, synced, locked, renamed and linked; {free >> 30} GiB free"
    )


def _exercise(directory: Path) -> None:
    before, after = directory / "before", directory / "after"
    lock = acquire(before, 0o666, Disk())
    try:
        before.write_bytes(b"nsq")
        sync_path(before)
        before.rename(after)
        os.link(after, before)  # the log links files to their names
        sync_path(directory)
    finally:
        if lock is not None:
            lock.release()


def check_object_wal(location: str) -> Finding:
    """Check that an object store answers, and heeds the conditions of puts."""
    place = shown(location)
    try:
        from nsq.spark.wal.objects import Bucket, refuse_unconditional

        store = Bucket(location)
        began = time.monotonic()
        refuse_unconditional(store)
        seconds = (time.monotonic() - began) / 5  # it makes about five requests
    except NsqError as error:
        remedy = "correct the URI, and set credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return Finding(FAILURE, "wal", f"{place}: {_lines(str(error))[0]}", remedy)
    text = f"{place}: heeds the conditions of puts; a request takes {seconds * 1000:.0f} ms"
    return Finding(OK, "wal", text)


def check_contents(location: str) -> Iterator[Finding]:
    """Read all segments of the log, if there is one, and check that no reader lacks any."""
    try:
        from nsq.spark.wal import inspect, open_wal

        if open_wal(location).identity() is None:
            return
        found = inspect.verify(location)
    except ImportError:
        yield Finding(SKIPPED, "log", "it cannot be read without pyarrow", INSTALL)
        return
    except NsqError as error:
        yield Finding(FAILURE, "log", str(error), "correct option wal, or restore the log")
        return
    text = f"{found.rows:,} rows in {found.segments:,} sound segments"
    if not found.problems:
        yield Finding(OK, "log", text)
        return
    more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
    remedy = "nsq-spark wal verify names all; failOnDataLoss=false goes on without the lost rows"
    yield Finding(FAILURE, "log", f"{text}, but {found.problems[0]}{more}", remedy)


# A sink of files remembers the numbers of batches, and skips those that it has


def check_sink(sink: Path, checkpoint: Path) -> Finding:
    """Check that a folder of files, written by ``writeStream``, and a checkpoint belong together."""
    kept, done = _newest(sink / "_spark_metadata"), _newest(checkpoint / "commits")
    if kept < 0:
        return Finding(OK, "sink", f"{sink} remembers no batches")
    if kept > done + 1:
        text = f"{sink} has batches up to {kept}, {checkpoint} "
        text += f"commits up to {done}" if done >= 0 else "no commits"
        remedy = f"use the old checkpoint, or a new folder: Spark would lose the rows of batches up to {kept}"
        return Finding(FAILURE, "sink", text, remedy)
    return Finding(OK, "sink", f"{sink} and {checkpoint} belong together, up to batch {max(kept, done)}")


def _newest(folder: Path) -> int:
    """The highest number in the names of files such as ``7`` and ``9.compact``; -1 when there is none."""
    numbers = [name.partition(".")[0] for name in os.listdir(folder)] if folder.is_dir() else []
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


# NSQ


def check_nsqd(address: str, config: Config) -> Iterator[Finding]:
    what = f"nsqd {address}"
    try:
        deadline = time.monotonic() + config.handshake_timeout
        transport = SocketTransport(config.local_address)
        ready = dial(address, config, transport, context_of(config), deadline=deadline)
        ready.stream.close()
    except NsqError as error:
        remedy = "start it, or correct the address: it is nsqd's TCP port, 4150 by default"
        remedy = "correct the option" if isinstance(error, ConfigError) else remedy
        yield Finding(FAILURE, what, str(error), remedy)
        return
    reply = ready.reply
    text = f"version {reply.version}, messages time out after {reply.msg_timeout / 1000:g} s"
    yield Finding(OK, what, text)


def check_lookupd(address: str, config: Config) -> Finding:
    what = f"nsqlookupd {address}"
    try:
        api = NsqlookupdApi.of(address, config)
        nodes = len(api.nodes())
        return Finding(OK, what, f"version {api.info()}, knows {nodes} nsqd{'' if nodes == 1 else 's'}")
    except NsqError as error:
        remedy = "start it, or correct the address: it is nsqlookupd's HTTP port, 4161 by default"
        return Finding(FAILURE, what, str(error), remedy)


def _ask(command: Sequence[str], directory: str | None = None) -> tuple[int, str]:
    """Run a command; return its exit status and its output on both streams, or -1 and an error."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return done.returncode, done.stdout


def _lines(text: str) -> list[str]:
    return (text.strip() or "nothing").split("\n")
