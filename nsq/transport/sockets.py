"""A Stream over a connected socket, TCP or Unix.

A read is one blocking ``recv`` with SO_RCVTIMEO, a write one non-blocking ``send``, plus ``poll`` only when
the peer is slow: one system call for each. ``socket.settimeout`` would call ``poll`` before every call, and
applies to the socket, not to a direction. Only sockets that gevent has patched need it, as these ignore
SO_RCVTIMEO: there each direction has a socket object of its own on the one connection, made by ``dup``.

The last thread to leave closes the descriptor. ``close`` shuts the connection down, which ends a blocked recv
or send; then the last thread (the reader, the writer or the closer itself) closes. Closing earlier would free
the number while a thread is about to use it, and the next file or connection of this process would get it.

The one reader and the one writer each have a flag for being inside, instead of a lock, as they come for every
chunk: each sets its flag before it looks whether the stream is closed, and the closer sets ``_closed`` before
it looks at the flags, so that one of the two always sees the other.
"""

from __future__ import annotations

import errno
import math
import select
import socket
import struct
import threading
import time
from contextlib import suppress

from nsq.errors import ConfigError, ConnectionLost, Unanswered

from .base import CHUNK

_TIMEVAL = struct.Struct("@ll")
_LONGEST = 10**9  # seconds; for the kernel this means for ever, or nearly so
_LONGEST_TIMEOUT = 10**6  # seconds; poll counts milliseconds in 32 bits
_LONGEST_POLL = 2**31 - 1  # milliseconds
# Sending to a closed peer must raise an error, not a signal, even if a program has restored SIGPIPE.
_AT_ONCE = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


