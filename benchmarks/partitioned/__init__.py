"""What a partitioned cluster costs the client: its CPU time for each message.

The cluster is the test double, in a process of its own. It is not tuned, so rates over it would measure it
and not the client. Publishing has one nsqd beside it. The CPU time of consuming depends on how much a server
sends at a time, so it is compared with that of older code only (``--old``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from benchmarks.client.parties import SIZE
from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.drivers import wire
from benchmarks.peers.work import CHANNEL, TOPIC, WARM_UP
from benchmarks.processes import numbers_of, serving
from nsq.testing import PartitionedCluster

PARTITIONED, PLAIN = "partitioned", "one nsqd"
_NODES, _PARTITIONS = 3, 6
_WINDOW = 10_000
#: The most that publishing may cost, in times of its CPU time with one nsqd.
_MOST = 1.6
#: For each partition. With less, small windows would decide the result.
_MAX_IN_FLIGHT = 200 * _PARTITIONS
_FILL = 200  # messages in a command

_ONE_BY_ONE, _ASYNC, _CONSUMED, _IN_ORDER = 5000, 50_000, 50_000, 5000


def comparisons() -> Sequence[Comparison]:
    return [
        _publishing("publish", "publish", _ONE_BY_ONE),
        _publishing("publish_async, pipelined", "publish_async", _ASYNC, window=_WINDOW),
        _comparison("consume", _consuming(_CONSUMED, max_in_flight=_MAX_IN_FLIGHT)),
        _comparison("consume in order", _consuming(_IN_ORDER, ordered=True, threads=_PARTITIONS)),
    ]


def _publishing(name: str, load: str, count: int, **arguments: object) -> Comparison:
    def partitioned(scale: float) -> Sequence[float]:
        with _cluster() as cluster:
            return drive(scale, {"nsqlookupd": cluster.lookup_addresses})

    def plain(scale: float) -> Sequence[float]:
        with serving(servers.nsqd()) as server:
            return drive(scale, {"nsqd": f"127.0.0.1:{server.port}"})

    def drive(scale: float, where: Mapping[str, object]) -> Sequence[float]:
        return _drive(load, where=where, count=round(count * scale), size=SIZE, **arguments)

    return _comparison(name, partitioned, plain)


def _consuming(count: int, ordered: bool = False, **options: object) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        messages = round(count * scale)
        with _cluster(ordered=ordered, filled=messages + 2 * WARM_UP) as cluster:
            where = {"nsqlookupd": cluster.lookup_addresses}
            return _drive("consume", where=where, count=messages, ordered=ordered, **options)

    return measure


def _comparison(name: str, partitioned: Measure, plain: Measure | None = None) -> Comparison:
    return Comparison(
        name=f"{name}, {_PARTITIONS} partitions on {_NODES} nodes",
        figures=(Figure("", "µs of CPU"),),
        contenders={PARTITIONED: partitioned} | ({} if plain is None else {PLAIN: plain}),
        bars=[] if plain is None else [Bar(PARTITIONED, PLAIN, _MOST, at_most=True)],
        rounds=5,
    )


@contextmanager
def _cluster(*, ordered: bool = False, filled: int = 0) -> Iterator[PartitionedCluster]:
    with PartitionedCluster(nodes=_NODES, process=True, first_twice=False) as cluster:
        cluster.create_topic(TOPIC, partitions=_PARTITIONS, ordered=ordered, channels=[CHANNEL])
        for number in range(_PARTITIONS if filled else 0):
            leader = cluster.leader(TOPIC, number)
            assert leader is not None
            port = int(leader.tcp_address.rpartition(":")[2])
            _fill(port, f"{TOPIC} {number}", -(-filled // _PARTITIONS))
        yield cluster


def _fill(port: int, topic: str, count: int) -> None:
    with wire.open_client(port) as connection:
        wire.publish(connection, wire.mpub(topic, b"x" * SIZE, _FILL), 1, -(-count // _FILL))


def _drive(load: str, **arguments: object) -> Sequence[float]:
    driver = "benchmarks.drivers.partitioned"
    return numbers_of([sys.executable, "-m", driver, load, json.dumps(arguments)])
