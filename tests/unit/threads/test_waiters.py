"""Waiting that survives interruption: no wake is lost, and an exception out of a wait leaks nothing."""

from __future__ import annotations

import _thread
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nsq.threads import waiters
from nsq.threads.waiters import (
    Callbacks,
    SafeEvent,
    Waiters,
    join_threads,
    start_thread,
)
from tests.fakes.threads import Running

PATIENCE = 20.0
PAST = 0.0  # a deadline


class Looks:
    """A condition that is false until its ``last`` look, and says that it has been looked at."""

    def __init__(self, last: int = 10**6, *, at_look: Callable[[int], None] = lambda count: None) -> None:
        self.count = 0
        self.last = last
        self.twice = threading.Event()  # the waiter is in the list, and sleeps unless it is woken
        self._at_look = at_look

    def __call__(self) -> bool:
        self.count += 1
        if self.count == 2:
            self.twice.set()
        self._at_look(self.count)
        return self.count >= self.last


@contextmanager
def main_thread_signalled(looks: Looks, handler: Callable[[], None]) -> Iterator[None]:
    """Have the handler called once in the main thread, as a signal handler, while it waits for ``looks``.

    A signal that comes right before the thread falls asleep is handled when it wakes up: so it is sent again.
    """
    main = threading.get_ident()
    handled: list[None] = []

    def handle(*_: object) -> None:
        if not handled:
            handled.append(None)
            handler()

    def send() -> None:
        looks.twice.wait(PATIENCE)
        while not handled:
            signal.pthread_kill(main, signal.SIGUSR1)
            threading.Event().wait(0.001)

    before = signal.signal(signal.SIGUSR1, handle)
    sender = Running(send)
    try:
        yield
    finally:
        sender.result()
        signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    raise KeyboardInterrupt


class TestWaiters:
    @pytest.mark.parametrize("holds", [True, False])
    def test_a_deadline_that_is_over_costs_one_look(self, holds: bool) -> None:
        waiters = Waiters()
        condition = Looks(1 if holds else 10)
        assert waiters.wait_for(condition, PAST) is holds
        assert condition.count == 1
        assert waiters.locks == []

    def test_nothing_is_waited_for_when_the_condition_comes_true_after_the_first_look(self) -> None:
        assert Waiters().wait_for(Looks(2))

    def test_a_wake_between_the_second_look_and_the_sleep_is_not_lost(self) -> None:
        waiters = Waiters()
        condition = Looks(3, at_look=lambda count: waiters.wake() if count == 2 else None)
        assert waiters.wait_for(condition)
        assert waiters.locks == []

    def test_a_wake_may_come_to_nobody_without_reason_and_twice(self) -> None:
        waiters = Waiters()
        waiters.wake()
        condition = Looks(9, at_look=lambda count: (waiters.wake(), waiters.wake()))
        assert waiters.wait_for(condition)

    def test_every_waiter_is_woken(self) -> None:
        waiters = Waiters()
        made: list[None] = []
        conditions = [Looks() for _ in range(5)]
        running = [
            Running(lambda looks=looks: waiters.wait_for(lambda: looks() or len(made) > 0))
            for looks in conditions
        ]
        assert all(looks.twice.wait(PATIENCE) for looks in conditions)
        made.append(None)
        waiters.wake()
        assert [each.result() for each in running] == [True] * 5
        assert waiters.locks == []

    def test_two_threads_take_turns_without_losing_a_wake(self) -> None:
        waiters = Waiters()
        turn = [0]

        def play(me: int) -> Callable[[], bool]:
            def run() -> bool:
                for number in range(me, 1000, 2):
                    if not waiters.wait_for(lambda number=number: turn[0] == number):
                        return False
                    turn[0] = number + 1
                    waiters.wake()
                return True

            return run

        assert [each.result() for each in (Running(play(0)), Running(play(1)))] == [True, True]
        assert turn == [1000]

    def test_an_interrupted_waiter_leaves_nothing_and_the_others_are_woken(self) -> None:
        waiters = Waiters()
        made: list[None] = []
        other = Looks()
        running = Running(lambda: waiters.wait_for(lambda: other() or len(made) > 0))
        assert other.twice.wait(PATIENCE)
        interrupted = Looks()
        with main_thread_signalled(interrupted, interrupt), pytest.raises(KeyboardInterrupt):
            waiters.wait_for(interrupted)
        assert len(waiters.locks) == 1
        made.append(None)
        waiters.wake()
        assert running.result() is True

    @pytest.mark.parametrize("look", [1, 2])
    def test_a_condition_that_raises_leaves_nothing(self, look: int) -> None:
        waiters = Waiters()
        with pytest.raises(KeyboardInterrupt):
            waiters.wait_for(Looks(at_look=lambda count: interrupt() if count == look else None))
        assert waiters.locks == []

    def test_a_signal_handler_may_wake_the_thread_that_it_interrupts(self) -> None:
        waiters = Waiters()
        made: list[None] = []
        looks = Looks()

        def make() -> None:
            made.append(None)
            waiters.wake()

        with main_thread_signalled(looks, make):
            assert waiters.wait_for(lambda: looks() or len(made) > 0)


