"""Helpers for tests of receivers and of the sink: a log, a pool of receivers, and messages in nsqd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nsq.spark.receiver.pool import ReceiverPool
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.log import Wal
from nsq.spark.wal.store import open_wal
from nsq.testing import DaemonFailed, Nsqd
from nsq.testing.plugin import Factory

from .. import clients
from ..clients import depth
from ..consuming import CHANNEL, TOPIC, channel_of
from ..patience import eventually

__all__ = ["depth"]

#: Everything here starts processes, on machines that are busy with others.
PATIENCE = 100.0


def options_of(wal: Path | str, *nsqds: Nsqd | str, **given: str) -> SourceOptions:
    """Given as to Spark; connections are tried again soon."""
    addresses = [each if isinstance(each, str) else each.tcp_address for each in nsqds]
    where = {"nsqd": ",".join(addresses)} if addresses else {}
    basic = {"topic": TOPIC, "channel": CHANNEL, "wal": str(wal), "reconnectMax": "500ms"}
    return SourceOptions.of({**basic, **where, **given})


def with_neighbouring_ports(make: Factory[Nsqd]) -> Nsqd:
    """Start an nsqd whose HTTP port follows its TCP port, as by default. Some ports may be taken."""
    for port in range(23150, 23250, 2):
        try:
            return make(tcp_address=f"127.0.0.1:{port}", http_address=f"127.0.0.1:{port + 1}")
        except DaemonFailed:
            continue
    raise AssertionError("fifty pairs of ports are taken")


def prepared(path: Path) -> Wal:
    wal = open_wal(str(path))
    wal.prepare()
    return wal


@contextmanager
def working(options: SourceOptions, count: int | None = None, **more: Any) -> Iterator[ReceiverPool]:
    """A pool whose receivers are all at work; stopped at the end, gracefully unless the test has failed."""
    prepared(Path(options.wal))
    pool = ReceiverPool(options, count, **more)
    try:
        pool.start()
        all_ready(pool)
        yield pool
    except BaseException:
        pool.stop(1.0)
        raise
    assert pool.stop(PATIENCE), pool.status()


def all_ready(pool: ReceiverPool) -> None:
    """Wait until all receivers are at work."""
    eventually(pool.status, lambda status: status.ready, PATIENCE)


def received(pool: ReceiverPool, count: int) -> None:
    """Wait until so many messages are in the log."""
    eventually(lambda: pool.status().received, lambda seen: seen >= count, PATIENCE)


def bodies_of(wal: Wal) -> list[bytes]:
    """The bodies, in the order of the segments."""
    found: list[bytes] = []
    for segment in wal.segments():
        rows = wal.read(segment).column("body").to_pylist()
        assert len(rows) == segment.rows
        assert sum(map(len, rows)) == segment.bytes
        found += rows
    return found


def connected(*nsqds: Nsqd, clients: int = 1) -> None:
    """Wait until so many receivers have subscribed to each."""
    for nsqd in nsqds:
        eventually(lambda: channel_of(nsqd).get("client_count"), lambda seen: seen == clients, PATIENCE)  # noqa: B023


def drained(*nsqds: Nsqd) -> None:
    """Wait until nothing is left of the channel, in flight or waiting."""
    for nsqd in nsqds:
        eventually(lambda: _left(nsqd), lambda left: left == (0, 0, 0), PATIENCE)  # noqa: B023


def take_all(nsqd: Nsqd, topic: str) -> Counter[bytes]:
    """Return all messages of the topic, which must have no channel yet."""
    return Counter(clients.take_all(nsqd, topic))


def _left(nsqd: Nsqd) -> Sequence[int]:
    stats = channel_of(nsqd)
    return stats.get("depth", -1), stats.get("in_flight_count", -1), stats.get("deferred_count", -1)
