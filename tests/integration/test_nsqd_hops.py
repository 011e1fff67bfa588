"""The length of the way from a PUB to its subscriber: the number of nsqd's functions and files."""

from __future__ import annotations

import threading

from nsq.testing import Nsqd
from nsq.wire import commands

from .clients import connected, consumer
from .test_hops import counted


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
