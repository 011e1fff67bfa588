"""A stream around another one, to build on: override what should be different.

    class Counting(WrappedStream):
        def write(self, data: bytes, timeout: float) -> None:
            super().write(data, timeout)
            counted(len(data))

Must not import socket: the stream inside may be anything.
"""

from __future__ import annotations

from .base import CHUNK, Stream


class WrappedStream:
    """A Stream that leaves everything to the one inside."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.peer = stream.peer

    @property
    def read_timeout(self) -> float | None:
        return self.stream.read_timeout

    @read_timeout.setter
    def read_timeout(self, seconds: float | None) -> None:
        self.stream.read_timeout = seconds

    def read(self, limit: int = CHUNK) -> bytes:
        return self.stream.read(limit)

    def write(self, data: bytes, timeout: float) -> None:
        self.stream.write(data, timeout)

    def wake(self) -> None:
        self.stream.wake()

    def close(self) -> None:
        self.stream.close()

    def abandon(self) -> None:
        self.stream.abandon()
