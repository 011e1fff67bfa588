from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from nsq.consumer.consumer import checked_callable, checked_seconds, checked_whole
from nsq.errors import ConfigError, UsageError


def test_a_whole_number() -> None:
    assert checked_whole("threads", 1) == 1
    assert checked_whole("max_in_flight", 0, least=0) == 0


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "3", None])
def test_what_is_none_or_too_small_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"threads is .*; it must be a whole number from 1 up"):
        checked_whole("threads", value)


def test_a_function_or_none() -> None:
    assert checked_callable("give_up", print) is print
    assert checked_callable("give_up", None) is None
    with pytest.raises(ConfigError, match="give_up is 'dead'; it must be a function"):
        checked_callable("give_up", "dead")


@pytest.mark.parametrize("timeout", [0, 2.5, -1.0])
def test_seconds(timeout: float) -> None:
    assert checked_seconds(timeout) == timeout


def test_for_ever_is_as_long_as_threads_can_wait() -> None:
    assert checked_seconds(math.inf) < threading.TIMEOUT_MAX


@pytest.mark.parametrize("timeout", [math.nan, None, "3", True])
def test_seconds_that_are_none(timeout: Any) -> None:
    with pytest.raises(UsageError, match=r"timeout is .*; it must be a number of seconds"):
        checked_seconds(timeout)
