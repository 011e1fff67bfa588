"""A transport in memory that records every byte: for our tests and yours.

    transport = MemoryTransport()
    conn = connect_over(transport, "nsqd-a:4150")  # the code under test
    nsqd = transport.accept()                      # the other end, driven by the test
    nsqd.expect(b"  V2")
    nsqd.send(frame)
    nsqd.end()

If the peer only has to answer, write a script: ``MemoryTransport((b"  V2", b""), (b"PING", b"PONG"))``. Every
wait is on a condition and has a deadline; no code polls. A test's wait that fails raises AssertionError. Must
not import socket.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from nsq.errors import ConnectionLost, DialFailed, Unanswered

from .base import CHUNK

PATIENCE = 20.0
"""The default timeout of a test's waits, in seconds."""

#: Seconds; a thread that holds a connection's lock waits for nothing, and releases it well within this time.
_LONGEST_HELD = 1.0


class MemoryTransport:
    """Connects to any address, and hands the other end of each connection to the test.

    Every connection plays ``script``: when the client has written the first of a pair, after the bytes of
    earlier pairs, it is sent the second. If it writes other bytes, the connection breaks with an error that
    names them; after the last pair it may write any. ``chunk_size`` bounds the result of one read.
    """

    def __init__(self, *script: tuple[bytes, bytes], chunk_size: int | None = None) -> None:
        self._script = script
        self._chunk_size = chunk_size
        self._changed = threading.Condition()
        self._refusals: dict[str | None, str] = {}
        self._dials: list[str] = []
        self._peers: list[MemoryPeer] = []
        self._accepted = 0

    def connect(self, address: str, *, timeout: float) -> MemoryStream:
        peer = MemoryPeer(address, self._script, self._chunk_size)
        with self._changed:
            self._dials.append(address)
            self._changed.notify_all()
            reason = self._refusals.get(address, self._refusals.get(None))
            if reason is not None:
                raise DialFailed(f"cannot connect to {address}: {reason}")
            self._peers.append(peer)
        return MemoryStream(peer)

    def accept(self, timeout: float = PATIENCE) -> MemoryPeer:
        """Wait for the next connection, in the order of dials, and return its other end."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._peers) > self._accepted, timeout):
                raise AssertionError(
                    f"no client connected within {timeout:g} s; dialed so far: {self._dials}"
                )
            self._accepted += 1
            return self._peers[self._accepted - 1]

    def refuse(self, address: str | None = None, reason: str = "connection refused") -> None:
        """Refuse dials of this address, or of every address, from now on."""
        with self._changed:
            self._refusals[address] = reason

    def admit(self, address: str | None = None) -> None:
        """Undo ``refuse`` for this address, or for all."""
        with self._changed:
            if address is None:
                self._refusals.clear()
            self._refusals.pop(address, None)

    @property
    def dials(self) -> list[str]:
        """Every address that was dialed, refused ones too."""
        with self._changed:
            return list(self._dials)

    @property
    def peers(self) -> list[MemoryPeer]:
        """The other end of every connection, accepted by the test or not."""
        with self._changed:
            return list(self._peers)

    def wait_for_dials(self, count: int, timeout: float = PATIENCE) -> None:
        """Wait until there were ``count`` dials, refused ones too."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._dials) >= count, timeout):
                raise AssertionError(f"not {count} dials within {timeout:g} s but {self._dials}")


