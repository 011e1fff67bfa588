"""Finds the processes that a Spark driver has started: their environment has its mark.

Linux only: /proc is asked.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MARK = "NSQ_SPARK_MARK"

#: Who is who, by what stands in the command line.
DRIVER = "tests.chaos.spark_driver"
JVM = "org.apache.spark.deploy.SparkSubmit"
EXECUTOR = "CoarseGrainedExecutorBackend"
RUNNER = "python_streaming_source_runner"
RECEIVER = "nsq.spark.receiver"


def marked(mark: str) -> dict[int, str]:
    """The living processes with this mark, with their command lines."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # gone meanwhile, or another user's
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                found[int(name)] = words.decode(errors="replace")
    return found


def called(mark: str, *roles: str) -> list[int]:
    """The processes by role. Those that could restart others come first."""
    alive = marked(mark)
    return [pid for role in roles for pid, command in alive.items() if role in command]


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ancestor(pid: int, among: Iterable[int]) -> int:
    """Which of them has started it, or who did."""
    wanted = set(among)
    while pid not in wanted:
        if pid <= 1:
            raise LookupError(f"it descends from none of {sorted(wanted)}")
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid
