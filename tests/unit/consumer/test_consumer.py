"""A consumer's arguments, and nsqds that do what no good nsqd does. tests/behaviour has the usual stories."""

from __future__ import annotations

import math
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from nsq import aio
from nsq.connection.endpoint import Key
from nsq.consumer.consumer import Consumer
from nsq.consumer.decisions import Requeue
from nsq.consumer.engine import Engine
from nsq.consumer.reports import ConsumerHooks, StopReport
from nsq.errors import AlreadyResponded, ConfigError, InvalidName, NsqError, ServerError, UsageError
from nsq.message import Message
from nsq.transport import MemoryPeer, MemoryTransport
from nsq.wire.frames import CLOSE_WAIT, OK, encode_error, encode_response
from tests.fakes.forks import in_child
from tests.fakes.nsqd import (
    CHANNEL,
    CLS,
    NOP,
    TOPIC,
    A,
    B,
    C,
    Nsqd,
    PublishedTo,
    accept,
    accept_publisher,
    fin,
    rdy,
    req,
)
from tests.fakes.threads import PATIENCE, Running, in_threads

CLEAN = StopReport(clean=True)
Make = Callable[..., Consumer]


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def make(transport: MemoryTransport) -> Iterator[Make]:
    """Makes consumers that dial again at once and are patient with a slow test, and stops them in the end."""
    with ExitStack() as ends:

        def make(**options: Any) -> Consumer:
            mine = {"nsqd": A, "transport": transport, "reconnect_initial": 0.001, "reconnect_max": 0.01}
            patient = {"handshake_timeout": 3 * PATIENCE, "write_timeout": 3 * PATIENCE}
            consumer = Consumer(TOPIC, CHANNEL, **{**mine, **patient, **options})
            ends.callback(consumer.stop, 0.0)
            return consumer

        yield make


@pytest.fixture
def time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the consumer's own threads time to end, whatever the timeout of the stop."""
    monkeypatch.setattr("nsq.threads.owner._LEAST_TO_END", PATIENCE)


def nothing(message: Message) -> None: ...


