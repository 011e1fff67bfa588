"""A consumer's calls may be interrupted by an exception from a signal handler, and made in a signal handler.

Once at every line of ours that a user's thread comes to, by tracing, and once by real signals.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from nsq import Closed, Consumer, ConsumerHooks, Message, StopReport, UsageError
from nsq.testing import Nsqd
from nsq.threads.signals import SignalWatch
from tests.fakes.lines import AtLine, Interrupted, each_line

from .consuming import PATIENCE, Recorder, clients_of, create, make_consumer, publish, until
from .test_interrupts import Signals, ignored_by_python

ELSEWHERE = "127.0.0.1:1"  # no nsqd listens there

#: On a consumer that runs.
CALLS: dict[str, Callable[[Consumer], Any]] = {
    "pause": lambda consumer: consumer.pause(),
    "resume": lambda consumer: consumer.resume(),
    "set_max_in_flight": lambda consumer: consumer.set_max_in_flight(3),
    "stats": lambda consumer: (consumer.stats(), consumer.is_starved),
    "health": lambda consumer: consumer.health(),
    "wait": lambda consumer: (consumer.wait(0.001), consumer.wait_until_connected(PATIENCE)),
    "add and remove": lambda consumer: (consumer.add_nsqd(ELSEWHERE), consumer.remove_nsqd(ELSEWHERE)),
}


def own_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("nsq-orders")]


def nothing_left(before: tuple[Any, ...]) -> None:
    until("no thread is left", lambda: not own_threads())
    assert signals() == before


def signals() -> tuple[Any, ...]:
    """The handlers that are set, and the descriptor that signals are written to."""
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), descriptor


@pytest.fixture
def clean(nsqd: Nsqd) -> Iterator[Nsqd]:
    create(nsqd)
    before = signals()
    yield nsqd
    nothing_left(before)


class Running:
    """A consumer and what it has handled."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self.seen = Recorder()
        self.consumer = make_consumer(nsqd, max_in_flight=3).add_handler(self.seen).start()
        assert self.consumer.wait_until_connected(PATIENCE)

    def unharmed(self) -> None:
        """It pauses and goes on, the next message is handled, and the connection is still the first."""
        self.consumer.pause()
        assert self.consumer.health().summary == "no nsqd may send: paused"
        self.consumer.set_max_in_flight(3)
        self.consumer.resume()
        handled = len(self.seen.bodies)
        publish(self._nsqd, [b"next"])
        self.seen.wait_for(handled + 1)
        until("finished", lambda: self.consumer.stats().in_flight == 0)
        assert len(clients_of(self._nsqd)) == 1

    def stop(self) -> None:
        assert self.consumer.stop(PATIENCE) == StopReport(clean=True)


@pytest.mark.parametrize("name", CALLS)
def test_at_every_line(clean: Nsqd, name: str) -> None:
    running = Running(clean)
    for _ in each_line(lambda: CALLS[name](running.consumer)):
        running.unharmed()
    running.stop()


class StopsWhenConnected(ConsumerHooks):
    consumer: Consumer

    def connected(self, nsqd_address: str) -> None:
        self.consumer.stop(PATIENCE)


def fresh(nsqd: Nsqd, **options: Any) -> Consumer:
    return make_consumer(nsqd, **options).add_handler(lambda message: None)


def to_run(nsqd: Nsqd) -> Consumer:
    """One whose ``run`` ends by itself."""
    hooks = StopsWhenConnected()
    hooks.consumer = consumer = fresh(nsqd, hooks=hooks)
    return consumer


def started(nsqd: Nsqd) -> Consumer:
    consumer = fresh(nsqd).start()
    assert consumer.wait_until_connected(PATIENCE)
    return consumer


#: What is made, and the call.
LIVES: dict[str, tuple[Callable[[Nsqd], Consumer], Callable[[Consumer], Any]]] = {
    "start": (fresh, lambda consumer: consumer.start()),
    "stop": (started, lambda consumer: consumer.stop(PATIENCE)),
    "run": (to_run, lambda consumer: consumer.run(PATIENCE)),
}


@pytest.mark.parametrize("name", LIVES)
def test_a_stop_completes_what_was_interrupted(clean: Nsqd, name: str) -> None:
    make, call = LIVES[name]
    before = signals()
    number, interrupted = 0, True
    while interrupted:
        number += 1
        consumer = make(clean)
        try:
            with AtLine(number):
                call(consumer)
            interrupted = False
        except Interrupted:
            pass
        began = time.monotonic()
        assert consumer.stop(PATIENCE) == StopReport(clean=True), number
        assert time.monotonic() - began < PATIENCE / 2
        nothing_left(before)


@pytest.mark.parametrize("name", [*LIVES, "pause", "health", "wait"])
def test_a_signal_handler_may_stop_it(clean: Nsqd, name: str) -> None:
    make, call = LIVES[name] if name in LIVES else (started, CALLS[name])
    number, left = 0, 0
    while left == 0:
        number += 1
        consumer = make(clean)
        reports: list[StopReport] = []

        def handle(consumer: Consumer = consumer, reports: list[StopReport] = reports) -> None:
            began = time.monotonic()
            reports.append(consumer.stop(0.0))
            assert time.monotonic() - began < 5.0

        try:
            with AtLine(number, handle) as line:
                call(consumer)
        except Closed:
            assert reports  # it was stopped before it had begun
        left = line.left if line.left > 0 else 0
        consumer.stop(PATIENCE)
        assert consumer.wait(0.0)
        until("no thread is left", lambda: not own_threads())


