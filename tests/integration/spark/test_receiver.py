"""Receiver processes: each published message is in the log once, and finished in nsqd."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from nsq.errors import Closed, ConfigError, NsqError
from nsq.spark.receiver.pool import ReceiverPool
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.names import Position
from nsq.spark.wal.readers import ReaderState
from nsq.spark.wal.store import open_wal
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from nsq.wire import commands
from tests.interop.auth_server import running_auth_server

from ..authority import Authority
from ..clients import consumer
from ..consuming import CHANNEL, TOPIC, channel_of, clients_of, create, numbered, publish
from ..patience import eventually
from .receivers import (
    PATIENCE,
    all_ready,
    bodies_of,
    connected,
    drained,
    options_of,
    prepared,
    received,
    working,
)

ALL = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


def test_each_message_is_in_the_log_once_and_gone_from_nsqd(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    publish(nsqd, numbered(5000))
    wal = prepared(tmp_path / "wal")
    with working(options_of(tmp_path / "wal", nsqd)) as pool:
        received(pool, 5000)
        pool.wait(PATIENCE)
        assert sorted(bodies_of(wal)) == sorted(numbered(5000))
        drained(nsqd)
        eventually(pool.status, lambda status: status.in_flight == 0, PATIENCE)
    assert channel_of(nsqd)["timeout_count"] == 0


def test_a_stop_closes_the_log(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    publish(nsqd, numbered(100))
    wal = prepared(tmp_path / "wal")
    with working(options_of(tmp_path / "wal", nsqd)) as pool:
        received(pool, 100)
    assert sorted(bodies_of(wal)) == sorted(numbered(100))
    assert [(each.alive, each.closed) for each in wal.receivers()] == [(False, True)]
    assert pool.stop(PATIENCE)  # once more does no harm
    with pytest.raises(Closed):
        pool.start()


def test_receivers_share_the_channel(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    wal = prepared(tmp_path / "wal")
    with working(options_of(tmp_path / "wal", nsqd, receivers="2", maxInFlight="50")) as pool:
        connected(nsqd, clients=2)
        eventually(
            lambda: [client["ready_count"] for client in clients_of(nsqd)], lambda seen: seen == [50, 50]
        )
        publish(nsqd, numbered(3000))
        received(pool, 3000)
        assert sorted(bodies_of(wal)) == sorted(numbered(3000))
        assert len(pool.status().receivers) == 2
        assert {segment.receiver for segment in wal.segments()} == set(pool.status().receivers)
        drained(nsqd)


def test_an_nsqd_that_starts_late_and_restarts_is_received_from(
    nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> None:
    nsqd = nsqd_factory()
    create(nsqd)
    nsqd.stop()
    wal = prepared(tmp_path / "wal")
    with working(options_of(tmp_path / "wal", nsqd)) as pool:
        eventually(pool.status, lambda status: "nsqd" in status.error, PATIENCE)
        nsqd.start()
        connected(nsqd)
        publish(nsqd, numbered(500, "early"))
        received(pool, 500)
        drained(nsqd)
        nsqd.restart()
        connected(nsqd)
        publish(nsqd, numbered(500, "late"))
        received(pool, 1000)
        drained(nsqd)
        assert pool.status().deaths == 0
        eventually(pool.status, lambda status: not status.error, PATIENCE)
    assert sorted(bodies_of(wal)) == sorted(numbered(500, "early") + numbered(500, "late"))


def test_nsqds_are_found_by_lookup(
    nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> None:
    nsqds = [nsqd_factory(lookupd=[nsqlookupd], broadcast_address="127.0.0.1") for _ in range(2)]
    wal = prepared(tmp_path / "wal")
    for nsqd in nsqds:
        create(nsqd)
        publish(nsqd, numbered(50, nsqd.tcp_address))
    where = {"lookupd": nsqlookupd.http_address, "lookupdPollInterval": "200ms"}
    with working(options_of(tmp_path / "wal", **where)) as pool:
        received(pool, 100)
        drained(*nsqds)
    assert sorted(bodies_of(wal)) == sorted(body for nsqd in nsqds for body in numbered(50, nsqd.tcp_address))


def test_tls_and_a_secret_which_no_command_line_shows(nsqd_factory: Factory[Nsqd], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with running_auth_server({"open-sesame": [ALL]}) as address:
        nsqd = nsqd_factory(
            **authority.server_options, tls_required="tcp-https", auth_http_addresses=[address]
        )
        wal = prepared(tmp_path / "wal")
        secure = {"tls": "true", "tlsCaFile": str(authority.certificate), "authSecret": "open-sesame"}
        with working(options_of(tmp_path / "wal", nsqd, **secure)) as pool:
            eventually(pool.status, lambda status: status.connections == 1, PATIENCE)
            for path in _processes_of(pool):
                assert b"open-sesame" not in (path / "cmdline").read_bytes()
                assert b"open-sesame" not in (path / "environ").read_bytes()
    assert wal.segments() == []


def _processes_of(pool: ReceiverPool) -> list[Path]:
    return [Path(f"/proc/{slot.child.pid}") for slot in pool._slots if slot.child is not None]


def test_dead_letters_go_to_their_topic(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    create(nsqd, topic="dead")
    wal = prepared(tmp_path / "wal")
    publish(nsqd, [b"poison"])
    with consumer(nsqd, TOPIC, CHANNEL) as client:
        client.send(commands.rdy(0) + commands.req(client.expect_message().id, 0))
    eventually(
        lambda: channel_of(nsqd), lambda seen: (seen["client_count"], seen["depth"]) == (0, 1), PATIENCE
    )
    given = {"maxAttempts": "1", "deadLetterTopic": "dead"}
    with working(options_of(tmp_path / "wal", nsqd, **given)) as pool:
        publish(nsqd, [b"good"])
        received(pool, 1)
        eventually(lambda: channel_of(nsqd, "dead").get("depth"), lambda depth: depth == 1, PATIENCE)
        drained(nsqd)
    assert bodies_of(wal) == [b"good"]


def test_receiving_pauses_while_the_log_is_full(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    wal = prepared(tmp_path / "wal")
    with working(options_of(tmp_path / "wal", nsqd, walMaxBytes="10000", maxInFlight="10")) as pool:
        publish(nsqd, [os.urandom(500).hex().encode() for _ in range(40)])
        paused = eventually(pool.status, lambda status: status.paused, PATIENCE)
        assert "10,000 at most" in paused.paused
        eventually(lambda: channel_of(nsqd)["in_flight_count"], lambda seen: seen == 0, PATIENCE)
        assert 10 <= pool.status().received < 40
        # Of files, not of bodies; what is in flight when it pauses may still come.
        assert sum(file.stat().st_size for file in (tmp_path / "wal").rglob("*.arrow")) < 3 * 10_000
        claim = wal.own("default", "the test", 0.0)
        at: dict[str, Position] = {}
        rows = 0

        def catch_up() -> int:
            nonlocal rows
            for file in wal.listing(at).files:
                rows += file.segment.rows
                at[file.segment.receiver] = Position(file.segment.number)
            wal.save_reader("default", ReaderState(dict(at), True, "", time.time()))
            return rows

        eventually(catch_up, lambda seen: seen == 40, PATIENCE)
        claim.release()
        eventually(pool.status, lambda status: not status.paused, PATIENCE)
        drained(nsqd)


def test_a_hundred_topics_share_one_log_one_head_and_its_threads(nsqd: Nsqd, tmp_path: Path) -> None:
    topics = [f"t{number}" for number in range(100)]
    for topic in topics:
        create(nsqd, topic=topic)
        publish(nsqd, [topic.encode()], topic=topic)
    wal = prepared(tmp_path / "wal")
    given = {"topics": ",".join(topics), "channel": CHANNEL, "wal": wal.location, "nsqd": nsqd.tcp_address}
    with working(SourceOptions.of(given)) as pool:
        received(pool, 100)
        [process] = _processes_of(pool)
        assert len(list((process / "task").iterdir())) <= 5 * 100 + 15
        assert len(pool.status().receivers) == 1
    assert sorted(bodies_of(wal)) == sorted(topic.encode() for topic in topics)
    assert len(wal.receivers()) == 1
    assert len(wal.segments()) < 20
    for segment in wal.segments():
        batch = wal.read(segment)
        assert batch["topic"].to_pylist() == [body.decode() for body in batch["body"].to_pylist()]


@pytest.mark.parametrize(
    ("given", "why"),
    [({"authSecret": "bad"}, "E_UNAUTHORIZED"), ({"tls": "true", "tlsCaFile": "/absent.pem"}, "absent.pem")],
)
def test_settings_that_cannot_work_are_a_fatal_error(
    nsqd_factory: Factory[Nsqd], tmp_path: Path, given: dict[str, str], why: str
) -> None:
    with running_auth_server({}) as address:
        nsqd = nsqd_factory(auth_http_addresses=[address])
        prepared(tmp_path / "wal")
        pool = ReceiverPool(options_of(tmp_path / "wal", nsqd, **given))
        _expect_fault(pool, ConfigError, why)


def test_receivers_wait_for_a_log_that_does_not_exist_yet(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    publish(nsqd, numbered(10))
    wal = open_wal(str(tmp_path / "wal"))
    with ReceiverPool(options_of(tmp_path / "wal", nsqd)) as pool:
        pool.start()
        eventually(pool.status, lambda status: "prepare it first" in status.error, PATIENCE)
        assert pool.fatal_error is None
        wal.prepare()
        all_ready(pool)
        received(pool, 10)
        eventually(pool.status, lambda status: not status.error, PATIENCE)
    assert sorted(bodies_of(wal)) == sorted(numbered(10))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ([sys.executable, "-c", "raise SystemExit(3)"], "ended with status 3 before it was ready"),
        (["/no/such/python"], "cannot start /no/such/python"),
    ],
)
def test_a_receiver_that_never_starts_is_a_fatal_error(
    nsqd: Nsqd, tmp_path: Path, command: list[str], why: str
) -> None:
    prepared(tmp_path / "wal")
    pool = ReceiverPool(options_of(tmp_path / "wal", nsqd), command=command)
    _expect_fault(pool, NsqError, why)


def _expect_fault(pool: ReceiverPool, kind: type[NsqError], text: str) -> None:
    with pool:
        pool.start()
        eventually(lambda: pool.fatal_error, bool, PATIENCE)
        pool.wait(3600.0)  # at once
        assert isinstance(pool.fatal_error, kind)
        assert text in str(pool.fatal_error)
        assert text in pool.status().error
        assert not pool.status().ready


def test_a_receiver_loads_neither_spark_nor_pandas(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    publish(nsqd, [b"body"])
    with working(options_of(tmp_path / "wal", nsqd)) as pool:
        received(pool, 1)
        [process] = _processes_of(pool)
        loaded = (process / "maps").read_text()
    assert "pyarrow" in loaded
    assert "pandas" not in loaded
