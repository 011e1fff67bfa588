"""The length of the way from a publish to its reply: the number of our functions and files, over all
threads. Run with -s to see them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import nsq
from nsq.testing import Nsqd, Nsqlookupd
from nsq.wire import commands

from .clients import connected, consumer

PACKAGE = str(Path(nsq.__file__).parent) + "/"
BODY = b"x" * 200

Hops = dict[tuple[str, str], str]


@contextmanager
def counted() -> Iterator[Callable[[Callable[[], object]], Hops]]:
    """Threads that start in here are counted, while the call runs and a moment longer."""
    hops: Hops = {}
    counting = False

    def profile(frame: FrameType, event: str, argument: object) -> None:
        path = frame.f_code.co_filename
        if counting and event == "call" and path.startswith(PACKAGE):
            hops.setdefault(
                (path.removeprefix(PACKAGE), frame.f_code.co_qualname), threading.current_thread().name
            )

    def count(call: Callable[[], object]) -> Hops:
        nonlocal counting
        hops.clear()
        sys.setprofile(profile)
        counting = True
        try:
            call()
            time.sleep(0.05)  # for threads that are not done when the caller knows
        finally:
            counting = False
            sys.setprofile(None)
        return dict(hops)

    threading.setprofile(profile)
    try:
        yield count
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "most_functions", "most_files"), [("publish", 12, 6), ("publish_async", 24, 8)]
)
def test_a_publish_is_few_hops(kind: str, most_functions: int, most_files: int) -> None:
    with Nsqd(process=True) as nsqd, counted() as count, nsq.Producer(nsqd.tcp_address) as producer:
        calls: dict[str, Callable[[], object]] = {
            "publish": lambda: producer.publish("hops", BODY),
            "publish_async": lambda: producer.publish_async("hops", BODY).result(),
        }
        for _ in range(5):
            calls[kind]()
        while kind == "publish" and len(nsqd.get("/stats?format=json").json()["producers"]) < 2:
            calls[kind]()  # until one has made a round trip of its own
        # On a busy machine a call may have to set the timeout of its read anew.
        hops = min((count(calls[kind]) for _ in range(5)), key=len)

    # The producer's own thread has no part in it; it looks at deadlines now and then.
    hops = {hop: thread for hop, thread in hops.items() if thread != "nsq-producer"}
    files = {path for path, _ in hops}
    print(f"\n{kind}: {len(hops)} functions in {len(files)} files")
    for (path, name), thread in hops.items():
        print(f"  {thread:40} {path}: {name}")
    names = {name for _, name in hops}
    assert ("OwnConns.send" if kind == "publish" else "Publish.end") in names
    assert not names & {"begin", "around", "Producer._send_around"}, "an unused around_publish costs a call"
    assert len(hops) <= most_functions
    assert len(files) <= most_files


def test_nothing_of_the_partitioned_client_runs_on_an_original_nsq() -> None:
    with (
        Nsqlookupd() as nsqlookupd,
        Nsqd(lookupd_tcp_addresses=[nsqlookupd.tcp_address], broadcast_address="127.0.0.1"),
        counted() as count,
    ):

        def calls() -> None:
            with nsq.Producer(nsqlookupd=nsqlookupd.http_address, lookupd_poll_interval=0.1) as producer:
                for _ in range(5):
                    producer.publish("hops", BODY)
                    producer.multi_publish("hops", [BODY, BODY])
                    producer.publish_async("hops", BODY).result()
                producer.flush()
                producer.health()
                time.sleep(0.3)  # for discovery

        files = {path for path, _ in count(calls)}
    assert "discovery/lookups.py" in files
    assert not [path for path in files if path.startswith("partitioned/")]


def test_a_message_is_few_hops() -> None:
    handled = threading.Semaphore(0)
    with Nsqd(process=True) as nsqd, counted() as count:
        taking = nsq.Consumer("hops", "channel", nsqd=nsqd.tcp_address, max_in_flight=10)
        taking.add_handler(lambda message: handled.release())

        def one() -> None:
            nsqd.post("/pub?topic=hops", BODY)
            assert handled.acquire(timeout=20.0)

        with taking:
            for _ in range(5):
                one()
            hops = count(one)

    hops = {hop: thread for hop, thread in hops.items() if thread.startswith("nsq-hops")}
    files = {path for path, _ in hops}
    print(f"\na message: {len(hops)} functions in {len(files)} files")
    for (path, name), thread in hops.items():
        print(f"  {thread:40} {path}: {name}")
    assert "Message.finish" in {name for _, name in hops}
    assert len(hops) <= 23
    assert len(files) <= 8


def test_a_message_is_few_hops_from_its_publisher_to_its_subscriber() -> None:
    with (
        counted() as count,
        Nsqd() as nsqd,
        connected(nsqd) as producer,
        consumer(nsqd, "t", rdy=50) as client,
    ):

        def one() -> None:
            producer.send(commands.pub("t", b"x" * 200))
            producer.expect_ok()
            client.expect_message()

        for _ in range(5):
            one()
        here = threading.current_thread().name
        hops = {hop for hop, thread in count(one).items() if thread != here}

    # What syncs the files of its first seconds is no part of it.
    hops = {(path, name) for path, name in hops if "sync" not in path and "committer" not in path}
    files = {path for path, _ in hops}
    print(f"\nPUB to subscriber: {len(hops)} functions in {len(files)} files")
    for path, name in sorted(hops):
        print(f"  {path}: {name}")
    assert "Subscriber.hand_over" in {name for _, name in hops}
    assert len(hops) <= 40
    assert len(files) <= 12
