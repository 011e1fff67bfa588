"""Requests that another thread can cut short: a ``connect`` for ``nsq.api.blocking`` that remembers its
connections.

Imports no other part of the client.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from nsq.api.blocking import Connect, connected
from nsq.api.http import Url


class Interrupter:
    """``interrupt`` ends at once whatever is looked up, connecting, sent or awaited, then and later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the three below
        self._handles: set[socket.socket] = set()
        self._lookups: set[Callable[[], None]] = set()
        self._interrupted = False

    @contextmanager
    def connecting(self) -> Iterator[Connect]:
        """The ``connect`` for one request, to be left when the request is over."""
        handles: list[socket.socket] = []
        lookups: list[Callable[[], None]] = []

        def asking(end: Callable[[], None]) -> None:
            lookups.append(end)
            self._note(end)

        def connect(url: Url, timeout: float) -> socket.socket:
            return connected(url, timeout, lambda stream: handles.append(self._watch(stream)), asking)

        try:
            yield connect
        finally:
            for handle in handles:
                self._unwatch(handle)
            with self._lock:
                self._lookups.difference_update(lookups)

    def interrupt(self) -> None:
        with self._lock:
            self._interrupted = True
            for end in self._lookups:
                end()
            for handle in self._handles:
                # Never blocks. An OSError: the peer was faster.
                with suppress(OSError):
                    handle.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """In a forked child: the requests are its parent's. Takes no lock: it may be held for ever."""
        handles, self._handles = self._handles, set()
        for handle in handles:
            handle.close()

    def _note(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._lookups.add(end)
            if self._interrupted:
                end()

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
