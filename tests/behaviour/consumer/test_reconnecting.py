"""nsqds that are lost, found again, added and removed while a consumer runs."""

from __future__ import annotations

import pytest

from nsq import Closed, ConsumerHooks, NsqError, UsageError
from nsq.errors import ConnectionLost
from tests.integration.consuming import (
    PATIENCE,
    AnyNsqd,
    Gate,
    Recorder,
    clients_of,
    expect_drained,
    log_of,
    make_consumer,
    numbered,
    publish,
    rdys,
    running,
    until,
)

QUICK = {"reconnect_initial": 0.02, "reconnect_max": 0.1}


class Causes(ConsumerHooks):
    def __init__(self) -> None:
        self.causes: list[NsqError | None] = []

    def disconnected(self, nsqd_address: str, cause: NsqError | None) -> None:
        self.causes.append(cause)


def test_a_restarted_nsqd_is_found_again_and_stats_go_on(nsqd: AnyNsqd) -> None:
    seen, hooks = Recorder(), Causes()
    with log_of() as log, running(make_consumer(nsqd, hooks=hooks, **QUICK).add_handler(seen)) as consumer:
        publish(nsqd, numbered(5))
        seen.wait_for(5)
        expect_drained(nsqd)
        nsqd.restart()
        until("there again", lambda: clients_of(nsqd))
        publish(nsqd, numbered(3, "after"))
        seen.wait_for(8)
        log.wait_for("WARNING", "connection lost", nsqd.tcp_address)
        until("healthy", lambda: consumer.health().ok)
        until("counted", lambda: consumer.stats().finished == 8)
        stats = consumer.stats()
        assert (stats.received, stats.in_flight, stats.waiting, stats.connections) == (8, 0, 0, 1)
    assert seen.bodies == numbered(5) + numbered(3, "after")
    assert isinstance(hooks.causes[0], ConnectionLost)
    assert consumer.stats().connections == 0


def test_an_nsqd_that_is_away_is_dialed_until_it_is_back(nsqd: AnyNsqd) -> None:
    nsqd.stop(keep_data=True)
    seen = Recorder()
    consumer = make_consumer(nsqd, **QUICK).add_handler(seen).start()
    until("says why", lambda: "Connection refused" in str(consumer.health().discovery))
    health = consumer.health()
    assert not health.ok
    assert health.summary.startswith(f"no connection to any nsqd; cannot connect to {nsqd.tcp_address}")
    assert "Connection refused" in health.summary
    nsqd.start()
    assert consumer.wait_until_connected(PATIENCE)
    assert consumer.health().ok  # a connection counts once it has its share
    publish(nsqd, [b"after"])
    seen.wait_for(1)
    assert consumer.stop(PATIENCE).clean


def test_a_message_of_a_lost_connection_is_not_answered(nsqd: AnyNsqd) -> None:
    publish(nsqd, [b"m"])
    gate = Gate()
    seen = Recorder(gate)
    with running(
        make_consumer(nsqd, reconnect_initial=60.0, reconnect_max=60.0).add_handler(seen)
    ) as consumer:
        gate.wait_until_held(1)
        nsqd.stop()
        (message,) = seen.messages
        until("noticed", lambda: message.responded)
        assert message.expired
        gate.let_go()
        until("its handler is free", lambda: gate.passed == 1)
        assert (consumer.stats().finished, consumer.stats().in_flight) == (0, 0)


def test_one_nsqd_of_two_may_be_away(two: list[AnyNsqd]) -> None:
    here, away = two
    away.stop(keep_data=True)
    seen = Recorder()
    with running(make_consumer(two, **QUICK).add_handler(seen)) as consumer:
        publish(here, [b"one"])
        seen.wait_for(1)
        away.start()
        assert consumer.wait_until_connected(PATIENCE, connections=2)
        publish(away, [b"two"])
        seen.wait_for(2)
    assert seen.bodies == [b"one", b"two"]


def test_an_nsqd_that_stays_takes_over_the_share_of_one_that_goes(two: list[AnyNsqd]) -> None:
    slow = {"reconnect_initial": 3600.0, "reconnect_max": 3600.0}
    with running(make_consumer(two, max_in_flight=6, **slow).add_handler(Recorder()), connections=2):
        until("equal shares", lambda: rdys(two) == [3, 3])
        two[1].stop()
        until("all of it", lambda: rdys(two[:1]) == [6])


def test_nsqds_are_added_and_removed_while_a_consumer_runs(two: list[AnyNsqd]) -> None:
    first, second = two
    seen, hooks = Recorder(), Causes()
    consumer = make_consumer(first, hooks=hooks, max_in_flight=4).add_handler(seen)
    with pytest.raises(Closed, match="has not been started"):
        consumer.add_nsqd(second.tcp_address)
    with running(consumer):
        for _ in range(2):
            consumer.add_nsqd(second.tcp_address)
        assert consumer.wait_until_connected(PATIENCE, connections=2)
        until("equal shares", lambda: rdys(two) == [2, 2])
        assert len(clients_of(second)) == 1
        consumer.remove_nsqd(first.tcp_address)
        until("left", lambda: not clients_of(first))
        until("all of it", lambda: rdys([second]) == [4])
        publish(second, [b"m"])
        seen.wait_for(1)
        # The nsqd that is left may know so before the consumer does.
        until("only the second", lambda: len(consumer.health().connections) == 1)
        with pytest.raises(UsageError, match="the last address"):
            consumer.remove_nsqd(second.tcp_address)
        with pytest.raises(UsageError, match="never added"):
            consumer.remove_nsqd(first.tcp_address)
    assert hooks.causes == [None, None]


def test_a_removed_nsqd_gets_the_answers_it_is_owed(two: list[AnyNsqd]) -> None:
    first, _ = two
    publish(first, [b"slow"])
    gate = Gate()
    with running(make_consumer(two).add_handler(gate), connections=2) as consumer:
        gate.wait_until_held(1)
        consumer.remove_nsqd(first.tcp_address)
        until("asked to close", lambda: clients_of(first)[0]["state"] == 4)
        gate.let_go()
        until("left", lambda: not clients_of(first))
        expect_drained(first)
