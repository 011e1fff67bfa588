"""The JVM of the Spark session of these tests."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from nsq.testing import leaks


def gateway() -> Any:
    """Return py4j's way to the JVM; None while there is no session."""
    return getattr(getattr(sys.modules.get("pyspark"), "SparkContext", None), "_gateway", None)


def process_of_session() -> int | None:
    found = gateway()
    return None if found is None else found.proc.pid


def without_py4j(seen: leaks.Snapshot) -> leaks.Snapshot:
    """Leave out connections between this process and the session's JVM, and the threads that serve them."""
    jvm = process_of_session()
    if jvm is None:
        return seen
    ours, theirs = _connections(os.getpid()), set(_connections(jvm).values())
    shared = {socket for socket, (here, there) in ours.items() if (there, here) in theirs}
    descriptors = frozenset(one for one in seen.descriptors if one[1] not in shared)
    threads = frozenset(thread for thread in seen.threads if not _is_py4js(thread))
    return leaks.Snapshot(threads, descriptors, seen.children, seen.files)


def _connections(pid: int) -> dict[str, tuple[str, str]]:
    """A process's TCP sockets, as its descriptors are called, with the ports here and there."""
    ends = {}
    for table in ("tcp", "tcp6"):  # Java speaks IPv4 through sockets of IPv6
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            ends[f"socket:[{fields[9]}]"] = (fields[1].rpartition(":")[2], fields[2].rpartition(":")[2])
    found = {}
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:  # it has ended
        return {}
    for number in numbers:
        with contextlib.suppress(OSError):  # closed meanwhile
            target = os.readlink(f"/proc/{pid}/fd/{number}")
            if target in ends:
                found[target] = ends[target]
    return found


def _is_py4js(thread: object) -> bool:
    served = getattr(getattr(thread, "_target", None), "__self__", None)
    return type(thread).__module__.startswith("py4j") or type(served).__module__.startswith("py4j")
