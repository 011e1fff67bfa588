"""A thread that owns state and carries out requests."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nsq.log import Logger
from nsq.threads import owner as module
from nsq.threads.owner import Ending, Owner
from tests.fakes.threads import PATIENCE

LOG = Logger("nsq.test")


class Scene:
    """An owner, and what it did. ``over`` ends it at its next turn."""

    def __init__(self, **options: Any) -> None:
        self.turns = 0
        self.over = False
        self.owner = Owner("nsq-test", LOG, turn=self._turn, **options)

    def _turn(self) -> float | None:
        self.turns += 1
        return None if self.over else math.inf

    def end(self) -> None:
        self.over = True
        self.owner.wake()
        assert self.owner.join(module.time.monotonic() + PATIENCE) == []


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.end()


def by() -> float:
    return module.time.monotonic() + PATIENCE


def test_requests_are_carried_out_on_its_thread_in_order(scene: Scene) -> None:
    seen: list[tuple[int, str]] = []
    scene.owner.start()
    for number in range(3):
        scene.owner.ask(lambda number=number: seen.append((number, threading.current_thread().name)))  # type: ignore[misc]
    scene.owner.do(lambda: None, by())
    assert seen == [(number, "nsq-test") for number in range(3)]
    assert not scene.owner.is_current


def test_each_batch_of_requests_is_followed_by_a_turn(scene: Scene) -> None:
    scene.owner.start()
    before = scene.turns
    scene.owner.wake()
    assert scene.owner.changed.wait_for(lambda: scene.turns > before, by())


def test_a_request_that_fails_ends_nothing(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.owner.start()

    def fail() -> None:
        raise SystemExit("from a user's function")

    scene.owner.ask(fail)
    scene.owner.do(lambda: None, by())
    assert "a request failed" in caplog.text


def test_an_action_raises_its_error_in_the_thread_that_waits_for_it(scene: Scene) -> None:
    scene.owner.start()
    with pytest.raises(ZeroDivisionError):
        scene.owner.do(lambda: 1 / 0, by())


def test_waiting_for_an_action_ends_when_the_owner_gives_up(scene: Scene) -> None:
    done: list[bool] = []
    scene.owner.do(lambda: done.append(True), math.inf, lambda: True)  # it never began
    assert done == []


def test_a_turn_that_fails_is_taken_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_RESPITE", 0.0)
    turns: list[Callable[[], float | None]] = [lambda: 1 / 0, lambda: None]
    owner = Owner("nsq-test", LOG, turn=lambda: turns.pop(0)())
    owner.start()
    assert owner.join(by()) == []
    assert (turns, owner.ended) == ([], True)
    assert "nsq-test failed, which is a bug of ours; it goes on" in caplog.text


def test_one_that_cannot_begin_says_why_and_may_be_started_again() -> None:
    failures: list[Exception | None] = []
    begins = iter([RuntimeError("no thread"), None])

    def begin() -> None:
        error = next(begins)
        if error is not None:
            raise error

    scene = Scene(begin=begin, failed=lambda: failures.append(scene.owner.failure))
    scene.owner.start()
    assert (scene.owner.begun, scene.owner.exists) == (False, False)
    assert [str(failure) for failure in failures] == ["no thread"]
    scene.owner.start()
    assert (scene.owner.begun, scene.owner.failure) == (True, None)
    scene.end()


def test_started_twice_it_begins_once() -> None:
    begins: list[None] = []
    scene = Scene(begin=lambda: begins.append(None))
    for _ in range(3):
        scene.owner.start()
    scene.end()
    assert len(begins) == 1


def test_one_that_does_not_end_is_named(scene: Scene) -> None:
    assert scene.owner.join(by()) == []  # not started: nothing to wait for
    scene.owner.start()
    assert scene.owner.join(module.time.monotonic()) == ["nsq-test"]


def test_a_forked_child_carries_out_nothing(scene: Scene) -> None:
    seen: list[None] = []
    scene.owner.ask(lambda: seen.append(None))
    scene.owner.abandon()
    scene.owner.run_requests()
    assert seen == []


@pytest.mark.parametrize(
    ("deadlines", "expected"),
    [
        ([10.0], (9.75, 9.85, 9.95)),  # a quarter of a second is kept
        ([1.0], (0.9, 0.94, 0.98)),  # a tenth is
        ([0.0], (0.0, 0.094, 0.098)),  # our threads have a moment all the same
        ([-5.0], (0.0, 0.094, 0.098)),
        ([math.inf], (math.inf, math.inf, math.inf)),
        ([math.inf, 1.0, 10.0], (0.9, 0.94, 0.98)),  # the most urgent call counts
    ],
)
def test_an_end_leaves_time_for_the_threads(
    deadlines: list[float], expected: tuple[float, float, float]
) -> None:
    ending = Ending()
    for deadline in deadlines:
        ending.hasten(deadline, now=0.0)
    assert (ending.work_by, ending.users_by, ending.join_by) == pytest.approx(expected)
