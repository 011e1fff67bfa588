"""Blocking HTTP requests to a daemon. Imports only the addresses of this package."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from .addresses import dial, is_path

TIMEOUT = 20.0


class Reply(NamedTuple):
    """One reply; unpacks as ``status, headers, body``."""

    status: int
    headers: http.client.HTTPMessage  # names are case-insensitive
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8")

    def json(self) -> Any:
        return json.loads(self.body)


class _HttpConnection(http.client.HTTPConnection):
    """An HTTP connection over TCP or a Unix socket."""

    def __init__(self, address: str, timeout: float) -> None:
        super().__init__("localhost" if is_path(address) else address, timeout=timeout)
        self._address = address
        self._seconds = timeout

    def connect(self) -> None:
        self.sock = dial(self._address, self._seconds)


def ask(
    address: str,
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout: float = TIMEOUT,
) -> Reply:
    """Send one request on a connection of its own and read the whole reply."""
    connection = _HttpConnection(address, timeout)
    try:
        connection.request(method, target, body=body, headers=dict(headers or {}))
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()
