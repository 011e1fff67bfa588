"""A minimal nsqd and a load in C, so fast that what is measured with them never waits for them.

They are compiled when they are first needed, into a directory that is deleted at the end.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import Broken, Place, numbers_of

_SOURCES = Path(__file__).parent


def nsqd(place: Place) -> Sequence[str]:
    return [_compiled("nsqd"), str(place.port)]


def load(name: str, *arguments: object) -> list[float]:
    """Run ``load NAME ARGUMENTS`` and return messages a second; its arguments are at the head of load.c."""
    return numbers_of([_compiled("load"), name, *map(str, arguments)])


def absence() -> str:
    """Return what is missing, empty if it can run here."""
    if not Path("/proc/self").exists():
        return "the servers and loads in C are for Linux"
    return "" if _compiler() else "there is no C compiler: install gcc, or set CC"


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CC") or "cc")


@functools.cache
def _compiled(name: str) -> str:
    compiler, program = _compiler(), str(Path(_directory().name, name))
    if compiler is None:
        raise Broken(absence())
    source = str(_SOURCES / f"{name}.c")
    argv = [compiler, "-O2", "-o", program, source]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise Broken(f"{compiler} does not compile {source}: {done.stderr.strip()[-500:]}")
    return program


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bench-")
