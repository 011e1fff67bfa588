from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from nsq.config import Config
from nsq.consumer.handlers import Requeue, requeue_delay, requeue_for_exception, requeue_for_result
from nsq.errors import InvalidMessage, UsageError


@pytest.mark.parametrize("result", [None, True, 0, "", [], object()])
def test_any_result_except_false_is_a_success(result: object) -> None:
    assert requeue_for_result(result) is None


def test_false_is_a_failure() -> None:
    assert requeue_for_result(False) == (None, True)


async def coroutine() -> None: ...


async def async_generator() -> AsyncIterator[None]:
    yield


def generator() -> Iterator[None]:
    yield


@pytest.mark.parametrize("handler", [coroutine, async_generator, generator])
def test_a_result_that_has_not_run_is_no_success(handler: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match=r"returned a (coroutine.*nsq\.aio|.*generator.*plain function)"):
        requeue_for_result(handler())


class TestExceptions:
    def test_exceptions_back_off_unless_they_are_exempt(self) -> None:
        assert requeue_for_exception(KeyError("x"), ()) == (None, True)
        assert requeue_for_exception(KeyError("x"), (LookupError,)) == (None, False)
        assert requeue_for_exception(ValueError("x"), (LookupError,)) == (None, True)

    @pytest.mark.parametrize(("delay", "backoff"), [(None, True), (2.5, True), (0, False)])
    def test_a_requeue_says_its_delay_and_whether_to_back_off(
        self, delay: float | None, backoff: bool
    ) -> None:
        assert requeue_for_exception(Requeue(delay, backoff=backoff), ()) == (delay, backoff)

    @pytest.mark.parametrize("delay", ["soon", float("inf"), float("nan")])
    def test_an_invalid_delay_of_a_requeue_is_refused_at_once(self, delay: Any) -> None:
        with pytest.raises(InvalidMessage, match="delay"):
            Requeue(delay)


class TestDelay:
    def test_the_delay_grows_with_the_attempts_up_to_the_longest(self) -> None:
        config = Config()
        delays = [requeue_delay(attempts, config, 0.5) for attempts in (1, 2, 10, 11)]
        assert delays == [90.0, 180.0, 900.0, 900.0]

    def test_delays_are_spread(self) -> None:
        config = Config(requeue_jitter=0.5)
        assert requeue_delay(1, config, 0.5) == 112.5
        assert requeue_delay(10, config, 0.999) == 900.0
