"""The whole producer, threads and all, against nsqds in memory whose answers the test gives."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from nsq.config import Config
from nsq.errors import (
    AuthFirst,
    BadMessage,
    Closed,
    ConfigError,
    ConnectionFailed,
    DialFailed,
    InvalidMessage,
    InvalidName,
    NsqError,
    PublishFailed,
    PublishUncertain,
    QueueFull,
    UsageError,
)
from nsq.producer import Acknowledged, CloseReport, Failed, FlushReport, Producer
from nsq.transport import MemoryStream, MemoryTransport
from nsq.wire import commands
from nsq.wire.frames import encode_message, encode_response

from .scripted import (
    PATIENCE,
    A,
    B,
    Nsqd,
    accept,
    accept_all,
    in_thread,
    producer,
    time_is_up,
    wait_for,
    wait_for_state,
    who_got,
)

#: Seconds that a test waits in full, for what needs no other thread to come to its end: see ``connected``.
#: For all else there is ``time_is_up``.
SOON = 0.05


class HeldTransport(MemoryTransport):
    """Dials of ``held`` addresses lead nowhere until ``release``."""

    def __init__(self, *held: str) -> None:
        super().__init__()
        self._held = held
        self._released = threading.Event()

    def connect(self, address: str, *, timeout: float) -> MemoryStream:
        if address in self._held and not self._released.wait(PATIENCE):
            raise DialFailed(f"cannot connect to {address}: no answer")
        return super().connect(address, timeout=timeout)

    def release(self) -> None:
        self._released.set()


def connected(p: Producer, transport: MemoryTransport) -> Nsqd:
    """An nsqd that has taken a publish: the next, if it is alone, is written by its own caller at once,
    however little time that has.
    """
    first = in_thread(lambda: p.publish("orders", b"first"))
    nsqd = accept(transport)
    nsqd.answer(b"first")
    first.result(PATIENCE)
    return nsqd


# Publishing


def test_publish_returns_when_nsqd_has_said_ok() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        nsqd = accept(transport)
        nsqd.expect(b"body")
        assert not published.done()

        nsqd.ok()

        assert published.result(PATIENCE) is None
    nsqd.peer.wait_closed()


def test_what_the_other_verbs_send() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        deferred = in_thread(lambda: p.publish("orders", b"later", defer=30.0))
        nsqd = accept(transport)
        nsqd.peer.expect(commands.dpub("orders", 30_000, b"later"))
        nsqd.ok()
        deferred.result(PATIENCE)

        batch = in_thread(lambda: p.multi_publish("orders", [b"one", b"two"]))
        nsqd.peer.expect(commands.mpub("orders", [b"one", b"two"]))
        nsqd.ok()
        batch.result(PATIENCE)

        assert p.stats().published == 3


def test_one_connection_serves_one_publish_after_the_other() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        for number in range(5):
            body = b"%d" % number
            published = in_thread(lambda body=body: p.publish("orders", body))  # type: ignore[misc]
            if not number:
                nsqd = accept(transport)
            nsqd.answer(body)
            published.result(PATIENCE)
    assert transport.dials == [A]


def test_each_of_many_threads_gets_its_own_answer() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        futures = {n: in_thread(lambda n=n: p.publish("orders", b"%03d" % n)) for n in range(20)}  # type: ignore[misc]
        nsqd = accept(transport)
        size = len(commands.pub("orders", b"000"))
        sent = nsqd.peer.wait_until(lambda got: got.count(b"PUB ") == 20 and got[-3:].isdigit())
        order = [int(sent[start + size - 3 : start + size]) for start in _starts(sent)]
        assert sorted(order) == list(range(20))

        for number in order:
            assert not futures[number].done()
            nsqd.ok()
            futures[number].result(PATIENCE)


def _starts(sent: bytes) -> list[int]:
    starts, position = [], -1
    while (position := sent.find(b"PUB ", position + 1)) >= 0:
        starts.append(position)
    return starts


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda p: p.publish("no spaces", b"body"), InvalidName),
        (lambda p: p.publish("orders", "text"), InvalidMessage),
        (lambda p: p.publish("orders", b"body", defer=4000.0), InvalidMessage),
        (lambda p: p.publish("orders", b"body", timeout=0), UsageError),
        (lambda p: p.publish_async("orders", b""), InvalidMessage),
        (lambda p: p.multi_publish_async("orders", []), UsageError),
        (lambda p: p.multi_publish("orders", []), UsageError),
        (lambda p: p.flush(-1.0), UsageError),
    ],
)
def test_a_callers_mistake_is_told_before_anything_is_dialled(call: Any, error: type[NsqError]) -> None:
    transport = MemoryTransport()
    with producer(transport) as p, pytest.raises(error):
        call(p)
    assert transport.dials == []


@pytest.mark.parametrize(
    ("addresses", "options", "error"),
    [
        ((), {}, UsageError),
        (("nsqd-a",), {}, ConfigError),
        ((4150,), {}, UsageError),
        ((A,), {"nsqlookupd": 4161}, UsageError),
        ((A,), {"nsqd": [4150]}, UsageError),
        ((A,), {"on_failed": "print"}, UsageError),
        ((A,), {"max_pendign": 3}, ConfigError),
        ((A,), {"config": "fast"}, ConfigError),
    ],
)
def test_what_no_producer_can_be_made_of(addresses: Any, options: Any, error: type[NsqError]) -> None:
    with pytest.raises(error):
        Producer(*addresses, **options)


def test_options_change_a_config() -> None:
    transport = MemoryTransport()
    config = Config(max_msg_size=10)
    with (
        Producer(A, config=config, transport=transport, max_msg_size=3) as p,
        pytest.raises(InvalidMessage, match="at most 3"),
    ):
        p.publish("orders", b"four")


# What nsqd refuses


def test_a_refusal_is_raised_at_once_and_the_next_publish_dials_anew() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        nsqd = accept(transport)
        nsqd.expect(b"body")
        nsqd.refuse("E_BAD_MESSAGE PUB message too big 4 > 3")

        with pytest.raises(BadMessage, match="too big"):
            published.result(PATIENCE)
        nsqd.peer.wait_closed()

        again = in_thread(lambda: p.publish("orders", b"next"))
        accept(transport).answer(b"next")
        again.result(PATIENCE)
        assert p.health().healthy


def test_what_was_sent_behind_a_refusal_goes_out_again_in_order() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        futures = [p.publish_async("orders", b"%d" % number) for number in range(4)]
        nsqd = accept(transport)
        nsqd.answer(b"0")
        for number in range(1, 4):
            nsqd.expect(b"%d" % number)
        nsqd.refuse("E_BAD_MESSAGE")

        second = accept(transport)
        second.answer(b"2")
        second.answer(b"3")

        assert [type(future.exception(PATIENCE)) for future in futures] == [
            type(None), BadMessage, type(None), type(None)
        ]  # fmt: skip


def test_what_one_nsqd_cannot_store_goes_to_another() -> None:
    transport = MemoryTransport()
    with producer(transport, A, B) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        nsqds = accept_all(transport, 2)
        first = who_got(b"body", nsqds)
        other = nsqds[B if first.address == A else A]
        first.expect(b"body")
        first.refuse("E_PUB_FAILED PUB failed exiting")

        other.answer(b"body")

        published.result(PATIENCE)
        # Twice where the caller was quicker than the end of the connection, and tried that once more.
        assert p.stats().failed in (1, 2)


def test_a_lone_nsqd_that_cannot_store_is_asked_until_the_deadline() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        for _ in range(3):
            nsqd = accept(transport)
            nsqd.expect(b"body")
            nsqd.refuse("E_PUB_FAILED disk full")
        accept(transport).answer(b"body")
        published.result(PATIENCE)


# What is not answered


def test_what_is_not_answered_in_time_may_be_stored() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        nsqd = connected(p, transport)
        published = in_thread(lambda: p.publish("orders", b"body", timeout=SOON))
        nsqd.expect(b"body")

        with pytest.raises(PublishUncertain, match=rf"'orders'.*sent to {A} and not answered"):
            published.result(PATIENCE)
        assert p.stats().pending == 0
        assert p.stats().connections[0].pending == 1


def test_an_answer_after_the_deadline_is_not_taken_for_that_of_the_next() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        nsqd = connected(p, transport)
        late = in_thread(lambda: p.publish("orders", b"late", timeout=SOON))
        nsqd.expect(b"late")
        assert isinstance(late.exception(PATIENCE), PublishUncertain)

        refused = in_thread(lambda: p.publish("orders", b"refused"))
        nsqd.expect(b"refused")
        nsqd.ok()  # to the first
        nsqd.refuse("E_BAD_MESSAGE")

        assert isinstance(refused.exception(PATIENCE), BadMessage)


def test_a_connection_lost_before_the_answer_leaves_a_doubt() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        nsqd = accept(transport)
        nsqd.expect(b"body")
        nsqd.hang_up()

        with pytest.raises(PublishUncertain, match="closed the connection"):
            published.result(PATIENCE)


def test_a_doubt_is_tried_again_when_asked_to() -> None:
    transport = MemoryTransport()
    with producer(transport, retry_uncertain=True) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        nsqd = accept(transport)
        nsqd.expect(b"body")
        nsqd.hang_up()

        accept(transport).answer(b"body")

        published.result(PATIENCE)


def test_a_doubt_that_could_not_be_tried_again_stays_one() -> None:
    transport = MemoryTransport()
    with producer(transport, retry_uncertain=True) as p:
        nsqd = connected(p, transport)
        published = in_thread(lambda: p.publish("orders", b"body"))
        nsqd.expect(b"body")
        transport.refuse()
        nsqd.hang_up()
        wait_for(p, lambda connections: "connection refused" in connections[A].reason)
        time_is_up(p)

        with pytest.raises(PublishUncertain, match=rf"sent to {A}.*connection refused"):
            published.result(PATIENCE)


def test_half_an_answer_is_none() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        nsqd = accept(transport)
        nsqd.expect(b"body")
        nsqd.peer.send(encode_response(b"OK")[:-1])
        nsqd.hang_up()

        assert isinstance(published.exception(PATIENCE), PublishUncertain)


def test_an_ok_to_nothing_ends_the_connection_and_no_publish_relies_on_it() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        first = in_thread(lambda: p.publish("orders", b"first"))
        nsqd = accept(transport)
        nsqd.answer(b"first")
        first.result(PATIENCE)

        nsqd.ok()
        nsqd.peer.wait_closed()

        second = in_thread(lambda: p.publish("orders", b"second"))
        accept(transport).answer(b"second")
        second.result(PATIENCE)


@pytest.mark.parametrize(
    "answer", [encode_response(b"WHAT"), encode_message(1, 1, b"0" * 16, b"body"), b"\0\0\0\1\0\0\0\7"]
)
def test_what_is_no_answer_ends_the_connection_with_a_doubt(answer: bytes) -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        nsqd = accept(transport)
        nsqd.expect(b"body")
        nsqd.peer.send(answer + encode_response(b"OK"))

        assert isinstance(published.exception(PATIENCE), PublishUncertain)
        nsqd.peer.wait_closed()


def test_heartbeats_are_answered_while_publishes_wait() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        nsqd = accept(transport)
        nsqd.expect(b"body")
        nsqd.heartbeat()
        nsqd.ok()
        published.result(PATIENCE)


def test_what_was_never_sent_is_taken_back_and_surely_not_stored() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        first = in_thread(lambda: p.publish("orders", b"first"))
        nsqd = accept(transport)
        nsqd.answer(b"first")
        first.result(PATIENCE)
        nsqd.peer.stall(after=1)
        stuck = p.publish_async("orders", b"stuck")
        nsqd.peer.wait_until(lambda got: got.endswith(b"P"))  # the write loop hangs in this one

        with pytest.raises(PublishFailed, match=f"{A} did not take it in time"):
            p.publish("orders", b"never", timeout=SOON)

        nsqd.peer.resume()
        nsqd.answer(b"stuck")
        stuck.result(PATIENCE)
        last = in_thread(lambda: p.publish("orders", b"last"))
        nsqd.answer(b"last")  # and nothing in between
        last.result(PATIENCE)


def test_nobody_writes_beyond_the_own_deadline() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        first = in_thread(lambda: p.publish("orders", b"first"))
        nsqd = accept(transport)
        nsqd.answer(b"first")
        first.result(PATIENCE)
        nsqd.peer.stall()

        with pytest.raises(NsqError) as caught:
            p.publish("orders", b"alone", timeout=SOON)

        assert isinstance(caught.value, (PublishUncertain, PublishFailed))


# Several nsqds


def test_publishes_go_round() -> None:
    transport = MemoryTransport()
    with producer(transport, A, B) as p:
        connected = in_thread(lambda: p.publish("orders", b"first"))
        nsqds = accept_all(transport, 2)
        who_got(b"first", nsqds).answer(b"first")
        connected.result(PATIENCE)
        wait_for_state(p, "open", A, B)
        before = {address: nsqd.peer.received.count(b"PUB ") for address, nsqd in nsqds.items()}

        futures = [p.publish_async("orders", b"%d" % number) for number in range(10)]
        for address, nsqd in nsqds.items():
            nsqd.peer.wait_until(lambda got, all_=before[address] + 5: got.count(b"PUB ") == all_)  # type: ignore[misc]
            for _ in range(5):
                nsqd.ok()
        for future in futures:
            future.result(PATIENCE)


def test_one_that_cannot_be_dialled_is_left_out() -> None:
    transport = MemoryTransport()
    transport.refuse(A)
    with producer(transport, A, B) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        nsqd = accept(transport)
        nsqd.answer(b"body")
        published.result(PATIENCE)
        assert nsqd.address == B

        wait_for(p, lambda connections: bool(connections[A].reason))
        health = p.health()
        assert health.healthy
        assert set(health.problems) == {A}


def test_one_that_swallows_everything_costs_nobody_time() -> None:
    transport = HeldTransport(A)
    with producer(transport, A, B) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        accept(transport).answer(b"body")

        published.result(PATIENCE)
        states = {each.address: each.state for each in p.stats().connections}
        assert states == {A: "dialing", B: "open"}
        transport.release()


def test_nobody_can_be_reached() -> None:
    transport = MemoryTransport()
    transport.refuse(A, "connection refused")
    transport.refuse(B, "no route to host")
    with producer(transport, A, B) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        wait_for(p, lambda connections: all(each.reason for each in connections.values()))
        time_is_up(p)

        with pytest.raises(PublishFailed) as caught:
            published.result(PATIENCE)
        text = str(caught.value)
        assert f"{A}: connection refused" in text
        assert f"{B}: no route to host" in text
        assert not p.health().healthy


def test_it_is_dialled_until_it_is_there() -> None:
    transport = MemoryTransport()
    transport.refuse()
    with producer(transport) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        transport.wait_for_dials(4)
        transport.admit()
        accept(transport).answer(b"body")
        published.result(PATIENCE)


def test_what_waiting_does_not_change_is_raised_at_once() -> None:
    transport = MemoryTransport()
    with producer(transport, publish_timeout=60.0) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        accept(transport, auth_required=True)

        with pytest.raises(AuthFirst, match="auth_secret") as caught:
            published.result(PATIENCE)
        assert A in caught.value.__notes__[0]


def test_what_waiting_does_not_change_with_any_of_several() -> None:
    transport = MemoryTransport()
    with producer(transport, A, B, publish_timeout=60.0) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        accept(transport, auth_required=True)
        accept(transport, auth_required=True)

        with pytest.raises(PublishFailed, match=rf"{A}: .*auth_secret.*{B}: .*auth_secret"):
            published.result(PATIENCE)


def test_a_transport_with_a_fault_of_its_own_is_no_nsqd() -> None:
    class Broken(MemoryTransport):
        def connect(self, address: str, *, timeout: float) -> MemoryStream:
            raise RuntimeError("proxy misconfigured")

    with producer(Broken()) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        wait_for(p, lambda connections: bool(connections[A].reason))
        time_is_up(p)

        with pytest.raises(PublishFailed, match="proxy misconfigured"):
            published.result(PATIENCE)


def test_one_that_keeps_somebody_waiting_comes_last_until_it_answers() -> None:
    transport = HeldTransport(B)
    with producer(transport, A, B) as p:
        slow = connected(p, transport)
        late = in_thread(lambda: p.publish("orders", b"late", timeout=SOON))
        slow.expect(b"late")
        assert isinstance(late.exception(PATIENCE), PublishUncertain)
        transport.release()
        quick = accept(transport)
        wait_for_state(p, "open", B)

        for number in range(4):
            published = in_thread(lambda n=number: p.publish("orders", b"%d" % n))  # type: ignore[misc]
            quick.answer(b"%d" % number)
            published.result(PATIENCE)
        assert {each.address: each.state for each in p.stats().connections}[A] == "overdue"
        assert p.health().problems == {A: "overdue"}

        slow.ok()
        wait_for_state(p, "open", A)
        futures = [p.publish_async("orders", b"x") for _ in range(2)]
        slow.answer(b"x")
        quick.answer(b"x")
        for future in futures:
            future.result(PATIENCE)


# Futures


def test_a_future_is_completed_by_a_thread_of_its_own() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        seen: Future[str] = Future()
        future = p.publish_async("orders", b"body")
        future.add_done_callback(lambda _: seen.set_result(threading.current_thread().name))
        assert not future.cancel()

        accept(transport).answer(b"body")

        assert future.result(PATIENCE) is None
        assert seen.result(PATIENCE) == "nsq-producer-callbacks"


def test_several_batches_are_under_way_at_once() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        batches = [[b"one", b"two"], [b"three"], [b"four", b"five"]]
        futures = [p.multi_publish_async("orders", bodies) for bodies in batches]
        nsqd = accept(transport)
        for bodies in batches:
            nsqd.peer.expect(commands.mpub("orders", bodies))
        assert not any(future.done() for future in futures)

        for future in futures:
            nsqd.ok()
            assert future.result(PATIENCE) is None

        assert p.stats().published == 5


def test_publish_async_does_not_wait_for_a_connection() -> None:
    transport = HeldTransport(A)
    with producer(transport) as p:
        futures = [p.publish_async("orders", b"%d" % number) for number in range(3)]
        assert not any(future.done() for future in futures)

        transport.release()
        nsqd = accept(transport)
        for number, future in enumerate(futures):
            nsqd.answer(b"%d" % number)
            future.result(PATIENCE)


def test_a_future_fails_as_a_publish_would() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        refused, lost = (p.publish_async("orders", body) for body in (b"refused", b"lost"))
        nsqd = accept(transport)
        nsqd.expect(b"refused")
        nsqd.refuse("E_UNAUTHORIZED")
        assert type(refused.exception(PATIENCE)).__name__ == "Unauthorized"
        second = accept(transport)
        second.expect(b"lost")
        second.hang_up()
        assert isinstance(lost.exception(PATIENCE), PublishUncertain)


def test_a_future_is_retried_elsewhere_again_and_again() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        future = p.publish_async("orders", b"body")
        for _ in range(3):
            nsqd = accept(transport)
            nsqd.expect(b"body")
            nsqd.refuse("E_PUB_FAILED")
        accept(transport).answer(b"body")
        future.result(PATIENCE)


def test_futures_end_by_their_deadlines_whatever_hangs() -> None:
    transport = HeldTransport(A)
    with producer(transport) as p:
        long = p.publish_async("orders", b"long")
        short = p.publish_async("orders", b"short", timeout=SOON)

        fault = short.exception(PATIENCE)

        assert isinstance(fault, PublishFailed)
        assert A in str(fault)
        assert not long.done()
        transport.release()
        accept(transport).answer(b"long")  # and nothing before it
        long.result(PATIENCE)


def test_a_future_that_was_sent_and_not_answered_may_be_stored() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        nsqd = connected(p, transport)
        future = p.publish_async("orders", b"body")
        nsqd.expect(b"body")
        time_is_up(p)

        assert isinstance(future.exception(PATIENCE), PublishUncertain)
        nsqd.ok()  # late, and to nobody
        after = p.publish_async("orders", b"after")
        nsqd.answer(b"after")
        after.result(PATIENCE)


def test_a_callback_that_exits_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        first, second = p.publish_async("orders", b"1"), p.publish_async("orders", b"2")
        first.add_done_callback(lambda _: exec("raise SystemExit"))
        nsqd = accept(transport)
        nsqd.answer(b"1")
        nsqd.answer(b"2")
        second.result(PATIENCE)
    assert "a callback of <Publish" in caplog.text


def test_a_callback_may_publish_but_not_wait_for_itself() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        faults: Future[list[str]] = Future()

        def callback(_: Future[None]) -> None:
            texts = []
            for call in (p.flush, p.close):
                with pytest.raises(UsageError) as caught:
                    call()
                texts.append(str(caught.value))
            p.publish("orders", b"second")
            faults.set_result(texts)

        p.publish_async("orders", b"first").add_done_callback(callback)
        nsqd = accept(transport)
        nsqd.answer(b"first")
        nsqd.answer(b"second")

        assert ["another thread" in text for text in faults.result(PATIENCE)] == [True, True]


# Backpressure


def test_at_most_so_many_are_pending() -> None:
    transport = MemoryTransport()
    with producer(transport, max_pending=2) as p:
        futures = [p.publish_async("orders", b"%d" % number) for number in range(2)]
        nsqd = accept(transport)
        for publish in (p.publish, p.publish_async):
            with pytest.raises(QueueFull, match="max_pending"):
                publish("orders", b"full", timeout=SOON)
        waiting = in_thread(lambda: p.publish("orders", b"waited"))
        nsqd.expect(b"0")
        nsqd.expect(b"1")  # on its way: what waits for room only might overtake it

        nsqd.ok()
        nsqd.ok()
        nsqd.answer(b"waited")

        waiting.result(PATIENCE)
        for future in futures:
            future.result(PATIENCE)


def test_what_was_given_up_keeps_its_place_until_it_is_answered() -> None:
    transport = MemoryTransport()
    with producer(transport, max_pending=1) as p:
        nsqd = connected(p, transport)
        late = in_thread(lambda: p.publish("orders", b"late", timeout=SOON))
        nsqd.expect(b"late")
        assert isinstance(late.exception(PATIENCE), PublishUncertain)
        with pytest.raises(QueueFull):
            p.publish("orders", b"full", timeout=SOON)

        waiting = in_thread(lambda: p.publish("orders", b"next"))
        nsqd.ok()
        nsqd.answer(b"next")
        waiting.result(PATIENCE)


# The end


def test_flush_waits_for_what_is_pending() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        futures = [p.publish_async("orders", b"%d" % number) for number in range(3)]
        flushed = in_thread(p.flush)
        nsqd = accept(transport)
        for number in range(3):
            assert not flushed.done()
            nsqd.answer(b"%d" % number)

        assert flushed.result(PATIENCE) == FlushReport(clean=True)
        assert all(future.done() for future in futures)


def test_flush_says_what_is_left() -> None:
    transport = MemoryTransport()
    with producer(transport) as p:
        future = p.publish_async("orders", b"body")
        nsqd = accept(transport)
        report = p.flush(SOON)
        assert (bool(report), report.unanswered) == (False, 1)
        nsqd.answer(b"body")
        future.result(PATIENCE)


def test_close_flushes() -> None:
    transport = MemoryTransport()
    p = producer(transport)
    future = p.publish_async("orders", b"body")
    nsqd = accept(transport)
    closed = in_thread(p.close)
    nsqd.answer(b"body")

    assert closed.result(PATIENCE) == CloseReport(clean=True)
    assert future.done()
    nsqd.peer.wait_closed()
    assert p.close()
    for publish in (p.publish, p.publish_async):
        with pytest.raises(Closed):
            publish("orders", b"body")


def test_close_reports_what_it_leaves_and_ends_its_futures(caplog: pytest.LogCaptureFixture) -> None:
    transport = MemoryTransport()
    p = producer(transport)
    sent = p.publish_async("orders", b"sent")
    nsqd = accept(transport)
    nsqd.expect(b"sent")

    assert p.close(timeout=SOON).unanswered == 1

    assert isinstance(sent.exception(PATIENCE), PublishUncertain)
    assert "1 publishes unanswered" in caplog.text


def test_close_ends_what_has_found_no_connection() -> None:
    transport = MemoryTransport()
    transport.refuse()
    p = producer(transport)
    future = p.publish_async("orders", b"body")
    publishing = in_thread(lambda: p.publish("orders", b"body"))
    transport.wait_for_dials(2)

    assert p.close(timeout=SOON).unanswered in (1, 2)  # the thread may not have come that far

    assert isinstance(future.exception(PATIENCE), PublishFailed)
    assert isinstance(publishing.exception(PATIENCE), (PublishFailed, Closed))


def test_who_will_not_wait_need_not() -> None:
    transport = MemoryTransport()
    transport.refuse()
    p = producer(transport)
    future = p.publish_async("orders", b"body")

    assert p.flush(0).unanswered == 1
    assert p.close(0).unanswered == 1

    assert isinstance(future.exception(PATIENCE), PublishFailed)


def test_close_takes_a_dialled_connection_along() -> None:
    transport = HeldTransport(A)
    p = producer(transport)
    future = p.publish_async("orders", b"body", timeout=SOON)
    assert isinstance(future.exception(PATIENCE), PublishFailed)
    closed = in_thread(p.close)
    transport.release()

    assert closed.result(PATIENCE) == CloseReport(clean=True)


def test_a_producer_that_did_nothing_closes() -> None:
    with producer(MemoryTransport()) as p:
        assert p.health().healthy
        assert p.stats().connections[0].state == "idle"


def test_one_that_is_forgotten_is_missed() -> None:
    transport = MemoryTransport()
    p = producer(transport)
    published = in_thread(lambda: p.publish("orders", b"body"))
    accept(transport).answer(b"body")
    published.result(PATIENCE)

    with pytest.warns(ResourceWarning, match=r"<Producer nsqd-a:4150> was not closed"):
        p.__del__()
    p.close()


# Reports


def test_hooks_are_told_what_became_of_publishes() -> None:
    transport = MemoryTransport()
    told: list[tuple[Acknowledged | Failed, str]] = []

    def tell(each: Acknowledged | Failed) -> None:
        told.append((each, threading.current_thread().name))

    with producer(transport, on_acknowledged=tell, on_failed=tell) as p:
        published = in_thread(lambda: p.multi_publish("orders", [b"one", b"three"]))
        nsqd = accept(transport)
        nsqd.peer.expect(commands.mpub("orders", [b"one", b"three"]))
        nsqd.ok()
        published.result(PATIENCE)
        future = p.publish_async("orders", b"body")
        nsqd.answer(b"body")
        future.result(PATIENCE)
        refused = in_thread(lambda: p.publish("orders", b"bad"))
        nsqd.expect(b"bad")
        nsqd.refuse("E_BAD_MESSAGE")
        assert refused.exception(PATIENCE)

    assert {thread for _, thread in told} == {"nsq-producer-callbacks"}
    batch, single, bad = (each for each, _ in told)
    assert isinstance(batch, Acknowledged)
    assert (batch.topic, batch.messages, batch.bytes, batch.nsqd_address) == ("orders", 2, 8, A)
    assert 0 < batch.latency < PATIENCE
    assert (single.messages, single.bytes) == (1, 4)
    assert isinstance(bad, Failed)
    assert isinstance(bad.error, BadMessage)


def test_a_hook_that_fails_fails_no_publish(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Acknowledged) -> None:
        raise ValueError("no metrics today")

    transport = MemoryTransport()
    with producer(transport, on_acknowledged=fail) as p:
        published = in_thread(lambda: p.publish("orders", b"body"))
        accept(transport).answer(b"body")
        published.result(PATIENCE)
    assert "no metrics today" in caplog.text


def test_ping_shakes_hands_with_each() -> None:
    transport = MemoryTransport()
    with producer(transport, A, B) as p:
        pinged = in_thread(p.ping)
        for address in (A, B):
            nsqd = accept(transport)
            assert nsqd.address == address
            nsqd.peer.wait_closed()
        pinged.result(PATIENCE)

        one = in_thread(lambda: p.ping(B))
        accept(transport)
        one.result(PATIENCE)
    assert transport.dials == [A, B, B]


def test_ping_says_who_does_not_answer() -> None:
    transport = MemoryTransport()
    transport.refuse(A)
    with producer(transport, A, B) as p:
        pinged = in_thread(p.ping)
        accept(transport)
        with pytest.raises(ConnectionFailed, match=f"1 of 2 nsqds do not answer: .*{A}.*connection refused"):
            pinged.result(PATIENCE)
        with pytest.raises(DialFailed):
            p.ping(A)
        silent = in_thread(lambda: p.ping(B, timeout=SOON))
        assert isinstance(silent.exception(PATIENCE), ConnectionFailed)


# Other processes


def test_a_child_that_no_hook_has_told_begins_anew() -> None:
    with producer(MemoryTransport()) as p:
        inherited = p._pool
        inherited.pid = -1

        assert p.stats().pending == 0

        assert p._pool is not inherited
        assert not p._pool.closed


def test_a_child_of_one_that_is_closed_is_closed() -> None:
    p = producer(MemoryTransport())
    p.close()

    p.abandon()

    with pytest.raises(Closed):
        p.publish("orders", b"body")


def test_it_cannot_be_pickled() -> None:
    with producer(MemoryTransport()) as p, pytest.raises(TypeError, match="make one in each process"):
        pickle.dumps(p)


def test_nothing_secret_is_in_its_repr() -> None:
    with producer(MemoryTransport(), A, auth_secret="s3cret") as p:
        assert repr(p) == "<Producer nsqd-a:4150>"


# What a hostile reading found


def test_a_slow_hook_costs_no_memory_without_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nsq.producer.pool._MOST_EVENTS", 3)
    transport, go_on = MemoryTransport(), threading.Event()
    told: list[Acknowledged] = []

    def slow(each: Acknowledged) -> None:
        assert go_on.wait(PATIENCE)
        told.append(each)

    with producer(transport, on_acknowledged=slow) as p:
        futures = [p.publish_async("orders", b"%d" % number) for number in range(10)]
        nsqd = accept(transport)
        for number, future in enumerate(futures):
            nsqd.answer(b"%d" % number)
            future.result(PATIENCE)
        report = p.flush(SOON)
        assert (report.clean, report.unanswered) == (False, 0)  # answered, but the hook has not run
        go_on.set()
        assert p.flush(PATIENCE)
        assert 3 <= len(told) <= 4
    assert "hooks are too slow" in caplog.text


def test_what_an_nsqd_has_stored_counts_when_it_has_left() -> None:
    transport = MemoryTransport()
    transport.refuse(B)
    with producer(transport, A, B) as p:
        nsqd = connected(p, transport)
        p._pool.set_addresses([B])
        nsqd.hang_up()
        wait_for(p, lambda connections: A not in connections)
        assert p.stats().published == 1


def test_a_close_after_a_start_that_found_no_thread_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "nsq-producer-read":
            raise RuntimeError("can't start new thread")
        start(thread)

    p = producer(MemoryTransport())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(PublishFailed, match="no thread can be started"):
            p.publish("orders", b"body")
    assert p.close(PATIENCE) == CloseReport(clean=True)
    assert p.close(PATIENCE) == CloseReport(clean=True)
    with pytest.raises(Closed):
        p.publish("orders", b"body")
