"""Consumers and forks: a child does not use an inherited consumer, and can make its own.

The programs run in processes of their own, as a fork copies whatever the test process has open.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nsq.testing import Nsqd

from .consuming import PATIENCE, clients_of, create, expect_drained, numbered, publish

ROOT = Path(__file__).resolve().parents[2]

BEGINNING = """
import json, multiprocessing, os, sys, threading, time, traceback, nsq

ADDRESS = sys.argv[1]
seen = []
changed = threading.Condition()

def handle(message):
    with changed:
        seen.append(message.body.decode())
        changed.notify_all()

def make():
    return nsq.Consumer("orders", "billing", nsqd=ADDRESS, threads=2).add_handler(handle)

def wait_for(count):
    with changed:
        assert changed.wait_for(lambda: len(seen) >= count, 100), seen

def in_child(call):
    # Whatever the child's call returns, through a pipe; a child that hangs is killed.
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            result = call()
        except BaseException:
            result = traceback.format_exc()
        os.write(writing, json.dumps(result).encode())
        os._exit(0)
    os.close(writing)
    killer = threading.Timer(40, os.kill, (child, 9))
    killer.start()
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    killer.cancel()
    _, status = os.waitpid(child, 0)
    assert status == 0, (status, text)
    return json.loads(text)
"""


def run(program: str, nsqd: Nsqd) -> Any:
    """What the program prints as JSON. It must end well, and say nothing on stderr."""
    done = subprocess.run(
        # From 3.12 on Python warns of any fork in a program with threads, which is what this is about.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGINNING + program, nsqd.tcp_address],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return json.loads(done.stdout)


def test_an_inherited_consumer_is_inert_and_says_so(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"one"])
    program = """
held = []
consumer = nsq.Consumer("orders", "billing", nsqd=ADDRESS, threads=2)

def keep(message):
    handle(message)
    held.append(message)
    if message.body == b"one":
        message.disable_auto_response()

consumer.add_handler(keep).start()
wait_for(1)

def ask():
    answers = {"repr": repr(consumer), "stats": consumer.stats().connections}
    answers["health"] = consumer.health().summary
    calls = {
        "start": consumer.start,
        "stop": consumer.stop,
        "run": consumer.run,
        "wait": consumer.wait,
        "pause": consumer.pause,
        "resume": consumer.resume,
        "wait_until_connected": consumer.wait_until_connected,
        "set_max_in_flight": lambda: consumer.set_max_in_flight(3),
        "add_nsqd": lambda: consumer.add_nsqd(ADDRESS),
        "finish": held[0].finish,
        "touch": held[0].touch,
    }
    for name, call in calls.items():
        try:
            answers[name] = repr(call())
        except nsq.NsqError as error:
            answers[name] = type(error).__name__ + ": " + str(error)
    with consumer:
        pass
    return answers

