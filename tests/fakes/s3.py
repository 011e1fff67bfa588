"""moto's S3 in a process of its own, made atomic and unreliable: ``python -m tests.fakes.s3`` prints its
port.

moto looks, then writes, without a lock: so a conditional put can have two winners. This holds a lock for each
key around every request that changes it. ``control(delay=0.05, errors=0.05, lost=0.03, conflicts=0.05,
stall=6, ignore=1)`` slows requests down, fails them before or after their effect, answers as S3 does to a
race, lets none through for some seconds, and ignores the conditions of puts.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

_LOCKS = 64
_ROOT = Path(__file__).resolve().parents[2]


class Unreliable:
    """The WSGI application around moto's."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._settings = dict.fromkeys(("delay", "errors", "lost", "conflicts", "stall", "ignore"), 0.0)
        self._stalled_until = 0.0
        self._calls: Counter[str] = Counter()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == "/_control":
            return self._control(environ, start)
        kind = "LIST" if method == "GET" and "list-type" in environ.get("QUERY_STRING", "") else method
        self._calls[kind] += 1
        body = self._body(environ)
        environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        now = self._settings
        time.sleep(now["delay"] + max(0.0, self._stalled_until - time.monotonic()))
        conditional = method == "PUT" and ("HTTP_IF_MATCH" in environ or "HTTP_IF_NONE_MATCH" in environ)
        if random.random() < now["errors"]:
            return self._fail(start, "503 Slow Down", "SlowDown")
        if conditional and random.random() < now["conflicts"]:
            return self._fail(start, "409 Conflict", "ConditionalRequestConflict")
        if now["ignore"]:
            environ.pop("HTTP_IF_MATCH", None)
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if method not in ("PUT", "POST", "DELETE"):
            return self._app(environ, start)  # type: ignore[no-any-return]
        with self._locks[hash(path) % _LOCKS]:
            said: list[Any] = []
            done = list(self._app(environ, lambda *given: said.append(given)))
        if method == "PUT" and random.random() < now["lost"]:
            return self._fail(start, "500 Internal Server Error", "InternalError")
        start(*said[0][:2])
        return done

    @staticmethod
    def _body(environ: dict[str, Any]) -> bytes:
        if "chunked" in environ.get("HTTP_TRANSFER_ENCODING", ""):
            return bytes(environ["wsgi.input"].read())
        return bytes(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))

    def _control(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        given = {name: float(values[0]) for name, values in parse_qs(environ.get("QUERY_STRING", "")).items()}
        self._stalled_until = time.monotonic() + given.pop("stall", 0.0)
        self._settings |= given
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(self._calls).encode()]

    @staticmethod
    def _fail(start: Any, status: str, code: str) -> list[bytes]:
        start(status, [("Content-Type", "application/xml")])
        return [f"<Error><Code>{code}</Code><Message>made up</Message></Error>".encode()]


def main() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None:
            pass

    app = Unreliable(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    print(server.server_port, flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server.serve_forever()


class S3:
    """A running server with an empty bucket, ``bucket``."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        urllib.request.urlopen(
            urllib.request.Request(f"{self.endpoint}/bucket", method="PUT"), timeout=60
        ).close()

    def uri(self, folder: str) -> str:
        """The address of a log. Credentials are in the environment: see ``running``."""
        return f"s3://bucket/{folder}?endpoint={self.endpoint}&region=us-east-1"

    def control(self, **settings: float) -> dict[str, int]:
        """Change the server's behaviour; return how many requests of each kind it has seen."""
        with urllib.request.urlopen(f"{self.endpoint}/_control?{urlencode(settings)}", timeout=60) as reply:
            return dict(json.load(reply))


CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@contextmanager
def running() -> Iterator[S3]:
    """Run a server; credentials for it are in this process's environment meanwhile."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.s3"], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    try:
        yield S3(int(child.stdout.readline()))
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        child.stdin.close()
        child.stdout.close()
        child.wait(60)


if __name__ == "__main__":
    main()
