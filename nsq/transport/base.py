"""The interface to the network: a Transport makes Streams.

You may write your own: a proxy, a tunnel, a meter. Code outside this folder knows no sockets and catches no
OSError, so an implementation must raise only the errors named here. Imports nothing of the package.

Threads: one thread reads while one writes; another thread may take over writing, but two never write at once.
Any thread may call ``wake`` and ``close`` and set ``read_timeout`` at any moment. After any error of ``read``
except Unanswered, and after any of ``write`` (part of the data may have left), close the stream.

A stream may have one more method, ``readable() -> bool``: whether ``read`` would return at once, with data or
the end. Only over streams that have it does a blocking publish make a round trip of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

CHUNK = 65536
"""The default limit of one read, in bytes."""


@runtime_checkable
class Stream(Protocol):
    """A connected stream of bytes in both directions."""

    peer: str
    """The address that was dialed, for messages."""

    @property
    def read_timeout(self) -> float | None:
        """Seconds after which a read without any data raises Unanswered; None waits for ever.

        A new value takes effect with the next read, not with one that is blocked already.
        """

    @read_timeout.setter
    def read_timeout(self, seconds: float | None) -> None: ...

    def read(self, limit: int = CHUNK) -> bytes:
        """Return available bytes, or wait for some; empty at the end of the stream.

        Raises Unanswered when none came within ``read_timeout`` (you may read on), ConnectionLost when the
        connection is broken. Always empty after ``wake`` or ``close``.
        """

    def write(self, data: bytes, timeout: float) -> None:
        """Write all of ``data`` within ``timeout`` seconds, or raise Unanswered; ConnectionLost when the
        connection is broken.
        """

    def wake(self) -> None:
        """End a blocked read and all later ones at once: they return no bytes. Writing goes on."""

    def close(self) -> None:
        """End the connection, and with it a blocked read or write. Any thread, any number of times.

        Does not wait for blocked threads. The stream's descriptor is closed when the last thread has left the
        stream, so that no thread ever uses a descriptor that the process has given to another file.
        """

    def abandon(self) -> None:
        """Close the descriptor in a forked child, without sending anything to the peer.

        The parent still uses the connection; a shutdown or a farewell would end it for the parent too. Takes
        no lock, as a thread that held one at the fork does not exist in the child.
        """


@runtime_checkable
class Transport(Protocol):
    """Makes streams: implement it to reach an nsqd in another way."""

    def connect(self, address: str, *, timeout: float) -> Stream:
        """Return a stream to ``address`` within ``timeout`` seconds, including name lookups.

        Raises DialFailed on failure, and no other error: it names the address and the reason.
        """


class WrappedStream:
    """A Stream that passes every call to an inner stream. Subclass it and override methods:

    class Counting(WrappedStream):
        def write(self, data: bytes, timeout: float) -> None:
            super().write(data, timeout)
            counted(len(data))
    """

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

    @property
    def readable(self) -> Callable[[], bool] | None:
        return getattr(self.stream, "readable", None)

    def wake(self) -> None:
        self.stream.wake()

    def close(self) -> None:
        self.stream.close()

    def abandon(self) -> None:
        self.stream.abandon()
