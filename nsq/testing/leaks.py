"""Finds threads, descriptors, child processes and files that a test left behind.

    before = leaks.snapshot([Path.cwd()])
    ...
    left = leaks.leftovers(before, lambda: leaks.snapshot([Path.cwd()]))
    assert not left, leaks.describe(left)

``leftovers`` waits a moment for threads and sockets that are still closing. ``snapshot`` is cheap enough for
every test; slow details, such as the peer of a socket, are found by ``describe``, which only a failing test
calls.

Descriptors and child processes are read from Linux's /proc; on other systems they are not checked.
Uses the standard library only, and nothing else of this package.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

GRACE = 5.0
"""Seconds to wait for threads that are about to end and sockets that are closing."""

_NAP = 0.01
_COARSE_NS = 2 * 10**9
#: Cached listings of directories, by the time of their last change: listing dozens takes half a millisecond.
_listings: dict[str, tuple[int, list[str]]] = {}
_TCP_STATES = {"01": "established", "06": "time-wait", "08": "close-wait", "0A": "listening"}


@dataclass(frozen=True)
class Snapshot:
    """The state at one time or, from :func:`difference`, what is new since an earlier one."""

    threads: frozenset[threading.Thread] = frozenset()
    descriptors: frozenset[tuple[int, str]] = frozenset()
    """Number and target: a descriptor that was closed and reused for another file counts as new."""
    children: frozenset[int] = frozenset()
    files: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.threads or self.descriptors or self.children or self.files)


def snapshot(directories: Iterable[Path | str] = ()) -> Snapshot:
    """Record the current state; of files, the entries of these directories, not of subdirectories."""
    return Snapshot(
        threads=frozenset(threading.enumerate()),
        descriptors=frozenset(_descriptors()),
        children=frozenset(_children()),
        files=frozenset(_files(directories)),
    )


def difference(before: Snapshot, after: Snapshot) -> Snapshot:
    """Return everything in ``after`` that is not in ``before``."""
    return Snapshot(
        threads=after.threads - before.threads,
        descriptors=after.descriptors - before.descriptors,
        children=after.children - before.children,
        files=after.files - before.files,
    )


def leftovers(
    before: Snapshot,
    look: Callable[[], Snapshot] = snapshot,
    *,
    grace: float = GRACE,
    now: Callable[[], float] = time.monotonic,
    nap: Callable[[float], None] = time.sleep,
) -> Snapshot:
    """Return everything that is new since ``before`` and does not disappear within ``grace`` seconds."""
    left = difference(before, look())
    deadline = now() + grace if left else 0.0
    while left and now() < deadline:
        nap(_NAP)
        left = difference(before, look())
    return left


def describe(left: Snapshot) -> list[str]:
    """Return one line for each leftover."""
    return [
        *sorted(_thread_words(thread) for thread in left.threads),
        *(_descriptor_words(number, target) for number, target in sorted(left.descriptors)),
        *(_child_words(pid) for pid in sorted(left.children)),
        *(f"file {path}" for path in sorted(left.files)),
    ]


def _descriptors() -> Iterator[tuple[int, str]]:
    if not sys.platform.startswith("linux"):
        return
    for name in os.listdir("/proc/self/fd"):
        # The descriptor of the listing itself is closed by now.
        with contextlib.suppress(OSError):
            yield int(name), os.readlink(f"/proc/self/fd/{name}")


def _children() -> Iterator[int]:
    try:
        # One system call tells whether there is any child, running or zombie; it reaps none.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, AttributeError):
        return
    known_by_us = _resource_tracker()
    for pid in _children_by_task():
        if pid != known_by_us:
            yield pid


def _children_by_task() -> Iterator[int]:
    """Yield the children of every thread of ours: a child belongs to the thread that started it."""
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError:
        return
    for task in tasks:
        try:
            listed = Path(f"/proc/self/task/{task}/children").read_bytes()
        except FileNotFoundError:
            if os.path.isdir(f"/proc/self/task/{task}"):
                # A kernel without CONFIG_PROC_CHILDREN: look up the parent of every process.
                yield from _children_by_parent(os.getpid())
                return
            continue  # the thread ended meanwhile
        except ProcessLookupError:
            continue
        yield from map(int, listed.split())


def _children_by_parent(parent: int) -> Iterator[int]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if _stat(int(name))[2] == parent:
                yield int(name)


def _stat(pid: int) -> tuple[str, str, int]:
    """Return name, state and parent. The name is in parentheses and may contain parentheses and spaces."""
    head, _, tail = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
    state, parent, *_ = tail.split()
    return head.partition("(")[2], state, int(parent)


def _resource_tracker() -> int | None:
    """Return the pid of multiprocessing's resource tracker, which lives until the interpreter ends."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    pid: int | None = getattr(tracker, "_pid", None)
    return pid


def _files(directories: Iterable[Path | str]) -> Iterator[str]:
    for directory in directories:
        try:
            changed = os.stat(directory).st_mtime_ns
            known = _listings.get(str(directory))
            if known is None or known[0] != changed:
                names = [name for name in os.listdir(directory) if not _is_by_product(name)]
                known = changed, [f"{directory}/{name}" for name in names]
        except FileNotFoundError:
            continue
        # Two changes may have the same time on a file system with a coarse clock: cache only older listings.
        if time.time_ns() - changed > _COARSE_NS:
            _listings[str(directory)] = known
        yield from known[1]


def _is_by_product(name: str) -> bool:
    """Whether Python, a tool's cache or an editor creates such a file while tests run."""
    return name.startswith(".") or name.endswith((".py", ".pyc", "~", ".egg-info")) or name == "__pycache__"


def _thread_words(thread: threading.Thread) -> str:
    return f"thread {thread.name!r}{' (daemon)' if thread.daemon else ''}"


def _child_words(pid: int) -> str:
    try:
        name, state, _ = _stat(pid)
        command = (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .rstrip(b"\0")
            .replace(b"\0", b" ")
            .decode(errors="replace")
        )
    except OSError:
        return f"child process {pid}, gone by now"
    if state == "Z":
        return f"child process {pid}: {name}, ended but not waited for"
    # A process has no command line during its exec.
    return f"child process {pid}: {command or name}"


def _descriptor_words(number: int, target: str) -> str:
    if target.startswith("socket:["):
        target = _socket_words(target[len("socket:[") : -1])
    return f"descriptor {number}: {target}"


def _socket_words(inode: str) -> str:
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for fields in _table(kind):
            if len(fields) > 9 and fields[9] == inode:
                state = _TCP_STATES.get(fields[3], "") if kind.startswith("tcp") else ""
                return f"{kind} socket {_address(fields[1])} -> {_address(fields[2])} {state}".rstrip()
    for fields in _table("unix"):
        if len(fields) > 6 and fields[6] == inode:
            return f"unix socket {' '.join(fields[7:]) or '(unnamed)'}"
    return f"socket {inode}, not connected"


def _table(kind: str) -> Iterator[list[str]]:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:]:
            yield line.split()


def _address(field_: str) -> str:
    """Decode an address: ``0100007F:1036`` is 127.0.0.1:4150 (32-bit words in native byte order, port)."""
    host, _, port = field_.partition(":")
    raw = bytes.fromhex(host)
    if sys.byteorder == "little":
        raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    ip = ipaddress.ip_address(raw)
    return f"[{ip}]:{int(port, 16)}" if ip.version == 6 else f"{ip}:{int(port, 16)}"
