"""Reads a data directory as Go's nsqd does at its start; shares no code with ours."""

from __future__ import annotations

import json
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
    depth, read, write = (tuple(map(int, line.split(","))) for line in meta.read_text().splitlines())
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
