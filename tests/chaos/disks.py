"""A disk that can be full: a small file system of its own if root may make one, else a limit of the
process.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

from nsq.testing import Nsqd

_PIECE = bytes(64 * 1024)


class SmallDisk:
    """A tmpfs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._filler = place / "somebody elses file"

    def fill(self, nsqd: Nsqd) -> None:
        with self._filler.open("wb", buffering=0) as file:
            try:
                while file.write(_PIECE):
                    pass
            except OSError:
                return

    def free(self, nsqd: Nsqd) -> None:
        self._filler.unlink(missing_ok=True)

    def remove(self) -> None:
        subprocess.run(["umount", "-l", str(self.place)], check=True)


class LimitedProcess:
    """No file of the process may grow."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def fill(self, nsqd: Nsqd) -> None:
        resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE, (0, self._hard))

    def free(self, nsqd: Nsqd) -> None:
        if nsqd.running:
            resource.prlimit(nsqd.pid, resource.RLIMIT_FSIZE, (self._hard, self._hard))

    def remove(self) -> None:
        pass


Disk = SmallDisk | LimitedProcess


def make_disk(place: Path) -> Disk:
    place.mkdir()
    if os.geteuid() == 0 and shutil.which("mount") is not None:
        command = ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(place)]
        if not subprocess.run(command, capture_output=True, check=False).returncode:
            return SmallDisk(place)
    return LimitedProcess(place)
