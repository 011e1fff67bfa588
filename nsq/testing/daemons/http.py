"""The few blocking HTTP calls a test makes to a daemon; imports nothing but the way to reach it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from .addresses import dial, is_path

TIMEOUT = 20.0


class Reply(NamedTuple):
    """One answer; unpacks as ``status, headers, body``."""

    status: int
    headers: http.client.HTTPMessage  # looked up without regard to case
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8")

    def json(self) -> Any:
        return json.loads(self.body)


class _HttpConnection(http.client.HTTPConnection):
    """An HTTP connection to wherever a daemon may listen, Unix sockets included."""

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
    """Send one request on a connection of its own and read the whole answer."""
    connection = _HttpConnection(address, timeout)
    try:
        connection.request(method, target, body=body, headers=dict(headers or {}))
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()
