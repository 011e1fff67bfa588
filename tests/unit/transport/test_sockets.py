"""Parts of the socket transports that need no socket; the others are in
tests/integration/test_transport.py.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from nsq.transport.sockets import SocketStream, poll_milliseconds, timeval


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, (0, 0)),
        (1.0, (1, 0)),
        (2.5, (2, 500_000)),
        (1e-9, (0, 1)),  # never zero, which would mean for ever
        (0.9999999, (0, 999_999)),
        (math.inf, (10**9, 0)),
    ],
)
def test_a_timeout_becomes_seconds_and_microseconds(seconds: float | None, expected: tuple[int, int]) -> None:
    assert struct.unpack("@ll", timeval(seconds)) == expected


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(1.0, 1000), (0.0001, 1), (0.0, 0), (-3.0, 0), (math.inf, 2**31 - 1)],
)
def test_poll_waits_at_least_as_long_as_is_left(seconds: float, milliseconds: int) -> None:
    assert poll_milliseconds(seconds) == milliseconds


def test_only_one_of_two_leaving_threads_closes_the_descriptor() -> None:
    closes = []

    class Socket:
        def setblocking(self, flag: bool) -> None: ...

        def shutdown(self, how: int) -> None: ...

        def close(self) -> None:
            closes.append(None)
            if len(closes) == 1:
                stream._close_if_last()  # the other thread, before the first has finished

    sock: Any = Socket()
    stream = SocketStream(sock, "nsqd-a:4150")
    stream.close()
    assert len(closes) == 1
