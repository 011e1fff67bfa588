"""Appends records to the files of a queue: a batch completely or not at all."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from nsq.daemons.nsqd.disk.layout import (
    SIZE_BYTES,
    Bounds,
    Layout,
    Log,
    Position,
    Segment,
    Segments,
    pack_size,
)
from nsq.daemons.nsqd.disk.syncing import OpenFiles, truncate_regular, write_at
from nsq.errors import InvalidMessage


class NotUndone(OSError):
    """An append has failed, and its undoing too: nsqd may find the records at its next start."""


class _Piece:
    """The part of an append that is written to one file."""

    __slots__ = ("number", "offset", "end", "first", "parts", "begun")

    def __init__(self, number: int, offset: int, first: int) -> None:
        self.number = number
        self.offset = offset
        self.end = offset
        self.first = first
        self.parts: list[bytes] = []
        self.begun = False


class Writer:
    """Appends to the last segment. ``unsynced`` has the numbers of files with unsynced records."""

    def __init__(
        self,
        directory: Path,
        layout: Layout,
        segments: Segments,
        sizes: Bounds,
        max_bytes: int,
        log: Log,
        files: OpenFiles,
        name_file: Callable[[Position], None],
    ) -> None:
        """``name_file`` is called before an append succeeds, with the end of its last file as it was."""
        self._directory = directory
        self._layout = layout
        self._segments = segments
        self._sizes = sizes
        self._max_bytes = max_bytes
        self._log = log
        self._files = files
        self._name_file = name_file
        # A full file stays open until it is synced: the system reports a failed write-back only to
        # descriptors that were open at that time.
        self._open: dict[int, int] = {}
        self.unsynced: set[int] = set()
        #: Files whose last fsync failed; see ``SyncJob``.
        self.failed: set[Path] = set()

    def append(self, records: Iterable[bytes]) -> list[Position]:
        """Write the batch; if this raises, no part of it is in the files, except for NotUndone."""
        pieces, positions = self._plan(records)
        try:
            for piece in pieces:
                self._write(piece)
            if (last := pieces[-1]).parts:
                self._name_file(Position(last.number, last.offset, last.first))
        except OSError as error:
            if not self._undo(pieces):
                raise NotUndone(error.errno, error.strerror, error.filename) from error
            raise
        self._record(pieces)
        return positions

    def roll(self) -> None:
        """Write to a new file from now on."""
        self._segments.add(Segment(self._segments.last.number + 1, 0, self._segments.count))
        self._close_what_is_synced()

    def synced(self, sizes: Mapping[int, int]) -> None:
        """Note that these files were synced, each up to this size. A file may have grown since."""
        for number, size in sizes.items():
            if number in self.unsynced and self._segments[number].end <= size:
                self.unsynced.discard(number)
                if number in self._open:
                    self._files.synced(self._open[number])
        self._close_what_is_synced()

    def forget(self, number: int) -> None:
        """Close the file, which is going to be removed."""
        self.unsynced.discard(number)
        self.failed.discard(self._directory / self._layout.data(number))
        if number in self._open:
            self._files.close(self._open.pop(number))

    def close(self) -> None:
        for number in [*self._open]:
            self._files.close(self._open.pop(number))
        self.unsynced.clear()

    def _close_what_is_synced(self) -> None:
        for number in [*self._open]:
            if number != self._segments.last.number and number not in self.unsynced:
                self._files.close(self._open.pop(number))

    def _close_early(self, number: int) -> None:
        """Close the file, because too many are open and this one is the least recently used.

        Sync it first: after the close a failed write would go unnoticed.
        """
        descriptor = self._open.pop(number)
        try:
            if self._files.is_dirty(descriptor):
                os.fsync(descriptor)
        except OSError as error:
            self._log.error(
                "DISKQUEUE(%s): cannot sync %s: %s", self._layout.name, self._layout.data(number), error
            )
            self.failed.add(self._directory / self._layout.data(number))
        finally:
            self._files.close(descriptor)

    def _plan(self, records: Iterable[bytes]) -> tuple[list[_Piece], list[Position]]:
        """Split the records into files. A file is full when the next record would exceed the limit."""
        smallest, largest = self._sizes
        limit = self._max_bytes
        number, end, count = self._segments.written
        piece = _Piece(number, end, count)
        pieces = [piece]
        positions: list[Position] = []
        new = tuple.__new__  # a Position in half the time
        for record in records:
            size = len(record)
            if not smallest <= size <= largest:
                raise InvalidMessage(
                    f"a record of {size} bytes: {self._layout.name} takes {smallest} to {largest}"
                )
            if end and end + SIZE_BYTES + size > limit:
                piece.end = end
                number, end = number + 1, 0
                piece = _Piece(number, 0, count)
                pieces.append(piece)
            piece.parts += (pack_size(size), record)
            end += SIZE_BYTES + size
            count += 1
            positions.append(new(Position, (number, end, count)))
        piece.end = end
        return pieces, positions

    def _write(self, piece: _Piece) -> None:
        if not piece.parts:
            return
        content = b"".join(piece.parts)
        descriptor = self._descriptor(piece)
        self._files.wrote(descriptor)
        piece.begun = True
        write_at(descriptor, content, piece.offset)

    def _descriptor(self, piece: _Piece) -> int:
        descriptor = self._open.get(piece.number)
        if descriptor is None:
            # Truncate a new file: an append that could not be undone may have left one of that name.
            creation = 0 if piece.offset else os.O_CREAT | os.O_TRUNC
            path = self._directory / self._layout.data(piece.number)
            close = functools.partial(self._close_early, piece.number)
            descriptor = self._open[piece.number] = self._files.open(path, os.O_WRONLY | creation, close)
        return descriptor

    def _record(self, pieces: list[_Piece]) -> None:
        for piece in pieces:
            if piece.number != self._segments.last.number:
                self._segments.add(Segment(piece.number, 0, piece.first))
            self._segments.last.end = piece.end
            self._segments.count = piece.first + len(piece.parts) // 2
            if piece.parts:
                self.unsynced.add(piece.number)

    def _undo(self, pieces: list[_Piece]) -> bool:
        """Take back what was written; return whether that worked."""
        last, undone = self._segments.last.number, True
        for piece in reversed(pieces):
            try:
                if piece.number != last:
                    self._discard(piece)
                elif last in self._open:
                    os.ftruncate(self._open[last], piece.offset)
                elif piece.begun:
                    truncate_regular(self._directory / self._layout.data(last), piece.offset)
            except OSError as error:
                undone = False
                file = self._layout.data(piece.number)
                self._log.error(
                    "DISKQUEUE(%s): cannot undo a failed write to %s: %s", self._layout.name, file, error
                )
                if piece.number == last:
                    # The recorded end is unchanged, so the bytes after it are never read; append elsewhere.
                    self.roll()
        return undone

    def _discard(self, piece: _Piece) -> None:
        descriptor = self._open.pop(piece.number, None)
        if descriptor is not None:
            self._files.close(descriptor)
        if descriptor is not None or piece.begun:
            (self._directory / self._layout.data(piece.number)).unlink(missing_ok=True)
