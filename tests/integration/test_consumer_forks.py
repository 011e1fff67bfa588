"""Consumers and forks: a child does not use an inherited consumer, and can make its own."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsq import AlreadyResponded, Consumer, ConsumerHooks, Forked, Message
from nsq.testing import Nsqd
from tests.fakes.forks import in_child
from tests.fakes.programs import run_python

from .consuming import (
    Recorder,
    clients_of,
    create,
    expect_drained,
    make_consumer,
    numbered,
    publish,
    running,
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


WORKERS = """
import json, multiprocessing, os, sys, threading, nsq

def work(address, results, both_are_there):
    consumer = nsq.Consumer("orders", "billing", nsqd=address, threads=2, max_in_flight=2)
    go = threading.Event()

    def handle(message):
        assert go.wait(60)
        results.put([os.getpid(), message.body.decode()])

    consumer.add_handler(handle).start()
    assert consumer.wait_until_connected()
    both_are_there.wait(60)
    go.set()
    report = consumer.run()
    assert report.clean
    assert consumer.health().state == "stopped"

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    results = context.Queue()
    arguments = sys.argv[1], results, context.Barrier(2)
    workers = [context.Process(target=work, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    got = [results.get(timeout=60) for _ in range(200)]
    for worker in workers:
        worker.terminate()  # SIGTERM: run() drains
    for worker in workers:
        worker.join(60)
    bodies, pids = sorted(body for _, body in got), {pid for pid, _ in got}
    print(json.dumps([bodies, len(pids), [worker.exitcode for worker in workers]]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_workers_share_a_channel(nsqd: Nsqd, tmp_path: Path, method: str) -> None:
    create(nsqd)
    publish(nsqd, numbered(200))
    program = tmp_path / "workers.py"
    program.write_text(WORKERS)
    done = run_python(str(program), nsqd.tcp_address, method)
    assert (done.returncode, done.stderr) == (0, "")
    bodies, processes, statuses = json.loads(done.stdout)
    assert bodies == sorted(body.decode() for body in numbered(200))
    assert processes == 2
    assert statuses == [0, 0]
    expect_drained(nsqd)
