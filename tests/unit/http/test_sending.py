"""Parts of sending that need no server; the others are in tests/integration/test_api.py."""

from __future__ import annotations

import dataclasses

import pytest

from nsq.errors import ApiError, DialFailed, Unanswered
from nsq.http.message import HttpRequest, parse_url
from nsq.http.sending import KeptConnections, send
from nsq.transport import MemoryTransport, Stream


class Failing:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def connect(self, address: str, *, timeout: float) -> Stream:
        assert address == "h:4151"
        assert 0 < timeout <= 5.0
        raise self._error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DialFailed("cannot connect to h:4151: refused"), "cannot be reached: refused"),
        (DialFailed("no way"), "cannot be reached: no way"),
        (Unanswered("h:4151: nothing"), "did not answer within 5 s"),
    ],
)
def test_an_error_of_a_dial_becomes_an_api_error_without_the_query(error: Exception, text: str) -> None:
    with pytest.raises(ApiError) as caught:
        send(HttpRequest(parse_url("http://h:4151/stats?secret=x")), timeout=5.0, transport=Failing(error))
    assert str(caught.value) == f"http://h:4151/stats {text}"


def test_an_unexpected_error_of_a_transport_is_raised() -> None:
    with pytest.raises(KeyError):
        send(HttpRequest(parse_url("h:4151")), timeout=5.0, transport=Failing(KeyError("h")))


# Connections that are kept

GET = HttpRequest(parse_url("h:4151"))
ASKED = dataclasses.replace(GET, headers={"Connection": "keep-alive"}).encode()


class Connections:
    """Each plays one script; counts those that were made."""

    def __init__(self, *scripts: MemoryTransport) -> None:
        self._scripts = list(scripts)
        self.made = 0

    def connect(self, address: str, *, timeout: float) -> Stream:
        self.made += 1
        return self._scripts.pop(0).connect(address, timeout=timeout)


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nOK\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nOK", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK, and what belongs to no request", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", False),
    ],
)
def test_a_connection_is_used_again_if_nothing_is_left_on_it(reply: bytes, kept: bool) -> None:
    transport = Connections(MemoryTransport((ASKED, reply), (ASKED, reply)), MemoryTransport((ASKED, reply)))
    connections = KeptConnections(connect_timeout=1.0, transport=transport)
    for _ in range(2):
        assert connections.send(GET, timeout=5.0).status in (200, 204)
    assert transport.made == (1 if kept else 2)
    connections.close()
