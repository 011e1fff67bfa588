from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from nsq.consumer.consumer import checked_callable, checked_seconds, checked_whole
from nsq.errors import ConfigError, UsageError


def test_a_correct_argument_is_returned() -> None:
    assert checked_whole("threads", 1) == 1
    assert checked_whole("max_in_flight", 0, least=0) == 0
    assert [checked_callable("give_up", value) for value in (print, None)] == [print, None]
    assert [checked_seconds(timeout) for timeout in (0, 2.5, -1.0)] == [0, 2.5, -1.0]
    assert checked_seconds(math.inf) < threading.TIMEOUT_MAX


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "3", None])
def test_what_is_no_whole_number_or_too_small_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"threads is .*; it must be a whole number from 1 up"):
        checked_whole("threads", value)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="give_up is 'dead'; it must be a function"):
        checked_callable("give_up", "dead")


@pytest.mark.parametrize("timeout", [math.nan, None, "3", True])
def test_what_is_no_number_of_seconds_is_refused(timeout: Any) -> None:
    with pytest.raises(UsageError, match=r"timeout is .*; it must be a number of seconds"):
        checked_seconds(timeout)
