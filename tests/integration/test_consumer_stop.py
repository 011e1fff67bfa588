"""Stopping a consumer: drained, cut off, from a handler, by a signal, or before its start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsq import Closed, Consumer, ConsumerHooks, Message, UsageError
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from tests.fakes.network import silent_resolver, unreachable
from tests.fakes.threads import leave_handlers_no_time

from .consuming import (
    CHANNEL,
    PATIENCE,
    TOPIC,
    Gate,
    Recorder,
    channel_of,
    clients_of,
    create,
    expect_drained,
    log_of,
    make_consumer,
    numbered,
    publish,
    running,
    until,
)

ROOT = Path(__file__).resolve().parents[2]
BUSY = "nsq-orders/billing-handler-0"
#: Seconds a stop may take that has to take none; half of it is proof that it did not wait them out.
LONG = 120.0


@pytest.fixture
def forgetful(nsqd_factory: Factory[Nsqd]) -> Nsqd:
    """Its message comes back soon after whoever had it is gone: ours at once, Go's by the timeout."""
    nsqd = nsqd_factory(msg_timeout=10.0)
    create(nsqd)
    publish(nsqd, [b"hello"])
    return nsqd


def hold(nsqd: Nsqd, **options: Any) -> tuple[Consumer, Gate]:
    """A running consumer with a message in its handler's hands."""
    gate = Gate()
    consumer = make_consumer(nsqd, **options).add_handler(gate).start()
    gate.wait_until_held(1)
    return consumer, gate


# stop().


def test_an_idle_consumer_stops_at_once(nsqd: Nsqd) -> None:
    create(nsqd)
    consumer = make_consumer(nsqd).add_handler(Recorder()).start()
    assert consumer.wait_until_connected(PATIENCE)
    began = time.monotonic()
    report = consumer.stop(timeout=LONG)
    assert time.monotonic() - began < LONG / 2
    assert report.clean
    assert bool(report)
    assert repr(consumer) == f"<Consumer {TOPIC}/{CHANNEL} stopped>"
    until("nsqd has noticed", lambda: not clients_of(nsqd))


def test_stopping_waits_for_the_handlers(loaded: Nsqd) -> None:
    consumer, gate = hold(loaded)
    stopped = threading.Thread(target=consumer.stop, args=(PATIENCE,))
    stopped.start()
    until("nsqd has been asked to close", lambda: clients_of(loaded)[0]["state"] == 4)
    publish(loaded, [b"too late"])
    assert not consumer.wait(0.1)
    gate.let_go()
    stopped.join(PATIENCE)
    assert consumer.wait(0)
    until("one is left", lambda: channel_of(loaded)["in_flight_count"] == 0)
    assert channel_of(loaded)["depth"] == 1
    assert gate.passed == 1


def test_what_waits_in_the_inbox_is_handled_before_the_end(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(20))
    consumer, gate = hold(nsqd, max_in_flight=20)
    until("all are here", lambda: consumer.stats().in_flight == 20)
    gate.let_go()
    assert consumer.stop(PATIENCE).clean
    assert gate.passed == 20
    expect_drained(nsqd)


def test_answers_given_at_the_last_moment_are_sent(nsqd: Nsqd) -> None:
    """Many threads answer at once; the last answer ends the connection, and must not overtake any other."""
    create(nsqd)
    for _ in range(10):
        publish(nsqd, numbered(32))
        together = threading.Barrier(33)
        consumer = make_consumer(nsqd, threads=32, max_in_flight=32)
        consumer.add_handler(lambda message, together=together: together.wait(PATIENCE)).start()
        until("all are held", lambda consumer=consumer: consumer.stats().in_flight == 32)
        stopping = threading.Thread(target=consumer.stop, args=(PATIENCE,))
        stopping.start()
        until("asked to close", lambda consumer=consumer: consumer.health().state == "stopping")
        together.wait(PATIENCE)
        stopping.join(PATIENCE)
        assert consumer.stop(0).clean
        expect_drained(nsqd)


