"""Only what needs no socket; the rest is tests/integration/test_transport.py."""

from __future__ import annotations

import math

import pytest

from nsq.transport.sockets import poll_milliseconds


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(1.0, 1000), (0.0001, 1), (0.0, 0), (-3.0, 0), (math.inf, 2**31 - 1)],
)
def test_poll_waits_at_least_as_long_as_is_left(seconds: float, milliseconds: int) -> None:
    assert poll_milliseconds(seconds) == milliseconds
