"""Consumers and forks: a child does not use an inherited consumer, and can make its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable

import pytest

from nsq import AlreadyResponded, Consumer, ConsumerHooks, Forked, Message, Producer
from nsq.testing import Nsqd
from tests.fakes.forks import in_child

from .consuming import (
    Recorder,
    clients_of,
    create,
    expect_drained,
    make_consumer,
    numbered,
    publish,
    running,
    until,
)

# From 3.12 on Python warns of any fork in a program with threads, which is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def test_an_inherited_consumer_is_inert_and_says_so(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"one"])
    seen = Recorder(Message.disable_auto_response)
    parent = os.getpid()

    def check() -> None:
        inert = "inherited from the parent process, inert"
        assert inert in repr(consumer)
        assert (consumer.health().summary, consumer.health().ok) == (inert, False)
        assert consumer.stats().connections == 0
        calls: list[Callable[[], object]] = [
            consumer.start,
            consumer.stop,
            consumer.run,
            consumer.wait,
            consumer.wait_until_connected,
            consumer.pause,
            consumer.resume,
            lambda: consumer.set_max_in_flight(3),
            lambda: consumer.add_nsqd(nsqd.tcp_address),
        ]
        for call in calls:
            with pytest.raises(Forked, match=f"belongs to process {parent}"):
                call()
        for answer in (seen.messages[0].finish, seen.messages[0].touch):
            with pytest.raises(AlreadyResponded):
                answer()
        with consumer:
            pass

    with running(make_consumer(nsqd).add_handler(seen)) as consumer:
        (message,) = seen.wait_for(1)
        assert in_child(check) == 0
        assert consumer.health().ok
        message.finish()
        expect_drained(nsqd)


def test_the_parents_connection_goes_on_however_a_child_ends(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(10))
    seen = Recorder()
    with running(make_consumer(nsqd).add_handler(seen)):
        seen.wait_for(10)
        for end in (sys.exit, lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL)):
            process = multiprocessing.get_context("fork").Process(target=end)
            process.start()
            process.join(60)
            process.close()
        publish(nsqd, numbered(10, "more"))
        seen.wait_for(20)
        expect_drained(nsqd)
        (client,) = clients_of(nsqd)
    assert client["message_count"] == 20  # of this very connection


def test_forks_under_load_neither_hang_nor_lose_messages(nsqd: Nsqd) -> None:
    """Whatever lock some thread holds at the moment of a fork, the child does not wait for it."""
    create(nsqd)
    publish(nsqd, numbered(20_000))
    seen = Recorder()

    def ask() -> None:
        inert = "inherited from the parent process, inert"
        assert consumer.health().state == inert
        assert (consumer.stats().connections, consumer.is_starved) == (0, False)

    consumer = make_consumer(nsqd, threads=4, max_in_flight=200, hooks=ConsumerHooks()).add_handler(seen)
    with running(consumer):
        seen.wait_for(1)
        assert [in_child(ask) for _ in range(20)] == [0] * 20
        expect_drained(nsqd)
    assert (len(seen.bodies), len(set(seen.bodies))) == (20_000, 20_000)


def test_a_child_has_a_consumer_of_its_own(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(10))
    seen = Recorder()

    def consume() -> None:
        own = Recorder()
        with Producer(nsqd.tcp_address) as producer, make_consumer(nsqd).add_handler(own):
            producer.publish("orders", b"from the child")
            own.wait_for(1)
            expect_drained(nsqd)
        assert own.bodies == [b"from the child"]

    with running(make_consumer(nsqd).add_handler(seen)) as consumer:
        seen.wait_for(10)
        consumer.pause()
        until("paused", lambda: [client["ready_count"] for client in clients_of(nsqd)] == [0])
        assert in_child(consume) == 0
        consumer.resume()
    assert len(seen.bodies) == 10


def end_by_a_signal() -> None:
    signal.raise_signal(signal.SIGTERM)


def raise_an_error() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where the child reports it
    raise ValueError("a defect")


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("end", "status"), [(int, 0), (sys.exit, 0), (raise_an_error, 0), (end_by_a_signal, -signal.SIGTERM)]
)
def test_a_child_forked_by_a_handler_ends_with_the_handler(
    nsqd: Nsqd, end: Callable[[], object], status: int, batch: bool
) -> None:
    """A child that went on to wait for messages, which it never gets, would keep its parent waiting; so would
    one that does not end at SIGTERM because it has inherited ``run``'s handler.
    """
    create(nsqd)
    publish(nsqd, [b"one", b"two"])
    statuses: list[int] = []

    def fork(given: object) -> None:
        child = os.fork()
        if not child:
            signal.alarm(60)
            end()
            return
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if len(statuses) == 2:
            consumer.stop()

    consumer: Consumer = make_consumer(nsqd, threads=1)
    consumer.add_batch_handler(fork, size=1) if batch else consumer.add_handler(fork)
    assert consumer.run().clean
    assert statuses == [status] * 2
    expect_drained(nsqd)
