"""A consumer's end: drained, cut off, from a handler or a hook, before its start; and what it returns."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import nullcontext
from typing import Any

import pytest

from nsq import Closed, Consumer, ConsumerHooks, Message, StopReport, UsageError
from nsq.threads import stop_signals
from tests.behaviour.conftest import NsqdFactory
from tests.fakes.threads import Running, in_threads, leave_handlers_no_time
from tests.fakes.wire import Wire
from tests.integration.consuming import (
    CHANNEL,
    PATIENCE,
    TOPIC,
    AnyNsqd,
    Gate,
    Recorder,
    channel_of,
    clients_of,
    expect_drained,
    log_of,
    make_consumer,
    numbered,
    publish,
    running,
    until,
)

CLEAN = StopReport(clean=True)
BUSY = f"nsq-{TOPIC}/{CHANNEL}-handler-0"
#: Seconds that a stop may take which has nothing to wait for; half of it proves that it did not wait.
LONG = 120.0


def hold(nsqd: AnyNsqd, **options: Any) -> tuple[Consumer, Gate]:
    """A running consumer with a message in its handler's hands."""
    gate = Gate()
    consumer = make_consumer(nsqd, **options).add_handler(gate).start()
    gate.wait_until_held(1)
    return consumer, gate


def is_stopped(consumer: Consumer) -> bool:
    return (repr(consumer), consumer.health().state) == (f"<Consumer {TOPIC}/{CHANNEL} stopped>", "stopped")


def test_a_new_consumer_starts_and_stops_once(nsqd: AnyNsqd) -> None:
    before = threading.active_count()
    consumer = make_consumer(nsqd).add_handler(Recorder(), threads=8)
    assert threading.active_count() == before
    assert repr(consumer) == f"<Consumer {TOPIC}/{CHANNEL} new>"
    assert consumer.health().summary == "new"
    with running(consumer):
        assert repr(consumer) == f"<Consumer {TOPIC}/{CHANNEL} running>"
        with pytest.raises(Closed, match="running> cannot be started again"):
            consumer.start()
        with pytest.raises(Closed, match=r"add_handler comes before start.*running"):
            consumer.add_handler(Recorder())
        with pytest.raises(Closed, match="add_batch_handler comes before start"):
            consumer.add_batch_handler(Recorder(), size=2)
    assert is_stopped(consumer)
    with pytest.raises(Closed, match="stopped> cannot be started again"):
        consumer.start()
    until("nsqd has noticed", lambda: not clients_of(nsqd))
    # Changes after the end do nothing.
    consumer.pause()
    consumer.resume()
    consumer.set_max_in_flight(5)
    assert not consumer.is_starved
    assert not consumer.wait_until_connected(0)


def test_a_stop_before_the_start_is_final(nsqd: AnyNsqd) -> None:
    consumer = make_consumer(nsqd).add_handler(Recorder())
    for _ in range(2):
        assert consumer.stop() == CLEAN
        assert consumer.wait(0)
    for call in (consumer.start, consumer.run):
        with pytest.raises(Closed, match="stopped"):
            call()


@pytest.mark.parametrize("timeout", [LONG, float("inf"), 1e300])
def test_an_idle_consumer_stops_at_once(nsqd: AnyNsqd, timeout: float) -> None:
    consumer = make_consumer(nsqd).add_handler(Recorder()).start()
    assert consumer.wait_until_connected(timeout)
    began = time.monotonic()
    assert consumer.stop(timeout) == CLEAN
    assert time.monotonic() - began < LONG / 2


def test_stop_waits_for_busy_handlers_and_takes_no_more(loaded: AnyNsqd) -> None:
    consumer, gate = hold(loaded)
    stopping = Running(lambda: consumer.stop(PATIENCE))
    until("nsqd has been asked to close", lambda: clients_of(loaded)[0]["state"] == 4)
    publish(loaded, [b"too late"])
    assert not consumer.wait(0.1)
    gate.let_go()
    assert stopping.result() == CLEAN
    assert consumer.wait(0)
    until("one is left", lambda: channel_of(loaded)["in_flight_count"] == 0)
    assert channel_of(loaded)["depth"] == 1
    assert gate.passed == 1


