"""nsqlookupds: one that never answers, one whose HTTP side never answers, one with given answers."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from nsq.wire import lookup
from nsq.wire.lookup import PeerInfo

PATIENCE = 60.0


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """Yield an address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield _address(listener)


class Mute:
    """An nsqlookupd that nsqds can register with. Its HTTP port accepts connections and never answers.

    It answers registrations when ``at_once`` of them have arrived.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = at_once
        self._unanswered = 0
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._http = socket.create_server(("127.0.0.1", 0))
        self._connected: list[socket.socket] = []
        self._asking: list[socket.socket] = []
        self._registered = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="mute-nsqlookupd", daemon=True)
        self.address = _address(self._tcp)

    def wait_until_registered(self, timeout: float) -> None:
        """Wait until an nsqd has registered something, and so knows the HTTP port."""
        if not self._registered.wait(timeout):
            raise TimeoutError("no nsqd registered anything")

    def wait_until_asked(self, timeout: float) -> None:
        """Wait until a client has connected to the HTTP port."""
        self._http.settimeout(timeout)
        self._asking.append(self._http.accept()[0])

    def hang_up(self) -> None:
        """Close the HTTP connections that ``wait_until_asked`` has waited for."""
        for each in self._asking:
            each.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in (self._tcp, self._http, *self._connected, *self._asking):
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
            case lookup.Command(b"REGISTER"):
                self._unanswered += 1
                if self._unanswered >= self._at_once:
                    connection.sendall(lookup.reply(lookup.OK) * self._unanswered)
                    self._unanswered = 0
                    self._registered.set()
            case lookup.Command(name) if name != b"IDENTIFY":
                connection.sendall(lookup.reply(lookup.OK))


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}"


class ScriptedLookupd:
    """Answers every /lookup with these nsqds, and records the requests."""

    def __init__(self, *nsqds: str, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, str | None]] = []
        producers = [
            {"broadcast_address": host.strip("[]"), "tcp_port": int(port)}
            for host, _, port in (nsqd.rpartition(":") for nsqd in nsqds)
        ]
        body = json.dumps({"channels": [], "producers": producers}).encode()
        requests = self.requests

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                requests.append((self.path, self.headers["Authorization"]))
                found = not self.path.startswith("/listlookup")  # which only a partitioned NSQ has
                answer = body if found else b'{"message":"NOT_FOUND"}'
                self.send_response(200 if found else 404)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "http" if tls is None else "https"

    def __enter__(self) -> ScriptedLookupd:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)

    @property
    def address(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"
