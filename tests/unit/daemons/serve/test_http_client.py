from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from nsq.daemons.serve.http_client import send
from nsq.errors import ApiError
from nsq.http.message import HttpReply, HttpRequest, parse_url

REQUEST = HttpRequest(parse_url("http://h.example:4161/lookup?secret=x"))


class Server:
    """Stands in for the network: remembers where it was dialled and what it was sent."""

    def __init__(self, answer: bytes = b"", fault: Exception | None = None) -> None:
        self._answer = answer
        self._fault = fault
        self.dialled: list[tuple[str, int, bool]] = []
        self.sent = b""
        self.closed = False

    async def open_connection(self, host: str, port: int, *, ssl: Any) -> Any:
        self.dialled.append((host, port, ssl is not None))
        if self._fault is not None:
            raise self._fault
        reader = asyncio.StreamReader()
        reader.feed_data(self._answer)
        reader.feed_eof()
        return reader, self

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True


def ask(server: Server, monkeypatch: pytest.MonkeyPatch, request: HttpRequest = REQUEST) -> HttpReply:
    monkeypatch.setattr(asyncio, "open_connection", server.open_connection)
    return asyncio.run(send(request, connect_timeout=5.0, request_timeout=5.0, max_body=100))


def test_a_request_gets_its_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK")
    assert ask(server, monkeypatch).body == b"OK"
    assert server.dialled == [("h.example", 4161, False)]
    assert server.sent == REQUEST.encode()
    assert server.closed


def test_https_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(b"HTTP/1.1 200 OK\r\n\r\n")
    ask(server, monkeypatch, HttpRequest(parse_url("https://h.example")))
    assert server.dialled == [("h.example", 443, True)]


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", b"nonsense\r\n\r\n"]
)
def test_a_bad_reply_is_an_api_error_and_closes_the_connection(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(answer)
    with pytest.raises(ApiError):
        ask(server, monkeypatch)
    assert server.closed


@pytest.mark.parametrize(
    "fault",
    [
        ConnectionRefusedError("refused"),
        ssl.SSLCertVerificationError("self-signed"),
        UnicodeError("label empty or too long"),
        ValueError("embedded null character"),
        OverflowError("port must be 0-65535"),
        TimeoutError(),
    ],
)
def test_an_unreachable_server_is_an_api_error_that_hides_the_query(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ApiError, match=r"http://h.example:4161/lookup") as caught:
        ask(Server(fault=fault), monkeypatch)
    assert "secret" not in str(caught.value)