@pytest.mark.parametrize(("result", "answer"), [(None, "FIN"), (False, "REQ 0")])
def test_a_stopping_consumer_sends_cls_and_answers_and_no_rdy(
    loaded: AnyNsqd, wire: Wire, result: object, answer: str
) -> None:
    publish(loaded, [b"second"])
    gate = Gate()
    consumer = make_consumer(loaded, transport=wire, max_in_flight=5, max_backoff_duration=60.0)
    consumer.add_handler(lambda message: (gate(message), result)[1]).start()
    until("both are here", lambda: consumer.stats().in_flight == 2)
    stopping = Running(lambda: consumer.stop(PATIENCE))
    wire.expect(loaded.tcp_address, "RDY 5", "CLS")
    gate.let_go()
    assert stopping.result() == CLEAN
    assert wire.rest(loaded.tcp_address) == [answer] * 2


def test_nsqds_get_no_rdy_of_each_other_during_a_stop(two: list[AnyNsqd], wire: Wire) -> None:
    consumer = make_consumer(two, transport=wire, max_in_flight=6).add_handler(Recorder())
    with running(consumer, connections=2):
        for nsqd in two:
            wire.expect(nsqd.tcp_address, "RDY 3")
    assert [wire.rest(nsqd.tcp_address) for nsqd in two] == [["CLS"]] * 2


def test_what_waits_in_the_inbox_is_handled_before_the_end(nsqd: AnyNsqd) -> None:
    publish(nsqd, numbered(20))
    consumer, gate = hold(nsqd, max_in_flight=20)
    until("all are here", lambda: consumer.stats().in_flight == 20)
    gate.let_go()
    assert consumer.stop(PATIENCE) == CLEAN
    assert gate.passed == 20
    expect_drained(nsqd)


def test_answers_given_at_the_last_moment_are_sent(nsqd: AnyNsqd) -> None:
    """Many threads answer at once; the last answer ends the connection, and must not overtake any other."""
    for _ in range(10):
        publish(nsqd, numbered(32))
        together = threading.Barrier(33)
        consumer = make_consumer(nsqd, threads=32, max_in_flight=32)
        consumer.add_handler(lambda message, together=together: together.wait(PATIENCE)).start()
        until("all are held", lambda consumer=consumer: consumer.stats().in_flight == 32)
        stopping = Running(lambda consumer=consumer: consumer.stop(PATIENCE))  # type: ignore[misc]
        until("asked to close", lambda consumer=consumer: consumer.health().state == "stopping")
        together.wait(PATIENCE)
        assert stopping.result() == CLEAN
        expect_drained(nsqd)


