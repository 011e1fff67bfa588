"""The client with a partitioned cluster, beside the same client with one nsqd; and lanes side by side.

The cluster is the test double, in a process of its own, so this measures the client and no server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.client.parties import SIZE
from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.drivers import wire
from benchmarks.peers.work import CHANNEL, TOPIC, WARM_UP
from benchmarks.processes import numbers_of, serving
from nsq.testing import PartitionedCluster

PARTITIONED, PLAIN = "partitioned", "one nsqd"
_SHARE = 0.8
_NODES, _PARTITIONS = 3, 6
_LANES = 16
_CALLERS = 16
_WINDOW = 10_000
#: For each partition. With less, small windows would decide the result: a window of 33 costs a client of one
#: nsqd as much.
_MAX_IN_FLIGHT = 200 * _PARTITIONS
_FILL = 200  # messages in a command

_ONE_BY_ONE, _TOGETHER, _ASYNC, _CONSUMED = 8000, 20_000, 200_000, 200_000


def comparisons() -> Sequence[Comparison]:
    return [
        _beside("publish, 1 caller", "publish", _ONE_BY_ONE, size=SIZE),
        _beside(f"publish, {_CALLERS} callers", "publish", _TOGETHER, size=SIZE, callers=_CALLERS),
        _beside("publish_async, pipelined", "publish_async", _ASYNC, size=SIZE, window=_WINDOW),
        _beside("consume", "consume", _CONSUMED, filled=True, max_in_flight=_MAX_IN_FLIGHT),
        _lanes("a handler that blocks 10 ms", 0.01, one=150, many=2400, ratio=12),
        _lanes("a handler that blocks 1 ms", 0.001, one=1000, many=8000, ratio=5),
        _lanes("an empty handler", 0.0, one=10_000, many=20_000),
    ]


def _beside(name: str, load: str, count: int, *, filled: bool = False, **arguments: object) -> Comparison:
    def partitioned(scale: float) -> Sequence[float]:
        messages = round(count * scale)
        with _cluster(_PARTITIONS, filled=messages + 2 * WARM_UP if filled else 0) as cluster:
            where = {"nsqlookupd": cluster.lookup_addresses}
            return _drive(load, where=where, count=messages, **arguments)

    def plain(scale: float) -> Sequence[float]:
        messages = round(count * scale)
        with serving(servers.nsqd()) as server:
            if filled:
                _fill(server.port, TOPIC, messages + 2 * WARM_UP)
            where = {"nsqd": f"127.0.0.1:{server.port}"}
            return _drive(load, where=where, count=messages, **arguments)

    return Comparison(
        name=f"{name}, {_PARTITIONS} partitions on {_NODES} nodes",
        figures=(Figure("", "msg/s"),),
        contenders={PARTITIONED: partitioned, PLAIN: plain},
        bars=[Bar(PARTITIONED, PLAIN, _SHARE)],
    )


def _lanes(handler: str, pause: float, *, one: int, many: int, ratio: float | None = None) -> Comparison:
    def with_partitions(partitions: int, count: int) -> Measure:
        def measure(scale: float) -> Sequence[float]:
            messages = round(count * scale)
            with _cluster(partitions, ordered=True, filled=messages + 2 * WARM_UP) as cluster:
                where = {"nsqlookupd": cluster.lookup_addresses}
                options = {"threads": partitions, "pause": pause, "ordered": True}
                return _drive("consume", where=where, count=messages, **options)

        return measure

    many_lanes, one_lane = f"{_LANES} partitions", "1 partition"
    return Comparison(
        name=f"consume in order, {handler}",
        figures=(Figure("", "msg/s"),),
        contenders={many_lanes: with_partitions(_LANES, many), one_lane: with_partitions(1, one)},
        bars=[] if ratio is None else [Bar(many_lanes, one_lane, ratio)],
    )


@contextmanager
def _cluster(partitions: int, *, ordered: bool = False, filled: int = 0) -> Iterator[PartitionedCluster]:
    with PartitionedCluster(nodes=_NODES, process=True, first_twice=False) as cluster:
        cluster.create_topic(TOPIC, partitions=partitions, ordered=ordered, channels=[CHANNEL])
        for number in range(partitions if filled else 0):
            leader = cluster.leader(TOPIC, number)
            assert leader is not None
            port = int(leader.tcp_address.rpartition(":")[2])
            _fill(port, f"{TOPIC} {number}", -(-filled // partitions))
        yield cluster


def _fill(port: int, topic: str, count: int) -> None:
    with wire.open_client(port) as connection:
        wire.publish(connection, wire.mpub(topic, b"x" * SIZE, _FILL), 1, -(-count // _FILL))


def _drive(load: str, **arguments: object) -> Sequence[float]:
    driver = "benchmarks.drivers.partitioned"
    return numbers_of([sys.executable, "-m", driver, load, json.dumps(arguments)])
