"""Reading one data file front to back in big chunks, each byte once, and judging what cannot be read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .framing import OVERHEAD, Bounds, cut, size_at
from .open_files import OpenFiles
from .segments import Flaw

CHUNK = 256 * 1024


class FileReader:
    """The records from an offset on. ``offset`` is where the next one begins, ``flaw`` why there is none.

    The spans point into ``buffer``, which holds until the next call.
    """

    def __init__(
        self,
        path: Path,
        offset: int,
        sizes: Bounds,
        files: OpenFiles | None = None,
        give_up: Callable[[], None] | None = None,
    ) -> None:
        """``give_up`` is told when ``files`` needs it closed."""
        self._files = OpenFiles(1) if files is None else files
        self._fd = self._files.open(path, os.O_RDONLY, give_up or self.close)
        self._sizes = sizes
        self._at = 0
        self.buffer = b""
        self.offset = offset
        self.flaw: Flaw | None = None

    def close(self) -> None:
        self._files.close(self._fd)

    def spans(self, limit: int, end: int) -> list[tuple[int, int]]:
        """Some of the records before ``end``, at most ``limit``; none at the end and before a flaw.

        ``end`` may have moved on since the last call, as the file is written to.
        """
        while self.flaw is None:
            found, bad = cut(self.buffer, self._at, limit, self._sizes)
            if found:
                at = found[-1][1]
                self.offset += at - self._at
                self._at = at
                return found
            if bad:
                self.flaw = self._judge(end)
            elif not self._fill(end):
                break
        return []

    def _fill(self, end: int) -> bool:
        """Read on, at least to the end of a record that has begun. False at the end."""
        rest = self.buffer[self._at :]
        behind = self.offset + len(rest)
        if behind >= end:
            if rest:
                self.flaw = self._cut_off(rest)
            return False
        missing = size_at(rest, 0) + OVERHEAD - len(rest) if len(rest) >= OVERHEAD else OVERHEAD
        chunk = self._read(behind, min(max(CHUNK, missing), end - behind))
        if not chunk:
            if self.flaw is None:
                self.flaw = Flaw(f"ends at byte {behind}, {end - behind} bytes too early", keep=bool(rest))
            return False
        self.buffer = rest + chunk
        self._at = 0
        return True

    def _read(self, offset: int, size: int) -> bytes:
        self._files.used(self._fd)
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            # A sector that is gone stays gone. Anything else may pass and is the caller's to wait for.
            if error.errno != errno.EIO:
                raise
            self.flaw = Flaw(f"cannot be read at byte {offset}: {error.strerror}", keep=True)
            return b""

    def _cut_off(self, rest: bytes) -> Flaw:
        if not any(rest):
            return self._zeros(len(rest))
        return Flaw(f"ends within the record at byte {self.offset}", keep=True)

    def _zeros(self, number: int) -> Flaw:
        return Flaw(f"holds nothing but {number} zeros from byte {self.offset} on", keep=False)

    def _judge(self, end: int) -> Flaw:
        size = size_at(self.buffer, self._at)
        if size == 0 and self._only_zeros(end):
            return self._zeros(end - self.offset)
        smallest, largest = self._sizes
        return Flaw(
            f"claims a record of {size} bytes at byte {self.offset}; it takes {smallest} to {largest}",
            keep=True,
        )

    def _only_zeros(self, end: int) -> bool:
        chunk = self.buffer[self._at :]
        behind = self.offset
        while chunk:
            if chunk.count(0) != len(chunk):
                return False
            behind += len(chunk)
            chunk = self._read(behind, min(CHUNK, end - behind)) if behind < end else b""
        return self.flaw is None


class Survey(NamedTuple):
    """How many records there are, how far they go, and why no further."""

    records: int
    end: int
    flaw: Flaw | None


def survey(path: Path, offset: int, end: int, sizes: Bounds) -> Survey:
    """Count the records between two offsets of a file."""
    reader = FileReader(path, offset, sizes)
    try:
        count = 0
        while spans := reader.spans(CHUNK, end):
            count += len(spans)
        return Survey(count, reader.offset, reader.flaw)
    finally:
        reader.close()
