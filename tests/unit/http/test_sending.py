"""What needs no server; the rest is in tests/integration/test_api.py."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nsq.errors import ApiError
from nsq.http.message import HttpRequest, Url, parse_url
from nsq.http.sending import send

ROOT = Path(__file__).resolve().parents[3]


def test_importing_it_loads_neither_ssl_nor_asyncio() -> None:
    program = """
import sys
import nsq.http.nsqd, nsq.http.nsqlookupd
print(sorted({"ssl", "certifi", "asyncio", "http.client"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            ConnectionRefusedError(111, "Connection refused"),
            "cannot be reached: [Errno 111] Connection refused",
        ),
        (TimeoutError("timed out"), "did not answer within 5 s"),
        (OverflowError("port must be 0-65535"), "cannot be reached: port must be 0-65535"),
    ],
)
def test_what_a_connect_raises_becomes_an_api_error_without_the_query(fault: Exception, text: str) -> None:
    def connect(url: Url, timeout: float) -> socket.socket:
        assert 0 < timeout <= 5.0
        raise fault

    with pytest.raises(ApiError) as caught:
        send(HttpRequest(parse_url("http://h:4151/stats?secret=x")), timeout=5.0, connect=connect)
    assert str(caught.value) == f"http://h:4151/stats {text}"


def test_a_fault_of_ones_own_is_not_hidden() -> None:
    def connect(url: Url, timeout: float) -> socket.socket:
        raise KeyError(url.host)

    with pytest.raises(KeyError):
        send(HttpRequest(parse_url("h")), timeout=5.0, connect=connect)
