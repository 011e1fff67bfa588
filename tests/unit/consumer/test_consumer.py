"""A consumer's life from the outside: made, started, asked, stopped; wherever that is done from."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from nsq.consumer.consumer import Consumer
from nsq.consumer.engine import Engine
from nsq.consumer.flow import FlowControl
from nsq.consumer.reports import ConsumerHooks, StopReport
from nsq.errors import (
    AlreadyResponded,
    Closed,
    ConfigError,
    Forked,
    InvalidName,
    NsqError,
    ServerError,
    UsageError,
)
from nsq.message import Message
from nsq.threads import stop_signals
from nsq.transport import MemoryPeer, MemoryTransport
from nsq.wire.frames import CLOSE_WAIT, OK, encode_response
from tests.fakes.nsqd import (
    CHANNEL,
    CLS,
    NOP,
    TOPIC,
    A,
    B,
    Nsqd,
    accept,
    accept_all,
    fin,
    hear_identify,
    id_of,
    rdy,
    touch,
)
from tests.fakes.threads import PATIENCE, in_threads

CLEAN = StopReport(clean=True)


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def make(transport: MemoryTransport) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers that dial again at once and are patient with a slow test, and stops them in the end."""
    with ExitStack() as ends:

        def make(**options: Any) -> Consumer:
            mine = {"nsqd": A, "transport": transport, "reconnect_initial": 0.001, "reconnect_max": 0.01}
            patient = {"handshake_timeout": 3 * PATIENCE, "write_timeout": 3 * PATIENCE}
            consumer = Consumer(TOPIC, CHANNEL, **{**mine, **patient, **options})
            ends.callback(consumer.stop, 0.0)
            return consumer

        yield make


def nothing(message: Message) -> None: ...


def stopped(consumer: Consumer, *nsqds: Nsqd) -> StopReport:
    """Stopped with nothing in flight."""
    report, *_ = in_threads(consumer.stop, *[nsqd.see_off for nsqd in nsqds])
    assert isinstance(report, StopReport)
    return report


class TestMaking:
    def test_needs_addresses(self, transport: MemoryTransport) -> None:
        with pytest.raises(ConfigError, match="nsqd or nsqlookupd addresses"):
            Consumer(TOPIC, CHANNEL, transport=transport)

    def test_needs_hooks_that_are_hooks(self, make: Callable[..., Consumer]) -> None:
        with pytest.raises(ConfigError, match=r"hooks is .* subclass of ConsumerHooks"):
            make(hooks=print)

    @pytest.mark.parametrize(("topic", "channel"), [("or ders", "c"), ("t", ""), ("t" * 65, "c")])
    def test_needs_names_that_nsqd_takes(self, topic: str, channel: str) -> None:
        with pytest.raises(InvalidName):
            Consumer(topic, channel, nsqd=A)

    @pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
    def test_needs_a_thread(self, make: Callable[..., Consumer], threads: Any) -> None:
        with pytest.raises(ConfigError, match="threads"):
            make(threads=threads)
        with pytest.raises(ConfigError, match="threads"):
            make().add_handler(nothing, threads=threads)

    def test_a_handler_can_be_decorated_and_stays_a_function(self, make: Callable[..., Consumer]) -> None:
        consumer = make()

        @consumer.handler
        def plain(message: Message) -> str:
            return "plain"

        @consumer.handler(threads=3, no_backoff=(ValueError,))
        def with_options(message: Message) -> str:
            return "with options"

        message: Any = None
        assert (plain(message), with_options(message)) == ("plain", "with options")
        assert consumer._engine.pool.at_once == 4

    def test_add_handler_as_a_decorator_says_which_one_is_meant(self, make: Callable[..., Consumer]) -> None:
        bill: Any = make().add_handler(nothing)  # as the decorator does it
        with pytest.raises(TypeError, match=r"write @consumer\.handler"):
            bill(None)
        for add in (make().add_handler, lambda consumer: make().add_batch_handler(consumer, 2)):
            with pytest.raises(ConfigError, match=r"write @consumer\.handler"):
                add(bill)

    @pytest.mark.parametrize(("size", "wait"), [(0, 1.0), (1, -1.0), (1, "1"), (1, float("nan")), (1, 1e9)])
    def test_needs_batches_that_end(self, make: Callable[..., Consumer], size: Any, wait: Any) -> None:
        with pytest.raises(ConfigError, match=r"size|wait"):
            make().add_batch_handler(print, size, wait)

    @pytest.mark.parametrize("address", [None, 4150, ["a:1", 4150], "http://a:4151"])
    @pytest.mark.parametrize("kind", ["nsqd", "nsqlookupd"])
    def test_needs_addresses_that_can_be_dialled(
        self, make: Callable[..., Consumer], kind: str, address: Any
    ) -> None:
        if (kind, address) == ("nsqlookupd", "http://a:4151"):
            return  # is one
        with pytest.raises(UsageError):
            make(**{kind: address})

    @pytest.mark.parametrize("name", ["give_up", "rewrite_address", "accept_addresses"])
    def test_needs_functions_where_it_calls_them(self, make: Callable[..., Consumer], name: str) -> None:
        with pytest.raises(ConfigError, match=f"{name} is 'dead'"):
            make(**{name: "dead"})

    def test_an_option_that_is_none_is_found(self, make: Callable[..., Consumer]) -> None:
        with pytest.raises(ConfigError, match="max_in_flight"):
            make(max_inflight=3)

    def test_does_not_leave_its_process(self, make: Callable[..., Consumer]) -> None:
        with pytest.raises(TypeError, match="make one in each process"):
            pickle.dumps(make())

    def test_starts_nothing(self, make: Callable[..., Consumer], transport: MemoryTransport) -> None:
        before = threading.active_count()
        consumer = make().add_handler(nothing, threads=8)
        assert threading.active_count() == before
        assert transport.dials == []
        assert repr(consumer) == "<Consumer orders/billing new>"
        assert consumer.health().summary == "new"


