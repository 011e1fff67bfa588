"""A server that misbehaves, over real sockets."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from nsq.wire.frames import OK, encode_response
from tests.fakes.threads import PATIENCE


class Peer:
    """A bad server's end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._file = sock.makefile("rb")
        self.commands: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_command(self) -> bytes:
        """Read one line; skip the magic before the first."""
        line = self._file.readline().removeprefix(b"  V2").rstrip()
        self.commands.append(line)
        return line

    def read_identify(self) -> dict[str, Any]:
        assert self.read_command() == b"IDENTIFY"
        (size,) = struct.unpack(">i", self._file.read(4))
        asked: dict[str, Any] = json.loads(self._file.read(size))
        return asked

    def grant(self, **granted: object) -> None:
        """Answer IDENTIFY as nsqd does."""
        self.read_identify()
        self.send(encode_response(json.dumps({"max_rdy_count": 2500, "version": "bad", **granted}).encode()))

    def subscribe(self) -> None:
        """Behave as a good server, up to and including the first RDY."""
        self.grant()
        assert self.read_command().startswith(b"SUB")
        self.send(encode_response(OK))
        assert self.read_command().startswith(b"RDY")

    def drain(self) -> None:
        """Read everything until the client leaves."""
        while self.socket.recv(65536):
            pass

    def close(self) -> None:
        self._file.close()
        self.socket.close()


Script = Callable[[Peer], None]


class BadServer:
    """Runs the script on every connection, each in a thread. Then the connection stays open until the client
    leaves, unless the script has closed it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # unread data soon blocks
        self._peers: list[Peer] = []
        self._threads = [threading.Thread(target=self._accept, name="bad-server")]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def connections(self) -> int:
        return len(self._peers)

    @property
    def peers(self) -> list[Peer]:
        return list(self._peers)

    def _accept(self) -> None:
        with suppress(OSError):  # closed by another thread: the end
            while True:
                peer = Peer(self._listener.accept()[0])
                self._peers.append(peer)
                thread = threading.Thread(target=self._serve, args=(peer,), name="bad-server-connection")
                self._threads.append(thread)
                thread.start()

    def _serve(self, peer: Peer) -> None:
        with suppress(OSError, ValueError, AssertionError, struct.error):  # the client left; files closed
            self._script(peer)
            peer.drain()
        peer.close()

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(3 * PATIENCE)
        for peer in self._peers:
            with suppress(OSError):
                peer.socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(3 * PATIENCE)
            assert not thread.is_alive()
