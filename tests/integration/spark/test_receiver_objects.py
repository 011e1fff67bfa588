"""Receiving into a log of objects: each commit is one, and nothing waits to be sealed."""

from __future__ import annotations

from pathlib import Path

from pyarrow import fs

from nsq.http.nsqd import NsqdApi
from nsq.spark.receiver.receiving import Receiving
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import names
from nsq.spark.wal.objects import ObjectWal
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
    wal = ObjectWal(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "wal")
    wal.prepare()

    with wal.log(names.new_receiver()) as log:
        receiving = Receiving(options, wal, log, changed=lambda *_: None, sealed=lambda *_: None)
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