def test_a_stop_that_cannot_wait_says_what_was_left(forgetful: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_handlers_no_time(monkeypatch)
    consumer, gate = hold(forgetful)
    with log_of() as log:
        report = consumer.stop(0.1)
    assert not report
    assert not report.clean
    assert report.in_flight == 1
    assert report.unfinished_threads == [BUSY]
    assert consumer.stop() == report  # what was true then
    log.wait_for("WARNING", "did not stop cleanly", "in_flight=1", BUSY)
    second = Recorder()
    with running(make_consumer(forgetful).add_handler(second)):
        (message,) = second.wait_for(1)
    assert message.attempts == 2
    gate.let_go()
    until("the handler ended", lambda: BUSY not in {thread.name for thread in threading.enumerate()})


def test_stopping_twice_is_harmless(nsqd: Nsqd) -> None:
    create(nsqd)
    consumer = make_consumer(nsqd).add_handler(Recorder()).start()
    assert consumer.stop().clean
    assert consumer.stop().clean
    assert consumer.health().state == "stopped"


def test_stopping_from_two_threads_waits_for_the_same_end(loaded: Nsqd) -> None:
    consumer, gate = hold(loaded)
    reports: list[object] = []
    threads = [threading.Thread(target=lambda: reports.append(consumer.stop(PATIENCE))) for _ in range(2)]
    for thread in threads:
        thread.start()
    until("asked to close", lambda: consumer.health().state == "stopping")
    gate.let_go()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(reports) == 2
    assert all(reports)


def test_stopping_before_the_start(nsqd: Nsqd) -> None:
    consumer = make_consumer(nsqd).add_handler(Recorder())
    assert consumer.stop().clean
    assert consumer.wait(0)
    with pytest.raises(Closed, match="this consumer is stopped"):
        consumer.start()
    assert consumer.stop().clean


def test_starting_twice_is_an_error(nsqd: Nsqd) -> None:
    create(nsqd)
    consumer = make_consumer(nsqd).add_handler(Recorder())
    with running(consumer), pytest.raises(Closed, match="this consumer is running"):
        consumer.start()


def test_a_consumer_without_a_handler_stops(forgetful: Nsqd) -> None:
    consumer = make_consumer(forgetful, max_in_flight=1).start()
    until("a message is here", lambda: consumer.stats().in_flight == 1)
    began = time.monotonic()
    report = consumer.stop(0.2)
    assert time.monotonic() - began < LONG / 2
    assert report.in_flight == 1
    until("nsqd has it again", lambda: channel_of(forgetful)["in_flight_count"] == 0)


def test_a_consumer_without_connection_stops_at_once(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory()
    nsqd.stop()
    with log_of() as log:
        consumer = make_consumer(nsqd.tcp_address).add_handler(Recorder()).start()
        log.wait_for("WARNING", "no connection to an nsqd", nsqd.tcp_address)
        assert not consumer.wait_until_connected(0.05)
        began = time.monotonic()
        assert consumer.stop(timeout=LONG).clean
    assert time.monotonic() - began < LONG / 2


@pytest.mark.parametrize("kind", ["nsqd", "nsqlookupd"])
def test_stopping_does_not_wait_for_a_dial_into_nowhere(kind: str) -> None:
    def is_at_it(name: str) -> bool:
        return "-read-" in name or "-ask-" in name

    with unreachable() as hole:
        patient = {"dial_timeout": 300.0, "handshake_timeout": 300.0, "lookupd_poll_timeout": 300.0}
        consumer = Consumer(TOPIC, CHANNEL, **{kind: hole}, **patient).start()
        until("it dials", lambda: any(is_at_it(thread.name) for thread in threading.enumerate()))
        began = time.monotonic()
        assert consumer.stop(LONG).clean
        assert time.monotonic() - began < LONG / 2


@pytest.mark.parametrize("kind", ["nsqd", "nsqlookupd"])
def test_stopping_does_not_wait_for_a_name(kind: str) -> None:
    with silent_resolver() as asked:
        consumer = Consumer(TOPIC, CHANNEL, **{kind: "nsq.invalid:4150"}, lookupd_poll_timeout=300.0).start()
        assert asked.wait(PATIENCE)
        began = time.monotonic()
        assert consumer.stop(LONG).clean
        assert time.monotonic() - began < LONG / 2


def test_stopping_ends_waits_for_a_connection(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory()
    nsqd.stop()
    consumer = make_consumer(nsqd.tcp_address).add_handler(Recorder()).start()
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(consumer.wait_until_connected(60.0)))
    waiting.start()
    consumer.stop()
    waiting.join(PATIENCE)
    assert answers == [False]


@pytest.mark.parametrize("place", ["handler", "batch handler", "hook", "give_up"])
def test_stopping_from_within(loaded: Nsqd, place: str) -> None:
    """From where the stop would wait for itself it only asks, and goes on without the caller."""
    reports = []

    def stop(*_: object) -> None:
        reports.append(consumer.stop())

    class Hooks(ConsumerHooks):
        def finished(self, message: Message) -> None:
            if place == "hook":
                stop()

    seen = Recorder(stop if place == "handler" else lambda message: place != "give_up")
    give_up = stop if place == "give_up" else None
    consumer = make_consumer(loaded, hooks=Hooks(), max_attempts=1, give_up=give_up)
    if place == "batch handler":
        consumer.add_batch_handler(stop, size=2, wait=0.05)
    else:
        consumer.add_handler(seen)
    consumer.start()
    assert consumer.wait(PATIENCE)
    assert consumer.stop().clean
    assert [report.clean for report in reports] == [False]  # it had not stopped yet
    expect_drained(loaded, requeues=place == "give_up")


def test_with_starts_and_stops(loaded: Nsqd) -> None:
    seen = Recorder()
    with make_consumer(loaded).add_handler(seen) as consumer:
        seen.wait_for(1)
        expect_drained(loaded)
    assert consumer.health().state == "stopped"


def test_with_lets_errors_through(nsqd: Nsqd) -> None:
    create(nsqd)
    with pytest.raises(LookupError), make_consumer(nsqd).add_handler(Recorder()) as consumer:
        raise LookupError
    assert consumer.health().state == "stopped"


def test_changes_after_the_end_do_nothing(nsqd: Nsqd) -> None:
    create(nsqd)
    with running(make_consumer(nsqd).add_handler(Recorder())) as consumer:
        pass
    consumer.pause()
    consumer.resume()
    consumer.set_max_in_flight(5)
    assert not consumer.is_starved
    assert not consumer.wait_until_connected(0)


# run().


def test_run_ends_when_somebody_stops_it(loaded: Nsqd) -> None:
    """Off the main thread no signal is touched."""
    before = signal.getsignal(signal.SIGTERM)
    seen = Recorder()
    consumer = make_consumer(loaded).add_handler(seen)
    reports: list[object] = []
    thread = threading.Thread(target=lambda: reports.append(consumer.run()))
    thread.start()
    seen.wait_for(1)
    assert signal.getsignal(signal.SIGTERM) is before
    assert consumer.stop(PATIENCE).clean
    thread.join(PATIENCE)
    assert [bool(report) for report in reports] == [True]


def test_run_on_the_main_thread_ends_when_a_handler_stops_it(loaded: Nsqd) -> None:
    before = signal.getsignal(signal.SIGINT)
    consumer = make_consumer(loaded)
    consumer.add_handler(lambda message: consumer.stop() and None)
    assert consumer.run().clean
    assert signal.getsignal(signal.SIGINT) is before
    expect_drained(loaded)


def test_run_needs_a_handler_and_happens_once(nsqd: Nsqd) -> None:
    consumer = make_consumer(nsqd)
    with pytest.raises(UsageError, match="has no handler"):
        consumer.run()
    consumer.add_handler(Recorder()).stop()
    with pytest.raises(Closed, match="stopped> cannot run again"):
        consumer.run()


PROGRAM = """
import os, sys, threading, nsq

told, busy = threading.Event(), threading.Event()

def listen():
    if os.read(0, 100):  # and not the end of stdin
        told.set()

def work(message):
    busy.set()
    told.wait(300)
    os.write(1, b"done " + message.body + b"\\n")  # in one piece, whatever others say

threading.Thread(target=listen, daemon=True).start()
consumer = nsq.Consumer("orders", "billing", {source}, threads=4)
consumer.add_handler(work)
{run}
"""
RUN = "report = consumer.run(timeout=60)\nprint(report, flush=True)\nsys.exit(0 if report else 3)"


class Program:
    """A consumer in a process of its own. It works on its messages until it is told that they are done."""

    def __init__(self, nsqd: Nsqd, run: str = RUN, source: str = "") -> None:
        self._nsqd = nsqd
        program = PROGRAM.format(run=run, source=source or f"nsqd={nsqd.tcp_address!r}")
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def takes_no_more(self) -> None:
        until("it takes no more", lambda: clients_of(self._nsqd)[0]["state"] == 4)

    def done(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("done\n")
        self.process.stdin.flush()

    def holds(self, count: int) -> None:
        until("the program is busy", lambda: channel_of(self._nsqd).get("in_flight_count") == count)

    def end(self, timeout: float = PATIENCE) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def start(*args: Any, **options: Any) -> Program:
        programs.append(Program(*args, **options))
        return programs[-1]

    yield start
    for each in programs:
        with each.process:
            each.process.kill()


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (signal.SIGTERM, ""),
        # nsqd knows that it has them, not that handlers have begun with all.
        (signal.SIGINT, r"(waiting for \d handlers?|stopping); press Ctrl-C again to end\n"),
    ],
)
def test_a_signal_drains_and_ends_the_program(
    nsqd: Nsqd, program: Callable[..., Program], number: signal.Signals, told: str
) -> None:
    create(nsqd)
    publish(nsqd, numbered(3))
    started = program(nsqd)
    started.holds(3)
    started.process.send_signal(number)
    started.takes_no_more()
    started.done()
    status, out, err = started.end()
    assert status == 0
    assert re.fullmatch(told, err)
    assert sorted(out.splitlines()[:3]) == [f"done message {each}" for each in range(3)]
    expect_drained(nsqd)


def test_one_signal_lets_a_stop_of_its_own_go_on(nsqd: Nsqd, program: Callable[..., Program]) -> None:
    create(nsqd)
    publish(nsqd, [b"m"])
    stopping = "threading.Thread(target=lambda: busy.wait(300) and consumer.stop()).start()\n"
    started = program(nsqd, stopping + RUN)
    started.holds(1)
    started.takes_no_more()
    started.process.send_signal(signal.SIGTERM)
    started.done()
    status, out, err = started.end()
    assert (status, err) == (0, "")
    assert "done m" in out
    expect_drained(nsqd)


def test_a_second_signal_does_not_wait(nsqd_factory: Factory[Nsqd], program: Callable[..., Program]) -> None:
    nsqd = nsqd_factory(msg_timeout=20.0)
    create(nsqd)
    publish(nsqd, [b"m"])
    started = program(nsqd, RUN.replace("60", "300"))
    started.holds(1)
    started.process.send_signal(signal.SIGTERM)
    started.takes_no_more()
    time.sleep(1.2)  # those within a second count as one
    started.process.send_signal(signal.SIGTERM)
    status, out, _ = started.end()  # whose patience is shorter than the stop's, and than the handler's
    assert status == 3
    assert "in_flight=1" in out
    assert BUSY.removesuffix("0") in out  # one of four
    until("nsqd has it again", lambda: channel_of(nsqd)["in_flight_count"] == 0)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), 16)
    return bool(mask >> (number - 1) & 1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_signal_before_there_is_any_connection(
    nsqd_factory: Factory[Nsqd], nsqlookupd: Nsqlookupd, program: Callable[..., Program]
) -> None:
    nsqd = nsqd_factory()
    source = f"nsqlookupd={nsqlookupd.http_address!r}"
    run = "consumer.start(); print('started', flush=True)\n" + RUN
    started = program(nsqd, run, source)
    assert started.process.stdout is not None
    assert started.process.stdout.readline() == "started\n"
    until("it listens to SIGTERM", lambda: catches(started.process.pid, signal.SIGTERM))
    started.process.send_signal(signal.SIGTERM)
    status, out, err = started.end()
    assert status == 0
    assert err == "" or err.startswith("no nsqlookupd lists an nsqd with topic")  # if it was asked by then
    assert "clean=True" in out


def test_a_program_may_end_without_stopping_its_consumer(
    nsqd_factory: Factory[Nsqd], program: Callable[..., Program]
) -> None:
    nsqd = nsqd_factory(msg_timeout=3.0)
    create(nsqd)
    publish(nsqd, [b"m"])
    run = "consumer.start(); busy.wait(60)"
    status, _, err = program(nsqd, run).end()
    assert (status, err) == (0, "")
    until("nsqd has it again", lambda: channel_of(nsqd)["in_flight_count"] == 0)