class MemoryPeer:
    """The server's end of one connection, driven by the test or the script."""

    def __init__(
        self, address: str, script: tuple[tuple[bytes, bytes], ...] = (), chunk_size: int | None = None
    ) -> None:
        self.address = address
        self.chunk_size = chunk_size
        """The most bytes that one read of the client returns; may be changed at any time."""
        # Guards everything below, for both ends, and announces every change.
        self._changed = threading.Condition()
        self._sent = bytearray()  # on its way to the client
        self._writes: list[bytes] = []
        self._received = bytearray()
        self._expected = 0  # bytes of ``_received`` that expect() has seen
        self._script = deque(script)
        self._played = 0  # bytes of ``_received`` that the script has seen
        self._room: int | None = None  # bytes that we still take; None: any number
        self._finished = False
        self._failure: Exception | None = None
        #: Whether the client has woken, closed or abandoned its end.
        self.woken = self.closed = self.abandoned = False

    # Actions of the peer

    def send(self, data: bytes) -> None:
        with self._changed:
            self._sent += data
            self._changed.notify_all()

    def end(self) -> None:
        """End the stream: the client reads earlier bytes, then the end; it may still write."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Break the connection: writes raise this error at once, reads after all earlier bytes."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def stall(self, after: int = 0) -> None:
        """Take ``after`` more bytes and then no more: writes wait for their deadline."""
        with self._changed:
            self._room = after
            self._changed.notify_all()

    def resume(self) -> None:
        """Take bytes again."""
        with self._changed:
            self._room = None
            self._changed.notify_all()

    # Observations of the peer

    @property
    def received(self) -> bytes:
        """Everything the client has written so far."""
        with self._changed:
            return bytes(self._received)

    @property
    def writes(self) -> list[bytes]:
        """The bytes of each write of the client so far."""
        with self._changed:
            return list(self._writes)

    @property
    def unread(self) -> bytes:
        """The bytes that we have sent and the client has not read yet."""
        with self._changed:
            return bytes(self._sent)

    def expect(self, data: bytes, timeout: float = PATIENCE) -> None:
        """Wait until the next bytes, after those expected before, are these; else AssertionError."""
        with self._changed:
            start, end = self._expected, self._expected + len(data)
            self._changed.wait_for(
                lambda: len(self._received) >= end or not data.startswith(self._received[start:]), timeout
            )
            got = bytes(self._received[start:end])
            if got != data:
                raise AssertionError(
                    f"{self.address} expected {data!r}, received {got!r} within {timeout:g} s"
                )
            self._expected = end

    def wait_until(self, satisfied: Callable[[bytes], bool], timeout: float = PATIENCE) -> bytes:
        """Wait until ``satisfied(received)`` is true, and return the bytes received by then."""
        with self._changed:
            if not self._changed.wait_for(lambda: satisfied(bytes(self._received)), timeout):
                got = bytes(self._received)
                raise AssertionError(f"{self.address} waited {timeout:g} s in vain; it received {got!r}")
            return bytes(self._received)

    def wait_closed(self, timeout: float = PATIENCE) -> None:
        """Wait until the client has closed or abandoned its end."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.closed, timeout):
                raise AssertionError(f"the client did not close {self.address} within {timeout:g} s")

    # The client's end, for MemoryStream

    def _read(self, limit: int, timeout: float | None) -> bytes:
        with self._changed:
            if not self._changed.wait_for(
                lambda: self.woken or self._sent or self._finished or self._failure, timeout
            ):
                raise Unanswered(f"{self.address}: nothing was received within {timeout:.3g} s")
            if self.woken:
                return b""
            if self._sent:
                size = limit if self.chunk_size is None else min(limit, self.chunk_size)
                data = bytes(self._sent[:size])
                del self._sent[:size]
                return data
            if self._failure is not None:
                raise self._failure
            return b""

    def _readable(self) -> bool:
        with self._changed:
            return bool(self.woken or self._sent or self._finished or self._failure)

    def _write(self, data: bytes, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._changed:
            rest = bytes(data)
            while rest:
                if not self._changed.wait_for(
                    lambda: self.closed or self._failure or self._room != 0,
                    max(deadline - time.monotonic(), 0.0),
                ):
                    count = f"{len(rest)} of {len(data)} bytes"
                    raise Unanswered(f"{self.address}: {count} were not taken within {timeout:.3g} s")
                if self.closed:
                    raise ConnectionLost(f"{self.address}: the connection was closed on this side")
                if self._failure is not None:
                    raise self._failure
                taken = rest[: self._room]
                rest = rest[len(taken) :]
                if self._room is not None:
                    self._room -= len(taken)
                self._writes.append(taken)
                self._received += taken
                self._play()
                self._changed.notify_all()

    def _play(self) -> None:
        while self._script:
            expected, answer = self._script[0]
            got = bytes(self._received[self._played : self._played + len(expected)])
            if got != expected:
                if not expected.startswith(got):
                    text = f"{self.address}: the script has {expected!r} next, but {got!r} was written"
                    self._failure = ConnectionLost(text)
                return
            self._script.popleft()
            self._played += len(expected)
            self._sent += answer

    def _release_lock(self) -> None:
        """Free the lock in a forked child: a thread that held it at the fork never releases it here."""
        if self._changed.acquire(timeout=_LONGEST_HELD):
            self._changed.release()
        else:
            self._changed = threading.Condition()

    def _leave(self, *, closed: bool = False, abandoned: bool = False) -> None:
        with self._changed:
            self.woken = True
            self.closed |= closed
            self.abandoned |= abandoned
            self._changed.notify_all()


class MemoryStream:
    """The client's end of a connection: a Stream."""

    def __init__(self, peer: MemoryPeer) -> None:
        self.peer = peer.address
        self.read_timeout: float | None = None
        self._other_end = peer

    def read(self, limit: int = CHUNK) -> bytes:
        return self._other_end._read(limit, self.read_timeout)

    def readable(self) -> bool:
        return self._other_end._readable()

    def write(self, data: bytes, timeout: float) -> None:
        self._other_end._write(data, timeout)

    def wake(self) -> None:
        self._other_end._leave()

    def close(self) -> None:
        self._other_end._leave(closed=True)

    def abandon(self) -> None:
        self._other_end._release_lock()
        self._other_end._leave(closed=True, abandoned=True)