class SocketStream:
    """A Stream over ``sock``, which must be connected and which it closes. ``listed`` holds it until then."""

    def __init__(self, sock: socket.socket, peer: str, listed: set[SocketStream] | None = None) -> None:
        self.peer = peer
        self._in = self._out = sock
        self._patched = type(sock).__module__.startswith("gevent")
        if self._patched:
            self._out = sock.dup()
            self._out.setblocking(False)
            self._in.settimeout(_LONGEST_TIMEOUT)
        else:
            sock.setblocking(True)
        self._read_timeout: float | None = None
        self._reading = self._writing = False
        self._lock = threading.Lock()  # guards ``_inside``; never held during a call that can block
        self._inside = 0  # other threads that may be using the descriptors
        self._woken = False
        self._closed = False
        self._token = [None]  # taken by the thread that closes the descriptors
        self._poll: select.poll | None = None  # made by ``readable``
        self._listed = listed
        if listed is not None:
            listed.add(self)

    @property
    def local_ip(self) -> str | None:
        """The IP address that the connection comes from."""
        try:
            name = self._in.getsockname()
        except OSError:  # closed
            return None
        return str(name[0]) if isinstance(name, tuple) else None  # else a Unix socket

    @property
    def read_timeout(self) -> float | None:
        return self._read_timeout

    @read_timeout.setter
    def read_timeout(self, seconds: float | None) -> None:
        if seconds is not None and not seconds > 0:
            raise ConfigError(
                f"read_timeout is {seconds}, must be more than 0 seconds, or None to wait for ever"
            )
        if not self._enter():
            return
        try:
            self._read_timeout = seconds
            if self._patched:
                self._in.settimeout(min(seconds or _LONGEST_TIMEOUT, _LONGEST_TIMEOUT))
            else:
                self._in.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(seconds))
        except OSError as error:
            raise self._lost(error) from error
        finally:
            self._leave()

    def read(self, limit: int = CHUNK) -> bytes:
        self._reading = True
        try:
            return b"" if self._woken else self._in.recv(limit)
        except OSError as error:
            if self._woken:
                return b""
            if isinstance(error, (TimeoutError, BlockingIOError)) and error.errno != errno.ETIMEDOUT:
                waited = self._read_timeout  # or the value that another thread has just set
                words = "its read timeout" if waited is None else f"{waited:.3g} s"
                raise Unanswered(f"{self.peer}: nothing was received within {words}") from error
            raise self._lost(error) from error
        finally:
            self._reading = False
            if self._closed:
                self._close_if_last()

    def readable(self) -> bool:
        """Whether ``read`` would return or raise at once. For the reader."""
        self._reading = True
        try:
            if self._woken:
                return True
            if self._poll is None:
                self._poll = select.poll()
                self._poll.register(self._in, select.POLLIN)
            return bool(self._poll.poll(0))
        except OSError:
            return True
        finally:
            self._reading = False
            if self._closed:
                self._close_if_last()

    def write(self, data: bytes, timeout: float) -> None:
        self._writing = True
        try:
            if self._closed:
                raise ConnectionLost(f"{self.peer}: the connection was closed on this side")
            try:
                sent = self._out.send(data, _AT_ONCE)
            except BlockingIOError:
                sent = 0
            if sent != len(data):
                self._send_rest(memoryview(data), sent, timeout)
        except OSError as error:
            raise self._lost(error) from error
        finally:
            self._writing = False
            if self._closed:
                self._close_if_last()

    def _send_rest(self, data: memoryview, sent: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._out, select.POLLOUT)
        while sent < len(data):
            left = deadline - time.monotonic()
            # poll also returns when the connection is shut or broken: the next send raises then.
            if left <= 0 or not poll.poll(poll_milliseconds(left)):
                missing = f"{len(data) - sent} of {len(data)} bytes"
                raise Unanswered(f"{self.peer}: {missing} were not taken within {timeout:.3g} s")
            with suppress(BlockingIOError):
                sent += self._out.send(data[sent:], _AT_ONCE)

    def wake(self) -> None:
        if not self._enter():
            return
        # Set before the shutdown: Linux still returns data that arrives after SHUT_RD, and a peer that never
        # stops sending would keep the reader busy.
        self._woken = True
        try:
            self._shut(socket.SHUT_RD)
        finally:
            self._leave()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = self._woken = True
            self._inside += 1
        try:
            self._shut(socket.SHUT_RDWR)
        finally:
            self._leave()

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._closed = self._woken = True
        # Threads that were inside at the fork exist only in the parent.
        self._inside = 0
        self._reading = self._writing = False
        self._close_both()

    def _shut(self, how: int) -> None:
        with suppress(OSError):  # not connected any more, so no thread is blocked
            self._in.shutdown(how)

    def _enter(self) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._inside += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
        if self._closed:
            self._close_if_last()

    def _close_if_last(self) -> None:
        if not (self._inside or self._reading or self._writing):
            # Without the GIL several threads come here at once. The first takes the token and closes; for a
            # second one the descriptor's number may already belong to another file.
            with suppress(IndexError):
                self._token.pop()
                self._close_both()

    def _close_both(self) -> None:
        self._in.close()
        if self._patched:
            self._out.close()
        if self._listed is not None:
            self._listed.discard(self)

    def _lost(self, error: OSError) -> ConnectionLost:
        if self._closed:
            return ConnectionLost(f"{self.peer}: the connection was closed on this side")
        return ConnectionLost(f"{self.peer}: the connection is lost: {error.strerror or error}")


def timeval(seconds: float | None) -> bytes:
    """Encode a timeout for SO_RCVTIMEO and SO_SNDTIMEO. None means for ever, which is zero there."""
    if seconds is None:
        return _TIMEVAL.pack(0, 0)
    fraction, whole = math.modf(min(seconds, _LONGEST))
    # Round up, so that a tiny timeout does not become zero; 999,999.5 µs must not become a million.
    return _TIMEVAL.pack(int(whole), min(math.ceil(fraction * 1_000_000), 999_999))


def poll_milliseconds(seconds: float) -> int:
    """Convert to milliseconds for ``poll``, rounded up: rounding down would spin during the last one."""
    return math.ceil(min(max(seconds, 0.0) * 1000, _LONGEST_POLL))


def address_family(host: str) -> socket.AddressFamily:
    """Return the family for a server that listens on this name or IP address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