class TestSignal:
    @pytest.mark.parametrize("timeout", [None, PATIENCE])
    def test_a_set_wakes_all_who_wait(self, timeout: float | None) -> None:
        flag = SafeEvent()
        running = [Running(lambda: flag.wait(timeout)) for _ in range(3)]
        flag.set()
        assert [each.result() for each in running] == [True] * 3


class TestStartThread:
    def test_starting_a_thread_takes_no_lock_of_the_threading_module(self) -> None:
        """A signal handler may call it that has interrupted Thread.start."""
        ran = threading.Event()
        with threading._active_limbo_lock:  # type: ignore[attr-defined]
            start_thread(ran.set, "nsq-test", failed=pytest.fail)
        assert ran.wait(PATIENCE)

    def test_a_thread_that_cannot_be_had_is_reported_on_another_thread(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed: list[tuple[str, int]] = []
        done = threading.Event()

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        def note(error: RuntimeError) -> None:
            failed.append((str(error), _thread.get_ident()))
            done.set()

        monkeypatch.setattr(threading.Thread, "start", refuse)
        start_thread(pytest.fail, "nsq-test", note)
        assert done.wait(PATIENCE)
        ((text, ident),) = failed
        assert text == "can't start new thread"
        assert ident != threading.get_ident()

    def test_without_even_a_bare_thread_the_failure_is_reported(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> int:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(waiters._thread, "start_new_thread", refuse)
        failed: list[str] = []
        start_thread(pytest.fail, "nsq-test", failed=lambda error: failed.append(str(error)))
        assert failed == ["can't start new thread"]


class TestCallbacks:
    @pytest.fixture
    def callbacks(self) -> Iterator[Callbacks]:
        made = Callbacks("nsq-test-hooks", logging.getLogger("nsq.test"))
        yield made
        assert made.stop(time.monotonic() + PATIENCE) == []

    def test_callbacks_run_in_order_on_a_thread_of_their_own(self, callbacks: Callbacks) -> None:
        ran: list[object] = []
        callbacks.start()
        callbacks.start()
        for number in range(3):
            callbacks.tell(ran.append, number)
        callbacks.put(lambda: ran.extend([threading.current_thread().name, callbacks.owns_current_thread()]))
        assert callbacks.wait_until_run(time.monotonic() + PATIENCE)
        assert ran == [0, 1, 2, "nsq-test-hooks", True]
        assert not callbacks.owns_current_thread()

    def test_a_callback_that_fails_is_logged_and_the_others_go_on(
        self, callbacks: Callbacks, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(error: BaseException) -> None:
            raise error

        ran: list[str] = []
        for error in (KeyError("x"), SystemExit()):
            callbacks.tell(fail, error)
        callbacks.put(lambda: ran.append("behind"))
        callbacks.start()
        assert callbacks.wait_until_run(time.monotonic() + PATIENCE)
        assert ran == ["behind"]
        assert caplog.text.count("fail failed") == 2

    def test_a_callback_that_hangs_is_waited_for_until_the_deadline(self, callbacks: Callbacks) -> None:
        gate = threading.Event()
        callbacks.tell(gate.wait, PATIENCE)
        callbacks.start()
        assert not callbacks.wait_until_run(PAST)
        assert callbacks.stop(PAST) == ["nsq-test-hooks"]
        gate.set()

    def test_events_that_slow_hooks_cannot_take_are_dropped(
        self, callbacks: Callbacks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(waiters, "_MAX_EVENTS", 3)
        ran: list[int] = []
        for number in range(10):
            callbacks.tell(ran.append, number)
        callbacks.start()
        assert callbacks.wait_until_run(time.monotonic() + PATIENCE)
        assert ran == [0, 1, 2]
        assert [record.args for record in caplog.records] == [(1,), (2,), (4,)]

    def test_a_callback_that_comes_after_the_end_still_runs(self, callbacks: Callbacks) -> None:
        ran: list[str] = []
        callbacks.put(lambda: ran.append("before"))
        callbacks.stop(PAST)
        callbacks.put(lambda: ran.append("behind"))
        callbacks.start()
        assert callbacks.stop(time.monotonic() + PATIENCE) == []
        callbacks.put(lambda: ran.append("late"))
        assert ran == ["before", "behind", "late"]


def test_threads_are_joined_until_the_deadline() -> None:
    gate = threading.Event()
    ended, busy = threading.Thread(target=int), threading.Thread(target=gate.wait, name="busy")
    threads = [ended, busy, threading.Thread(name="never started"), threading.current_thread()]
    ended.start()
    busy.start()
    assert join_threads(threads, time.monotonic() + 0.001) in (["busy"], [ended.name, "busy"])
    gate.set()
    assert join_threads(threads, time.monotonic() + PATIENCE) == []
