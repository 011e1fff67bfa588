"""Keys and headers of a partitioned NSQ, through receivers into the log, and from rows into NSQ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nsq
from nsq.errors import ConfigError, InvalidMessage
from nsq.spark.options import SinkOptions
from nsq.spark.receiver.pool import ReceiverPool
from nsq.spark.wal import records
from nsq.testing import Nsqd, Nsqlookupd, PartitionedCluster
from nsq.testing.plugin import Factory

from ..clients import depth
from ..consuming import CHANNEL, TOPIC, until
from .receivers import options_of, prepared, received, working

pytest.importorskip("pyspark")

from nsq.spark.sink import Columns, publish_rows

pa: Any = pytest.importorskip("pyarrow")

COLUMNS = Columns(body=0, topic=None, defer=None, key=1, headers=2)
QUICK = {"topic": TOPIC, "reconnectInitial": "10ms", "reconnectMax": "100ms"}


@pytest.fixture
def cluster() -> Iterator[PartitionedCluster]:
    with PartitionedCluster(nodes=2) as cluster:
        cluster.create_topic(TOPIC, partitions=4, extended=True, channels=[CHANNEL])
        yield cluster


def rows(*given: tuple[bytes, bytes | None, dict[str, str] | None]) -> Any:
    """A batch of bodies, keys and headers."""
    bodies, keys, headers = zip(*given, strict=True)
    maps = [None if each is None else list(each.items()) for each in headers]
    kinds = pa.binary(), pa.binary(), records.ROW.field("headers").type
    arrays = [pa.array(values, kind) for values, kind in zip((bodies, keys, maps), kinds, strict=True)]
    return pa.record_batch(arrays, names=["body", "key", "headers"])


def test_what_was_published_with_headers_is_in_the_log_and_can_be_published_again(
    cluster: PartitionedCluster, tmp_path: Path
) -> None:
    lookupd = ",".join(cluster.lookup_addresses)
    published = {b"both": {"key": "a17", "n": 5}, b"headers": {"source": "web"}, b"none": None}
    with nsq.Producer(nsqlookupd=cluster.lookup_addresses) as producer:
        for body, headers in published.items():
            producer.publish(TOPIC, body, key="a17", headers=headers)
    wal = prepared(tmp_path / "wal")
    with working(options_of(tmp_path / "wal", lookupd=lookupd)) as pool:
        received(pool, len(published))
    columns = ["body", "key", "headers"]
    batches = [records.rows(wal.read(segment), columns) for segment in wal.segments()]
    found = sorted((tuple(row.values()) for batch in batches for row in batch.to_pylist()), key=str)
    assert found == [
        (b"both", b"a17", [("key", "a17"), ("n", "5")]),
        (b"headers", None, [("source", "web")]),
        (b"none", None, None),
    ]

    report = publish_rows(SinkOptions.of({**QUICK, "lookupd": lookupd}), COLUMNS, batches)

    assert report.messages == len(published)
    again: dict[bytes, nsq.Message] = {}
    consumer = nsq.Consumer(TOPIC, CHANNEL, nsqlookupd=cluster.lookup_addresses)
    with consumer.add_handler(lambda message: again.update({message.body: message})):
        until("all of them", lambda: len(again) == len(published))
    assert {body: message.headers for body, message in again.items()} == {
        b"both": {"key": "a17", "n": "5"},
        b"headers": {"source": "web"},
        b"none": None,
    }


def test_rows_of_a_key_are_in_one_partition_in_their_order(cluster: PartitionedCluster) -> None:
    given = [(b"%d" % number, b"key %d" % (number % 3), None) for number in range(300)]

    publish_rows(
        SinkOptions.of({**QUICK, "lookupd": ",".join(cluster.lookup_addresses)}), COLUMNS, [rows(*given)]
    )

    partitions = [
        [int(message.body) for message in cluster.messages(TOPIC, partition)] for partition in range(4)
    ]
    for key in range(3):
        own = [[number for number in numbers if number % 3 == key] for numbers in partitions]
        assert sorted(own) == [[], [], [], list(range(key, 300, 3))]


@pytest.mark.parametrize("through", ["nsqd", "nsqlookupd"])
def test_a_plain_nsq_takes_rows_whose_key_and_headers_are_null_and_refuses_others(
    nsqd_factory: Factory[Nsqd], nsqlookupd: Nsqlookupd, through: str
) -> None:
    nsqd = nsqd_factory(lookupd=[nsqlookupd], broadcast_address="127.0.0.1")
    where = {"nsqd": nsqd.tcp_address} if through == "nsqd" else {"lookupd": nsqlookupd.http_address}
    options = SinkOptions.of({**QUICK, **where})

    assert publish_rows(options, COLUMNS, [rows((b"1", None, None))]).messages == 1
    with pytest.raises(InvalidMessage) as raised:
        publish_rows(options, COLUMNS, [rows((b"2", b"a17", {"source": "web"}))])

    assert str(raised.value).startswith(
        "a row for topic 'orders' has b'a17' in column key and {'source': 'web'} in column headers: key= and "
        "headers= needs a partitioned NSQ."
    )
    assert str(raised.value).endswith(". To publish without: .drop('key', 'headers')")
    assert depth(nsqd, TOPIC) == 1


def test_an_ordered_topic_is_an_error(cluster: PartitionedCluster, tmp_path: Path) -> None:
    cluster.create_topic("steps", partitions=2, ordered=True, channels=[CHANNEL])
    options = options_of(tmp_path / "wal", topic="steps", lookupd=",".join(cluster.lookup_addresses))
    prepared(tmp_path / "wal")
    with ReceiverPool(options) as pool:
        pool.start()
        error = until("an error", lambda: pool.fatal_error)
    assert isinstance(error, ConfigError)
    assert str(error).startswith("nsqd refuses: the topic steps is ordered, and cannot be read by Spark")
