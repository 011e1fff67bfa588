"""The whole producer, threads and all, against nsqds in memory whose answers the test gives."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import ModuleType
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
from nsq.producer.producer import Producer
from nsq.producer.reports import Acknowledged, CloseReport, Failed, FlushReport
from nsq.transport import MemoryTransport
from nsq.wire import commands
from nsq.wire.frames import PUBLISHED, encode_message, encode_response
from tests.fakes.network import HeldTransport
from tests.fakes.nsqd import A, B, PublishedTo, accept_publisher
from tests.fakes.pool import nothing
from tests.fakes.threads import PATIENCE, in_thread

from .running import (
    accept_all,
    connected,
    on_pools_thread,
    producer,
    publishing,
    time_is_up,
    wait_for,
    wait_for_state,
    who_got,
)

#: Seconds that a test waits in full, for what needs no other thread to come to its end: see ``nsqd``. For all
#: else there is ``time_is_up``.
SOON = 0.05


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def p(transport: MemoryTransport) -> Iterator[Producer]:
    """It knows nsqd A."""
    with producer(transport) as p:
        yield p


@pytest.fixture
def nsqd(p: Producer, transport: MemoryTransport) -> PublishedTo:
    """It has taken a publish: the connection is open, and the next publish is sent at once, however little
    time that has.
    """
    return connected(p, transport)


# Publishing


def test_publish_returns_when_nsqd_has_said_ok(transport: MemoryTransport) -> None:
    with producer(transport) as p:
        nsqd = connected(p, transport)
        for body in (b"1", b"2", b"3"):
            published = publishing(p, body)
            nsqd.expect(body)
            nsqd.heartbeat()
            assert not published.done()
            nsqd.ok()
            assert published.result(PATIENCE) is PUBLISHED
    nsqd.peer.wait_closed()
    assert transport.dials == [A]


def test_what_the_other_verbs_send(p: Producer, nsqd: PublishedTo) -> None:
    deferred = publishing(p, b"later", defer=30.0)
    nsqd.peer.expect(commands.dpub("orders", 30_000, b"later"))
    batch = in_thread(lambda: p.multi_publish("orders", [b"one", b"two"]))
    nsqd.peer.expect(commands.mpub("orders", [b"one", b"two"]))
    future = p.multi_publish_async("orders", [b"three", b"four"])
    nsqd.peer.expect(commands.mpub("orders", [b"three", b"four"]))
    for published in (deferred, batch, future):
        assert not published.done()
        nsqd.ok()
        assert published.result(PATIENCE) is PUBLISHED
    assert p.stats().published == 6


def test_each_of_many_threads_gets_its_own_answer(p: Producer, nsqd: PublishedTo) -> None:
    futures = {b"%03d" % n: publishing(p, b"%03d" % n) for n in range(20)}
    size = len(commands.pub("orders", b"000"))
    sent = nsqd.peer.wait_until(lambda got: got.count(b"PUB ") == 21 and got[-3:].isdigit())[-20 * size :]
    order = [sent[end - 3 : end] for end in range(size, len(sent) + 1, size)]
    assert sorted(order) == sorted(futures)
    for body in order:
        assert not futures[body].done()
        nsqd.ok()
        futures[body].result(PATIENCE)


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
def test_a_callers_mistake_is_told_before_anything_is_dialed(
    p: Producer, transport: MemoryTransport, call: Any, error: type[NsqError]
) -> None:
    with pytest.raises(error):
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
def test_arguments_are_checked(addresses: Any, options: Any, error: type[NsqError]) -> None:
    with pytest.raises(error):
        Producer(*addresses, **options)


def test_options_change_a_config(transport: MemoryTransport) -> None:
    config = Config(max_msg_size=10)
    with (
        Producer(A, config=config, transport=transport, max_msg_size=3) as p,
        pytest.raises(InvalidMessage, match="at most 3"),
    ):
        p.publish("orders", b"four")


# What nsqd refuses


def test_a_refusal_is_raised_at_once_and_the_next_publish_dials_anew(
    p: Producer, transport: MemoryTransport, nsqd: PublishedTo
) -> None:
    published = publishing(p)
    nsqd.expect(b"body")
    nsqd.refuse("E_BAD_MESSAGE PUB message too big 4 > 3")
    with pytest.raises(BadMessage, match="too big"):
        published.result(PATIENCE)
    nsqd.peer.wait_closed()
    again = publishing(p, b"next")
    accept_publisher(transport).answer(b"next")
    again.result(PATIENCE)
    assert p.health().healthy


def test_what_one_nsqd_cannot_store_goes_to_another(transport: MemoryTransport) -> None:
    with producer(transport, A, B) as p:
        published = publishing(p)
        nsqds = accept_all(transport, 2)
        first = who_got(b"body", nsqds)
        first.expect(b"body")
        first.refuse("E_PUB_FAILED PUB failed exiting")
        nsqds[B if first.address == A else A].answer(b"body")
        published.result(PATIENCE)
        # Twice where the caller was quicker than the end of the connection, and tried that once more.
        assert p.stats().failed in (1, 2)


# What is not answered


def test_what_is_not_answered_in_time_may_be_stored_and_its_answer_is_not_that_of_the_next(
    p: Producer, nsqd: PublishedTo
) -> None:
    late = publishing(p, b"late", timeout=SOON)
    nsqd.expect(b"late")
    with pytest.raises(PublishUncertain, match=rf"'orders'.*sent to {A} and not answered"):
        late.result(PATIENCE)
    assert p.stats().pending == 0
    assert p.stats().connections[0].pending == 1
    future = p.publish_async("orders", b"late too")
    nsqd.expect(b"late too")
    time_is_up(p)
    assert isinstance(future.exception(PATIENCE), PublishUncertain)
    refused = publishing(p, b"refused")
    nsqd.expect(b"refused")
    nsqd.ok()  # to the first
    nsqd.ok()
    nsqd.refuse("E_BAD_MESSAGE")
    assert isinstance(refused.exception(PATIENCE), BadMessage)


@pytest.mark.parametrize(
    ("answer", "hangs_up"),
    [
        (b"", True),
        (encode_response(b"OK")[:-1], True),
        (encode_response(b"WHAT") + encode_response(b"OK"), False),
        (encode_message(1, 1, b"0" * 16, b"body") + encode_response(b"OK"), False),
        (b"\0\0\0\1\0\0\0\7", False),
    ],
    ids=["none", "half of one", "another response", "a message", "no frame"],
)
def test_a_connection_lost_before_the_answer_leaves_a_doubt(
    p: Producer, nsqd: PublishedTo, answer: bytes, hangs_up: bool
) -> None:
    published = publishing(p)
    nsqd.expect(b"body")
    nsqd.peer.send(answer)
    if hangs_up:
        nsqd.hang_up()
    assert isinstance(published.exception(PATIENCE), PublishUncertain)
    nsqd.peer.wait_closed()


def test_a_doubt_is_tried_again_when_asked_to(transport: MemoryTransport) -> None:
    with producer(transport, retry_uncertain=True) as p:
        nsqd = connected(p, transport)
        published = publishing(p)
        nsqd.expect(b"body")
        nsqd.hang_up()
        accept_publisher(transport).answer(b"body")
        published.result(PATIENCE)


def test_what_was_never_sent_is_taken_back_and_surely_not_stored(
    p: Producer, nsqd: PublishedTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p._pool, "_expire", nothing)  # the caller gives up, not the pool's thread
    nsqd.peer.stall(after=1)
    stuck = p.publish_async("orders", b"stuck")
    nsqd.peer.wait_until(lambda got: got.endswith(b"P"))  # the write loop hangs in this one
    with pytest.raises(PublishFailed, match=f"{A} did not take it in time"):
        p.publish("orders", b"never", timeout=SOON)
    nsqd.peer.resume()
    nsqd.answer(b"stuck")
    stuck.result(PATIENCE)
    last = publishing(p, b"last")
    nsqd.answer(b"last")  # and nothing in between
    last.result(PATIENCE)


# Several nsqds


@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "swallows everything"])
def test_one_that_cannot_be_dialed_is_left_out(silent: bool) -> None:
    transport = HeldTransport(*[A] * silent)
    transport.refuse(A)
    with producer(transport, A, B) as p:
        published = publishing(p)
        nsqd = accept_publisher(transport)
        assert nsqd.address == B
        nsqd.answer(b"body")
        published.result(PATIENCE)
        if silent:
            states = {each.address: each.state for each in p.stats().connections}
            assert states == {A: "dialing", B: "open"}
            transport.release()
        wait_for(p, lambda connections: bool(connections[A].reason))
        health = p.health()
        assert health.healthy
        assert set(health.problems) == {A}


def test_when_none_can_be_reached_each_says_why(transport: MemoryTransport) -> None:
    transport.refuse(A, "connection refused")
    transport.refuse(B, "no route to host")
    with producer(transport, A, B) as p:
        published = publishing(p)
        wait_for(p, lambda connections: all(each.reason for each in connections.values()))
        assert not p.health().healthy
        time_is_up(p)
        with pytest.raises(PublishFailed, match=rf"{A}: connection refused.*{B}: no route to host"):
            published.result(PATIENCE)


def test_of_many_nsqds_not_all_are_dialed_at_once() -> None:
    addresses = [f"nsqd-{number}:4150" for number in range(100)]
    transport = HeldTransport(*addresses)
    transport.refuse()
    with producer(transport, *addresses) as p:
        with pytest.raises(PublishFailed, match=r"and 90 more$"):
            p.publish("orders", b"body", timeout=1.0)
        began = len(transport.hanging)
        transport.release()
    assert 0 < began <= 50


def test_it_is_dialed_until_it_is_there(p: Producer, transport: MemoryTransport) -> None:
    transport.refuse()
    published = publishing(p)
    transport.wait_for_dials(4)
    transport.admit()
    accept_publisher(transport).answer(b"body")
    published.result(PATIENCE)


@pytest.mark.parametrize(
    ("addresses", "error", "text"),
    [([A], AuthFirst, "auth_secret"), ([A, B], PublishFailed, rf"{A}: .*auth_secret.*{B}: .*auth_secret")],
)
def test_what_waiting_does_not_change_is_raised_at_once(
    transport: MemoryTransport, addresses: list[str], error: type[NsqError], text: str
) -> None:
    with producer(transport, *addresses, publish_timeout=60.0) as p:
        published = publishing(p)
        refused = set[str]()
        while refused != set(addresses):  # one may be dialed again before the other is for the first time
            refused.add(accept_publisher(transport, auth_required=True).address)
        with pytest.raises(error, match=text):
            published.result(PATIENCE)


def test_an_nsqd_that_does_not_answer_comes_last_until_it_does() -> None:
    transport = HeldTransport(B)
    with producer(transport, A, B) as p:
        slow = connected(p, transport)
        late = publishing(p, b"late", timeout=SOON)
        slow.expect(b"late")
        assert isinstance(late.exception(PATIENCE), PublishUncertain)
        transport.release()
        quick = accept_publisher(transport)
        wait_for_state(p, "open", B)

        for body in (b"0", b"1", b"2", b"3"):
            published = publishing(p, body)
            quick.answer(body)
            published.result(PATIENCE)
        assert {each.address: each.state for each in p.stats().connections}[A] == "overdue"
        assert p.health().problems == {A: "overdue"}

        slow.ok()
        wait_for_state(p, "open", A)
        futures = [p.publish_async("orders", b"x") for _ in range(4)]
        for nsqd in (slow, quick, slow, quick):
            nsqd.answer(b"x")
        for future in futures:
            future.result(PATIENCE)


# Futures


def test_futures_wait_for_a_connection_and_end_by_their_deadlines() -> None:
    transport = HeldTransport(A)
    with producer(transport) as p:
        futures = [p.publish_async("orders", b"%d" % number) for number in range(3)]
        short = p.publish_async("orders", b"short", timeout=SOON)
        error = short.exception(PATIENCE)
        assert isinstance(error, PublishFailed)
        assert A in str(error)
        assert not any(future.done() for future in futures)
        transport.release()
        nsqd = accept_publisher(transport)
        for number, future in enumerate(futures):
            nsqd.answer(b"%d" % number)
            future.result(PATIENCE)


def test_callbacks_run_on_a_thread_of_their_own_and_may_publish_but_not_wait(
    p: Producer, nsqd: PublishedTo, caplog: pytest.LogCaptureFixture
) -> None:
    texts: Future[list[str]] = Future()

    def callback(_: Future[None]) -> None:
        said = [threading.current_thread().name]
        for call in (p.flush, p.close):
            with pytest.raises(UsageError) as caught:
                call()
            said.append(str(caught.value))
        p.publish("orders", b"second")
        texts.set_result(said)

    future = p.publish_async("orders", b"body")
    future.add_done_callback(lambda _: exec("raise SystemExit"))
    future.add_done_callback(callback)
    nsqd.answer(b"body")
    nsqd.answer(b"second")
    thread, *said = texts.result(PATIENCE)
    assert thread == "nsq-producer-callbacks"
    assert ["another thread" in text for text in said] == [True, True]
    assert "a callback of <Publish" in caplog.text


# Event loops


async def publish_on_the_loop(p: Producer, **options: Any) -> None:
    p.publish("orders", b"body", **options)


def warnings_of(p: Producer, caplog: pytest.LogCaptureFixture) -> list[str]:
    on_pools_thread(p)
    return [each.getMessage() for each in caplog.records if "event loop" in each.getMessage()]


def test_publishes_that_wait_for_an_nsqd_on_an_event_loops_thread_are_warned_about_once(
    transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    with producer(transport) as p:
        for _ in range(2):
            with pytest.raises(PublishFailed):
                asyncio.run(publish_on_the_loop(p, timeout=0.5))
        (warning,) = warnings_of(p, caplog)
        assert "nsq.aio.Producer" in warning


def test_publishes_of_a_notebook_are_not_warned_about(
    transport: MemoryTransport, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    with producer(transport) as p:
        with pytest.raises(PublishFailed):
            asyncio.run(publish_on_the_loop(p, timeout=0.01))
        assert warnings_of(p, caplog) == []


def test_other_publishes_are_not_warned_about(
    transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    with producer(transport) as p:
        with pytest.raises(PublishFailed):
            p.publish("orders", b"body", timeout=0.01)
        nsqd = connected(p, transport)
        wait_for_state(p, "open", A)
        answered = in_thread(lambda: nsqd.answer(b"body"))
        asyncio.run(publish_on_the_loop(p))
        answered.result(PATIENCE)
        assert warnings_of(p, caplog) == []


# Backpressure


def test_at_most_so_many_are_pending(transport: MemoryTransport) -> None:
    with producer(transport, max_pending=2) as p:
        futures = [p.publish_async("orders", b"%d" % number) for number in range(2)]
        nsqd = accept_publisher(transport)
        for publish in (p.publish, p.publish_async):
            with pytest.raises(QueueFull, match="max_pending"):
                publish("orders", b"full", timeout=SOON)
        waiting = publishing(p, b"waited")
        nsqd.expect(b"0")
        nsqd.expect(b"1")  # on its way: what waits for room only might overtake it
        nsqd.ok()
        nsqd.ok()
        nsqd.answer(b"waited")
        for future in (*futures, waiting):
            future.result(PATIENCE)


# The end


def test_flush_waits_and_says_what_is_left(p: Producer, nsqd: PublishedTo) -> None:
    futures = [p.publish_async("orders", b"%d" % number) for number in range(3)]
    assert p.flush(SOON) == FlushReport(clean=False, unanswered=3)
    flushed = in_thread(p.flush)
    for number in range(3):
        assert not flushed.done()
        nsqd.answer(b"%d" % number)
    assert flushed.result(PATIENCE) == FlushReport(clean=True)
    assert all(future.done() for future in futures)


def test_close_flushes(p: Producer, nsqd: PublishedTo) -> None:
    future = p.publish_async("orders", b"body")
    nsqd.expect(b"body")
    closed = in_thread(p.close)
    nsqd.ok()
    assert closed.result(PATIENCE) == CloseReport(clean=True)
    assert future.done()
    nsqd.peer.wait_closed()
    assert p.close()
    for publish in (p.publish, p.publish_async):
        with pytest.raises(Closed):
            publish("orders", b"body")


def test_close_reports_what_it_leaves_and_ends_its_futures(
    p: Producer, nsqd: PublishedTo, caplog: pytest.LogCaptureFixture
) -> None:
    sent = p.publish_async("orders", b"sent")
    nsqd.expect(b"sent")
    assert p.close(timeout=SOON).unanswered == 1
    assert isinstance(sent.exception(PATIENCE), PublishUncertain)
    assert "1 publishes unanswered" in caplog.text


@pytest.mark.parametrize("timeout", [SOON, 0])
def test_close_ends_what_has_found_no_connection(
    p: Producer, transport: MemoryTransport, timeout: float
) -> None:
    transport.refuse()
    future = p.publish_async("orders", b"body")
    blocked = publishing(p)
    transport.wait_for_dials(2)
    assert p.flush(0).unanswered in (1, 2)  # the thread may not have come that far
    assert not p.close(timeout)
    assert isinstance(future.exception(PATIENCE), PublishFailed)
    assert isinstance(blocked.exception(PATIENCE), (PublishFailed, Closed))


def test_close_takes_a_connection_along_that_is_being_dialed() -> None:
    transport = HeldTransport(A)
    with producer(transport) as p:
        future = p.publish_async("orders", b"body")
        time_is_up(p)
        assert isinstance(future.exception(PATIENCE), PublishFailed)
        closed = in_thread(p.close)
        transport.release()
        assert closed.result(PATIENCE) == CloseReport(clean=True)


def test_a_producer_that_did_nothing_closes(p: Producer) -> None:
    assert p.health().healthy
    assert p.stats().connections[0].state == "idle"


@pytest.mark.usefixtures("nsqd")
def test_one_that_is_forgotten_warns(p: Producer) -> None:
    with pytest.warns(ResourceWarning, match=r"<Producer nsqd-a:4150 connected to 1> was not closed"):
        p.__del__()


def test_a_close_after_a_start_that_found_no_thread_is_quick(
    p: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("nsq-producer-read"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(PublishFailed, match="no thread can be started"):
            p.publish("orders", b"body")
    for _ in range(2):
        assert p.close(PATIENCE) == CloseReport(clean=True)
    with pytest.raises(Closed):
        p.publish("orders", b"body")


# Reports


def test_hooks_are_told_by_the_callbacks_thread(transport: MemoryTransport) -> None:
    told: list[Any] = []

    def tell(each: Acknowledged | Failed) -> None:
        told.extend((each, threading.current_thread().name))

    with producer(transport, on_acknowledged=tell, on_failed=tell) as p:
        future = p.multi_publish_async("orders", [b"one", b"three"])
        nsqd = accept_publisher(transport)
        nsqd.peer.expect(commands.mpub("orders", [b"one", b"three"]))
        nsqd.ok()
        future.result(PATIENCE)
        refused = publishing(p, b"bad")
        nsqd.expect(b"bad")
        nsqd.refuse("E_BAD_MESSAGE")
        error = refused.exception(PATIENCE)
    stored, thread, bad, _ = told
    assert stored == Acknowledged("orders", 2, 8, A, stored.latency)
    assert 0 < stored.latency < PATIENCE
    assert bad == Failed("orders", 1, 3, error, bad.latency)
    assert thread == "nsq-producer-callbacks"


def test_what_an_nsqd_has_stored_counts_when_it_has_left(transport: MemoryTransport) -> None:
    transport.refuse(B)
    with producer(transport, A, B) as p:
        nsqd = connected(p, transport)
        p.set_nsqds([B])
        transport.refuse()  # it may be dialed once more before the pool's thread sees that it has left
        nsqd.hang_up()
        wait_for(p, lambda connections: A not in connections)
        assert p.stats().published == 1


def test_ping_shakes_hands_with_each_and_says_which_does_not_answer(transport: MemoryTransport) -> None:
    with producer(transport, A, B) as p:
        pinged = in_thread(p.ping)
        for address in (A, B):
            nsqd = accept_publisher(transport)
            assert nsqd.address == address
            nsqd.peer.wait_closed()
        pinged.result(PATIENCE)
        one = in_thread(lambda: p.ping(B))
        accept_publisher(transport)
        one.result(PATIENCE)
        assert transport.dials == [A, B, B]

        transport.refuse(A)
        pinged = in_thread(p.ping)
        accept_publisher(transport)
        with pytest.raises(ConnectionFailed, match=f"1 of 2 nsqds do not answer: .*{A}.*connection refused"):
            pinged.result(PATIENCE)
        with pytest.raises(DialFailed):
            p.ping(A)
        silent = in_thread(lambda: p.ping(B, timeout=SOON))
        assert isinstance(silent.exception(PATIENCE), ConnectionFailed)


# Other processes


def test_a_child_that_no_hook_has_told_begins_anew(p: Producer) -> None:
    inherited = p._pool
    inherited.pid = -1
    assert p.stats().pending == 0
    assert p._pool is not inherited
    assert not p._pool.closed


def test_a_child_of_one_that_is_closed_is_closed(p: Producer) -> None:
    p.close()
    p.abandon()
    with pytest.raises(Closed):
        p.publish("orders", b"body")


def test_set_nsqds_replaces_the_nsqds(transport: MemoryTransport) -> None:
    with producer(transport) as p:
        first = connected(p, transport)
        p.set_nsqds([B])
        second = accept_publisher(transport)
        wait_for_state(p, "open", B)
        first.hang_up()
        wait_for(p, lambda connections: list(connections) == [B])
        published = publishing(p, b"body")
        second.answer(b"body")
        published.result(PATIENCE)
    assert transport.dials == [A, B]


def test_set_nsqds_needs_nsqds_and_no_nsqlookupd() -> None:
    with pytest.raises(UsageError, match="set_nsqds"):
        Producer(A).set_nsqds([])
    with pytest.raises(UsageError, match="set_nsqds"):
        Producer(nsqlookupd="127.0.0.1:4161").set_nsqds([A])


def test_a_closed_producer_looks_closed() -> None:
    producer = Producer("nsqd-a:4150")
    producer.close()
    assert repr(producer) == "<Producer nsqd-a:4150 closed>"


def test_it_cannot_be_pickled_and_its_repr_holds_no_secret() -> None:
    with producer(MemoryTransport(), A, auth_secret="s3cret") as p:
        with pytest.raises(TypeError, match="make one in each process"):
            pickle.dumps(p)
        assert repr(p) == "<Producer nsqd-a:4150 not connected>"
