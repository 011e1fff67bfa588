"""One connection through a link: two sockets, and a flow in each direction.

Everything here runs on the loop's thread, except the verbs, which call it and wait.
"""

from __future__ import annotations

import contextlib
import errno
import math
import random
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping

from .faults import CLIENT, HEAL, SERVER, Fault, Verbs, checked
from .flow import Conditions, Flow
from .loop import Loop

_CHUNK = 65536
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: close discards unsent bytes and resets the connection
_OTHER = {CLIENT: SERVER, SERVER: CLIENT}


class Connection(Verbs):
    """One proxied connection, from an accepted socket ``client`` and a connecting one ``server``."""

    def __init__(
        self,
        number: int,
        client: socket.socket,
        server: socket.socket,
        loop: Loop,
        conditions: Mapping[str, Conditions],
        chance: random.Random,
        on_end: Callable[[Connection], None],
    ) -> None:
        #: 1 for the first connection through the link.
        self.number = number
        #: Whether it has not ended.
        self.open = True
        self._sockets: dict[str, socket.socket | None] = {CLIENT: client, SERVER: server}
        self._loop = loop
        self._on_end = on_end
        self._connecting = True
        # By the end that receives the bytes.
        self._flows = {end: Flow(conditions[end], chance=chance) for end in (CLIENT, SERVER)}
        self._outgoing = {CLIENT: b"", SERVER: b""}
        self._half_closed: set[str] = set()
        self._gone: str | None = None

    def __repr__(self) -> str:
        return f"<Connection {self.number}{'' if self.open else ' closed'}>"

    def inflict(self, fault: Fault) -> int:
        checked(fault, listening=False)
        return self._loop.call(lambda: self.suffer(fault, time.monotonic()))

    # On the loop's thread.

    def suffer(self, fault: Fault, now: float) -> int:
        """Suffer the fault; return 1, or 0 if the connection is closed already."""
        if not self.open:
            return 0
        if fault.kind == "cut":
            self.end()
        elif fault.kind == "reset":
            self.end(by_reset=True)
        elif fault.kind == "half-close":
            self._half_close(fault.towards)
        elif fault.kind == "half-open":
            self._connecting = False
            self._half_open(fault.towards)
        elif fault.kind == HEAL:
            for flow in self._flows.values():
                flow.heal()
        else:
            for end in fault.directions:
                self._flows[end].impose(fault, now)
        self.move(now)
        return 1

    def begin(self) -> None:
        self._look_whether_connected()
        self._watch()

    def client_ready(self, events: int) -> None:
        self._ready(CLIENT, events)

    def server_ready(self, events: int) -> None:
        self._ready(SERVER, events)

    def move(self, now: float) -> None:
        """Deliver the bytes that are due, and watch the sockets for what is needed next."""
        if not self.open:
            return
        if not self._connecting:
            for end in (CLIENT, SERVER):
                self._deliver(end, now)
        if self.open:
            self._watch()

    def next_due(self, now: float) -> float:
        if not self.open or self._connecting:
            return math.inf
        idle = [end for end in (CLIENT, SERVER) if not self._outgoing[end] and end not in self._half_closed]
        return min((self._flows[end].next_due(now) for end in idle), default=math.inf)

    def end(self, *, by_reset: bool = False) -> None:
        if not self.open:
            return
        self.open = False
        for end in (CLIENT, SERVER):
            self._close(end, by_reset=by_reset)
        self._on_end(self)

    def forget(self) -> None:
        """Close the descriptors in a forked child, without a shutdown."""
        for sock in self._sockets.values():
            if sock is not None:
                sock.close()

    # Moving bytes.

    def _ready(self, end: str, events: int) -> None:
        now = time.monotonic()
        if self._connecting:
            self._look_whether_connected()
            if self._connecting:
                self.end(by_reset=True)  # the client is connected already: a refusal is not possible
        elif events & selectors.EVENT_READ:
            self._receive(end, now)
        self.move(now)

    def _look_whether_connected(self) -> None:
        server = self._sockets[SERVER]
        assert server is not None
        with contextlib.suppress(OSError):
            server.getpeername()
            self._connecting = False
            if SERVER in self._half_closed:  # half-closed before it was connected
                server.shutdown(socket.SHUT_WR)

    def _receive(self, end: str, now: float) -> None:
        source, flow = self._sockets[end], self._flows[_OTHER[end]]
        if source is None:
            return
        try:
            data = source.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            flow.end(by_reset=True)
        else:
            if data:
                flow.feed(data, now)
            else:
                flow.end()
        if self._gone is not None:
            # The other end is gone: discard the bytes; when this end closes, close all.
            if flow.ended:
                self.end()
            else:
                flow.due(math.inf)

    def _deliver(self, end: str, now: float) -> None:
        flow, sink = self._flows[end], self._sockets[end]
        if self._gone is not None or not self.open or sink is None:
            return
        while self._send(end, sink) and (data := flow.due(now)):
            self._outgoing[end] = data
        if not self.open or self._outgoing[end]:
            return
        if flow.cut_off:
            self.end()
        elif flow.drained(now):
            if flow.by_reset:
                self.end(by_reset=True)
            else:
                self._half_close(end)

    def _send(self, end: str, sink: socket.socket) -> bool:
        """Send the waiting bytes; return whether all were sent."""
        data = self._outgoing[end]
        if not data:
            return True
        if end in self._half_closed:
            self._outgoing[end] = b""
            return True
        try:
            sent = sink.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            self.end(by_reset=True)  # the sink is gone: reset the source as well
            return False
        self._outgoing[end] = data[sent:]
        return sent == len(data)

    # Ends.

    def _half_close(self, end: str) -> None:
        """Half-close towards this end; if both directions are closed, end the connection."""
        sink = self._sockets[end]
        if sink is None or end in self._half_closed:
            return
        self._half_closed.add(end)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        if len(self._half_closed) == 2:
            self.end()

    def _half_open(self, end: str) -> None:
        self._gone = end
        self._close(end, by_reset=True)

    def _close(self, end: str, *, by_reset: bool) -> None:
        sock, self._sockets[end] = self._sockets[end], None
        if sock is None:
            return
        self._loop.watch(sock, 0, self.client_ready)
        with contextlib.suppress(OSError):
            if by_reset and sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            elif not by_reset:
                # A forked child may hold a copy of the descriptor, so closing ours would not be enough.
                sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def _watch(self) -> None:
        for end, ready in ((CLIENT, self.client_ready), (SERVER, self.server_ready)):
            sock = self._sockets[end]
            if sock is not None:
                self._loop.watch(sock, self._interest(end), ready)

    def _interest(self, end: str) -> int:
        if self._connecting:
            return selectors.EVENT_WRITE if end == SERVER else 0
        reading = selectors.EVENT_READ if self._flows[_OTHER[end]].wants_more else 0
        return reading | (selectors.EVENT_WRITE if self._outgoing[end] else 0)


def dialled(family: socket.AddressFamily, target: object) -> socket.socket:
    """Return a socket that is connecting or connected. Raises OSError if that fails at once."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(target)  # type: ignore[arg-type]
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, "no connection")
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock
