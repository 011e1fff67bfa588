"""The interface to whatever carries the client's bytes: a Transport makes Streams.

Anybody may write one: a proxy, a tunnel, a meter. Nothing above this folder knows sockets or catches OSError,
so an implementation raises what is said here and no other error. Imports nothing of the package.

Threads: one thread reads and one writes, at the same time; which thread writes may change, but never two at
once. ``wake``, ``close`` and setting ``read_timeout`` come from any thread at any moment. After any error of
``read`` except Unanswered, and after any of ``write`` (part of the data may have left), close the stream.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

CHUNK = 65536
"""The most that a read takes, unless told otherwise."""


@runtime_checkable
class Stream(Protocol):
    """A connected stream of bytes in both directions."""

    peer: str
    """The address that was dialed, for messages."""

    @property
    def read_timeout(self) -> float | None:
        """Seconds after which a read that has got nothing raises Unanswered; None waits for ever.

        Setting it takes effect with the next read, not with one that is blocked already.
        """

    @read_timeout.setter
    def read_timeout(self, seconds: float | None) -> None: ...

    def read(self, limit: int = CHUNK) -> bytes:
        """The bytes that are there, at least one, else those that come next; empty at the end of the stream.

        Unanswered when nothing came within ``read_timeout`` (reading on is allowed), ConnectionLost when the
        connection is broken. Always empty after ``wake`` or ``close``.
        """

    def write(self, data: bytes, timeout: float) -> None:
        """Hand over all of ``data`` within ``timeout`` seconds, else Unanswered; ConnectionLost when
        broken.
        """

    def wake(self) -> None:
        """End a blocked read at once and every later one: they return nothing. Writing goes on."""

    def close(self) -> None:
        """End the connection, and with it whatever read or write is blocked. Any thread, any number of times.

        It does not wait for these. What a stream holds (a descriptor) is given back when the last thread has
        left it, so that no thread ever works on a descriptor which by then is somebody else's.
        """

    def abandon(self) -> None:
        """Give back this process's descriptor in a forked child, without a word to the peer.

        The parent still talks over the connection; a shutdown or a farewell would end it for the parent too.
        Takes no lock, as the thread that held it at the fork does not exist in the child.
        """


@runtime_checkable
class Transport(Protocol):
    """Makes streams: the one place to plug in another way to reach an nsqd."""

    def connect(self, address: str, *, timeout: float) -> Stream:
        """A stream to ``address`` within ``timeout`` seconds, names looked up and all.

        DialFailed, and nothing else, when there is none: it names the address and the reason.
        """


class WrappedStream:
    """A Stream that leaves everything to the one inside, to build on: override what should be different.

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

    def wake(self) -> None:
        self.stream.wake()

    def close(self) -> None:
        self.stream.close()

    def abandon(self) -> None:
        self.stream.abandon()