@ignored_by_python
@pytest.mark.parametrize("name", CALLS)
def test_by_real_signals(clean: Nsqd, name: str) -> None:
    running = Running(clean)
    longest = 0.0005
    with Signals(longest) as hits:
        while hits.hits < 300:
            hits.during(lambda: CALLS[name](running.consumer))
            if hits.hits % 50 == 0:
                running.unharmed()
    running.unharmed()
    running.stop()


@ignored_by_python
@pytest.mark.parametrize("name", LIVES)
def test_beginnings_and_ends_by_real_signals(clean: Nsqd, name: str) -> None:
    make, call = LIVES[name]
    before = signals()
    with Signals(0.004) as hits:
        while hits.hits < 60:
            consumer = make(clean)
            hits.during(lambda consumer=consumer: call(consumer))  # type: ignore[misc]
            assert consumer.stop(PATIENCE) == StopReport(clean=True)
            nothing_left(before)


@ignored_by_python
def test_a_wait_for_signals_gives_all_back_whatever_interrupts_it() -> None:
    """Descriptors too, which are looked at after every test."""
    before = signals()

    def watch() -> None:
        with SignalWatch() as watch, watch:
            pass

    with Signals(0.0003) as hits:
        while hits.hits < 2_000:
            hits.during(watch)
            assert signals() == before


@pytest.mark.parametrize("timeout", [0.0, 0.3])
def test_a_stop_keeps_its_time_whatever_handlers_do(clean: Nsqd, timeout: float) -> None:
    release, entered = threading.Event(), threading.Event()

    def hang(message: Message) -> None:
        entered.set()
        release.wait(PATIENCE)

    consumer = make_consumer(clean).add_handler(hang).start()
    publish(clean, [b"m"])
    assert entered.wait(PATIENCE)
    began = time.monotonic()
    report = consumer.stop(timeout)
    assert time.monotonic() - began < timeout + 1.0
    assert (report.clean, report.in_flight) == (False, 1)
    release.set()


@pytest.mark.parametrize("answers", [True, False])
def test_a_more_urgent_stop_hurries_another(clean: Nsqd, answers: bool) -> None:
    """Whether the handler hangs before its answer or after it."""
    release, entered = threading.Event(), threading.Event()

    def hang(message: Message) -> None:
        if answers:
            message.finish()
        entered.set()
        release.wait(PATIENCE)

    consumer = make_consumer(clean).add_handler(hang).start()
    publish(clean, [b"m"])
    assert entered.wait(PATIENCE)
    patient = threading.Thread(target=consumer.stop, args=(PATIENCE,))
    patient.start()
    if answers:
        until("the connection is gone", lambda: consumer.stats().connections == 0)
    began = time.monotonic()
    assert not consumer.stop(0.0)
    patient.join(PATIENCE)
    assert time.monotonic() - began < PATIENCE / 4
    release.set()


class Stuck(ConsumerHooks):
    """A hook that hangs."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def connected(self, nsqd_address: str) -> None:
        self.entered.set()
        self.release.wait(PATIENCE)


@pytest.mark.parametrize("timeout", [0.0, 0.3])
def test_a_stop_keeps_its_time_whatever_hooks_do(clean: Nsqd, timeout: float) -> None:
    hooks = Stuck()
    consumer = make_consumer(clean, hooks=hooks).add_handler(lambda message: None).start()
    assert hooks.entered.wait(PATIENCE)
    began = time.monotonic()
    assert not consumer.stop(timeout)
    assert time.monotonic() - began < timeout + 1.0
    assert consumer.wait(PATIENCE)
    assert consumer.stop(PATIENCE).unfinished_threads == ["nsq-orders/billing-hooks"]
    hooks.release.set()


def anything(consumer: Consumer) -> None:
    for call in CALLS.values():
        call(consumer)


@pytest.mark.parametrize("name", CALLS)
def test_a_signal_handler_may_call_anything(clean: Nsqd, name: str) -> None:
    running = Running(clean)
    number, left = 0, 0
    while left == 0:
        number += 1
        with suppress(UsageError), AtLine(number, lambda: anything(running.consumer)) as line:
            CALLS[name](running.consumer)  # in vain, where the handler has removed the address already
        left = max(line.left, 0)
        if number % 20 == 0:
            running.unharmed()
    running.unharmed()
    running.stop()


def test_a_handler_of_any_signal_may_stop_run(clean: Nsqd) -> None:
    consumer = make_consumer(clean).add_handler(lambda message: os.kill(os.getpid(), signal.SIGUSR1))
    previous = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop(PATIENCE))
    try:
        publish(clean, [b"m"])
        assert consumer.run(timeout=PATIENCE) == StopReport(clean=True)
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_a_signal_a_second_after_the_first_ends_run(clean: Nsqd) -> None:
    release = threading.Event()

    def hang(message: Message) -> None:
        for pause in (1.2, 0.0):  # those within a second count as one
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            time.sleep(pause)
        release.wait(PATIENCE)

    consumer = make_consumer(clean).add_handler(hang)
    publish(clean, [b"m"])
    before, began = signals(), time.monotonic()
    report = consumer.run(timeout=PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    assert report.in_flight == 1
    assert signals() == before
    release.set()
