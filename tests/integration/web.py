"""An HTTP server that remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Web:
    """It answers every request with ``answer``."""

    def __init__(self, answer: bytes = b"OK") -> None:
        self.asked: list[tuple[str, str, bytes, dict[str, str]]] = []
        self.clients: set[Any] = set()
        self.statuses: list[int] = []
        self.closes = False
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                web.asked.append((self.command, self.path, body, headers))
                web.clients.add(self.client_address)
                status = web.statuses.pop(0) if web.statuses else 200
                self.send_response(status)
                if status in (302, 307):
                    self.send_header("Location", "/moved")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                self.close_connection = self.close_connection or web.closes

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self.address = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def show(self, words: Sequence[str]) -> int:
        """Write what it was asked, with the headers that the words name, and forget it.

        ``500x7`` instead answers the next seven requests with this status; ``closes`` ends connections after
        each answer, without saying so; ``clients`` writes whether there were few.
        """
        if words[:1] == ["closes"]:
            self.closes = True
        elif words[:1] == ["clients"]:
            print("few" if len(self.clients) <= 2 else self.clients)
        elif words and words[0][0].isdigit():
            status, _, times = words[0].partition("x")
            self.statuses = [int(status)] * int(times)
        else:
            for method, path, body, headers in sorted(self.asked, key=lambda asked: asked[:3]):
                print(method, path, body.decode(), *(headers[word] for word in words))
            self.asked.clear()
        return 0
