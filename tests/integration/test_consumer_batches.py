"""Batch handlers: sizes, waiting times and outcomes of batches."""

from __future__ import annotations

import time

from nsq.message import Message
from nsq.testing import Nsqd

from .consuming import (
    PATIENCE,
    Recorder,
    create,
    expect_drained,
    make_consumer,
    numbered,
    publish,
    running,
    until,
)


class Broken(Exception):
    pass


def test_a_batch_handler_gets_full_batches(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(40))
    sizes = []
    seen = Recorder()

    def handle(messages: list[Message]) -> None:
        sizes.append(len(messages))
        for message in messages:
            seen(message)

    # Without a limit of its own the consumer has two batches here at once.
    with running(make_consumer(nsqd).add_batch_handler(handle, size=10, wait=PATIENCE)):
        seen.wait_for(40)
        expect_drained(nsqd)
    assert sizes == [10] * 4
    assert sorted(seen.bodies) == sorted(numbered(40))


def test_a_batch_does_not_wait_for_more_than_its_time(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(3))
    batches: list[list[bytes]] = []
    with running(
        make_consumer(nsqd).add_batch_handler(
            lambda messages: batches.append([message.body for message in messages]), size=100, wait=0.2
        )
    ):
        until("all came", lambda: sum(map(len, batches)) == 3)
        expect_drained(nsqd)


def test_a_batch_does_not_wait_for_what_cannot_come(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(4))
    seen = Recorder()
    consumer = make_consumer(nsqd, max_in_flight=2)
    began = time.monotonic()
    with running(
        consumer.add_batch_handler(lambda batch: [seen(each) for each in batch], size=100, wait=200.0)
    ):
        seen.wait_for(4)
        expect_drained(nsqd)
    assert time.monotonic() - began < 200


def test_a_batch_that_raises_is_requeued_but_for_what_was_answered(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(4))
    seen = Recorder()

    def handle(messages: list[Message]) -> None:
        again = [message for message in messages if message.attempts > 1]
        for message in messages:
            seen(message)
        if not again:
            messages[0].finish()
            raise Broken

    with running(make_consumer(nsqd).add_batch_handler(handle, size=4, wait=PATIENCE)):
        seen.wait_for(4)
        publish(nsqd, [b"one more"])  # makes the second batch a full one
        seen.wait_for(8)
        expect_drained(nsqd, requeues=3)
    assert sorted(seen.attempts) == [1, 1, 1, 1, 1, 2, 2, 2]


def test_a_batch_that_returns_false_is_requeued(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(2))
    seen = Recorder()

    def handle(messages: list[Message]) -> bool:
        for message in messages:
            seen(message)
        return all(message.attempts > 1 for message in messages)

    with running(make_consumer(nsqd).add_batch_handler(handle, size=2, wait=PATIENCE)):
        seen.wait_for(4)
        expect_drained(nsqd, requeues=2)


def test_handlers_and_batch_handlers_work_side_by_side(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(200))
    seen, batched = Recorder(), Recorder()
    consumer = make_consumer(nsqd).add_handler(seen)
    consumer.add_batch_handler(lambda batch: [batched(each) for each in batch], size=10, wait=0.05)
    with running(consumer):
        until("all came", lambda: len(seen.messages) + len(batched.messages) == 200)
        expect_drained(nsqd)
    assert sorted(seen.bodies + batched.bodies) == sorted(numbered(200))
