"""Uses a data directory as Go's nsqd does; shares no code with ours."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path


def topics(directory: Path) -> dict[str, list[str]]:
    """Return the list of topics, by name."""
    found = json.loads((directory / "nsqd.dat").read_bytes())["topics"] or []
    return {topic["name"]: [channel["name"] for channel in topic["channels"] or []] for topic in found}


def bodies(directory: Path, queue: str) -> list[bytes]:
    """Return the messages of ``topic`` or ``topic:channel``; fail where Go's nsqd would report an error."""
    meta = directory / f"{queue}.diskqueue.meta.dat"
    if not meta.exists():
        assert list(directory.glob(f"{queue}.diskqueue.*")) == []
        return []
    depth, read, write = (tuple(map(int, line.split(","))) for line in meta.read_text().split()[:3])
    found: list[bytes] = []
    file, offset = read
    while (file, offset) < write:
        content = (directory / f"{queue}.diskqueue.{file:06d}.dat").read_bytes()
        end = write[1] if file == write[0] else len(content)
        while offset < end:
            (size,) = struct.unpack_from(">i", content, offset)
            record = content[offset + 4 : offset + 4 + size]
            assert len(record) == size >= 26
            found.append(record[26:])
            offset += 4 + size
        assert offset == end
        if file < write[0]:
            file, offset = file + 1, 0
    if (last := directory / f"{queue}.diskqueue.{write[0]:06d}.dat").exists():
        assert last.stat().st_size == write[1]
    assert len(found) == depth[0]
    return found


class GoQueue:
    """The queue of ``topic`` or ``topic:channel`` after a start: it knows the files that the meta file names.

    As in go-diskqueue, which nsqd 1.3.0 uses.
    """

    def __init__(self, directory: Path, queue: str) -> None:
        self._directory = directory
        self._queue = queue
        self._read = self._write = (0, 0)
        if (meta := self._file("meta")).exists():
            # Fscanf of "%d\n%d,%d\n%d,%d\n": a verb skips spaces; what follows is not read.
            found = re.match(r" *-?\d+ *\n *(\d+), *(\d+) *\n *(\d+), *(\d+) *(\n|$)", meta.read_text())
            if found is not None:
                read_file, read_end, write_file, write_end = map(int, found.groups()[:4])
                self._read, self._write = (read_file, read_end), (write_file, write_end)
        last = self._file(f"{self._write[0]:06d}")
        if last.exists() and last.stat().st_size > self._write[1]:
            self._write = self._write[0] + 1, 0

    def bodies(self) -> list[bytes]:
        """Return the messages from the read position on, up to the write position."""
        found: list[bytes] = []
        file, offset = self._read
        while (file, offset) < self._write:
            content = self._file(f"{file:06d}").read_bytes()
            end = self._write[1] if file == self._write[0] else len(content)
            while offset < end:
                (size,) = struct.unpack_from(">i", content, offset)
                assert offset + 4 + size <= end
                found.append(content[offset + 4 + 26 : offset + 4 + size])
                offset += 4 + size
            file, offset = file + 1, 0
        return found

    def publish(self, body: bytes) -> None:
        file, offset = self._write
        record = bytes(26) + body
        descriptor = os.open(self._file(f"{file:06d}"), os.O_RDWR | os.O_CREAT, 0o600)  # not truncated
        os.pwrite(descriptor, struct.pack(">i", len(record)) + record, offset)
        os.close(descriptor)
        self._write = file, offset + 4 + len(record)

    def stop(self) -> None:
        read, write = (f"{file},{offset}\n" for file, offset in (self._read, self._write))
        self._file("meta").write_text(f"{len(self.bodies())}\n{read}{write}")

    def _file(self, name: str) -> Path:
        return self._directory / f"{self._queue}.diskqueue.{name}.dat"
