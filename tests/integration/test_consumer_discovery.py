"""How a consumer finds its nsqds through nsqlookupds, also late ones, dead ones and new ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nsq import Consumer
from nsq.errors import UsageError
from nsq.testing import Network, Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from tests.fakes.nsqlookupd import ScriptedLookupd

from .consuming import (
    CHANNEL,
    PATIENCE,
    TOPIC,
    Recorder,
    clients_of,
    create,
    log_of,
    make_consumer,
    publish,
    running,
    until,
)

QUICK = {
    "lookupd_poll_interval": 0.1,
    "lookupd_poll_timeout": 1.0,
    "reconnect_initial": 0.05,
    "reconnect_max": 0.2,
}


def listed(lookupd: Nsqlookupd) -> list[str]:
    """The nsqds that have told it of the topic."""
    reply = lookupd.get(f"/lookup?topic={TOPIC}")
    if reply.status != 200:
        return []
    return [f"{each['broadcast_address']}:{each['tcp_port']}" for each in reply.json()["producers"]]


def connected_to(consumer: Consumer) -> set[str]:
    return {connection.nsqd_address for connection in consumer.health().connections}


def looking(*lookupds: Nsqlookupd | str, **options: object) -> Consumer:
    """A consumer that knows nsqlookupds only."""
    addresses = [each if isinstance(each, str) else each.http_address for each in lookupds]
    return make_consumer(nsqlookupd=addresses, **{**QUICK, **options})


@pytest.fixture
def registered(nsqd_factory: Factory[Nsqd]) -> Callable[..., Nsqd]:
    """Makes nsqds with the topic, which the given nsqlookupds list."""

    def make(*lookupds: Nsqlookupd) -> Nsqd:
        nsqd = nsqd_factory(lookupd=lookupds)
        create(nsqd)
        for lookupd in lookupds:
            until("registered", lambda lookupd=lookupd: nsqd.tcp_address in listed(lookupd))
        return nsqd

    return make


def test_nsqds_are_found_through_nsqlookupd(nsqlookupd: Nsqlookupd, registered: Callable[..., Nsqd]) -> None:
    nsqds = [registered(nsqlookupd), registered(nsqlookupd)]
    seen = Recorder()
    with running(looking(nsqlookupd).add_handler(seen), connections=2) as consumer:
        for nsqd in nsqds:
            publish(nsqd, [nsqd.tcp_address.encode()])
        seen.wait_for(2)

        def told() -> bool:
            first, *others = consumer.health().discovery
            return "listing 2" in first and all("(listed): connected" in line for line in others)

        until("all of them are told", told)
        assert nsqlookupd.http_address in consumer.health().discovery[0]
    assert sorted(seen.bodies) == sorted(nsqd.tcp_address.encode() for nsqd in nsqds)


def test_an_nsqd_that_comes_late_is_found(nsqlookupd: Nsqlookupd, registered: Callable[..., Nsqd]) -> None:
    first = registered(nsqlookupd)
    seen = Recorder()
    with running(looking(nsqlookupd).add_handler(seen)) as consumer:
        late = registered(nsqlookupd)
        assert consumer.wait_until_connected(PATIENCE, connections=2)
        publish(late, [b"late"])
        seen.wait_for(1)
        assert {connection.nsqd_address for connection in consumer.health().connections} == {
            first.tcp_address,
            late.tcp_address,
        }


def test_a_topic_that_is_created_later_is_found_long_before_the_next_regular_round(
    nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]
) -> None:
    nsqd = nsqd_factory(lookupd=[nsqlookupd])
    seen = Recorder()
    consumer = looking(nsqlookupd, lookupd_poll_interval=300.0).add_handler(seen).start()
    try:
        until("asked", lambda: "listing 0" in consumer.health().discovery[0])
        publish(nsqd, [b"the first message creates its topic"])
        seen.wait_for(1)
        until("nsqlookupd knows the channel", lambda: CHANNEL in channels(nsqlookupd))
    finally:
        assert consumer.stop().clean


def channels(lookupd: Nsqlookupd) -> list[str]:
    told: list[str] = lookupd.get(f"/channels?topic={TOPIC}").json()["channels"]
    return told


def test_one_nsqlookupd_of_two_may_be_dead(
    nsqlookupd_factory: Factory[Nsqlookupd], registered: Callable[..., Nsqd]
) -> None:
    alive, dead = nsqlookupd_factory(), nsqlookupd_factory()
    nsqd = registered(alive)
    dead.stop()
    seen = Recorder()
    with log_of() as log, running(looking(dead, alive).add_handler(seen)) as consumer:
        publish(nsqd, [b"m"])
        seen.wait_for(1)
        log.wait_for("WARNING", "nsqlookupd", dead.http_address)
        until("both told of", lambda: len(consumer.health().discovery) == 3)
        (line,) = [line for line in consumer.health().discovery if dead.http_address in line]
        assert "cannot be reached" in line


def test_both_nsqlookupds_name_an_nsqd_and_it_is_dialled_once(
    nsqlookupd_factory: Factory[Nsqlookupd], registered: Callable[..., Nsqd]
) -> None:
    lookupds = [nsqlookupd_factory(), nsqlookupd_factory()]
    nsqd = registered(*lookupds)
    with running(looking(*lookupds).add_handler(Recorder())) as consumer:
        until("both asked", lambda: str(consumer.health().discovery).count("listing 1") == 2)
        assert len(clients_of(nsqd)) == 1


def test_a_dying_nsqlookupd_costs_no_connection(
    nsqlookupd: Nsqlookupd, registered: Callable[..., Nsqd]
) -> None:
    nsqd = registered(nsqlookupd)
    seen = Recorder()
    with running(looking(nsqlookupd).add_handler(seen)) as consumer:
        nsqlookupd.stop(keep_data=True)
        until("noticed", lambda: "cannot be reached" in consumer.health().discovery[0])
        publish(nsqd, [b"still there"])
        seen.wait_for(1)
        nsqlookupd.start()
        until("recovered", lambda: "cannot be reached" not in consumer.health().discovery[0])
        assert consumer.stats().connections == 1


def test_a_failed_round_is_repeated_sooner_than_the_next_regular_one(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"m"])
    seen = Recorder()
    with ScriptedLookupd(nsqd.tcp_address) as lookupd, Network() as network:
        link = network.link(lookupd.address.removeprefix("http://"))
        link.refuse()
        consumer = looking(link.address, lookupd_poll_interval=300.0).add_handler(seen).start()
        try:
            until("failed", lambda: "cannot be reached" in consumer.health().discovery[0])
            link.heal()
            seen.wait_for(1)
        finally:
            assert consumer.stop().clean


def test_nsqlookupds_come_and_go_while_it_runs(
    nsqlookupd_factory: Factory[Nsqlookupd], registered: Callable[..., Nsqd]
) -> None:
    first, second = nsqlookupd_factory(), nsqlookupd_factory()
    known, hidden = registered(first), registered(second)
    seen = Recorder()
    with running(looking(first, lookupd_poll_interval=60.0).add_handler(seen)) as consumer:
        consumer.add_nsqlookupd(second.http_address)
        assert consumer.wait_until_connected(PATIENCE, connections=2)
        consumer.remove_nsqlookupd(first.http_address)
        until("forgotten", lambda: first.http_address not in str(consumer.health().discovery))
        for nsqd in (known, hidden):
            publish(nsqd, [b"m"])
        seen.wait_for(2)
        with pytest.raises(UsageError, match="the last address"):
            consumer.remove_nsqlookupd(second.http_address)


def test_an_advertised_address_can_be_rewritten(nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(lookupd=[nsqlookupd], broadcast_address="nowhere.invalid")
    create(nsqd)
    until("registered", lambda: listed(nsqlookupd))
    port = nsqd.tcp_address.rpartition(":")[2]
    seen = Recorder()
    consumer = looking(
        nsqlookupd, rewrite_address=lambda address: address.replace("nowhere.invalid", "127.0.0.1")
    ).add_handler(seen)
    with running(consumer):
        publish(nsqd, [b"m"])
        (message,) = seen.wait_for(1)
        assert message.nsqd_address == f"127.0.0.1:{port}"


def test_an_address_nobody_can_reach_is_named(nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(lookupd=[nsqlookupd], broadcast_address="nowhere.invalid")
    create(nsqd)
    until("registered", lambda: listed(nsqlookupd))
    with log_of() as log:
        consumer = looking(nsqlookupd).add_handler(Recorder()).start()
        try:
            log.wait_for("WARNING", "nowhere.invalid:")
            until("health says so", lambda: "nowhere.invalid" in str(consumer.health().discovery))
        finally:
            assert consumer.stop().clean


def test_a_consumer_can_choose_among_the_addresses(
    nsqlookupd: Nsqlookupd, registered: Callable[..., Nsqd]
) -> None:
    chosen, other = registered(nsqlookupd), registered(nsqlookupd)
    accept = {chosen.tcp_address}.intersection
    with running(looking(nsqlookupd, accept_addresses=accept).add_handler(Recorder())) as consumer:
        until("asked", lambda: "listing 2" in consumer.health().discovery[0])
        assert [connection.nsqd_address for connection in consumer.health().connections] == [
            chosen.tcp_address
        ]
        assert not clients_of(other)


def test_an_nsqd_that_is_no_longer_listed_is_left_when_asked_to(
    nsqlookupd: Nsqlookupd, registered: Callable[..., Nsqd]
) -> None:
    """nsqlookupd is told to forget it; the nsqd itself is well, and goes on sending to who has not asked."""
    stays, goes = registered(nsqlookupd), registered(nsqlookupd)
    node = f"127.0.0.1:{goes.http_address.rpartition(':')[2]}"
    with (
        running(looking(nsqlookupd, prune=True).add_handler(Recorder()), connections=2) as pruning,
        running(looking(nsqlookupd).add_handler(Recorder()), connections=2) as faithful,
    ):
        nsqlookupd.post(f"/topic/tombstone?topic={TOPIC}&node={node}")
        until("left", lambda: pruning.stats().connections == 1)
        assert connected_to(pruning) == {stays.tcp_address}
        assert faithful.stats().connections == 2
