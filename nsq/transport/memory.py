"""A transport in memory that remembers every byte: for tests, ours and yours.

    transport = MemoryTransport()
    conn = connect_over(transport, "nsqd-a:4150")  # what is under test
    nsqd = transport.accept()                      # the other end, driven by the test
    nsqd.expect(b"  V2")
    nsqd.send(frame)
    nsqd.end()

Where the peer only has to answer, a script does it: ``MemoryTransport((b"  V2", b""), (b"PING",
b"PONG"))``. Every wait is a condition with a deadline, nothing polls. What a test waited for in vain raises
AssertionError. Must not import socket.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from nsq.errors import ConnectionLost, DialFailed, Unanswered

from .base import CHUNK

PATIENCE = 20.0
"""Seconds a test's own waits last, unless told otherwise."""

#: Seconds; no thread waits for anything while it holds a connection's lock.
_LONGEST_HELD = 1.0


class MemoryTransport:
    """Connects to any address, and hands the other end of each connection to the test.

    ``script`` is played by every connection: when the client has written the first of a pair, behind what
    earlier pairs took, the second is sent to it. Anything else from it breaks the connection and says so;
    after the last pair anything goes. ``chunk_size`` bounds what one read returns.
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
        """The other end of the next connection, in the order of their making."""
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
        """Takes a refusal back; without an address, all of them."""
        with self._changed:
            if address is None:
                self._refusals.clear()
            self._refusals.pop(address, None)

    @property
    def dials(self) -> list[str]:
        """Every address that was asked for, refused ones too."""
        with self._changed:
            return list(self._dials)

    @property
    def peers(self) -> list[MemoryPeer]:
        """The other end of every connection that was made, accepted by the test or not."""
        with self._changed:
            return list(self._peers)

    def wait_for_dials(self, count: int, timeout: float = PATIENCE) -> None:
        """Until so many dials were made, refused ones too."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._dials) >= count, timeout):
                raise AssertionError(f"not {count} dials within {timeout:g} s but {self._dials}")


class MemoryPeer:
    """The server's end of one connection: what the test, or the script, makes it do."""

    def __init__(
        self, address: str, script: tuple[tuple[bytes, bytes], ...] = (), chunk_size: int | None = None
    ) -> None:
        self.address = address
        self.chunk_size = chunk_size
        """The most that one read of the client returns; may be changed at any time."""
        # Guards everything below, of both ends, and announces every change to it.
        self._changed = threading.Condition()
        self._sent = bytearray()  # on its way to the client
        self._writes: list[bytes] = []
        self._received = bytearray()
        self._expected = 0  # bytes of it that expect() has seen
        self._script = deque(script)
        self._played = 0  # bytes of it that the script has seen
        self._room: int | None = None  # bytes that are still taken; None: any number
        self._finished = False
        self._failure: Exception | None = None
        #: What the client has done with its end.
        self.woken = self.closed = self.abandoned = False

    # What the peer does

    def send(self, data: bytes) -> None:
        with self._changed:
            self._sent += data
            self._changed.notify_all()

    def end(self) -> None:
        """The client reads what was sent before, and then the end; it may still write."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Reads raise this error once everything sent before has been read, writes at once."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def stall(self, after: int = 0) -> None:
        """Takes ``after`` more bytes and then no more: writes wait for their deadline."""
        with self._changed:
            self._room = after
            self._changed.notify_all()

    def resume(self) -> None:
        """Takes bytes again."""
        with self._changed:
            self._room = None
            self._changed.notify_all()

    # What the peer has seen

    @property
    def received(self) -> bytes:
        """Everything the client has written so far."""
        with self._changed:
            return bytes(self._received)

    @property
    def writes(self) -> list[bytes]:
        """The same, write by write."""
        with self._changed:
            return list(self._writes)

    @property
    def unread(self) -> bytes:
        """The bytes that were sent and the client has not read yet."""
        with self._changed:
            return bytes(self._sent)

    def expect(self, data: bytes, timeout: float = PATIENCE) -> None:
        """Waits until the next bytes, behind those expected before, are these; AssertionError otherwise."""
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
        """Waits until ``satisfied(received)``, and returns what was received by then."""
        with self._changed:
            if not self._changed.wait_for(lambda: satisfied(bytes(self._received)), timeout):
                got = bytes(self._received)
                raise AssertionError(f"{self.address} waited {timeout:g} s in vain; it received {got!r}")
            return bytes(self._received)

    def wait_closed(self, timeout: float = PATIENCE) -> None:
        """Waits until the client has closed or abandoned its end."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.closed, timeout):
                raise AssertionError(f"the client did not close {self.address} within {timeout:g} s")

    # The client's end; MemoryStream's side of it

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
    """The client's end: a Stream."""

    def __init__(self, peer: MemoryPeer) -> None:
        self.peer = peer.address
        self.read_timeout: float | None = None
        self._other_end = peer

    def read(self, limit: int = CHUNK) -> bytes:
        return self._other_end._read(limit, self.read_timeout)

    def write(self, data: bytes, timeout: float) -> None:
        self._other_end._write(data, timeout)

    def wake(self) -> None:
        self._other_end._leave()

    def close(self) -> None:
        self._other_end._leave(closed=True)

    def abandon(self) -> None:
        self._other_end._release_lock()
        self._other_end._leave(closed=True, abandoned=True)
