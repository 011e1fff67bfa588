"""Appending to a queue's files: a batch is written whole or not at all, whatever the disk does."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Iterable
from pathlib import Path

from nsq.errors import InvalidMessage

from .doubt import Doubt
from .framing import OVERHEAD, Bounds, pack_size
from .layout import Layout
from .log import Log
from .open_files import OpenFiles
from .segments import Position, Segment, Segments


class _Piece:
    """What one append writes to one file."""

    __slots__ = ("number", "offset", "end", "first", "parts", "begun")

    def __init__(self, number: int, offset: int, first: int) -> None:
        self.number = number
        self.offset = offset
        self.end = offset
        self.first = first
        self.parts: list[bytes] = []
        self.begun = False


class Writer:
    """Writes behind the last segment. ``unsynced`` are the files with records no fsync has covered."""

    def __init__(
        self,
        directory: Path,
        layout: Layout,
        segments: Segments,
        sizes: Bounds,
        max_bytes: int,
        log: Log,
        files: OpenFiles,
    ) -> None:
        self._directory = directory
        self._layout = layout
        self._segments = segments
        self._sizes = sizes
        self._max_bytes = max_bytes
        self._log = log
        self._files = files
        # A full file stays open until it is synced: the system reports a failed write-back to those who
        # have the file open.
        self._open: dict[int, int] = {}
        self.unsynced: set[int] = set()
        #: Of the syncs that precede closing early.
        self.doubt = Doubt()

    def append(self, records: Iterable[bytes]) -> list[Position]:
        """The batch is in the files when this returns; when it raises, no part of it is."""
        pieces, positions = self._plan(records)
        try:
            for piece in pieces:
                self._write(piece)
        except OSError:
            self._undo(pieces)
            raise
        self._adopt(pieces)
        return positions

    def roll(self) -> None:
        """Leave the last file as it is and write to the next one from now on."""
        self._segments.add(Segment(self._segments.last.number + 1, 0, self._segments.count))
        self._close_what_is_synced()

    def synced(self, numbers: Iterable[int], written: Position) -> None:
        """These files were synced when the end was at ``written``."""
        last = self._segments.last
        for number in numbers:
            if number != last.number or written.place == (last.number, last.end):
                self.unsynced.discard(number)
                if number in self._open:
                    self._files.synced(self._open[number])
        self._close_what_is_synced()

    def forget(self, number: int) -> None:
        """This file is going to be removed."""
        self.unsynced.discard(number)
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

    def _give_up(self, number: int) -> None:
        """Too many files are open, and this one was not written to for the longest time.

        Behind the close nobody could learn that a write has failed after all: the sync has to find out.
        """
        descriptor = self._open.pop(number)
        try:
            if self._files.is_dirty(descriptor):
                os.fsync(descriptor)
        except OSError as error:
            self._log.error(
                "DISKQUEUE(%s): cannot sync %s: %s", self._layout.name, self._layout.data(number), error
            )
            self.doubt.arose(error)
        finally:
            self._files.close(descriptor)

    def _plan(self, records: Iterable[bytes]) -> tuple[list[_Piece], list[Position]]:
        """Which bytes go where. A file is full when the next record would carry it beyond the limit."""
        smallest, largest = self._sizes
        limit = self._max_bytes
        number, end, count = self._segments.written
        piece = _Piece(number, end, count)
        pieces = [piece]
        positions: list[Position] = []
        for record in records:
            size = len(record)
            if not smallest <= size <= largest:
                raise InvalidMessage(
                    f"a record of {size} bytes: {self._layout.name} takes {smallest} to {largest}"
                )
            if end and end + OVERHEAD + size > limit:
                piece.end = end
                number, end = number + 1, 0
                piece = _Piece(number, 0, count)
                pieces.append(piece)
            piece.parts += (pack_size(size), record)
            end += OVERHEAD + size
            count += 1
            positions.append(Position(number, end, count))
        piece.end = end
        return pieces, positions

    def _write(self, piece: _Piece) -> None:
        if not piece.parts:
            return
        unwritten = memoryview(b"".join(piece.parts))
        descriptor = self._descriptor(piece)
        self._files.wrote(descriptor)
        piece.begun = True
        offset = piece.offset
        while unwritten:
            written = os.pwrite(descriptor, unwritten, offset)
            if not written:
                raise OSError(errno.EIO, "nothing was written", self._layout.data(piece.number))
            offset += written
            unwritten = unwritten[written:]

    def _descriptor(self, piece: _Piece) -> int:
        descriptor = self._open.get(piece.number)
        if descriptor is None:
            # What lies under the name of a new file was left by an append that could not be undone.
            creation = 0 if piece.offset else os.O_CREAT | os.O_TRUNC
            path = self._directory / self._layout.data(piece.number)
            give_up = functools.partial(self._give_up, piece.number)
            descriptor = self._open[piece.number] = self._files.open(path, os.O_WRONLY | creation, give_up)
        return descriptor

    def _adopt(self, pieces: list[_Piece]) -> None:
        for piece in pieces:
            if piece.number != self._segments.last.number:
                self._segments.add(Segment(piece.number, 0, piece.first))
            self._segments.last.end = piece.end
            self._segments.count = piece.first + len(piece.parts) // 2
            if piece.parts:
                self.unsynced.add(piece.number)

    def _undo(self, pieces: list[_Piece]) -> None:
        last = self._segments.last.number
        for piece in reversed(pieces):
            try:
                if piece.number != last:
                    self._discard(piece)
                elif last in self._open:
                    os.ftruncate(self._open[last], piece.offset)
                elif piece.begun:
                    os.truncate(self._directory / self._layout.data(last), piece.offset)
            except OSError as error:
                file = self._layout.data(piece.number)
                self._log.error(
                    "DISKQUEUE(%s): cannot take a failed write to %s back: %s", self._layout.name, file, error
                )
                if piece.number == last:
                    # Its end stays where it was, so what is behind is not read; nothing may follow there.
                    self.roll()

    def _discard(self, piece: _Piece) -> None:
        descriptor = self._open.pop(piece.number, None)
        if descriptor is not None:
            self._files.close(descriptor)
        if descriptor is not None or piece.begun:
            (self._directory / self._layout.data(piece.number)).unlink(missing_ok=True)
