"""A consumer's calls may be interrupted by an exception from a signal handler, and made in a signal handler.

Once at every line of ours that a user's thread comes to, by tracing, and once by real signals.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from nsq import Closed, Consumer, ConsumerHooks, StopReport, UsageError
from nsq.testing import Nsqd
from nsq.threads.signals import SignalWatch
from tests.fakes.interrupts import Signals, each_line, ignored_by_python

from .consuming import PATIENCE, Recorder, clients_of, create, make_consumer, publish, until

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
    # After another test's stop by a signal they are wrapped, to ignore its repetitions for a second.
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    return *[getattr(handler, "handler", handler) for handler in handlers], descriptor


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
    for line in each_line():
        with line:
            CALLS[name](running.consumer)
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
    for line in each_line():
        consumer = make(clean)
        with line:
            call(consumer)
        began = time.monotonic()
        assert consumer.stop(PATIENCE) == StopReport(clean=True), line.number
        assert time.monotonic() - began < PATIENCE / 2
        nothing_left(before)


@pytest.mark.parametrize("name", [*LIVES, "pause", "health", "wait"])
def test_a_signal_handler_may_stop_it(clean: Nsqd, name: str) -> None:
    make, call = LIVES[name] if name in LIVES else (started, CALLS[name])
    for line in each_line():
        consumer = make(clean)
        reports: list[StopReport] = []

        def stop(consumer: Consumer = consumer, reports: list[StopReport] = reports) -> None:
            began = time.monotonic()
            reports.append(consumer.stop(0.0))
            assert time.monotonic() - began < 5.0

        line.act = stop
        try:
            with line:
                call(consumer)
        except Closed:
            assert reports  # it was stopped before it had begun
        consumer.stop(PATIENCE)
        assert consumer.wait(0.0)
        until("no thread is left", lambda: not own_threads())


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


def anything(consumer: Consumer) -> None:
    for call in CALLS.values():
        call(consumer)


@pytest.mark.parametrize("name", CALLS)
def test_a_signal_handler_may_call_anything(clean: Nsqd, name: str) -> None:
    running = Running(clean)
    for line in each_line():
        line.act = lambda: anything(running.consumer)
        with suppress(UsageError), line:
            CALLS[name](running.consumer)  # in vain, where the handler has removed the address already
        if line.number % 20 == 0:
            running.unharmed()
    running.unharmed()
    running.stop()
