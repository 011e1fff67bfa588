"""Publishes of a whole producer: which nsqd gets them, how many may be pending, how each of them ends."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

import nsq
from nsq.errors import PublishFailed
from nsq.producer.pool import Pool
from nsq.producer.producer import Producer
from nsq.producer.reports import Acknowledged, CloseReport, Failed, FlushReport, ProducerHealth
from nsq.transport import MemoryStream, MemoryTransport
from nsq.wire import commands
from tests.fakes.interrupts import Interrupted, each_line
from tests.fakes.network import HeldTransport
from tests.fakes.nsqd import A, B, PublishedTo, accept_publisher
from tests.fakes.threads import PATIENCE, in_thread

from .running import (
    SOON,
    all_connected,
    connected,
    connections,
    eventually,
    producer,
    publishing,
    waiting_together,
    who_got,
)

# Several nsqds


def test_what_one_nsqd_cannot_store_goes_to_another_also_while_the_producer_closes(
    transport: MemoryTransport,
) -> None:
    with producer(transport, A, B) as p:
        future = p.publish_async("orders", b"body")
        nsqds = all_connected(p, transport, 2)
        first = who_got(b"body", *nsqds.values())
        closed = in_thread(p.close)
        eventually(lambda: "closed" in repr(p))
        first.refuse("E_PUB_FAILED PUB failed exiting")
        nsqds[B if first.address == A else A].answer(b"body")
        assert future.exception(PATIENCE) is None
        assert closed.result(PATIENCE) == CloseReport(clean=True)
        assert p.stats().failed == 1


@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "swallows everything"])
def test_an_nsqd_that_cannot_be_dialed_is_left_out(silent: bool) -> None:
    transport = HeldTransport(*[A] * silent)
    transport.refuse(A)
    with producer(transport, A, B) as p:
        published = publishing(p)
        nsqd = accept_publisher(transport)
        assert nsqd.address == B
        nsqd.answer(b"body")
        published.result(PATIENCE)
        if silent:
            assert {key: each.state for key, each in connections(p).items()} == {A: "dialing", B: "open"}
            transport.release()
        eventually(lambda: connections(p)[A].reason)
        assert p.health().healthy
        assert set(p.health().problems) == {A}


def test_of_many_nsqds_not_all_are_dialed_at_once() -> None:
    addresses = [f"nsqd-{number}:4150" for number in range(100)]
    transport = HeldTransport(*addresses)
    transport.refuse()
    with producer(transport, *addresses) as p:
        with pytest.raises(nsq.PublishFailed, match=r"and 90 more$"):
            p.publish("orders", b"body", timeout=SOON)
        began = len(transport.hanging)
        transport.release()
    assert 0 < began <= 50


def test_lasting_refusals_of_all_nsqds_are_raised_at_once(transport: MemoryTransport) -> None:
    with producer(transport, A, B, publish_timeout=60.0) as p:
        published = publishing(p)
        refused = set[str]()
        while refused != {A, B}:  # one may be dialed again before the other is for the first time
            refused.add(accept_publisher(transport, auth_required=True).address)
        with pytest.raises(nsq.PublishFailed, match=rf"{A}: .*auth_secret.*{B}: .*auth_secret"):
            published.result(PATIENCE)


def test_a_lasting_refusal_of_one_nsqd_does_not_end_the_wait_for_another(transport: MemoryTransport) -> None:
    transport.refuse(B)
    with producer(transport, A, B) as p:
        future = p.publish_async("orders", b"body")
        accept_publisher(transport, auth_required=True)
        eventually(lambda: len(p.health().problems) == 2)
        assert not future.done()
        transport.admit(B)
        while (peer := transport.accept()).address == A:
            PublishedTo(peer, auth_required=True)
        PublishedTo(peer).answer(b"body")
        future.result(PATIENCE)


def test_an_nsqd_that_has_left_a_publish_unanswered_comes_last_until_it_answers(
    transport: MemoryTransport,
) -> None:
    with producer(transport, A, B) as p:
        late = p.publish_async("orders", b"late", timeout=SOON)
        nsqds = all_connected(p, transport, 2)
        slow = who_got(b"late", *nsqds.values())
        quick = nsqds[B if slow.address == A else A]
        assert isinstance(late.exception(PATIENCE), nsq.PublishUncertain)
        eventually(lambda: "connected to 1" in repr(p))
        assert p.health().problems == {slow.address: "overdue"}
        for body in (b"0", b"1", b"2", b"3"):
            published = publishing(p, body)
            quick.answer(body)
            published.result(PATIENCE)
        slow.ok()
        eventually(lambda: "connected to 2" in repr(p))
        assert p.health().problems == {}


def test_set_nsqds_replaces_the_nsqds_and_keeps_their_counts(transport: MemoryTransport) -> None:
    with producer(transport) as p:
        first = connected(p, transport)
        p.set_nsqds([B])
        second = accept_publisher(transport)
        eventually(lambda: "connected to 2" in repr(p))  # while the first connection lasts
        futures = [p.publish_async("orders", body) for body in (b"0", b"1")]
        got = {who_got(body, first, second): body for body in (b"0", b"1")}
        second.ok()
        first.refuse("E_PUB_FAILED exiting")
        eventually(lambda: list(connections(p)) == [B])
        second.answer(got[first])
        assert [future.exception(PATIENCE) for future in futures] == [None, None]
        assert (p.stats().published, p.stats().failed) == (3, 1)
    assert transport.dials == [A, B]


@pytest.mark.parametrize("addresses", [[B], B, (B, B)])
def test_nsqds_that_are_replaced_before_the_first_publish_are_not_dialed(
    transport: MemoryTransport, addresses: str | Sequence[str]
) -> None:
    with producer(transport) as p:
        p.set_nsqds(addresses)
        assert list(connections(p)) == [B]
        connected(p, transport)
    assert transport.dials == [B]


# Room for pending publishes


def is_full(p: Producer) -> bool:
    """Whether it refuses another publish."""
    with contextlib.suppress(nsq.QueueFull):
        p.publish_async("orders", b"late", block=False)
        return False
    return True


@pytest.mark.parametrize(
    ("options", "pending", "full"),
    [
        ({"max_pending": 2}, [1], False),
        ({"max_pending": 2}, [1, 1], True),
        ({"max_pending_bytes": 10}, [5, 4], False),
        ({"max_pending_bytes": 10}, [5, 5], True),
        ({"max_pending_bytes": 10}, [9, 1000], True),
        ({"max_pending_bytes": 10}, [1000], True),
    ],
    ids=["fewer", "as many", "fewer bytes", "as many bytes", "the last may be larger", "the first too"],
)
def test_pending_publishes_and_their_bytes_are_limited(
    transport: MemoryTransport, options: dict[str, int], pending: list[int], full: bool
) -> None:
    with producer(transport, **options) as p:
        for size in pending:
            p.publish_async("orders", b"x" * size, block=False)
        assert is_full(p) is full
        assert p.stats().pending == len(pending) + (not full)
        p.close(0)


@pytest.mark.parametrize("end", ["stored", "refused", "lost", "closed"])
def test_every_end_of_a_publish_ends_the_wait_for_room(transport: MemoryTransport, end: str) -> None:
    with producer(transport, max_pending=1) as p:
        nsqd = connected(p, transport)
        future = p.publish_async("orders", b"body")
        nsqd.expect(b"body")
        waiting = publishing(p, b"waits")
        assert is_full(p)
        with pytest.raises(nsq.QueueFull, match="none was answered in time"):
            p.publish("orders", b"late", timeout=0.01)
        if end == "closed":
            p.close(0)
            assert isinstance(waiting.exception(PATIENCE), nsq.Closed)
            return
        {"stored": nsqd.ok, "refused": lambda: nsqd.refuse("E_BAD_TOPIC"), "lost": nsqd.hang_up}[end]()
        (nsqd if end == "stored" else accept_publisher(transport)).answer(b"waits")
        waiting.result(PATIENCE)
        assert future.done()


def test_an_unanswered_publish_keeps_its_room_until_nsqd_answers_it(transport: MemoryTransport) -> None:
    events: list[Acknowledged | Failed] = []
    with producer(transport, max_pending=1, on_acknowledged=events.append, on_failed=events.append) as p:
        nsqd = connected(p, transport)
        late = publishing(p, b"late", timeout=SOON)
        nsqd.expect(b"late")
        error = late.exception(PATIENCE)
        assert isinstance(error, nsq.PublishUncertain)
        assert (p.stats().pending, connections(p)[A].pending) == (0, 1)
        assert is_full(p)
        nsqd.ok()
        published = publishing(p, b"next")  # its answer is not that of the late one
        nsqd.expect(b"next")
        nsqd.refuse("E_BAD_MESSAGE")
        assert not isinstance(published.exception(PATIENCE), nsq.PublishUncertain)
    assert [type(each) for each in events] == [Acknowledged, Failed, Failed]
    assert events[1].error is error  # type: ignore[union-attr]  # its first end counts


def test_a_thread_of_the_producer_does_not_wait_for_room() -> None:
    raised: list[nsq.UsageError] = []

    class Publishing(MemoryTransport):
        def connect(self, address: str, *, timeout: float) -> MemoryStream:
            eventually(lambda: p.stats().pending)
            with pytest.raises(nsq.UsageError, match="a thread of the producer's own") as caught:
                p.publish_async("orders", b"late")
            raised.append(caught.value)
            return super().connect(address, timeout=timeout)

    transport = Publishing()
    with producer(transport, max_pending=1) as p:
        p.publish_async("orders", b"body")
        accept_publisher(transport)
        assert raised
        p.close(0)


def test_publishes_that_have_ended_do_not_pile_up_behind_one_that_waits_for_long(
    p: Producer, transport: MemoryTransport
) -> None:
    transport.refuse()
    p.publish_async("orders", b"patient")
    ended = []
    for _ in range(100):
        future = p.publish_async("orders", b"x", timeout=0.001)
        assert isinstance(future.exception(PATIENCE), nsq.PublishFailed)
        ended.append(weakref.ref(future))
        del future

    def few_are_left() -> bool:
        gc.collect()
        return sum(each() is not None for each in ended) < 10

    eventually(few_are_left)
    p.close(0)


# Places of a publish that is given up


def waits_for_a_connection(ends: ExitStack, **options: Any) -> Any:
    transport = MemoryTransport()
    transport.refuse()
    p = ends.enter_context(producer(transport, **options))
    future = p.publish_async("orders", b"body", timeout=SOON)
    return p, transport, future


def waits_to_be_written(ends: ExitStack, **options: Any) -> Any:
    transport = MemoryTransport()
    p = ends.enter_context(producer(transport, **options))
    nsqd = connected(p, transport)
    nsqd.peer.stall(after=1)
    p.publish_async("orders", b"stuck")
    nsqd.peer.wait_until(lambda got: got.endswith(b"P"))
    return p, transport, p.publish_async("orders", b"body", timeout=SOON)


def is_sent(ends: ExitStack, **options: Any) -> Any:
    transport = MemoryTransport()
    p = ends.enter_context(producer(transport, **options))
    nsqd = connected(p, transport)
    future = p.publish_async("orders", b"body", timeout=SOON)
    nsqd.expect(b"body")
    return p, transport, future


def waits_to_be_sent_again(ends: ExitStack, **options: Any) -> Any:
    p, transport, future = is_sent(ends, retry_uncertain=True, **options)
    transport.refuse()
    transport.peers[0].end()
    transport.wait_for_dials(2)
    return p, transport, future


STAGES: list[tuple[Callable[..., Any], type[nsq.NsqError], str]] = [
    (waits_for_a_connection, nsq.PublishFailed, "no nsqd could be reached in time: cannot connect"),
    (waits_to_be_written, nsq.PublishFailed, f"{A} did not take it in time"),
    (is_sent, nsq.PublishUncertain, f"sent to {A} and not answered (no answer in time)"),
    (waits_to_be_sent_again, nsq.PublishUncertain, f"sent to {A} and not answered (then: no nsqd"),
]


def test_a_publish_that_was_given_up_before_it_was_sent_is_left_out(p: Producer, nsqd: PublishedTo) -> None:
    with waiting_together(p, nsqd), pytest.raises(nsq.PublishFailed):
        p.publish("orders", b"given up", timeout=0.01)
    published = publishing(p, b"next")
    nsqd.answer(b"next")
    published.result(PATIENCE)


def test_at_its_deadline_a_publish_that_was_not_sent_has_failed_and_any_other_is_uncertain() -> None:
    with ExitStack() as ends:
        scenes = [(*stage(ends), kind, text) for stage, kind, text in STAGES]
        for p, _, future, kind, text in scenes:
            error = future.exception(PATIENCE)
            assert type(error) is kind
            assert text in str(error)
            p.close(0)


@pytest.mark.parametrize(("stage", "kind", "text"), STAGES)
def test_close_ends_a_publish_that_was_not_sent_as_failed_and_any_other_as_uncertain(
    stage: Callable[..., Any], kind: type[nsq.NsqError], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as ends:
        p, transport, future = stage(ends, publish_timeout=PATIENCE)
        p.close(0)
        assert type(future.exception(PATIENCE)) is kind
        assert "the producer was closed" in str(future.exception(0))
        for peer in transport.peers:
            peer.wait_closed()
        eventually(lambda: "publishes unanswered" in caplog.text)


def test_each_publish_ends_at_its_own_deadline(transport: MemoryTransport) -> None:
    transport.refuse()
    failed: list[Failed] = []
    timeouts = [PATIENCE, 0.2, 0.1, 0.3]
    with producer(transport, on_failed=failed.append) as p:
        futures = [p.publish_async(f"t{n}", b"x", timeout=each) for n, each in enumerate(timeouts)]
        for number in (1, 2, 3):
            assert isinstance(futures[number].exception(PATIENCE), nsq.PublishFailed)
        assert not futures[0].done()
        assert p.flush(0.01) == FlushReport(clean=False, unanswered=1)
        p.close(0)
    assert sorted(each.topic for each in failed) == ["t0", "t1", "t2", "t3"]
    assert all(each.topic == "t0" or each.latency >= timeouts[int(each.topic[1])] for each in failed)


def test_what_is_reported_as_failed_is_never_sent(p: Producer, nsqd: PublishedTo) -> None:
    """Callers give up while the write loop is about to send their publishes."""
    failed: list[bytes] = []
    for number in range(300):
        body = b"%06d" % number
        with contextlib.suppress(nsq.PublishUncertain):
            try:
                p.publish("orders", body, timeout=random.uniform(1e-6, 3e-4))
            except nsq.PublishFailed:
                failed.append(body)
        if body in nsqd.peer.received:
            nsqd.ok()
    p.close(0)
    assert failed
    assert [body for body in failed if body in nsqd.peer.received] == []
    assert commands.pub("orders", b"") not in nsqd.peer.received


def test_a_connection_that_ends_at_any_line_of_a_publish_loses_nothing() -> None:
    for line in each_line():
        transport = MemoryTransport()
        with producer(transport, retry_uncertain=True) as p:
            nsqd = connected(p, transport)
            line.act = partial(lose, p, nsqd)
            with line:
                future = p.publish_async("orders", b"body")
            (accept_publisher(transport) if line.reached else nsqd).answer(b"body")
            assert future.exception(PATIENCE) is None


def lose(p: Producer, nsqd: PublishedTo) -> None:
    nsqd.hang_up()
    eventually(lambda: connections(p)[A].reason)


# The end


def test_flush_waits_and_says_what_is_left(p: Producer, nsqd: PublishedTo) -> None:
    futures = [p.publish_async("orders", b"%d" % number) for number in range(3)]
    assert p.flush(0.01) == FlushReport(clean=False, unanswered=3)
    flushed = in_thread(p.flush)
    for number in range(3):
        assert not flushed.done()
        nsqd.answer(b"%d" % number)
    assert flushed.result(PATIENCE) == FlushReport(clean=True)
    assert all(future.done() for future in futures)


def test_close_flushes_and_later_publishes_are_refused(p: Producer, nsqd: PublishedTo) -> None:
    p.publish_async("orders", b"body")
    nsqd.expect(b"body")
    closed = in_thread(p.close)
    nsqd.ok()
    assert closed.result(PATIENCE) == CloseReport(clean=True)
    nsqd.peer.wait_closed()
    assert p.close()
    for publish in (p.publish, p.publish_async):
        with pytest.raises(nsq.Closed):
            publish("orders", b"body")


def test_a_close_that_waits_for_a_callback_in_vain_still_counts_the_unanswered_publishes(
    p: Producer, nsqd: PublishedTo
) -> None:
    go_on = threading.Event()
    answered = p.publish_async("orders", b"answered")
    nsqd.answer(b"answered")
    answered.add_done_callback(lambda _: go_on.wait(PATIENCE))
    unanswered = p.publish_async("orders", b"unanswered")
    nsqd.expect(b"unanswered")
    report = p.close(0.3)
    go_on.set()
    assert (report.clean, report.unanswered) == (False, 1)
    assert isinstance(unanswered.exception(PATIENCE), nsq.PublishUncertain)


def test_close_takes_a_connection_along_that_is_being_dialed() -> None:
    transport = HeldTransport(A)
    with producer(transport) as p:
        with pytest.raises(nsq.PublishFailed):
            p.publish("orders", b"body", timeout=0.01)
        eventually(lambda: transport.hanging)
        closed = in_thread(p.close)
        transport.release()
        assert closed.result(PATIENCE) == CloseReport(clean=True)


@pytest.mark.parametrize("verb", ["publish", "publish_async"])
@pytest.mark.parametrize("stage", ["cold", "unreachable", "connected"])
def test_a_publish_ends_that_is_interrupted_by_a_close_at_any_of_its_lines(stage: str, verb: str) -> None:
    """Close does not wait for it, as it may be its own signal handler that closes."""
    for line in each_line():
        transport = MemoryTransport()
        with producer(transport) as p:
            if stage == "connected":
                connected(p, transport)
            elif stage == "unreachable":
                p.publish_async("orders", b"first")
            line.act = lambda p=p: (p.flush(0), p.close(0))  # type: ignore[misc]
            with line:
                try:
                    future = getattr(p, verb)("orders", b"body", timeout=0.01)
                except (nsq.Closed, nsq.PublishFailed, nsq.PublishUncertain):
                    future = None
            p.close(0)
            if future is not None:
                assert isinstance(future.exception(PATIENCE), (nsq.PublishFailed, nsq.PublishUncertain))
            assert p.stats().pending == 0


@pytest.mark.parametrize("where", [{"nsqd": A}, {"nsqlookupd": "lookupd:4161"}])
def test_a_producer_is_healthy_while_no_connection_was_needed_yet(where: dict[str, str]) -> None:
    p = Producer(**where)
    assert p.health() == ProducerHealth(healthy=True, problems={})
    p.close()
    assert p.health() == ProducerHealth(healthy=False, problems={})


def test_a_producer_that_did_nothing_closes_cleanly_and_looks_closed(p: Producer) -> None:
    assert connections(p)[A].state == "idle"
    assert p.close() == CloseReport(clean=True)
    assert repr(p) == f"<Producer {A} closed>"
    p.abandon()  # as in a forked child
    with pytest.raises(nsq.Closed):
        p.publish("orders", b"body")


@pytest.mark.parametrize("waits", ["close", "flush", "publish"])
def test_the_place_of_a_publish_whose_caller_was_interrupted_twice_ends_at_its_deadline(
    transport: MemoryTransport, waits: str
) -> None:
    p = producer(transport, max_pending=1)
    with (
        patch.object(Pool, "_queue", side_effect=Interrupted),
        patch.object(Pool, "cancel", side_effect=Interrupted),
        pytest.raises(Interrupted),
    ):
        p.publish("orders", b"lost", timeout=0.3)  # its threads have to start in this time
    if waits == "publish":
        with pytest.raises(PublishFailed, match="no nsqd"):
            p.publish("orders", b"next", timeout=0.6)
    elif waits == "flush":
        # A flush on the interrupted thread does not wait for what that has published.
        assert in_thread(partial(p.flush, 1.0)).result(PATIENCE)
    assert in_thread(partial(p.close, 1.0)).result(PATIENCE)
