"""Receiving in this process: into an object store, and several topics into a full log."""

from __future__ import annotations

import threading
from pathlib import Path

from nsq.http.nsqd import NsqdApi
from nsq.spark.receiver.receiving import Receiving
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.directory import DirectoryWal
from nsq.spark.wal.objects import Memory
from nsq.spark.wal.records import stored
from nsq.spark.wal.shared import SharedWal
from nsq.testing import Nsqd
from tests.integration.patience import eventually

COUNT = 5000


def test_all_messages_become_objects_and_leave_nsqd(nsqd: Nsqd, tmp_path: Path) -> None:
    api = NsqdApi(nsqd.http_address)
    api.create_topic("orders")
    api.create_channel("orders", "spark")
    bodies = [b"%05d" % number for number in range(COUNT)]
    api.multi_publish("orders", bodies)
    options = SourceOptions.of(
        {
            "topic": "orders",
            "channel": "spark",
            "wal": "unused",
            "nsqd": nsqd.tcp_address,
            "maxInFlight": "500",
        }
    )
    wal = SharedWal(Memory(), "memory://log")
    wal.prepare()

    receiving = Receiving(options, wal, changed=lambda: None)
    receiving.start()
    try:
        eventually(lambda: receiving.status().received, lambda received: received == COUNT, 200.0)
    finally:
        stopped = receiving.stop(100.0)

    assert stopped.in_flight == 0
    stored = [
        body
        for segment in wal.segments()
        for batch in wal.read(segment)
        for body in batch["body"].to_pylist()
    ]
    assert sorted(stored) == bodies

    def left() -> tuple[int, int]:
        (channel,) = api.stats("orders")["topics"][0]["channels"]
        return channel["depth"], channel["in_flight_count"]

    eventually(left, lambda seen: seen == (0, 0))  # nobody answers a FIN


def test_several_topics_are_paused_together_by_one_look_at_the_log(tmp_path: Path) -> None:
    wal = DirectoryWal(tmp_path / "wal")
    wal.prepare()
    with wal.log("before") as log:
        log.append(stored("a", [b"i" * 16], [0], [1], ["h:4150"], [b"body"]))
    given = {"topics": "a,b,c", "channel": "spark", "wal": wal.location, "nsqd": "127.0.0.1:1"}
    options = SourceOptions.of(given | {"walMaxBytes": "1"})
    receiving = Receiving(options, wal, changed=lambda: None)
    receiving.start()
    try:
        assert [thread.name for thread in threading.enumerate()].count("nsq-spark-limit") == 1
        assert [each.gate.window for each in receiving._all()] == [0, 0, 0]
        wal.delete(wal.segments())
        eventually(lambda: [each.gate.window for each in receiving._all()], lambda found: 0 not in found)
    finally:
        receiving.stop(100.0)
