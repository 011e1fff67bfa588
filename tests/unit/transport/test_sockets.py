"""Parts of the socket transports that need no socket; the others are in
tests/integration/test_transport.py.
"""

from __future__ import annotations

import math
import struct

import pytest

from nsq.transport.sockets import poll_milliseconds, timeval


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
