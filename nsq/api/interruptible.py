"""Requests that another thread can cut short: a ``connect`` for ``nsq.api.blocking`` that remembers its
connections.

Imports no other part of the client.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nsq.api.blocking import Connect, connected
from nsq.api.http import Url


class Interrupter:
    """``interrupt`` ends whatever is connecting, sent or awaited, and every later request at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two below
        self._handles: set[socket.socket] = set()
        self._interrupted = False

    @contextmanager
    def connecting(self) -> Iterator[Connect]:
        """The ``connect`` for one request, to be left when the request is over."""
        handles: list[socket.socket] = []

        def connect(url: Url, timeout: float) -> socket.socket:
            return connected(url, timeout, lambda stream: handles.append(self._watch(stream)))

        try:
            yield connect
        finally:
            for handle in handles:
                self._unwatch(handle)

    def interrupt(self) -> None:
        with self._lock:
            self._interrupted = True
            for handle in self._handles:
                # Never blocks. An OSError: the peer was faster.
                with suppress(OSError):
                    handle.shutdown(socket.SHUT_RDWR)

    def _watch(self, stream: socket.socket) -> socket.socket:
        # A duplicate, as TLS takes the descriptor away from the stream itself.
        handle = stream.dup()
        with self._lock:
            if not self._interrupted:
                self._handles.add(handle)
                return handle
        handle.close()
        raise OSError("interrupted")

    def _unwatch(self, handle: socket.socket) -> None:
        # Under the lock: nobody must shut down a descriptor that by then is somebody else's.
        with self._lock:
            self._handles.discard(handle)
            handle.close()
