"""The future of a publish: awaited, called back, waited for together with others."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import pytest

from nsq.config import Config
from nsq.errors import (
    NsqError,
    PublishFailed,
    UsageError,
)
from nsq.producer.futures import PublishFuture
from nsq.producer.publishes import (
    new_publish,
)
from nsq.threads.waiters import SafeEvent
from tests.fakes.threads import PATIENCE, in_threads

CONFIG = Config(max_msg_size=100, max_defer=7200.0)
FAILED = PublishFailed("no nsqd took it")


class Callbacks:
    """Stands for the thread of that name, and runs at once what it is given."""

    is_ours = False

    def owns_current_thread(self) -> bool:
        return self.is_ours

    def put(self, callback: Callable[[], None]) -> None:
        callback()


def future(callbacks: Any = None) -> PublishFuture:
    made = new_publish(PublishFuture, "orders", b"body", None, CONFIG)
    made.callbacks = callbacks or Callbacks()
    return made


class TestFuture:
    def test_a_future_runs_until_it_ends_and_cannot_be_cancelled(self) -> None:
        made = future()
        assert isinstance(made, Future)
        assert not made.cancel()
        assert (made.running(), made.done(), made.cancelled()) == (True, False, False)
        assert "<Publish to orders" in repr(made)
        for wait in (made.result, made.exception):
            with pytest.raises(TimeoutError, match="has not ended within 0 s"):
                wait(0.0)

    @pytest.mark.parametrize("error", [None, FAILED])
    def test_an_ended_future(self, error: NsqError | None) -> None:
        made = future()
        made.end(error)
        assert made.exception(0.0) is error
        if error is None:
            made.result()
        else:
            with pytest.raises(PublishFailed):
                made.result(0.0)
        assert (made.running(), made.done(), made.cancel(), made.cancelled()) == (False, True, False, False)

    @pytest.mark.parametrize("timeout", [None, PATIENCE])
    def test_every_thread_that_waits_is_woken(self, timeout: float | None) -> None:
        made = future()
        wait = partial(made.exception, timeout)
        assert in_threads(wait, wait, partial(made.end, FAILED))[:2] == [FAILED, FAILED]

    def test_an_interrupted_wait_does_not_disturb_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_: object) -> bool:
            raise KeyboardInterrupt

        made = future()
        with monkeypatch.context() as patched:
            patched.setattr(SafeEvent, "wait", interrupt)
            with pytest.raises(KeyboardInterrupt):
                concurrent.futures.wait([made])
            with pytest.raises(KeyboardInterrupt):
                next(concurrent.futures.as_completed([made]))
        made.end(None)
        assert concurrent.futures.wait([made], PATIENCE).done == {made}
        made.result(0.0)


class TestCallbacks:
    def test_they_run_in_order_and_once_and_late_ones_at_once(self) -> None:
        made, called = future(), list[object]()
        made.add_done_callback(called.append)
        made.add_done_callback(lambda _: called.append("second"))
        assert called == []
        made.end(None)
        assert called == [made, "second"]
        made.add_done_callback(lambda _: called.append("late"))
        made.wake()
        assert called == [made, "second", "late"]

    def test_one_that_raises_does_not_keep_the_others(self) -> None:
        made, called = future(), list[object]()
        made.add_done_callback(lambda _: 1 / 0)
        made.add_done_callback(called.append)
        with suppress(ZeroDivisionError):  # the thread that runs callbacks logs it
            made.end(None)
        assert called == [made]

    def test_one_that_raises_at_once_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        """As in the standard library: its caller cannot know whether it runs at once."""
        made = future()
        made.end(None)
        made.add_done_callback(lambda _: 1 / 0)
        assert "ZeroDivisionError" in caplog.text

    def test_each_runs_once_even_if_it_is_added_while_the_publish_ends(self) -> None:
        for _ in range(100):
            made, called = future(), list[object]()
            add = partial(made.add_done_callback, called.append)
            in_threads(add, partial(made.end, None), add)
            assert called == [made, made]

    def test_they_must_not_wait_for_futures_of_the_same_producer(self) -> None:
        callbacks = Callbacks()
        callbacks.is_ours = True
        made = future(callbacks)
        waits: list[Callable[[], object]] = [
            made.result,
            lambda: made.exception(PATIENCE),
            lambda: concurrent.futures.wait([made]),
            lambda: next(concurrent.futures.as_completed([made])),
        ]
        for wait in waits:
            with pytest.raises(UsageError, match="waits for another future of the same producer"):
                wait()
        made.end(None)
        for wait in waits:
            wait()


class TestTogether:
    """What concurrent.futures and asyncio do with futures."""

    @pytest.mark.parametrize(
        ("until", "ends"),
        [
            (concurrent.futures.ALL_COMPLETED, [None, FAILED, None]),
            (concurrent.futures.FIRST_COMPLETED, [None]),
            (concurrent.futures.FIRST_COMPLETED, [FAILED]),
            (concurrent.futures.FIRST_EXCEPTION, [None, FAILED]),
        ],
    )
    def test_several_are_waited_for(
        self, until: str, ends: list[NsqError | None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        futures = [future(), future(), future()]
        wait = SafeEvent.wait

        def end_and_wait(signal: SafeEvent, timeout: float | None = None) -> bool:
            for each, error in zip(futures, ends, strict=False):
                each.end(error)
            return wait(signal, timeout)

        monkeypatch.setattr(SafeEvent, "wait", end_and_wait)
        ended = set(futures[: len(ends)])
        assert concurrent.futures.wait(futures, PATIENCE, until) == (ended, set(futures) - ended)

    def test_many_threads_wait_for_the_same_while_they_end(self) -> None:
        for _ in range(30):
            futures = [future() for _ in range(4)]
            wait = partial(concurrent.futures.wait, futures, PATIENCE)
            results = in_threads(wait, wait, *[partial(each.end, None) for each in futures])
            assert results[0] == results[1] == (set(futures), set())

    def test_those_that_have_ended_are_not_waited_for(self) -> None:
        ended, running = future(), future()
        ended.end(None)
        assert concurrent.futures.wait([ended]).done == {ended}
        for _ in range(3):
            assert concurrent.futures.wait([ended, running], 0.0) == ({ended}, {running})
        assert not running.locks  # a wait that gave up leaves nothing behind
        wait = partial(concurrent.futures.wait, [ended, running], PATIENCE)
        (done, _), _ = in_threads(wait, partial(running.end, None))
        assert done == {ended, running}

    def test_they_are_waited_for_with_futures_of_others(self) -> None:
        for mine_first in (True, False):
            mine, other = future(), Future[None]()
            wait = partial(concurrent.futures.wait, [mine, other] if mine_first else [other, mine], PATIENCE)
            (done, _), *_ = in_threads(wait, partial(mine.end, None), partial(other.set_result, None))
            assert done == {mine, other}

    def test_they_come_as_they_are_completed(self) -> None:
        first, second, never = future(), future(), future()
        second.end(None)
        completed = concurrent.futures.as_completed([first, second], PATIENCE)
        assert next(completed) is second
        first.end(FAILED)
        assert next(completed) is first
        with pytest.raises(StopIteration):
            next(completed)
        with pytest.raises(TimeoutError):
            next(concurrent.futures.as_completed([never], 0.0))

    @pytest.mark.parametrize("awaited", [lambda made: made, asyncio.wrap_future], ids=["itself", "wrapped"])
    @pytest.mark.parametrize("error", [None, FAILED])
    def test_a_coroutine_can_await_one(self, error: NsqError | None, awaited: Any) -> None:
        made = future()

        async def wait() -> None:
            threading.Thread(target=made.end, args=(error,)).start()
            await asyncio.wait_for(awaited(made), PATIENCE)

        with nullcontext() if error is None else pytest.raises(PublishFailed):
            asyncio.run(wait())

    def test_a_coroutine_that_gives_up_does_not_end_the_publish(self) -> None:
        made = future()

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(made), 0.0)
            assert made.running()
            made.end(None)

        asyncio.run(give_up())
        made.result(0.0)

    def test_a_future_is_awaited_only_where_an_event_loop_runs(self) -> None:
        async def wait() -> None:
            await future()

        with pytest.raises(UsageError, match="no asyncio event loop"):
            wait().send(None)
