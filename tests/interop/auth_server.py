"""An auth server for nsqd with one secret and its permissions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit


class Question(NamedTuple):
    """One request to the auth server."""

    method: str
    path: str
    accept: str | None


@contextmanager
def running_auth_server(
    allowed: Mapping[str, list[dict[str, Any]]], asked: list[Question] | None = None, **answer: str
) -> Iterator[str]:
    """Run the server; yield its address. ``allowed`` has the authorizations of each secret; others have
    none. Requests are noted in ``asked``; ``answer`` replaces fields of the answer.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.append(Question(self.command, self.path, self.headers.get("Accept")))
            secret = parse_qs(urlsplit(self.path).query).get("secret", [""])[0]
            grant = {"ttl": 3600, "identity": "tester", **answer, "authorizations": allowed.get(secret, [])}
            body = json.dumps(grant).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
            """Log nothing to stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="auth-server")
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
