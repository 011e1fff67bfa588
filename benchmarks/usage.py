"""Memory and CPU time of another process, read from Linux's /proc."""

from __future__ import annotations

import os
import re
from pathlib import Path

KILOBYTE = 1000
MEGABYTE = 1000 * KILOBYTE


def resident_memory(pid: int) -> int:
    return _status(pid, "VmRSS")


def peak_memory(pid: int) -> int:
    """Return the peak memory in bytes."""
    return _status(pid, "VmHWM")


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process; 0 where there is no /proc."""
    if not Path("/proc/self/stat").exists():
        return 0.0
    # The name, in parentheses, may hold spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status(pid: int, key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/{pid}/status has no {key}")
    return int(found[1]) * 1024
