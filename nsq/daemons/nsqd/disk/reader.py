"""The read cursor of a queue: from file to file, over whatever is damaged or missing."""

from __future__ import annotations

from pathlib import Path

from .framing import Bounds
from .layout import Layout
from .log import Log
from .open_files import OpenFiles
from .reading import FileReader, survey
from .segments import Flaw, Position, Segment, Segments


class Reader:
    """Reads ahead of what is committed; ``cursor`` is the place behind the last record read."""

    def __init__(
        self,
        directory: Path,
        layout: Layout,
        segments: Segments,
        cursor: Position,
        sizes: Bounds,
        log: Log,
        files: OpenFiles,
    ) -> None:
        self._directory = directory
        self._layout = layout
        self._segments = segments
        self._sizes = sizes
        self._log = log
        self._files = files
        self._open: FileReader | None = None  # on the cursor's file
        self.cursor = cursor

    def read(self, limit: int) -> list[tuple[Position, bytes]]:
        found: list[tuple[Position, bytes]] = []
        while len(found) < limit:
            try:
                batch = self._read_file(limit - len(found))
                if not batch and not self._turn_to_next_file():
                    break
            except OSError:
                if found:
                    break  # The cursor stands behind what was found: the next call meets the fault again.
                raise
            found += batch
        return found

    def move(self, position: Position) -> None:
        self.close()
        self.cursor = position

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _read_file(self, limit: int) -> list[tuple[Position, bytes]]:
        """Some records of the cursor's file; none at its end or at its flaw."""
        file, end, ordinal = self.cursor
        segment = self._segments[file]
        reader = self._reader(segment) if end < segment.end else None
        if reader is None:
            return []
        spans = reader.spans(limit, segment.end)
        if reader.flaw is not None and not spans:
            self._spoil(segment, reader.flaw)
        if not spans:
            return []
        buffer = reader.buffer
        shift = reader.offset - spans[-1][1]
        batch = [
            (Position(file, shift + stop, number), buffer[start:stop])
            for number, (start, stop) in enumerate(spans, ordinal + 1)
        ]
        self.cursor = batch[-1][0]
        return batch

    def _reader(self, segment: Segment) -> FileReader | None:
        if self._open is None:
            path = self._directory / self._layout.data(segment.number)
            try:
                self._open = FileReader(path, self.cursor.end, self._sizes, self._files, self.close)
            except FileNotFoundError:
                self._spoil(segment, Flaw("is gone", keep=False))
        return self._open

    def _spoil(self, segment: Segment, flaw: Flaw) -> None:
        file = self._layout.data(segment.number)
        lost = segment.end - self.cursor.end
        self._log.error("DISKQUEUE(%s): %s %s; skipping %d bytes", self._layout.name, file, flaw.text, lost)
        segment.spoil(self.cursor.end, flaw)

    def _turn_to_next_file(self) -> bool:
        here = self._segments[self.cursor.file]
        following = self._segments.after(here.number)
        if following is None:
            if here.flaw is None:
                self._correct_the_count()
            return False
        if following.first is None:
            following.first = self._count_before(following) if here.flaw else self.cursor.ordinal
        elif here.flaw is None:
            self._report_wrong_depth(following.first - self.cursor.ordinal)
        self.move(Position(following.number, 0, following.first))
        return True

    def _count_before(self, segment: Segment) -> int:
        """How many records a flaw swallowed shows only when those up to the next known count are counted."""
        counted = 0
        for later in self._segments.since(segment.number):
            if later.first is not None:
                return later.first - counted
            path = self._directory / self._layout.data(later.number)
            try:
                counted += survey(path, 0, later.end, self._sizes).records
            except FileNotFoundError:
                continue  # Found out, and said, when reading gets there.
        return self._segments.count - counted

    def _correct_the_count(self) -> None:
        """At the very end the cursor knows best; the depth a meta file told may have been wrong."""
        self._report_wrong_depth(self._segments.count - self.cursor.ordinal)
        self._segments.count = self.cursor.ordinal

    def _report_wrong_depth(self, wrong: int) -> None:
        if wrong:
            self._log.warning("DISKQUEUE(%s): the depth was wrong by %d, corrected", self._layout.name, wrong)
