"""The first of several socket addresses that accepts a TCP connection, within one deadline.

The next address is tried as soon as one fails or has been silent for a moment, and the earlier ones stay in
the race: a black hole in front (IPv6 that leads nowhere, usually) costs that moment and not the whole
deadline. Knows nothing of names and translates no errors.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import time
from collections.abc import Callable, Sequence

from .resolving import Target

MOMENT = 0.25
_LONGEST_POLL = 2**31 - 1

Opened = Callable[[Target], socket.socket]
"""Makes a socket for a target, with its options set and bound if it should be; it is not connected yet."""


class NobodyAnswered(OSError):
    """The race has no winner; the text says why for each address, ``__cause__`` is the last refusal."""


def poll_milliseconds(seconds: float) -> int:
    """For ``poll``: rounded up, as rounding down would spin through the last millisecond."""
    return math.ceil(min(max(seconds, 0.0) * 1000, _LONGEST_POLL))


def race(targets: Sequence[Target], opened: Opened, timeout: float) -> socket.socket:
    """The connected, blocking socket of the winner; NobodyAnswered when there is none in time."""
    runners = _Runners(opened, time.monotonic() + timeout)
    moment = min(MOMENT, timeout / len(targets))
    try:
        for target in targets[:-1]:
            winner = runners.start(target) or runners.first(within=moment)
            if winner is not None:
                return winner
        winner = runners.start(targets[-1]) or runners.last()
        if winner is not None:
            return winner
        raise NobodyAnswered(runners.reasons(timeout)) from runners.failure
    finally:
        runners.stop()


class _Runners:
    """The sockets that are connecting."""

    def __init__(self, opened: Opened, deadline: float) -> None:
        self._opened = opened
        self._deadline = deadline
        self._poll = select.poll()
        self._running: dict[int, tuple[socket.socket, Target]] = {}
        self._lost: list[str] = []
        self.failure: OSError | None = None

    def start(self, target: Target) -> socket.socket | None:
        """The socket if it connects at once."""
        try:
            sock = self._opened(target)
        except OSError as error:
            self._note(target, error)
            return None
        try:
            sock.setblocking(False)
            code = sock.connect_ex(target.address)
        except BaseException:
            sock.close()
            raise
        if code in (errno.EINPROGRESS, errno.EINTR):
            self._running[sock.fileno()] = (sock, target)
            self._poll.register(sock, select.POLLOUT)
            return None
        return self._judged(sock, target, code)

    def first(self, within: float) -> socket.socket | None:
        """The first to connect; None as soon as one has failed, or nothing has happened for that long."""
        until = min(time.monotonic() + within, self._deadline)
        return self._next_result(until) if self._running else None

    def last(self) -> socket.socket | None:
        """The first to connect; None when all have failed or the deadline has passed."""
        while self._running and time.monotonic() < self._deadline:
            winner = self._next_result(self._deadline)
            if winner is not None:
                return winner
        return None

    def _next_result(self, until: float) -> socket.socket | None:
        events = self._poll.poll(poll_milliseconds(until - time.monotonic()))
        for descriptor, _ in events:
            sock, target = self._running.pop(descriptor)
            self._poll.unregister(descriptor)
            winner = self._judged(sock, target, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            if winner is not None:
                return winner
        return None

    def _judged(self, sock: socket.socket, target: Target, code: int) -> socket.socket | None:
        if not code and _met_itself(sock):
            code = errno.ECONNREFUSED
        if not code:
            sock.setblocking(True)
            return sock
        sock.close()
        self._note(target, OSError(code, os.strerror(code)))
        return None

    def _note(self, target: Target, error: OSError) -> None:
        self.failure = error
        self._lost.append(f"{target.words}: {error.strerror or error}")

    def reasons(self, timeout: float) -> str:
        words = f"no answer within {max(timeout, 0.0):.2g} s"
        silent = [f"{target.words}: {words}" for _, target in self._running.values()]
        return "; ".join(self._lost + silent)

    def stop(self) -> None:
        for sock, _ in self._running.values():
            sock.close()


def _met_itself(sock: socket.socket) -> bool:
    """Dialling a port of our own machine on which nobody listens can pick that very port as the source: TCP
    then connects the socket to itself."""
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:
        return False  # reset already; the first read says so