class Keeper:
    """A handler that keeps its messages unanswered."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._came = threading.Semaphore(0)

    def __call__(self, message: Message) -> None:
        message.disable_auto_response()
        self.messages.append(message)
        self._came.release()

    def wait(self) -> Message:
        assert self._came.acquire(timeout=PATIENCE)
        return self.messages[-1]


def see_off(consumer: Consumer, *nsqds: Nsqd) -> None:
    """Stop a consumer that has nothing in flight."""
    report, *_ = in_threads(consumer.stop, *[nsqd.see_off for nsqd in nsqds])
    assert report == CLEAN


# Arguments.


def given(**options: Any) -> Callable[[Make], object]:
    return lambda make: make(**options)


async def coroutine(message: Message) -> None: ...


MISTAKES: dict[str, tuple[Callable[[Make], object], type[Exception], str]] = {
    "no address": (lambda make: Consumer(TOPIC, CHANNEL), ConfigError, "nsqd or nsqlookupd addresses"),
    "an address without a port": (given(nsqd="nohost"), ConfigError, "address 'nohost'"),
    "a port that is none": (given(nsqd="host:port"), ConfigError, "address 'host:port'"),
    "a port too high": (given(nsqd="host:99999"), ConfigError, "address 'host:99999'"),
    "IPv6 without brackets": (given(nsqd="::1:4150"), ConfigError, "address '::1:4150'"),
    "an nsqd's HTTP address": (given(nsqd="http://a:4151"), UsageError, "http://a:4151"),
    "nsqds that are numbers": (given(nsqd=["a:1", 4150]), UsageError, "4150"),
    "an nsqlookupd that is a number": (given(nsqlookupd=4161), UsageError, "4161"),
    "a topic with a space": (lambda make: Consumer("or ders", CHANNEL, nsqd=A), InvalidName, "' '"),
    "no channel": (lambda make: Consumer(TOPIC, "", nsqd=A), InvalidName, "."),
    "a topic that is too long": (lambda make: Consumer("t" * 65, CHANNEL, nsqd=A), InvalidName, "."),
    "hooks that are none": (given(hooks=print), ConfigError, r"hooks is .* subclass of ConsumerHooks"),
    "an unknown option": (given(max_inflight=3), ConfigError, "max_in_flight"),
    "give_up": (given(give_up="dead"), ConfigError, "give_up is 'dead'"),
    "rewrite_address": (given(rewrite_address="dead"), ConfigError, "rewrite_address is 'dead'"),
    "accept_addresses": (given(accept_addresses="dead"), ConfigError, "accept_addresses is 'dead'"),
    "around_handler": (given(around_handler=1), ConfigError, "around_handler is 1"),
    "at_thread_end": (given(at_thread_end=1), ConfigError, "at_thread_end is 1"),
    "threads": (given(threads=0), ConfigError, "threads is 0"),
    "threads of a handler": (
        lambda make: make().add_handler(nothing, threads=True),
        ConfigError,
        "threads is True",
    ),
    "batches of none": (lambda make: make().add_batch_handler(print, 0), ConfigError, "size is 0"),
    "batches without end": (
        lambda make: make().add_batch_handler(print, 1, float("nan")),
        ConfigError,
        "wait is nan",
    ),
    "no handler": (lambda make: make().add_handler("handler"), ConfigError, "not callable"),
    "a coroutine": (lambda make: make().add_handler(coroutine), ConfigError, "async def"),
    "max_in_flight": (lambda make: make().set_max_in_flight(2.5), ConfigError, "max_in_flight is 2.5"),
    "dead letters to itself": (given(dead_letters=TOPIC), UsageError, "the topic of this consumer"),
    "dead letters to no topic": (given(dead_letters="no good"), UsageError, "contains ' '"),
    "dead letters twice": (given(dead_letters="d", give_up=print), UsageError, "exclude each other"),
    "dead letters of none": (given(dead_letters="d", max_attempts=0), UsageError, "max_attempts above 0"),
    "tracing of an nsqd": (lambda make: make().trace(), UsageError, "give nsqlookupd"),
    "tracing of the original": (
        lambda make: make(nsqlookupd="127.0.0.1:1", cluster="original").trace(),
        UsageError,
        "tracing needs a partitioned NSQ",
    ),
    "tracing": (lambda make: make().trace("off"), UsageError, "switched to 'off'"),
    "reasons of none": (given(dead_letter_reasons=True), ConfigError, "needs dead_letters"),
    "a copy": (lambda make: pickle.dumps(make()), TypeError, "make one in each process"),
    "add_handler as a decorator": (
        lambda make: make().add_handler(nothing)(None),  # type: ignore[operator]
        TypeError,
        r"write @consumer\.handler",
    ),
    "what such a decorator leaves": (
        lambda make: make().add_handler(make().add_handler(nothing)),
        ConfigError,
        r"write @consumer\.handler",
    ),
    **{
        f"{name} for {timeout!r}": (
            lambda make, name=name, timeout=timeout: getattr(make().add_handler(nothing), name)(timeout),  # type: ignore[misc]
            UsageError,
            f"timeout is {timeout!r}; it must be a number of seconds",
        )
        for name in ("stop", "run", "wait_until_connected")
        for timeout in ("3", None, float("nan"))
    },
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_at_once_and_named(make: Make, name: str) -> None:
    call, error, said = MISTAKES[name]
    with pytest.raises(error, match=said):
        call(make)


def test_a_handler_can_be_decorated_and_stays_a_function(make: Make, transport: MemoryTransport) -> None:
    consumer = make()

    @consumer.handler
    def plain(message: Message) -> str:
        return "plain"

    @consumer.handler(threads=3, no_backoff=(ValueError,))
    def with_options(message: Message) -> str:
        return "with options"

    message: Any = None
    assert (plain(message), with_options(message)) == ("plain", "with options")
    consumer.start()
    nsqd = accept(transport)
    nsqd.expect(rdy(2 * 4))
    see_off(consumer, nsqd)


@pytest.mark.parametrize(
    ("max_in_flight", "said"),
    [
        (8, ""),
        (7, "max_in_flight is 7, but its handlers could work on 8 messages at once"),
        (0, "max_in_flight is 0, so that no message comes: use pause() if that is meant"),
    ],
)
def test_a_max_in_flight_that_leaves_handlers_idle_is_warned_about_once(
    make: Make, caplog: pytest.LogCaptureFixture, max_in_flight: int, said: str
) -> None:
    consumer = make(max_in_flight=max_in_flight).add_handler(nothing, threads=4)
    consumer.add_batch_handler(print, size=4).start().set_max_in_flight(max_in_flight)
    assert len(caplog.records) == bool(said)
    assert said in caplog.text


# Beginnings and ends.


def test_a_connection_that_comes_during_a_stop_is_closed_and_no_hook_hears_of_it(
    make: Make, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
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


def test_an_nsqd_that_is_removed_at_the_moment_it_is_connected_is_left(
    make: Make, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make().add_handler(nothing)
    drop = consumer._engine.discovery._dropped

    def late(key: Key) -> None:
        drop(key)
        Nsqd(peer)
        peer.wait_until(lambda got: peer.closed or b"RDY" in got)

    monkeypatch.setattr(consumer._engine.discovery, "_dropped", late)
    consumer.start()
    accept(transport)
    consumer.add_nsqd(B)
    peer = transport.accept()
    consumer.remove_nsqd(B)
    peer.wait_closed()


def test_a_stop_at_the_moment_a_connection_is_ready_is_clean(make: Make, transport: MemoryTransport) -> None:
    for _ in range(10):
        consumer = make().add_handler(nothing).start()
        peer = transport.accept()
        peer.send(encode_response(b"{}") + encode_response(OK))

        def answer_cls(peer: MemoryPeer = peer) -> None:
            peer.wait_until(lambda got: peer.closed or got.endswith(b"CLS\n"))
            peer.send(encode_response(CLOSE_WAIT))

        report, _ = in_threads(consumer.stop, answer_cls)
        assert report == CLEAN
        peer.wait_closed()


@pytest.mark.usefixtures("time_to_end")
def test_a_stop_ends_all_threads_while_an_nsqd_is_lost_over_and_over(
    make: Make, transport: MemoryTransport
) -> None:
    consumer = make().add_handler(nothing).start()
    for _ in range(5):
        accept(transport).peer.end()
    report = consumer.stop(timeout=0.0)
    assert (report.in_flight, report.unfinished_threads) == (0, [])
    assert consumer.wait(0.0)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("nsq-")]  # that could dial once more


def test_a_connection_whose_threads_are_late_counts_no_more(
    make: Make, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, may_go_on = threading.Event(), threading.Event()

    def stuck(messages: list[Message]) -> None:
        entered.set()
        may_go_on.wait(PATIENCE)

    consumer = make().add_handler(nothing).start()
    nsqd = accept(transport)
    monkeypatch.setattr(consumer._engine.connections, "_put", stuck)
    nsqd.deliver(1)
    assert entered.wait(PATIENCE)
    try:
        report = consumer.stop(timeout=1.0)
        assert consumer.wait(PATIENCE)  # until the owner is through
        stats = consumer.stats()
    finally:
        may_go_on.set()
    assert f"nsq-{TOPIC}/{CHANNEL}-read-{A}" in report.unfinished_threads
    assert len(set(report.unfinished_threads)) == len(report.unfinished_threads)
    assert (report.in_flight, report.cut_off) == (1, [A])
    assert (stats.connections, stats.in_flight, stats.received) == (0, 0, 1)


def test_a_report_that_the_owner_is_too_late_for_names_the_busy_threads_too(
    make: Make, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
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
        report = consumer.stop(timeout=2.0)
    finally:
        may_go_on.set()
    assert report.unfinished_threads == [f"nsq-{TOPIC}/{CHANNEL}-handler-0"]
    assert (report.in_flight, report.cut_off) == (1, [A])
    assert consumer.wait(PATIENCE)


def test_a_stop_waits_for_an_nsqd_that_does_not_answer_cls_only_while_messages_come_or_are_in_flight(
    make: Make, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsq.consumer.engine._CLS_PATIENCE", 0.0)
    keep = Keeper()
    consumer = make(rdy_redistribute_interval=0.01).add_handler(keep).start()
    nsqd = accept(transport)
    nsqd.expect(rdy(2))
    nsqd.deliver(1)
    message = keep.wait()
    stopping = Running(lambda: consumer.stop(timeout=20 * PATIENCE))
    nsqd.expect(CLS)
    assert not consumer.wait(0.1)
    [conn] = consumer._engine.connections.table.values()
    conn.last_message_at = math.inf  # others are on their way, behind them the answer to CLS
    message.finish()
    nsqd.expect(fin(1))
    assert not consumer.wait(0.1)
    conn.last_message_at = 0.0
    assert stopping.result() == StopReport(clean=False, cut_off=[A])
    nsqd.peer.wait_closed()


def test_an_nsqd_that_hangs_up_at_cls_is_let_go(make: Make, transport: MemoryTransport) -> None:
    consumer = make().add_handler(nothing).start()
    nsqd = accept(transport)
    nsqd.expect(rdy(2))
    stopping = Running(consumer.stop)
    nsqd.expect(CLS)
    nsqd.peer.end()
    assert stopping.result() == CLEAN
    assert len(transport.dials) == 1


def test_a_hook_may_stop_the_consumer(make: Make, transport: MemoryTransport) -> None:
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


def test_a_stop_can_be_requested_without_waiting_for_it(make: Make, transport: MemoryTransport) -> None:
    consumer = make().add_handler(nothing).start()
    nsqd = accept(transport)
    nsqd.expect(rdy(2))
    consumer.request_stop(PATIENCE)
    assert not consumer.wait(0.0)
    nsqd.see_off()
    assert consumer.stop() == CLEAN


def test_a_forked_child_closes_the_connections_of_a_consumer_without_references(
    make: Make, transport: MemoryTransport
) -> None:
    """Its threads keep it going, so its connections are inherited like any others."""
    stop = make().add_handler(nothing).start()._engine.stop
    nsqd = accept(transport)
    nsqd.expect(rdy(2))
    assert in_child(lambda: os._exit(not transport.peers[0].abandoned)) == 0
    in_threads(lambda: stop(time.monotonic() + PATIENCE), nsqd.see_off)


# Heartbeats.


def test_heartbeats_are_answered_and_reported_while_handlers_are_busy(
    make: Make, transport: MemoryTransport
) -> None:
    heard = threading.Semaphore(0)

    class Hooks(ConsumerHooks):
        def heartbeat(self, nsqd_address: str) -> None:
            assert nsqd_address == A
            heard.release()

    go_on = threading.Event()
    consumer = make(hooks=Hooks()).add_handler(lambda message: go_on.wait(PATIENCE)).start()
    nsqd = accept(transport)
    nsqd.expect(rdy(2))
    nsqd.deliver(1)
    for _ in range(3):
        nsqd.heartbeat()
        nsqd.expect(NOP)
        assert heard.acquire(timeout=PATIENCE)
    go_on.set()
    nsqd.expect(fin(1))
    see_off(consumer, nsqd)


def test_heartbeats_can_be_switched_off(make: Make, transport: MemoryTransport) -> None:
    consumer = make(heartbeat_interval=-1, output_buffer_timeout=-1).add_handler(nothing).start()
    nsqd = accept(transport)
    assert (nsqd.identify["heartbeat_interval"], nsqd.identify["output_buffer_timeout"]) == (-1, -1)
    nsqd.expect(rdy(2))
    (conn,) = consumer._engine.connections.table.values()
    assert conn._stream.read_timeout is None  # no silence is too long
    see_off(consumer, nsqd)


# Late answers. The message's own clock decides, whenever the timer looks.


@pytest.mark.parametrize("answer", [Message.finish, Message.requeue, Message.touch])
def test_an_answer_that_is_late_is_not_sent_and_is_no_success(
    make: Make, transport: MemoryTransport, answer: Callable[[Message], None]
) -> None:
    keep = Keeper()
    consumer = make().add_handler(keep).start()
    nsqd = accept(transport, msg_timeout=60_000)
    nsqd.expect(rdy(2))
    nsqd.deliver(1)
    message = keep.wait()
    message.expires_at = time.monotonic()
    with pytest.raises(AlreadyResponded, match="timed out before it was answered"):
        answer(message)
    assert message.responded
    stats = consumer.stats()
    assert (stats.timed_out, stats.finished, stats.requeued, stats.in_flight) == (1, 0, 0, 0)
    nsqd.heartbeat()
    nsqd.expect(NOP)
    see_off(consumer, nsqd)


def test_a_batch_is_finished_without_its_late_messages(make: Make, transport: MemoryTransport) -> None:
    def handle(messages: list[Message]) -> None:
        messages[0].expires_at = time.monotonic()

    consumer = make().add_batch_handler(handle, size=3, wait=PATIENCE).start()
    nsqd = accept(transport)
    nsqd.expect(rdy(6))
    nsqd.deliver(1, 2, 3)
    nsqd.expect_in_any_order(fin(2), fin(3), rdy(3))  # half of what may be here was late
    assert consumer.stats().timed_out == 1
    see_off(consumer, nsqd)


# Servers that count RDY down, as the guides describe them: they send so many messages, and then nothing until
# the next RDY.


@pytest.mark.parametrize(("max_in_flight", "deliveries"), [(1, 5), (2, 6), (40, 200)])
def test_a_server_that_counts_rdy_down_gets_it_again_in_time(
    make: Make, transport: MemoryTransport, max_in_flight: int, deliveries: int
) -> None:
    consumer = make(max_in_flight=max_in_flight).add_handler(nothing).start()
    nsqd = accept(transport)
    nsqd.expect(rdy(max_in_flight))
    line = rdy(max_in_flight) + b"\n"
    rdys, left = 1, max_in_flight
    for number in range(deliveries):
        if not left:
            nsqd.peer.wait_until(lambda got, rdys=rdys: got.count(line) > rdys)  # type: ignore[misc]
            rdys = nsqd.peer.received.count(line)
            left = max_in_flight
        left -= 1
        nsqd.deliver(number)
        nsqd.expect(fin(number))
    if max_in_flight > 2:  # seldom: not with every message of a large window
        assert nsqd.peer.received.count(line) <= 1 + deliveries / (0.7 * max_in_flight)
    see_off(consumer, nsqd)


def test_rdy_is_not_repeated_while_half_of_the_messages_are_here(
    make: Make, transport: MemoryTransport
) -> None:
    go_on = threading.Semaphore(0)
    consumer = make(max_in_flight=10).add_handler(lambda message: go_on.acquire(timeout=PATIENCE) and None)
    consumer.start()
    nsqd = accept(transport)
    nsqd.expect(rdy(10))
    nsqd.deliver(*range(10))
    for number in range(10):
        go_on.release()
        nsqd.expect(fin(number))
        if number < 4:
            assert nsqd.peer.received.count(b"RDY 10\n") == 1
    nsqd.peer.wait_until(lambda got: got.count(b"RDY 10\n") == 2)
    see_off(consumer, nsqd)


def test_hooks_around_a_handler_compose_and_the_first_is_the_outermost(make: Make) -> None:
    calls: list[str] = []

    def hook(name: str) -> Callable[[Callable[[Message], object]], Callable[[Message], object]]:
        def around(handler: Callable[[Message], object]) -> Callable[[Message], object]:
            calls.append(f"around {name}")
            return handler

        return around

    make(around_handler=[hook("a"), hook("b")]).add_handler(nothing)
    assert calls == ["around b", "around a"]  # a(b(handler))
    make(around_handler=[]).add_handler(nothing)
    with pytest.raises(ConfigError, match="around_handler is 5"):
        make(around_handler=[hook("a"), 5])
    with pytest.raises(ConfigError, match="has returned what is no handler"):
        make(around_handler=[hook("a"), lambda handler: None]).add_handler(nothing)


def test_each_hook_around_a_coroutine_must_return_one() -> None:
    async def handle(message: Message) -> None: ...

    hooks: Any = [lambda handler: handler, lambda handler: print]
    consumer = aio.Consumer("orders", "billing", nsqd="a:1", around_handler=hooks)
    with pytest.raises(ConfigError, match="what is no handler: handler <built-in function print>"):
        consumer.add_handler(handle)


def test_rdy_is_not_repeated_during_backoff(make: Make, transport: MemoryTransport) -> None:
    def fail(message: Message) -> None:
        raise Requeue(0.0)

    consumer = (
        make(max_in_flight=1, backoff_after=0.0, backoff_strategy=lambda level: 60.0)
        .add_handler(fail)
        .start()
    )
    nsqd = accept(transport)
    nsqd.expect(rdy(1))
    nsqd.deliver(1)
    nsqd.expect(rdy(0), req(1, 0))
    see_off(consumer, nsqd)
    assert nsqd.peer.received.count(b"RDY 1\n") == 1


# A subscription that is refused for good.


def refuse(transport: MemoryTransport, text: str = "E_UNAUTHORIZED no") -> None:
    transport.accept().send(encode_response(b"{}") + encode_error(text.encode()))


@pytest.mark.parametrize("text", ["E_BAD_TOPIC no", "E_UNAUTHORIZED no", "E_SUB_ORDER_IS_MUST no"])
def test_run_ends_at_once_if_every_nsqd_refuses(make: Make, transport: MemoryTransport, text: str) -> None:
    consumer = make().add_handler(nothing)
    refusing = Running(lambda: refuse(transport, text))
    with pytest.raises(ServerError, match="no") as caught:
        consumer.run()
    refusing.result()
    assert caught.value.code == text.split()[0]
    assert repr(consumer) == "<Consumer orders/billing stopped>"


def test_a_refusal_is_reported_and_the_nsqd_is_dialed_again(make: Make, transport: MemoryTransport) -> None:
    refusals: list[tuple[str, str]] = []
    heard = threading.Event()

    class Hooks(ConsumerHooks):
        def server_error(self, nsqd_address: str, error: ServerError) -> None:
            refusals.append((nsqd_address, error.code))
            heard.set()

    consumer = make(hooks=Hooks()).add_handler(nothing).start()
    refuse(transport, "E_UNAUTHORIZED not for you")
    assert heard.wait(PATIENCE)
    assert refusals == [(A, "E_UNAUTHORIZED")]
    health = consumer.health()
    summary = "no connection to any nsqd; nsqd-a:4150: E_UNAUTHORIZED not for you"
    assert (health.ok, health.summary) == (False, summary)
    nsqd = accept(transport)  # it lets us in after all
    nsqd.expect(rdy(2))
    assert consumer.health().ok
    see_off(consumer, nsqd)


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_refusal_of_one_nsqd_does_not_end_run_even_if_another_one_restarts(
    make: Make, transport: MemoryTransport, restarts: int
) -> None:
    consumer = make(nsqd=[A, B], max_in_flight=2).add_handler(nothing).start()
    nsqd = accept(transport)
    running = Running(consumer.run)
    refuse(transport)
    for _ in range(restarts):
        nsqd.peer.end()
        peer = transport.accept()
        while peer.address != nsqd.address:
            peer.send(encode_response(b"{}") + encode_error(b"E_UNAUTHORIZED no"))
            peer = transport.accept()
        nsqd = Nsqd(peer)
    nsqd.peer.wait_until(lambda got: b"RDY" in got)
    stopping = Running(consumer.stop)
    nsqd.peer.wait_until(lambda got: CLS in got)
    nsqd.close_wait()
    assert (stopping.result(), running.result()) == (CLEAN, CLEAN)


# Dead letters.

BODY = b"\xff\x00"


def heard(nsqd: Nsqd, line: bytes) -> None:
    """Wait for a command, among any others."""
    nsqd.peer.wait_until(lambda received: line + b"\n" in received)


def test_every_nsqd_that_the_consumer_knows_may_get_a_dead_letter(
    make: Make, transport: MemoryTransport
) -> None:
    consumer = make(max_attempts=2, dead_letters="orders.dead").add_handler(nothing).start()
    nsqds, publishers = [accept(transport)], list[PublishedTo]()
    for number, (address, next_one) in enumerate([(A, B), (B, C)]):
        consumer.add_nsqd(next_one)
        nsqds.append(accept(transport))
        transport.refuse(address)
        for publisher in publishers:
            publisher.hang_up()
        nsqds[number].deliver(number, attempts=3, body=BODY)
        publishers = [accept_publisher(transport)]
        assert publishers[0].address == next_one
        publishers[0].expect(BODY, "orders.dead")
        publishers[0].ok()
        heard(nsqds[number], fin(number))
    assert consumer.wait_until_connected(PATIENCE, connections=3)
    stopping = Running(consumer.stop)
    for nsqd in nsqds:
        heard(nsqd, CLS)
        nsqd.close_wait()
    assert stopping.result() == CLEAN


@pytest.mark.parametrize(
    ("error", "answer", "said"),
    [("", fin(1), "topic orders.dead has it"), ("E_BAD_TOPIC no", req(1, 3000), "nsqd delivers it again")],
)
def test_a_message_is_answered_once_nsqd_has_judged_its_dead_letter(
    make: Make,
    transport: MemoryTransport,
    caplog: pytest.LogCaptureFixture,
    error: str,
    answer: bytes,
    said: str,
) -> None:
    options = {"max_attempts": 2, "dead_letters": "orders.dead", "default_requeue_delay": 1.0}
    consumer = make(**options).add_handler(nothing).start()
    nsqd = accept(transport)
    nsqd.expect(rdy(2))
    nsqd.deliver(1, attempts=3, body=BODY)
    publisher = accept_publisher(transport)
    publisher.expect(BODY, "orders.dead")
    nsqd.expect_no_more()
    publisher.refuse(error) if error else publisher.ok()
    nsqd.expect(answer)
    see_off(consumer, nsqd)
    assert said in caplog.text
    assert consumer.stats().given_up == (not error)


def test_a_stop_ends_the_publish_of_a_dead_letter_and_leaves_the_message_to_nsqd(
    make: Make, transport: MemoryTransport
) -> None:
    options = {"publish_timeout": 10 * PATIENCE, "msg_timeout": 10 * PATIENCE, "dead_letters": "orders.dead"}
    consumer = make(max_attempts=2, **options).add_handler(nothing).start()
    nsqd = accept(transport)
    nsqd.deliver(1, attempts=3, body=BODY)
    accept_publisher(transport).expect(BODY, "orders.dead")
    report = consumer.stop(0.0)
    assert (report.in_flight, report.cut_off) == (1, [A])
    assert consumer.wait(PATIENCE)
    assert fin(1) not in nsqd.commands
    assert consumer.stats().given_up == 0