def test_a_stop_that_cannot_wait_says_what_is_left_and_nsqd_sends_it_again(
    nsqd_factory: NsqdFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_handlers_no_time(monkeypatch)
    nsqd = nsqd_factory(msg_timeout=10.0)  # Go's nsqd waits for it
    publish(nsqd, numbered(3))
    consumer, gate = hold(nsqd, threads=1, max_in_flight=3)
    until("all are here", lambda: consumer.stats().in_flight == 3)
    with log_of() as log:
        report = consumer.stop(0.1)
    assert not report
    assert (report.clean, report.in_flight, report.unfinished_threads) == (False, 3, [BUSY])
    assert consumer.stop() == report  # what was true then
    log.wait_for("WARNING", "did not stop cleanly", "in_flight=3", BUSY)
    assert (consumer.stats().connections, consumer.stats().in_flight) == (0, 0)
    second = Recorder()
    with running(make_consumer(nsqd).add_handler(second)):
        assert {message.attempts for message in second.wait_for(3)} == {2}
    gate.let_go()
    until("the handler ended", lambda: BUSY not in {thread.name for thread in threading.enumerate()})
    assert gate.passed == 1  # no other message was given to a handler


@pytest.mark.parametrize("in_flight", [0, 1])
def test_a_stop_without_time_warns_only_if_a_message_is_in_flight(
    nsqd: AnyNsqd, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsq.threads.owner._LEAST_TO_END", PATIENCE)  # for all threads to end
    consumer = make_consumer(nsqd).add_handler(Message.disable_auto_response).start()
    if in_flight:
        publish(nsqd, [b"m"])
    until("it is here", lambda: consumer.stats().connections and consumer.stats().received == in_flight)
    with log_of() as log:
        assert consumer.stop(0.0) == StopReport(clean=False, in_flight=in_flight, cut_off=[nsqd.tcp_address])
    assert len([line for line in log.lines if line.startswith("WARNING")]) == in_flight


@pytest.mark.parametrize("timeout", [0.0, 0.3])
@pytest.mark.parametrize("place", ["handler", "hook"])
def test_a_stop_keeps_its_time_whatever_hangs(loaded: AnyNsqd, place: str, timeout: float) -> None:
    entered, release = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        entered.set()
        release.wait(PATIENCE)

    class Hooks(ConsumerHooks):
        def connected(self, nsqd_address: str) -> None:
            if place == "hook":
                hang()

    consumer = make_consumer(loaded, hooks=Hooks())
    consumer.add_handler(hang if place == "handler" else Recorder(), threads=1).start()
    assert entered.wait(PATIENCE)
    began = time.monotonic()
    assert not consumer.stop(timeout)
    assert time.monotonic() - began < timeout + 5.0
    assert consumer.wait(PATIENCE)
    name = BUSY if place == "handler" else f"nsq-{TOPIC}/{CHANNEL}-hooks"
    assert name in consumer.stop().unfinished_threads
    release.set()


@pytest.mark.parametrize("answered", [True, False])
def test_a_more_urgent_stop_hurries_another(loaded: AnyNsqd, answered: bool) -> None:
    entered, release = threading.Event(), threading.Event()

    def hang(message: Message) -> None:
        if answered:
            message.finish()
        entered.set()
        release.wait(LONG)

    consumer = make_consumer(loaded).add_handler(hang).start()
    assert entered.wait(PATIENCE)
    patient = Running(lambda: consumer.stop(LONG))
    if answered:
        until("the connection is gone", lambda: consumer.stats().connections == 0)
    began = time.monotonic()
    assert not consumer.stop(0.0)
    assert not patient.result()
    assert time.monotonic() - began < LONG / 4
    release.set()


def test_several_threads_that_stop_it_wait_for_the_same_end(loaded: AnyNsqd) -> None:
    consumer, gate = hold(loaded)

    def let_go() -> None:
        until("asked to close", lambda: consumer.health().state == "stopping")
        gate.let_go()

    assert in_threads(consumer.stop, consumer.stop, consumer.stop, let_go)[:3] == [CLEAN] * 3
    assert consumer.stop() == CLEAN


def test_a_consumer_without_a_handler_takes_no_message_unless_max_in_flight_is_given(loaded: AnyNsqd) -> None:
    with log_of() as log, running(make_consumer(loaded)) as consumer:
        assert consumer.stats().in_flight == 0
    log.wait_for("WARNING", "has no handler")
    consumer = make_consumer(loaded, max_in_flight=1).start()
    until("a message is here", lambda: consumer.stats().in_flight == 1)
    began = time.monotonic()
    assert consumer.stop(0.2).in_flight == 1
    assert time.monotonic() - began < LONG / 2


def test_a_stop_ends_dials_and_waits_for_a_connection(nsqd: AnyNsqd) -> None:
    nsqd.stop()
    with log_of() as log:
        consumer = make_consumer(nsqd).add_handler(Recorder()).start()
        log.wait_for("WARNING", "no connection to an nsqd", nsqd.tcp_address)
    assert not consumer.wait_until_connected(0.05)
    began = time.monotonic()
    connected, report = in_threads(
        lambda: consumer.wait_until_connected(LONG), lambda: consumer.stop(timeout=LONG)
    )
    assert (connected, report) == (False, CLEAN)
    assert time.monotonic() - began < LONG / 2


@pytest.mark.parametrize("place", ["handler", "batch handler", "hook", "give_up"])
def test_a_stop_from_within_only_asks_and_the_consumer_ends(loaded: AnyNsqd, place: str) -> None:
    reports = []

    def stop(*_: object) -> None:
        reports.append(consumer.stop())

    class Hooks(ConsumerHooks):
        def finished(self, message: Message) -> None:
            if place == "hook":
                stop()

    give_up = stop if place == "give_up" else None
    consumer = make_consumer(loaded, hooks=Hooks(), max_attempts=1, give_up=give_up)
    if place == "batch handler":
        consumer.add_batch_handler(stop, size=2, wait=0.05)
    else:
        consumer.add_handler(stop if place == "handler" else lambda message: place != "give_up")
    consumer.start()
    assert consumer.wait(PATIENCE)
    assert consumer.stop() == CLEAN
    assert [report.clean for report in reports] == [False]  # it had not stopped yet
    expect_drained(loaded, requeues=place == "give_up")


@pytest.mark.parametrize("error", [None, LookupError])
def test_a_with_block_starts_and_stops_and_lets_errors_through(
    loaded: AnyNsqd, error: type[Exception] | None
) -> None:
    seen, through = Recorder(), pytest.raises(error) if error else nullcontext()
    with through, make_consumer(loaded).add_handler(seen) as consumer:
        seen.wait_for(1)
        expect_drained(loaded)
        if error:
            raise error
    assert is_stopped(consumer)


def test_run_off_the_main_thread_ends_when_another_thread_stops_it(loaded: AnyNsqd) -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = Recorder()
    consumer = make_consumer(loaded).add_handler(seen)
    ran = Running(consumer.run)
    seen.wait_for(1)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (consumer.stop(PATIENCE), ran.result()) == (CLEAN, CLEAN)


def test_run_on_the_main_thread_ends_when_a_handler_stops_it(loaded: AnyNsqd) -> None:
    before = signal.getsignal(signal.SIGINT)
    consumer = make_consumer(loaded)
    consumer.add_handler(lambda message: consumer.stop() and None)
    assert consumer.run() == CLEAN
    assert signal.getsignal(signal.SIGINT) is before
    expect_drained(loaded)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_ends_at_a_signal_once_busy_handlers_are_done_and_at_a_second_one_before(
    loaded: AnyNsqd, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_signals, "SAME_REQUEST_SECONDS", 0.0)
    before = signal.getsignal(number)
    release = threading.Event()
    twice = number is signal.SIGINT

    def work(message: Message) -> None:
        os.kill(os.getpid(), number)
        until("stopping", lambda: consumer.health().state == "stopping")
        if twice:
            os.kill(os.getpid(), number)
            release.wait(LONG)

    consumer = make_consumer(loaded).add_handler(work)
    with log_of() as log:
        report = consumer.run(timeout=LONG)
    assert (report.clean, report.in_flight) == (not twice, twice)
    log.wait_for("waiting for 1 handler", "press Ctrl-C again to end" if twice else "SIGTERM")
    release.set()
    assert consumer.wait(PATIENCE)
    # For a moment after a stop by a signal, another handler stands for the first one.
    assert getattr(signal.getsignal(number), "handler", signal.getsignal(number)) is before


def test_a_signal_lets_a_stop_of_another_thread_go_on(loaded: AnyNsqd) -> None:
    stops: list[Running] = []

    def work(message: Message) -> None:
        stops.append(Running(lambda: consumer.stop(PATIENCE)))
        until("stopping", lambda: consumer.health().state == "stopping")
        os.kill(os.getpid(), signal.SIGTERM)

    consumer = make_consumer(loaded).add_handler(work)
    assert (consumer.run(timeout=LONG), stops[0].result()) == (CLEAN, CLEAN)
    expect_drained(loaded)


def test_a_signal_ends_run_before_there_is_a_connection(nsqd: AnyNsqd) -> None:
    nsqd.stop()
    before = signal.getsignal(signal.SIGTERM)

    def send() -> None:
        until("it listens", lambda: signal.getsignal(signal.SIGTERM) is not before)
        os.kill(os.getpid(), signal.SIGTERM)

    sending = Running(send)
    assert make_consumer(nsqd).add_handler(Recorder()).run(timeout=LONG) == CLEAN
    sending.result()


def test_run_needs_a_handler_and_happens_once(nsqd: AnyNsqd) -> None:
    consumer = make_consumer(nsqd)
    with pytest.raises(UsageError, match="has no handler"):
        consumer.run()
    consumer.add_handler(Recorder()).stop()
    with pytest.raises(Closed, match="stopped> cannot run again"):
        consumer.run()
