"""Opens a queue with whatever files exist: never refuses, and keeps every readable record.

The meta file is used if the data agrees with it. Records after the end that it gives were written later (the
process was killed): they are counted and kept. If meta file and data contradict each other, all records are
counted instead.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from nsq.daemons.nsqd.disk.layout import (
    SIZE_BYTES,
    Bounds,
    Layout,
    Log,
    Meta,
    Position,
    Segment,
    Segments,
    parse_meta,
)
from nsq.daemons.nsqd.disk.reading import Survey, survey
from nsq.daemons.nsqd.disk.syncing import read_regular


class Recovered(NamedTuple):
    segments: Segments
    committed: Position
    has_meta: bool  # whether there is a meta file
    meta: Meta | None  # the meta file, if it is valid
    unsynced: set[int]  # the files with records that the meta file does not cover


class Recovery:
    """Recovers one queue at start-up; call ``run`` once."""

    def __init__(
        self, directory: Path, files: Iterable[str], layout: Layout, sizes: Bounds, log: Log
    ) -> None:
        self._directory = directory
        self._files = files
        self._layout = layout
        self._sizes = sizes
        self._log = log
        self._lengths: dict[int, int] = {}
        self._unsynced: set[int] = set()

    def run(self) -> Recovered:
        self._list_data_files()
        text = self._meta_text()
        found = parse_meta(text) if text is not None else None
        if found is None:
            self._explain_missing_meta(text)
            meta, believed = self._without_meta(), False
        else:
            meta = found
            self._remove_what_was_read(meta)
            believed = self._agrees_with_data(meta)
        segments = [Segment(number, length) for number, length in sorted(self._lengths.items())]
        known = self._known(segments, meta, self._count(segments, meta, believed))
        return Recovered(known, self._committed(known, meta), text is not None, found, self._unsynced)

    def _known(self, segments: list[Segment], meta: Meta, depth: int) -> Segments:
        number = self._number_to_write(segments, meta)
        files = {segment.number: segment for segment in segments}
        last = files.pop(number, None) or Segment(number, 0, depth)
        ordered = [*files.values(), last]
        known = Segments(ordered[0], depth)
        for segment in ordered[1:]:
            known.add(segment)
        return known

    def _committed(self, segments: Segments, meta: Meta) -> Position:
        first = next(segments.since(meta.read_file))
        if first.number != meta.read_file:
            return Position(first.number, 0, 0)
        return Position(first.number, min(meta.read_end, first.end), 0)

    def _list_data_files(self) -> None:
        for path in [self._directory / name for name in self._files]:
            number = self._layout.number(path.name)
            if number is not None and path.is_file():
                self._lengths[number] = path.stat().st_size
            elif self._layout.is_temporary(path.name):
                self._remove(path, "a meta file that was never finished")

    def _meta_text(self) -> str | None:
        try:
            return read_regular(self._directory / self._layout.meta).decode("latin-1")
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # temporary, and not a problem of this file
            self._warn("%s cannot be read: %s", self._layout.meta, error)
            return ""

    def _explain_missing_meta(self, text: str | None) -> None:
        if text is not None:
            self._warn("%s is invalid: %r; using the data instead", self._layout.meta, text[:100])
        elif self._lengths:
            self._warn("%s is missing; using the data instead", self._layout.meta)

    def _without_meta(self) -> Meta:
        first, last = min(self._lengths, default=0), max(self._lengths, default=0)
        return Meta(0, first, 0, last, self._lengths.get(last, 0))

    def _remove_what_was_read(self, meta: Meta) -> None:
        for number in [number for number in self._lengths if number < meta.read_file]:
            del self._lengths[number]
            self._remove(self._directory / self._layout.data(number), "read to its end before")

    def _agrees_with_data(self, meta: Meta) -> bool:
        """Whether all data that the meta file describes exists; further data does not matter."""
        lengths = self._lengths
        complete = [lengths[number] for number in lengths if number < meta.write_file]
        if len(complete) != meta.write_file - meta.read_file:
            missing = meta.write_file - meta.read_file - len(complete)
            self._warn("%d files from %d to %d are missing", missing, meta.read_file, meta.write_file - 1)
            return False
        if lengths.get(meta.write_file, 0) < meta.write_end or lengths.get(meta.read_file, 0) < meta.read_end:
            self._warn("%s points past the end of the data", self._layout.meta)
            return False
        size = sum(complete) + meta.write_end - meta.read_end
        smallest, largest = self._sizes
        if not meta.depth * (SIZE_BYTES + smallest) <= size <= meta.depth * (SIZE_BYTES + largest):
            self._warn("a depth of %d does not match %d bytes", meta.depth, size)
            return False
        return True

    def _count(self, segments: list[Segment], meta: Meta, believed: bool) -> int:
        """Return the depth: count the records that the meta file does not cover, or all if it is wrong."""
        if believed:
            depth, start = meta.depth, (meta.write_file, meta.write_end)
        else:
            depth, start = 0, (meta.read_file, meta.read_end)
        for segment in segments:
            if segment.number < start[0]:
                continue
            offset = start[1] if segment.number == start[0] else 0
            if not offset:
                segment.first = depth
            depth += self._survey(segment, offset)
        return depth

    def _survey(self, segment: Segment, offset: int) -> int:
        if segment.end <= offset:
            return 0
        self._unsynced.add(segment.number)
        file = self._layout.data(segment.number)
        try:
            found = survey(self._directory / file, offset, segment.end, self._sizes)
        except OSError as error:
            self._warn("%s cannot be read: %s", file, error)
            return 0
        self._report(segment, offset, found)
        if found.flaw is not None:
            segment.mark_damaged(found.end, found.flaw)
        return found.records

    def _report(self, segment: Segment, offset: int, found: Survey) -> None:
        file = self._layout.data(segment.number)
        self._warn("%s has %d records from byte %d on", file, found.records, offset)
        if found.flaw is not None:
            self._warn("%s %s; skipping %d bytes", file, found.flaw.text, segment.end - found.end)

    def _number_to_write(self, segments: list[Segment], meta: Meta) -> int:
        """Return the file to append to; a new one unless the data ends exactly where the meta file says.

        New records must not follow unread records in the same file: damage found there later would hide them.
        And nsqd writes through no link.
        """
        last = segments[-1] if segments else Segment(meta.write_file, 0)
        if (self._directory / self._layout.data(last.number)).is_symlink():
            return max(last.number, meta.write_file) + 1
        if (
            last.number == meta.write_file
            and last.end
            and (meta.read_file, meta.read_end) < (last.number, last.end)
        ):
            return meta.write_file + 1
        if last.number < meta.write_file and not meta.write_end:
            return meta.write_file
        if last.number == meta.write_file and last.end == meta.write_end and last.flaw is None:
            return meta.write_file
        return max(last.number, meta.write_file) + 1

    def _remove(self, path: Path, why: str) -> None:
        self._log.info("DISKQUEUE(%s): removing %s: %s", self._layout.name, path.name, why)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._warn("cannot remove %s: %s", path.name, error)

    def _warn(self, message: str, *args: object) -> None:
        self._log.warning(f"DISKQUEUE(%s): {message}", self._layout.name, *args)


def recover(directory: Path, files: Iterable[str], layout: Layout, sizes: Bounds, log: Log) -> Recovered:
    """Open a queue's files. ``files`` are the names that may belong to it; others are ignored."""
    return Recovery(directory, files, layout, sizes, log).run()
