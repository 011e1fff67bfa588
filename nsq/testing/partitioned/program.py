"""A program of the cluster, as the system sees it: its ports and its connections."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Awaitable, Callable

from nsq.log import Logger

log = Logger("nsq.testing")

HOST = "127.0.0.1"
_BACKLOG = 1024
#: Bytes that are read ahead of a connection, and at most in a line.
_LIMIT = 1024 * 1024

Converse = Callable[[asyncio.StreamReader, "Peer"], Awaitable[None]]


class Peer:
    """A connection that was accepted."""

    def __init__(self, program: Program, writer: asyncio.StreamWriter) -> None:
        self._program = program
        self._writer = writer
        self._task = asyncio.current_task()
        self._unsent: list[bytes] = []
        self._ended = False

    def send(self, data: bytes) -> None:
        self._unsent.append(data)
        self.flush()

    def end(self) -> None:
        """Close the connection when everything is sent."""
        self._ended = True
        self.flush()

    def flush(self) -> None:
        """Send what there is, unless the program is stalled."""
        if self._writer.is_closing():
            self._unsent.clear()
        elif not self._program.stalled:
            self._writer.writelines(self._unsent)
            self._unsent.clear()
            if self._ended:
                self._writer.close()

    async def going(self) -> None:
        """Return when the program is not stalled."""
        await self._program.going.wait()

    def drop(self, *, reset: bool = False) -> None:
        """Close the connection at once."""
        if reset:
            with contextlib.suppress(OSError):  # it may have been closed already
                sock = self._writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._writer.transport.abort()
        if self._task is not None:
            self._task.cancel()


class Program:
    """Its ports are its own for good, also while it does not run; each has its way to talk to a peer."""

    def __init__(self, *converse: Converse) -> None:
        self.running = False
        self.stalled = False
        self.going = asyncio.Event()  # it runs and is not stalled
        self._peers: set[Peer] = set()
        self._converse = converse
        self._keepers = [_bound(0) for _ in converse]  # never listening: they reserve the ports
        self.ports: list[int] = [keeper.getsockname()[1] for keeper in self._keepers]
        self._servers: list[asyncio.Server] = []

    def addresses(self) -> list[str]:
        return [f"{HOST}:{port}" for port in self.ports]

    async def start(self) -> None:
        self.running = True
        self.going.set()
        for port, converse in zip(self.ports, self._converse, strict=True):
            serve = functools.partial(self._serve, converse)
            listening = await asyncio.start_server(serve, sock=_bound(port), backlog=_BACKLOG, limit=_LIMIT)
            self._servers.append(listening)

    def end(self) -> None:
        """Close every port and connection at once, as the death of a process does."""
        self.running = self.stalled = False
        self.going.clear()
        for server in self._servers:
            server.close()
        self._servers.clear()
        self.drop_connections(reset=False)

    def close(self) -> None:
        self.end()
        for keeper in self._keepers:
            keeper.close()

    async def _serve(
        self, converse: Converse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        peer = Peer(self, writer)
        if not self.running:  # it ended after the system had accepted the connection
            peer.drop()
        self._peers.add(peer)
        try:
            await converse(reader, peer)
            await peer.going()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, asyncio.CancelledError):
            pass
        except Exception:
            log.exception("the cluster closes a connection that sent invalid bytes")
        finally:
            self._peers.discard(peer)
            writer.close()

    # What a test does to it

    def kill(self) -> None:
        self.end()
        self.changed()

    async def restart(self) -> None:
        self.end()
        await self.start()
        self.changed()

    def stall(self) -> None:
        """Read and write nothing, as a stopped process; the system still accepts connections meanwhile."""
        if self.running:
            self.stalled = True
            self.going.clear()
            self.changed()

    def resume(self) -> None:
        if self.running:
            self.stalled = False
            self.going.set()
            for peer in self._peers:
                peer.flush()
            self.changed()

    def drop_connections(self, *, reset: bool = True) -> None:
        for peer in list(self._peers):
            peer.drop(reset=reset)
        self._peers.clear()

    def changed(self) -> None:
        """Called when it was killed, restarted, stalled or resumed."""


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((HOST, port))
    return sock
