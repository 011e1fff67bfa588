"""nsqlookupds that do not work: one that never answers, and one whose HTTP side never does."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from nsq.wire import lookup
from nsq.wire.lookup import PeerInfo


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """An address that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield _address(listener)


class Mute:
    """An nsqlookupd that nsqd can register with and whose HTTP port takes connections and never answers."""

    def __init__(self) -> None:
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._http = socket.create_server(("127.0.0.1", 0))
        self._connected: list[socket.socket] = []
        self._registered = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="mute-nsqlookupd", daemon=True)
        self.address = _address(self._tcp)

    def wait_until_registered(self, timeout: float) -> None:
        """Return once an nsqd has registered something: it then knows the HTTP port."""
        if not self._registered.wait(timeout):
            raise TimeoutError("no nsqd registered anything")

    def wait_until_asked(self, timeout: float) -> None:
        """Return once somebody has connected to the HTTP port."""
        self._http.settimeout(timeout)
        self._connected.append(self._http.accept()[0])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in (self._tcp, self._http, *self._connected):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._thread.join(60)

    def _serve(self) -> None:
        parser = lookup.LookupCommandParser()
        with contextlib.suppress(OSError):
            connection, _ = self._tcp.accept()
            self._connected.append(connection)
            while data := connection.recv(65536):
                for event in parser.feed(data):
                    self._answer(connection, event)

    def _answer(self, connection: socket.socket, event: lookup.Event) -> None:
        match event:
            case lookup.Body():
                host, port = self._http.getsockname()
                own = PeerInfo(
                    broadcast_address=host, hostname=host, http_port=port, tcp_port=1, version="1.3.0"
                )
                connection.sendall(lookup.reply(lookup.identify_reply(own)))
            case lookup.Command(name) if name != b"IDENTIFY":
                connection.sendall(lookup.reply(lookup.OK))
                if name == b"REGISTER":
                    self._registered.set()


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}"