answers = in_child(ask)
answers["pid"] = os.getpid()
held[0].finish()
nsqds = consumer.health().connections
answers["parent"] = [len(nsqds), nsqds[0].rdy > 0]
report = consumer.stop()
answers["clean"] = report.clean
print(json.dumps(answers))
"""
    answers = run(program, nsqd)
    assert "inherited from the parent process, inert" in answers["repr"]
    assert answers["health"] == "inherited from the parent process, inert"
    assert answers["stats"] == 0
    for name in ("start", "stop", "run", "wait", "pause", "resume", "set_max_in_flight", "add_nsqd"):
        assert answers[name].startswith("Forked: "), (name, answers[name])
        assert f"belongs to process {answers['pid']}" in answers[name]
    assert answers["wait_until_connected"].startswith("Forked: ")
    for name in ("finish", "touch"):
        assert answers[name].startswith("AlreadyResponded: "), (name, answers[name])
    assert answers["parent"] == [1, True]
    assert answers["clean"] is True
    expect_drained(nsqd)


def test_the_parents_connection_goes_on(nsqd: Nsqd) -> None:
    """Neither the child's end, orderly or not, nor its copies of the sockets cost the parent anything."""
    create(nsqd)
    publish(nsqd, numbered(10))
    program = """
import urllib.request

consumer = make().start()
wait_for(10)
before = consumer.health().connections[0].seconds_connected

def end_orderly():
    sys.exit()

for child in (end_orderly, lambda: os._exit(0), lambda: os.kill(os.getpid(), 9)):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
print(json.dumps(consumer.stats().connections), flush=True)
sys.stdin.read()
wait_for(20)
(connection,) = consumer.health().connections
assert connection.seconds_connected > before
assert consumer.stop().clean
"""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGINNING + program, nsqd.tcp_address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == 1
            (client,) = clients_of(nsqd)
            publish(nsqd, numbered(10, "more"))
            _, err = process.communicate("", timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
    assert client["message_count"] == 10  # of this very connection
    expect_drained(nsqd)


def test_forks_under_load_neither_hang_nor_lose_messages(nsqd: Nsqd) -> None:
    """Whatever lock some thread holds at the moment of a fork, the child does not wait for it."""
    create(nsqd)
    publish(nsqd, numbered(20_000))
    program = """
class Hooks(nsq.ConsumerHooks):
    pass

consumer = nsq.Consumer("orders", "billing", nsqd=ADDRESS, threads=4, max_in_flight=200, hooks=Hooks())
consumer.add_handler(handle).start()
wait_for(1)

def ask():
    return repr([consumer.health().state, consumer.stats().connections, consumer.is_starved])

told = {in_child(ask) for _ in range(20)}
wait_for(20_000)
assert consumer.stop().clean
print(json.dumps([sorted(told), len(seen), len(set(seen))]))
"""
    told, count, different = run(program, nsqd)
    assert told == ["['inherited from the parent process, inert', 0, False]"]
    assert (count, different) == (20_000, 20_000)
    expect_drained(nsqd)


def test_a_child_has_a_consumer_of_its_own(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(10))
    program = """
parents = make().start()
wait_for(10)
parents.pause()

def consume():
    seen.clear()
    with nsq.Producer(ADDRESS) as producer, make() as consumer:
        producer.publish("orders", b"from the child")
        wait_for(1)
        consumer.stop()
    return seen

told = in_child(consume)
parents.resume()
parents.stop()
print(json.dumps(told))
"""
    assert run(program, nsqd) == ["from the child"]
    expect_drained(nsqd)


WORKERS = """
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
    program.write_text("import json, multiprocessing, os, sys, threading, nsq\n" + WORKERS)
    done = subprocess.run(
        [sys.executable, str(program), nsqd.tcp_address, method],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    bodies, processes, statuses = json.loads(done.stdout)
    assert bodies == sorted(body.decode() for body in numbered(200))
    assert processes == 2
    assert statuses == [0, 0]
    expect_drained(nsqd)


@pytest.mark.parametrize("add", ["add_handler(work)", "add_batch_handler(work, size=1)"])
@pytest.mark.parametrize("end", ["return", "sys.exit(3)", "raise ValueError('a defect')"])
def test_a_child_forked_by_a_handler_ends_with_the_handler(nsqd: Nsqd, add: str, end: str) -> None:
    """A child that went on to wait for messages, which it never gets, would keep its parent waiting."""
    create(nsqd)
    publish(nsqd, [b"one", b"two"])
    program = f"""
def work(message):
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        {end}
        return
    killer = threading.Timer(40, os.kill, (child, 9))
    killer.start()
    _, status = os.waitpid(child, 0)
    killer.cancel()
    with changed:
        seen.append(status)
        changed.notify_all()

consumer = nsq.Consumer("orders", "billing", nsqd=ADDRESS, threads=1)
consumer.{add}
with consumer:
    wait_for(2)
print(json.dumps(seen))
"""
    assert run(program, nsqd) == [0, 0]
    expect_drained(nsqd)
