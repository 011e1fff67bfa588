"""Ends the waits of sockets that are connecting: whoever closes must not wait for a black hole.

Takes no lock, as a child forked in the middle of a dial dials on. What is dropped by one thread and shut down
by another is a duplicate, and only who has taken it out of the set may touch it: no descriptor is shut down
that by then is somebody else's.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Watch = Callable[[socket.socket], None]


class Interrupter:
    """``interrupt`` ends every dial that is under way, and every later one at once."""

    def __init__(self) -> None:
        self._connecting: set[socket.socket] = set()
        self._interrupted = False

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        """For one dial: what is to be called with each socket before it connects."""
        handles: list[socket.socket] = []

        def watch(sock: socket.socket) -> None:
            handle = sock.dup()
            handles.append(handle)
            self._connecting.add(handle)
            if self._interrupted:  # only now: an interrupt either finds the handle or is seen here
                raise OSError("interrupted, as this client is closed")

        try:
            yield watch
        finally:
            for handle in handles:
                if self._take(handle):
                    handle.close()

    def _take(self, handle: socket.socket) -> bool:
        try:
            self._connecting.remove(handle)
        except KeyError:
            return False  # who has it closes it
        return True

    def abandon(self) -> None:
        """In a forked child: the dials are its parent's."""
        for handle in list(self._connecting):
            if self._take(handle):
                handle.close()

    def interrupt(self) -> None:
        """Does not wait."""
        self._interrupted = True
        for handle in list(self._connecting):
            if self._take(handle):
                with suppress(OSError):  # refused or connected meanwhile
                    handle.shutdown(socket.SHUT_RDWR)
                handle.close()
