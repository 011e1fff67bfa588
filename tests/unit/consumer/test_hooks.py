from __future__ import annotations

import threading
import time

import pytest

from nsq.consumer.reports import ConsumerHooks, HookRunner

PATIENCE = 20.0


def soon() -> float:
    return time.monotonic() + PATIENCE


class Noting(ConsumerHooks):
    def __init__(self) -> None:
        self.notes: list[object] = []
        self.threads: set[str] = set()

    def connected(self, nsqd_address: str) -> None:
        self.threads.add(threading.current_thread().name)
        self.notes.append(nsqd_address)

    def backing_off(self, level: int) -> None:
        if level == 1:
            raise KeyError(level)
        if level == 2:
            raise SystemExit
        self.notes.append(level)


def test_they_run_in_order_on_a_thread_of_their_own() -> None:
    hooks = Noting()
    runner = HookRunner(hooks, "nsq-test")
    runner.start()
    for address in ("a", "b", "c"):
        runner.tell(hooks.connected, address)
    assert runner.stop(soon())
    assert hooks.notes == ["a", "b", "c"]
    assert hooks.threads == {"nsq-test-hooks"}


def test_what_fails_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Noting()
    runner = HookRunner(hooks, "nsq-test")
    runner.start()
    for level in (0, 1, 2, 3):
        runner.tell(hooks.backing_off, level)
    assert runner.stop(soon())
    assert hooks.notes == [0, 3]
    assert caplog.text.count("the hook Noting.backing_off failed") == 2


def test_without_hooks_nothing_runs() -> None:
    runner = HookRunner(None, "nsq-test")
    before = threading.active_count()
    runner.start()
    assert not runner.active
    assert threading.active_count() == before
    runner.tell(runner.hooks.connected, "a")
    assert runner.stop(soon())


def test_one_that_hangs_is_not_waited_for_beyond_the_deadline() -> None:
    gate = threading.Event()

    class Hanging(ConsumerHooks):
        def connected(self, nsqd_address: str) -> None:
            gate.wait(PATIENCE)

    hooks = Hanging()
    runner = HookRunner(hooks, "nsq-test")
    runner.start()
    runner.tell(hooks.connected, "a")
    assert not runner.stop(time.monotonic())
    gate.set()
    assert runner.stop(soon())


def test_a_stop_without_a_start() -> None:
    assert HookRunner(Noting(), "nsq-test").stop(soon())


def test_it_knows_its_own_thread() -> None:
    answers: list[bool] = []

    class Asking(ConsumerHooks):
        def connected(self, nsqd_address: str) -> None:
            answers.append(runner.owns_current_thread())

    hooks = Asking()
    runner = HookRunner(hooks, "nsq-test")
    runner.start()
    runner.tell(hooks.connected, "a")
    assert runner.stop(soon())
    assert answers == [True]
    assert not runner.owns_current_thread()
