"""How a queue's files are called and what its meta file says. Pure: strings in, strings out.

``NAME.diskqueue.000000.dat`` and on hold the records, ``NAME.diskqueue.meta.dat`` says where reading and
writing go on. NAME is ``topic`` or ``topic:channel``; neither part can contain a colon.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_ANY_FILE = re.compile(r"(.+)\.diskqueue\.(?:meta|[0-9]{6,18})\.dat").fullmatch
_META = re.compile(r"(-?[0-9]{1,18})\n([0-9]{1,18}),([0-9]{1,18})\n([0-9]{1,18}),([0-9]{1,18})\n?").fullmatch

_INFIX = ".diskqueue."

TEMPORARY = ".tmp"
BAD = ".bad"


class Layout:
    """The file names of the queue called ``name``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stem = f"{name}{_INFIX}"
        self.meta = f"{self._stem}meta.dat"
        self._number = re.compile(re.escape(self._stem) + r"([0-9]{6,18})\.dat").fullmatch

    def data(self, number: int) -> str:
        return f"{self._stem}{number:06d}.dat"

    def number(self, filename: str) -> int | None:
        """The number of a data file of this queue, None for any other file."""
        match = self._number(filename)
        if match is None:
            return None
        number = int(match[1])
        return number if filename == self.data(number) else None

    def is_temporary(self, filename: str) -> bool:
        """Whether this is a meta file that never got its name."""
        return filename.startswith(f"{self.meta}.") and filename.endswith(TEMPORARY)


class Meta(NamedTuple):
    """``depth`` records lie between the place reading goes on and the one writing goes on."""

    depth: int
    read_file: int
    read_end: int
    write_file: int
    write_end: int

    def text(self) -> str:
        return f"{self.depth}\n{self.read_file},{self.read_end}\n{self.write_file},{self.write_end}\n"


def parse_meta(text: str) -> Meta | None:
    """None for what no meta file can say. The Go nsqd can leave a negative depth behind."""
    match = _META(text)
    if match is None:
        return None
    meta = Meta(*map(int, match.groups()))
    backwards = (meta.read_file, meta.read_end) > (meta.write_file, meta.write_end)
    return None if backwards else meta


def queue_names(filenames: Iterable[str]) -> list[str]:
    """The queues these files belong to, each once, in alphabetical order."""
    return sorted({match[1] for match in map(_ANY_FILE, filenames) if match})


def files_by_queue(filenames: Iterable[str]) -> dict[str, list[str]]:
    """Everything that could be a file of a queue, by the queue's name."""
    found: dict[str, list[str]] = {}
    for filename in filenames:
        name, dot, _ = filename.rpartition(_INFIX)
        if dot:
            found.setdefault(name, []).append(filename)
    return found


def queue_name(topic: str, channel: str | None = None) -> str:
    return topic if channel is None else f"{topic}:{channel}"


def topic_and_channel(name: str) -> tuple[str, str | None]:
    """The inverse of ``queue_name``."""
    topic, colon, channel = name.partition(":")
    return topic, channel if colon else None