class TestMaxInFlight:
    def test_follows_from_the_handlers(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        consumer = make(threads=3).add_handler(nothing).add_handler(nothing, threads=1)
        consumer.add_batch_handler(print, 10, threads=2).start()
        nsqd = accept(transport)
        nsqd.expect(rdy(6 + 2 + 40))
        assert stopped(consumer, nsqd) == CLEAN

    def test_what_is_said_before_the_start_holds(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        consumer = make().add_handler(nothing)
        consumer.set_max_in_flight(7)
        consumer.start()
        nsqd = accept(transport)
        nsqd.expect(rdy(7))
        assert stopped(consumer, nsqd) == CLEAN

    def test_that_leaves_handlers_idle_is_told_of(
        self, make: Callable[..., Consumer], caplog: pytest.LogCaptureFixture
    ) -> None:
        make(max_in_flight=8).add_handler(nothing, threads=4).add_batch_handler(print, size=4).start()
        assert not caplog.records
        make(max_in_flight=0).add_handler(nothing, threads=8).start().set_max_in_flight(0)
        assert [record.message for record in caplog.records] == [
            "<Consumer orders/billing new>: max_in_flight is 0, so that no message comes: "
            "use pause() if that is meant"
        ]
        make(max_in_flight=7).add_handler(nothing, threads=4).add_batch_handler(print, size=4).start()
        assert "max_in_flight is 7, but its handlers could work on 8 messages at once" in caplog.text

    def test_of_nobody_is_told_of_too(
        self, make: Callable[..., Consumer], caplog: pytest.LogCaptureFixture
    ) -> None:
        make().start()
        assert "has no handler" in caplog.text

    @pytest.mark.parametrize("count", [-1, 2.5, "3", None])
    def test_is_a_whole_number(self, make: Callable[..., Consumer], count: Any) -> None:
        with pytest.raises(ConfigError, match=f"max_in_flight is {count!r}"):
            make().set_max_in_flight(count)


class TestStarting:
    def test_happens_once(self, make: Callable[..., Consumer], transport: MemoryTransport) -> None:
        consumer = make().add_handler(nothing).start()
        with pytest.raises(Closed, match=r"this consumer is running"):
            consumer.start()
        with pytest.raises(Closed, match="add_handler comes before start"):
            consumer.add_handler(nothing)
        nsqd = accept(transport)
        nsqd.expect(rdy(2))
        assert stopped(consumer, nsqd) == CLEAN
        with pytest.raises(Closed, match="stopped"):
            consumer.start()

    def test_waits_for_connections_on_demand(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        consumer = make(nsqd=[A, B]).add_handler(nothing).start()
        assert not consumer.wait_until_connected(timeout=0.0)
        nsqds = accept_all(transport, 2).values()
        assert consumer.wait_until_connected(PATIENCE, connections=2)
        for nsqd in nsqds:
            nsqd.expect(rdy(1))
        assert stopped(consumer, *nsqds) == CLEAN

    def test_a_connection_counts_once_it_has_its_share(
        self, make: Callable[..., Consumer], transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[bool] = []
        decide = FlowControl.decide

        def decide_late(flow: FlowControl) -> None:
            if flow.windows.nsqds and not seen:
                seen.append(consumer.wait_until_connected(0.0))
            decide(flow)

        monkeypatch.setattr(FlowControl, "decide", decide_late)
        consumer = make().add_handler(nothing).start()
        nsqd = accept(transport)
        assert consumer.wait_until_connected(PATIENCE)
        assert (seen, consumer.health().ok) == ([False], True)
        nsqd.expect(rdy(2))
        assert stopped(consumer, nsqd) == CLEAN

    def test_who_waits_for_connections_is_not_left_behind_by_a_stop(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        transport.refuse()
        consumer = make().add_handler(nothing).start()
        transport.wait_for_dials(1)
        began = time.monotonic()
        connected, report = in_threads(lambda: consumer.wait_until_connected(60.0), consumer.stop)
        assert not connected
        assert report == CLEAN
        assert time.monotonic() - began < PATIENCE

    def test_an_nsqd_that_is_not_there_yet(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        transport.refuse()
        consumer = make().add_handler(nothing).start()
        transport.wait_for_dials(3)
        reason = "cannot connect to nsqd-a:4150: connection refused"
        assert consumer.health().summary == f"no connection to any nsqd; {reason}"
        assert not consumer.health().ok
        transport.admit()
        nsqd = accept(transport)
        nsqd.expect(rdy(2))
        assert consumer.wait_until_connected(PATIENCE)
        assert stopped(consumer, nsqd) == CLEAN

    def test_a_connection_that_comes_during_a_stop_is_closed_and_no_hook_hears_of_it(
        self, make: Callable[..., Consumer], transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Hooks(ConsumerHooks):
            def disconnected(self, nsqd_address: str, cause: NsqError | None) -> None:
                heard.append(nsqd_address)

        heard: list[str] = []
        # The owner stops meanwhile, and does not carry the request out.
        monkeypatch.setattr(Engine, "adopt", lambda engine, endpoint, conn: None)
        consumer = make(hooks=Hooks()).add_handler(nothing).start()
        accept(transport).peer.wait_closed()
        assert not consumer.wait_until_connected(0.0)
        assert consumer.stop().clean
        assert heard == []

    def test_an_nsqd_without_a_thread_is_dialed_when_there_is_one(
        self, make: Callable[..., Consumer], transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = threading.Thread.start
        refusals = iter([True])

        def refuse_once(thread: threading.Thread) -> None:
            if "-read-" in thread.name and next(refusals, False):
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse_once)
        consumer = make().add_handler(nothing).start()
        nsqd = accept(transport)
        assert next(refusals, None) is None
        nsqd.expect(rdy(2))
        assert stopped(consumer, nsqd) == CLEAN


class TestStopping:
    def test_what_was_never_started(self, make: Callable[..., Consumer]) -> None:
        consumer = make().add_handler(nothing)
        assert consumer.stop() == CLEAN
        assert consumer.wait(0.0)
        assert consumer.stop() == CLEAN
        for call in (consumer.start, consumer.run):
            with pytest.raises(Closed):
                call()

    @pytest.mark.parametrize("timeout", [float("inf"), 1e300])
    def test_however_long_it_may_take(
        self, make: Callable[..., Consumer], transport: MemoryTransport, timeout: float
    ) -> None:
        consumer = make().start()
        nsqd = accept(transport)
        assert consumer.wait_until_connected(timeout)
        thread = threading.Thread(target=consumer.stop, args=(timeout,))
        thread.start()
        nsqd.expect(CLS)
        nsqd.say(CLOSE_WAIT)
        thread.join(PATIENCE)
        assert consumer.stop(timeout) == CLEAN

    @pytest.mark.parametrize("timeout", [None, "3", float("nan")])
    def test_needs_a_time(self, make: Callable[..., Consumer], timeout: Any) -> None:
        consumer = make().start()
        for call in (consumer.stop, consumer.run, consumer.wait_until_connected):
            with pytest.raises(UsageError, match="timeout is"):
                call(timeout)
        assert consumer.health().state == "running"

    def test_without_a_handler(self, make: Callable[..., Consumer], transport: MemoryTransport) -> None:
        consumer = make().start()
        nsqd = accept(transport)
        assert consumer.wait_until_connected(PATIENCE)  # nothing else tells: there will be no RDY
        assert stopped(consumer, nsqd) == CLEAN

    def test_twice_and_from_several_threads(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        consumer = make().add_handler(nothing).start()
        nsqd = accept(transport)
        nsqd.expect(rdy(2))
        reports = in_threads(consumer.stop, consumer.stop, consumer.stop, nsqd.see_off)
        assert reports[:3] == [CLEAN] * 3
        assert consumer.stop() == CLEAN
        assert len([line for line in nsqd.commands if line == CLS]) == 1

    def test_as_a_context(self, make: Callable[..., Consumer], transport: MemoryTransport) -> None:
        with make().add_handler(nothing) as consumer:
            nsqd = accept(transport)
            nsqd.expect(rdy(2))
            assert repr(consumer) == "<Consumer orders/billing running>"
            watcher = threading.Thread(target=nsqd.see_off)
            watcher.start()
        watcher.join(PATIENCE)
        assert repr(consumer) == "<Consumer orders/billing stopped>"

    def test_from_a_handler(self, make: Callable[..., Consumer], transport: MemoryTransport) -> None:
        reports: list[StopReport] = []

        def stop(message: Message) -> None:
            reports.append(consumer.stop())

        consumer = make(max_in_flight=5).add_handler(stop, threads=2).start()
        nsqd = accept(transport)
        nsqd.expect(rdy(5))
        nsqd.deliver(1, 2)
        nsqd.expect_in_any_order(CLS, fin(1), fin(2))
        nsqd.close_wait()
        assert consumer.wait(PATIENCE)
        assert all(not report for report in reports)
        assert consumer.stop() == CLEAN
        nsqd.peer.wait_closed()

    def test_from_a_hook(self, make: Callable[..., Consumer], transport: MemoryTransport) -> None:
        class StopAtError(ConsumerHooks):
            def server_error(self, nsqd_address: str, error: ServerError) -> None:
                consumer.stop()

        consumer = make(hooks=StopAtError()).add_handler(nothing).start()
        nsqd = accept(transport)
        nsqd.expect(rdy(2))
        nsqd.refuse("E_FIN_FAILED FIN 0 failed")
        nsqd.see_off()
        assert consumer.wait(PATIENCE)
        assert consumer.stop() == CLEAN

    def test_during_a_dial(self, make: Callable[..., Consumer], transport: MemoryTransport) -> None:
        """An nsqd that accepts and says nothing must not hold a stop up until the handshake's deadline."""
        consumer = make(handshake_timeout=300.0).add_handler(nothing).start()
        peer = transport.accept()
        hear_identify(peer)
        began = time.monotonic()
        assert consumer.stop(timeout=60.0) == CLEAN
        assert time.monotonic() - began < PATIENCE
        peer.wait_closed()

    def test_at_the_moment_a_connection_is_ready(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        for _ in range(10):
            consumer = make().add_handler(nothing).start()
            peer = transport.accept()
            peer.send(encode_response(b"{}") + encode_response(OK))

            def answer_cls(peer: MemoryPeer = peer) -> None:
                peer.wait_until(lambda got: peer.closed or _has_heard_cls(got))
                peer.send(encode_response(CLOSE_WAIT))

            report, _ = in_threads(consumer.stop, answer_cls)
            assert report == CLEAN
            peer.wait_closed()

    def test_while_an_nsqd_is_lost_over_and_over(
        self, make: Callable[..., Consumer], transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nsq.consumer.engine._LEAST_TO_STOP", PATIENCE)  # for all threads to end
        consumer = make().add_handler(nothing).start()
        for _ in range(5):
            accept(transport).peer.end()
        report = consumer.stop(timeout=0.0)
        assert (report.in_flight, report.unfinished_threads) == (0, [])
        assert consumer.wait(0.0)
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if name.startswith("nsq-")]  # that could dial once more

    def test_a_connection_whose_threads_are_late_counts_no_more(
        self, make: Callable[..., Consumer], transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entered, may_go_on = threading.Event(), threading.Event()

        def stuck(messages: list[Message]) -> None:
            entered.set()
            may_go_on.wait(PATIENCE)

        consumer = make().add_handler(nothing).start()
        nsqd = accept(transport)
        monkeypatch.setattr(consumer._engine.pool, "put", stuck)
        nsqd.deliver(1)
        assert entered.wait(PATIENCE)
        try:
            report = consumer.stop(timeout=1.0)
            assert consumer.wait(PATIENCE)  # until the owner is through
            stats = consumer.stats()
        finally:
            may_go_on.set()
        assert f"{consumer._engine.name}-read-{A}" in report.unfinished_threads
        assert len(set(report.unfinished_threads)) == len(report.unfinished_threads)
        assert (report.in_flight, report.cut_off) == (1, [A])
        assert (stats.connections, stats.in_flight, stats.received) == (0, 0, 1)

    def test_a_report_that_the_owner_is_too_late_for_names_the_busy_threads_too(
        self, make: Callable[..., Consumer], transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entered, may_go_on = threading.Event(), threading.Event()

        def stuck(message: Message) -> None:
            entered.set()
            may_go_on.wait(PATIENCE)

        def late(deadline: float) -> list[str]:
            may_go_on.wait(PATIENCE)
            return []

        consumer = make().add_handler(stuck).start()
        accept(transport).deliver(1)
        assert entered.wait(PATIENCE)
        monkeypatch.setattr(consumer._engine.discovery, "join", late)
        try:
            report = consumer.stop(timeout=0.5)
        finally:
            may_go_on.set()
        assert report.unfinished_threads == [f"{consumer._engine.name}-handler-0"]
        assert (report.in_flight, report.cut_off) == (1, [A])
        assert consumer.wait(PATIENCE)

    def test_no_messages_are_dealt_out_any_more(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        handled: list[bytes] = []
        entered, gate = threading.Event(), threading.Event()

        def hold(message: Message) -> None:
            handled.append(message.id)
            entered.set()
            gate.wait(PATIENCE)

        class Open(ConsumerHooks):
            def disconnected(self, nsqd_address: str, cause: NsqError | None) -> None:
                gate.set()

        consumer = make(max_in_flight=5, hooks=Open()).add_handler(hold).start()
        nsqd = accept(transport)
        nsqd.expect(rdy(5))
        nsqd.deliver(1, 2, 3)
        assert entered.wait(PATIENCE)
        assert consumer.stop(0.0).in_flight == 3
        assert handled == [id_of(1)]


def _has_heard_cls(received: bytes) -> bool:
    return received.endswith(b"CLS\n")


def handler_of_sigterm() -> object:
    """Return the handler; for a moment after a stop by a signal, another one stands for it."""
    handler = signal.getsignal(signal.SIGTERM)
    return getattr(handler, "handler", handler)


class TestRunning:
    def test_ends_when_it_is_stopped(self, make: Callable[..., Consumer], transport: MemoryTransport) -> None:
        consumer = make().add_handler(nothing)

        def stop() -> StopReport:
            nsqd = accept(transport)
            nsqd.expect(rdy(2))
            return stopped(consumer, nsqd)

        assert in_threads(consumer.run, stop) == [CLEAN, CLEAN]

    def test_ends_at_a_signal_with_what_is_in_flight_answered(
        self, make: Callable[..., Consumer], transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stop_signals, "SAME_REQUEST_SECONDS", 0.0)
        before = handler_of_sigterm()
        entered, gate = threading.Event(), threading.Event()

        def hold(message: Message) -> None:
            entered.set()
            gate.wait(PATIENCE)

        consumer = make().add_handler(hold)

        def play() -> None:
            nsqd = accept(transport)
            nsqd.expect(rdy(2))
            nsqd.deliver(1)
            assert entered.wait(PATIENCE)
            os.kill(os.getpid(), signal.SIGTERM)
            nsqd.expect(CLS)
            nsqd.close_wait()
            gate.set()
            nsqd.expect(fin(1))

        player = threading.Thread(target=play)
        player.start()
        assert consumer.run() == CLEAN
        player.join(PATIENCE)
        assert handler_of_sigterm() is before

    def test_does_not_wait_at_a_second_signal(
        self, make: Callable[..., Consumer], transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stop_signals, "SAME_REQUEST_SECONDS", 0.0)
        entered, gate = threading.Event(), threading.Event()

        def hold(message: Message) -> None:
            entered.set()
            gate.wait(2 * PATIENCE)

        consumer = make().add_handler(hold)

        def play() -> None:
            nsqd = accept(transport)
            nsqd.expect(rdy(2))
            nsqd.deliver(1)
            assert entered.wait(PATIENCE)
            os.kill(os.getpid(), signal.SIGINT)
            nsqd.expect(CLS)
            os.kill(os.getpid(), signal.SIGINT)
            nsqd.peer.wait_closed()
            gate.set()

        player = threading.Thread(target=play)
        player.start()
        began = time.monotonic()
        report = consumer.run(timeout=300.0)
        assert report.in_flight == 1
        assert time.monotonic() - began < 2 * PATIENCE
        player.join(PATIENCE)
        assert consumer.wait(PATIENCE)


class TestLooking:
    def test_health_and_stats(self, make: Callable[..., Consumer], transport: MemoryTransport) -> None:
        entered, gate = threading.Event(), threading.Event()

        def hold(message: Message) -> None:
            if int(message.id) == 2:
                entered.set()
                gate.wait(PATIENCE)

        consumer = make(max_in_flight=5).add_handler(hold).start()
        nsqd = accept(transport)
        nsqd.expect(rdy(5))
        nsqd.deliver(1, 2)
        nsqd.expect(fin(1))
        assert entered.wait(PATIENCE)
        health = consumer.health()
        assert (health.ok, health.state, health.summary) == (True, "running", "1 connection, which may send")
        (connection,) = health.connections
        assert (connection.nsqd_address, connection.rdy, connection.in_flight) == (A, 5, 1)
        assert connection.reason == "its share of max_in_flight 5"
        assert not health.starved
        assert len(health.discovery) == 1
        stats = consumer.stats()
        assert (stats.received, stats.finished, stats.in_flight, stats.connections) == (2, 1, 1, 1)
        gate.set()
        nsqd.expect(fin(2))
        assert stopped(consumer, nsqd) == CLEAN
        stats = consumer.stats()
        assert (stats.received, stats.finished, stats.in_flight, stats.connections) == (2, 2, 0, 0)

    def test_hooks_hear_of_everything(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        class Noting(ConsumerHooks):
            def __init__(self) -> None:
                self.notes: list[Any] = []

            def connected(self, nsqd_address: str) -> None:
                self.notes.append(("connected", nsqd_address))

            def disconnected(self, nsqd_address: str, cause: NsqError | None) -> None:
                self.notes.append(("disconnected", nsqd_address, cause))

            def received(self, messages: list[Message]) -> None:
                self.notes.append(("received", len(messages)))

            def finished(self, message: Message) -> None:
                self.notes.append(("finished", message.id))

            def requeued(self, message: Message) -> None:
                self.notes.append(("requeued", message.id))

        hooks = Noting()
        consumer = make(max_in_flight=5, hooks=hooks, max_backoff_duration=0.0)
        consumer.add_handler(lambda message: int(message.id) != 2).start()
        nsqd = accept(transport)
        nsqd.expect(rdy(5))
        nsqd.deliver(1, 2)
        nsqd.expect(fin(1), b"REQ %s 90000" % id_of(2))
        assert stopped(consumer, nsqd) == CLEAN
        assert hooks.notes == [
            ("connected", A),
            ("received", 2),
            ("finished", id_of(1)),
            ("requeued", id_of(2)),
            ("disconnected", A, None),
        ]

    def test_addresses_can_be_changed_only_while_it_runs(self, make: Callable[..., Consumer]) -> None:
        with pytest.raises(Closed, match="has not been started"):
            make().add_nsqd(B)

    def test_a_new_address_is_dialled(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        consumer = make(max_in_flight=4).add_handler(nothing).start()
        a = accept(transport)
        a.expect(rdy(4))
        consumer.add_nsqd(B)
        b = accept(transport)
        b.expect(rdy(2))
        a.expect(rdy(2))
        assert stopped(consumer, a, b) == CLEAN


class TestAutoTouch:
    def test_what_takes_long_is_touched(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        taken: list[Message] = []
        entered, gate = threading.Event(), threading.Event()

        def hold(message: Message) -> None:
            taken.append(message)
            entered.set()
            gate.wait(2 * PATIENCE)

        consumer = make(auto_touch=True, max_in_flight=1, rdy_redistribute_interval=0.005)
        consumer.add_handler(hold).start()
        nsqd = accept(transport, msg_timeout=60_000)
        nsqd.expect(rdy(1))
        nsqd.deliver(1)
        assert entered.wait(PATIENCE)
        for _ in range(2):
            taken[0].expires_at = time.monotonic() + 25.0  # it is less than half of its time now
            nsqd.expect(touch(1))
            assert taken[0].time_left > 30.0
        gate.set()
        nsqd.expect(fin(1))
        assert consumer.stats().timed_out == 0
        assert stopped(consumer, nsqd) == CLEAN

    def test_it_is_looked_after_several_times_before_its_time_is_up(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        consumer = make(auto_touch=True).add_handler(nothing).start()
        nsqd = accept(transport, msg_timeout=4000)
        nsqd.expect(rdy(2))
        consumer._engine.flow._ticked_at = 100.0
        assert consumer._engine.flow.next_tick() == 101.0
        assert stopped(consumer, nsqd) == CLEAN


def in_child(check: Callable[[], None]) -> int:
    """The exit code of a forked child that checks something: 0 when all is well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: this process has threads
        pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        signal.alarm(int(PATIENCE))
        check()
        code = 0
    finally:
        os._exit(code)


class TestForking:
    def test_a_child_inherits_nothing_that_works(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        taken: list[Message] = []
        entered = threading.Event()

        def take(message: Message) -> None:
            message.disable_auto_response()
            taken.append(message)
            entered.set()

        consumer = make(max_in_flight=5).add_handler(take).start()
        nsqd = accept(transport)
        nsqd.expect(rdy(5))
        nsqd.deliver(1)
        assert entered.wait(PATIENCE)

        def check() -> None:
            for call in (consumer.start, consumer.stop, consumer.run, consumer.pause, consumer.wait):
                with pytest.raises(Forked):
                    call()
            with pytest.raises(AlreadyResponded):
                taken[0].finish()
            assert "inherited" in repr(consumer)
            assert not consumer.health().ok
            assert consumer.stats().connections == 0
            consumer.__exit__(None, None, None)
            assert transport.peers[0].abandoned
            assert transport.peers[0].received.count(b"\n") == nsqd.peer.received.count(b"\n")

        assert in_child(check) == 0
        nsqd.heartbeat()
        nsqd.expect(NOP)
        taken[0].finish()
        nsqd.expect(fin(1))
        assert stopped(consumer, nsqd) == CLEAN

    def test_a_consumer_that_nobody_refers_to_is_let_go_of_too(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        """Its threads keep it going, so its connections are inherited like any others."""
        engine = make().add_handler(nothing).start()._engine
        nsqd = accept(transport)
        nsqd.expect(rdy(2))

        def check() -> None:
            assert transport.peers[0].abandoned

        assert in_child(check) == 0
        in_threads(lambda: engine.stop(time.monotonic() + PATIENCE), nsqd.see_off)

    def test_a_child_of_a_handler_dies_of_a_signal_as_any_other(
        self, make: Callable[..., Consumer], transport: MemoryTransport
    ) -> None:
        """``run`` has taken SIGTERM, and a child inherits that: who terminates it must not wait in vain."""
        codes: list[int] = []

        def fork(message: Message) -> None:
            codes.append(in_child(lambda: signal.raise_signal(signal.SIGTERM)))

        consumer = make().add_handler(fork)

        def play() -> None:
            nsqd = accept(transport)
            nsqd.expect(rdy(2))
            nsqd.deliver(1)
            nsqd.expect(fin(1))
            stopped(consumer, nsqd)

        player = threading.Thread(target=play)
        player.start()
        assert consumer.run() == CLEAN
        player.join(PATIENCE)
        assert codes == [-signal.SIGTERM]
