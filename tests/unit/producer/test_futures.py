"""The future of a publish: awaited, called back, waited for together with others."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from nsq.errors import ServerError, UsageError
from nsq.producer.producer import Producer
from nsq.threads.waiters import SafeEvent
from tests.fakes.nsqd import PublishedTo
from tests.fakes.threads import PATIENCE, in_thread, in_threads

STORED, REFUSED = True, False


class Scene:
    """A producer whose futures the test ends, the oldest first."""

    def __init__(self, p: Producer, nsqd: PublishedTo) -> None:
        self.p, self.nsqd = p, nsqd

    def future(self) -> Any:
        future = self.p.publish_async("orders", b"body")
        self.nsqd.expect(b"body")
        return future

    def end(self, *ends: bool) -> None:
        for stored in ends or (STORED,):
            self.nsqd.ok() if stored else self.nsqd.refuse("E_QUOTA later")

    def ended(self, end: bool = STORED) -> Any:
        future = self.future()
        self.end(end)
        future.exception(PATIENCE)
        return future


@pytest.fixture
def scene(p: Producer, nsqd: PublishedTo) -> Iterator[Scene]:
    yield Scene(p, nsqd)
    p.close(0)


# One future


def states(future: Any) -> tuple[bool, ...]:
    return future.cancel(), future.running(), future.done(), future.cancelled()


@pytest.mark.parametrize("end", [STORED, REFUSED])
def test_a_future_runs_until_it_ends_and_cannot_be_cancelled(scene: Scene, end: bool) -> None:
    future = scene.future()
    assert isinstance(future, Future)
    assert states(future) == (False, True, False, False)
    assert "<Publish to orders, sent" in repr(future)
    for wait in (future.result, future.exception):
        with pytest.raises(TimeoutError, match="has not ended within 0 s"):
            wait(0.0)
    scene.end(end)
    assert isinstance(future.exception(PATIENCE), ServerError) is (end is REFUSED)
    with nullcontext() if end else pytest.raises(ServerError):
        future.result(0.0)
    assert states(future) == (False, False, True, False)


def test_an_interrupted_wait_does_not_disturb_the_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    future = scene.future()
    with monkeypatch.context() as patched:
        patched.setattr(SafeEvent, "wait", interrupt)
        for wait in (concurrent.futures.wait, lambda futures: next(concurrent.futures.as_completed(futures))):
            with pytest.raises(KeyboardInterrupt):
                wait([future])
    scene.end()
    assert concurrent.futures.wait([future], PATIENCE).done == {future}
    future.result(0.0)


# Callbacks


def test_callbacks_run_in_order_and_once_and_one_that_fails_is_logged(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    future, called = scene.future(), list[object]()
    future.add_done_callback(called.append)
    future.add_done_callback(lambda _: exec("raise SystemExit"))
    future.add_done_callback(lambda _: called.append("behind"))
    assert called == []
    scene.end()
    assert scene.p.flush(PATIENCE)  # waits for callbacks too
    assert called == [future, "behind"]
    assert "a callback of <Publish" in caplog.text


def test_a_callback_that_comes_late_runs_at_once_and_its_error_is_logged(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """As in the standard library: its caller cannot know whether it runs at once."""
    future, called = scene.ended(), list[object]()
    future.add_done_callback(called.append)
    future.add_done_callback(lambda _: 1 / 0)
    assert called == [future]
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_that_is_added_while_the_publish_ends_runs_once(scene: Scene) -> None:
    for _ in range(50):
        future, called = scene.future(), list[object]()
        add = partial(future.add_done_callback, called.append)
        in_threads(add, scene.end, add)
        future.result(PATIENCE)
        assert scene.p.flush(PATIENCE)
        assert called == [future, future]


def test_a_callback_may_not_wait_for_other_futures_of_its_producer_unless_they_have_ended(
    scene: Scene,
) -> None:
    first, other = scene.future(), scene.future()
    waits: list[Callable[[], object]] = [
        other.result,
        lambda: other.exception(PATIENCE),
        lambda: concurrent.futures.wait([other]),
        lambda: next(concurrent.futures.as_completed([other])),
    ]
    outcome: Future[None] = Future()

    def callback(_: object) -> None:
        try:
            for wait in waits:
                with pytest.raises(UsageError, match="waits for another future of the same producer"):
                    wait()
            scene.end()
            in_thread(other.result).result(PATIENCE)
            for wait in waits:
                wait()
            outcome.set_result(None)
        except BaseException as error:
            outcome.set_exception(error)

    first.add_done_callback(callback)
    scene.end()
    outcome.result(PATIENCE)


# What concurrent.futures and asyncio do with futures


@pytest.mark.parametrize(
    ("until", "ends"),
    [
        (ALL_COMPLETED, [STORED, REFUSED, STORED]),
        (FIRST_COMPLETED, [STORED]),
        (FIRST_COMPLETED, [REFUSED]),
        (FIRST_EXCEPTION, [STORED, REFUSED]),
    ],
)
def test_several_futures_are_waited_for(scene: Scene, until: str, ends: list[bool]) -> None:
    futures = [scene.future() for _ in range(3)]
    wait = partial(concurrent.futures.wait, futures, PATIENCE, until)
    result, other, _ = in_threads(wait, wait, partial(scene.end, *ends))
    ended = set(futures[: len(ends)])
    assert result == other == (ended, set(futures) - ended)


def test_futures_that_have_ended_are_not_waited_for(scene: Scene) -> None:
    ended, running = scene.ended(), scene.future()
    assert concurrent.futures.wait([ended]).done == {ended}
    for _ in range(3):
        assert concurrent.futures.wait([ended, running], 0.0) == ({ended}, {running})
    (done, _), _ = in_threads(partial(concurrent.futures.wait, [ended, running], PATIENCE), scene.end)
    assert done == {ended, running}


@pytest.mark.parametrize("mine_first", [True, False])
def test_futures_of_the_producer_and_others_are_waited_for_together(scene: Scene, mine_first: bool) -> None:
    mine, other = scene.future(), Future[None]()
    wait = partial(concurrent.futures.wait, [mine, other] if mine_first else [other, mine], PATIENCE)
    (done, _), *_ = in_threads(wait, scene.end, partial(other.set_result, None))
    assert done == {mine, other}


def test_futures_come_as_they_are_completed(scene: Scene) -> None:
    first, second, never = scene.ended(), scene.future(), scene.future()
    completed = concurrent.futures.as_completed([second, first], PATIENCE)
    assert next(completed) is first
    scene.end(REFUSED)
    assert list(completed) == [second]
    with pytest.raises(TimeoutError):
        next(concurrent.futures.as_completed([never], 0.0))


@pytest.mark.parametrize("awaited", [lambda future: future, asyncio.wrap_future], ids=["itself", "wrapped"])
@pytest.mark.parametrize("end", [STORED, REFUSED])
def test_a_coroutine_can_await_a_future(scene: Scene, end: bool, awaited: Any) -> None:
    future = scene.future()

    async def wait() -> None:
        in_thread(partial(scene.end, end))
        await asyncio.wait_for(awaited(future), PATIENCE)

    with nullcontext() if end else pytest.raises(ServerError):
        asyncio.run(wait())
    assert future.done()


def test_a_coroutine_that_gives_up_does_not_end_the_publish(scene: Scene) -> None:
    future = scene.future()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(future), 0.0)
        assert future.running()

    asyncio.run(give_up())
    scene.end()
    future.result(PATIENCE)


def test_a_future_is_awaited_only_where_an_event_loop_runs(scene: Scene) -> None:
    async def wait() -> None:
        await scene.future()

    with pytest.raises(UsageError, match="no asyncio event loop"):
        wait().send(None)
