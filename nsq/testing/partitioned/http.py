"""HTTP over a stream: requests are cut out and answered by a table of pages.

With ``Accept: application/vnd.nsq; version=1.0`` an answer is bare JSON with its true status. Without it most
pages put an envelope around it, and every error is a 500; the others answer as with it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from http.client import responses
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from .program import Peer

Answer = tuple[int, Any]
"""A status and a body: bytes are sent unchanged, a str as text, None as an empty body, anything else as JSON.
An error's body is its text."""

Args = Mapping[str, str]
Page = Callable[[Args, bytes], Answer | Awaitable[Answer]]

_V1 = "application/vnd.nsq; version=1.0"
#: Pages whose answers depend on the Accept header.
_NEGOTIATED = {"/info", "/lookup", "/topics", "/channels", "/nodes", "/listlookup"}
_NEGOTIATED |= {"/pub", "/pub_ext", "/mpub", "/stats"}


class Site:
    """The pages at one port, by method and path: ``"GET /lookup"``.

    ``answers`` has by path what a test wants to be answered instead.
    """

    def __init__(self, pages: dict[str, Page]) -> None:
        self.answers: dict[str, Answer] = {}
        self._pages: dict[str, Page] = {"GET /ping": lambda *_: (200, "OK"), **pages}
        self._paths = {name.partition(" ")[2] for name in pages}

    async def talk(self, reader: asyncio.StreamReader, peer: Peer) -> None:
        """Answer requests until the client ends the connection, each when the program is going."""
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request, *lines = head.rstrip().split("\r\n")
            fields = [line.partition(":") for line in lines]
            headers = {name.strip().lower(): value.strip() for name, _, value in fields}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, version = request.split(" ", 2)
            await peer.going()
            peer.send(await self._answer(method, target, body, v1=headers.get("accept") == _V1))
            connection = headers.get("connection", "").lower()
            if connection == "close" or (version == "HTTP/1.0" and connection != "keep-alive"):
                return

    async def _answer(self, method: str, target: str, body: bytes, *, v1: bool) -> bytes:
        url = urlsplit(target)
        path, args = url.path, dict(parse_qsl(url.query, keep_blank_values=True))
        page = self._pages.get(f"{method} {path}")
        if path in self.answers:
            answer: Answer = self.answers[path]
        elif page is not None:
            found = page(args, body)
            answer = await found if inspect.isawaitable(found) else found
        else:
            v1 = True
            answer = (405, "METHOD_NOT_ALLOWED") if path in self._paths else (404, "NOT_FOUND")
        return _encode(*answer, v1=v1 or path not in _NEGOTIATED, named=path != "/ping")


def _encode(status: int, body: Any, *, v1: bool, named: bool) -> bytes:
    kind, data = "application/json; charset=utf-8", b""
    if isinstance(body, bytes):
        kind, data = "text/plain; charset=utf-8", body
    elif status != 200 and v1:
        data = _compact({"message": body})
    elif status != 200:
        status, data = 500, _compact({"status_code": 500, "status_txt": body, "data": None})
    elif isinstance(body, str):
        kind, data = "text/plain; charset=utf-8", body.encode()
    elif not v1:
        data = _compact({"status_code": 200, "status_txt": "OK", "data": body})
    elif body is not None:
        data = _compact(body)
    lines = [f"HTTP/1.1 {status} {responses.get(status, '')}"]
    lines += ["X-Nsq-Content-Type: nsq; version=1.0"] if v1 and named else []
    lines += [f"Content-Type: {kind}"] if data else []
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
