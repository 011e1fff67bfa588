"""A consumer's reports: hooks, stats, health, log records, names of threads."""

from __future__ import annotations

import logging
import threading

import pytest

from nsq import ConsumerHooks, Message, NsqError
from nsq.consumer.reports import ConsumerHealth
from tests.integration.consuming import (
    CHANNEL,
    PATIENCE,
    TOPIC,
    AnyNsqd,
    Gate,
    Recorder,
    expect_drained,
    log_of,
    make_consumer,
    numbered,
    publish,
    rdys,
    running,
    until,
)


class Journal(ConsumerHooks):
    """Every hook, in the order of the calls."""

    def __init__(self) -> None:
        self.entries: list[tuple[object, ...]] = []
        self.threads: set[str] = set()

    def _note(self, *entry: object) -> None:
        self.entries.append(entry)
        self.threads.add(threading.current_thread().name)

    def connected(self, nsqd_address: str) -> None:
        self._note("connected", nsqd_address)

    def disconnected(self, nsqd_address: str, cause: NsqError | None) -> None:
        self._note("disconnected", nsqd_address, cause)

    def received(self, messages: list[Message]) -> None:
        self._note("received", *(message.body for message in messages))

    def finished(self, message: Message) -> None:
        self._note("finished", message.body)

    def requeued(self, message: Message) -> None:
        self._note("requeued", message.body)


def test_hooks_hear_what_happens_in_order(nsqd: AnyNsqd) -> None:
    journal = Journal()
    seen = Recorder(lambda message: message.attempts > 1)
    with running(make_consumer(nsqd, hooks=journal).add_handler(seen)):
        publish(nsqd, [b"m"])
        seen.wait_for(2)
        expect_drained(nsqd, requeues=1)
    assert journal.entries == [
        ("connected", nsqd.tcp_address),
        ("received", b"m"),
        ("requeued", b"m"),
        ("received", b"m"),
        ("finished", b"m"),
        ("disconnected", nsqd.tcp_address, None),
    ]
    assert journal.threads == {f"nsq-{TOPIC}/{CHANNEL}-hooks"}


def test_a_slow_or_broken_hook_costs_no_message(nsqd: AnyNsqd) -> None:
    release = threading.Event()

    class Slow(ConsumerHooks):
        def received(self, messages: list[Message]) -> None:
            release.wait(PATIENCE)
            raise ValueError("hook bug")

    seen = Recorder()
    with log_of() as log, running(make_consumer(nsqd, hooks=Slow()).add_handler(seen)):
        publish(nsqd, numbered(50))
        seen.wait_for(50)
        expect_drained(nsqd)
        release.set()
        log.wait_for("ERROR", "hook", "received failed")


def test_health_and_stats_of_a_busy_consumer(nsqd: AnyNsqd) -> None:
    gate = Gate()
    with running(make_consumer(nsqd, max_in_flight=5).add_handler(gate)) as consumer:
        publish(nsqd, numbered(2))
        until("both are here", lambda: consumer.stats().received == 2)
        gate.let_go(1)
        until("one is finished", lambda: consumer.stats().finished == 1)
        health, stats = consumer.health(), consumer.stats()
        assert (health.ok, health.state, health.summary) == (True, "running", "1 connection, which may send")
        (connection,) = health.connections
        assert (connection.nsqd_address, connection.rdy, connection.in_flight) == (nsqd.tcp_address, 5, 1)
        assert not health.starved
        assert (stats.received, stats.finished, stats.in_flight, stats.connections) == (2, 1, 1, 1)
        gate.let_go()
        expect_drained(nsqd)
    stats = consumer.stats()
    assert (stats.received, stats.finished, stats.in_flight, stats.connections) == (2, 2, 0, 0)


def with_shares(health: ConsumerHealth) -> ConsumerHealth | None:
    """Return it once each connection has its share."""
    shares = sorted(connection.rdy for connection in health.connections)
    return health if shares == [3, 3, 4] else None


def test_health_says_what_each_of_several_nsqds_may_send(three: list[AnyNsqd]) -> None:
    consumer = make_consumer(three, max_in_flight=10).add_handler(Recorder())
    with running(consumer, connections=3):
        until("all windows", lambda: sorted(rdys(three)) == [3, 3, 4])
        health = until("health says so", lambda: with_shares(consumer.health()))
        assert health.ok
        assert health.summary == "3 connections, all of which may send"
        assert {connection.reason for connection in health.connections} == {"its share of max_in_flight 10"}
        assert all(connection.seconds_connected >= 0 for connection in health.connections)
        assert {line.split()[1] for line in health.discovery} == {nsqd.tcp_address for nsqd in three}
    health = consumer.health()
    assert (health.ok, health.state, health.connections) == (False, "stopped", [])


def test_log_records_have_fields(nsqd: AnyNsqd, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "nsq.consumer"), running(make_consumer(nsqd).add_handler(Recorder())):
        pass
    record = next(record for record in caplog.records if "connected to" in record.getMessage())
    fields = {name: getattr(record, name) for name in ("nsq_topic", "nsq_channel", "nsqd_address")}
    assert fields == {"nsq_topic": TOPIC, "nsq_channel": CHANNEL, "nsqd_address": nsqd.tcp_address}


def test_threads_are_named_after_their_jobs(nsqd: AnyNsqd) -> None:
    name = f"nsq-{TOPIC}/{CHANNEL}"
    before = {thread.name for thread in threading.enumerate()}
    with running(make_consumer(nsqd, threads=2, hooks=ConsumerHooks()).add_handler(Recorder())):
        jobs = ["handler-0", "handler-1", "hooks", "lookupd", "rdy"]
        loops = [f"read-{nsqd.tcp_address}", f"write-{nsqd.tcp_address}"]
        wanted = {f"{name}-{job}" for job in jobs + loops}
        # A connection counts before its read loop has begun.
        until("all of them", lambda: wanted <= {thread.name for thread in threading.enumerate()} - before)
