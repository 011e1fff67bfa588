"""How a consumer finds its nsqds through nsqlookupds, also late ones, dead ones and new ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nsq import Consumer
from nsq.errors import UsageError
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from tests.fakes.nsqlookupd import black_hole

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
    """The nsqds that have registered the topic."""
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


def test_nsqds_are_found_through_nsqlookupd_also_late_ones(
    nsqlookupd: Nsqlookupd, registered: Callable[..., Nsqd]
) -> None:
    first = registered(nsqlookupd)
    seen = Recorder()
    with running(looking(nsqlookupd).add_handler(seen)) as consumer:
        late = registered(nsqlookupd)
        assert consumer.wait_until_connected(PATIENCE, connections=2)
        for nsqd in (first, late):
            publish(nsqd, [nsqd.tcp_address.encode()])
        seen.wait_for(2)

        def listed() -> bool:
            first, *others = consumer.health().discovery
            return "listing 2" in first and all("(listed): connected" in line for line in others)

        until("health lists both", listed)
        assert nsqlookupd.http_address in consumer.health().discovery[0]
        assert connected_to(consumer) == {first.tcp_address, late.tcp_address}


def test_a_topic_that_is_created_later_is_found_long_before_the_next_regular_round(
    nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]
) -> None:
    nsqd = nsqd_factory(lookupd=[nsqlookupd])
    seen = Recorder()
    consumer = looking(nsqlookupd, lookupd_poll_interval=300.0).add_handler(seen)
    with log_of() as log, running(consumer, connections=0):
        until("asked", lambda: "listing 0" in consumer.health().discovery[0])
        log.wait_for("WARNING", "no nsqlookupd lists an nsqd with topic 'orders")
        publish(nsqd, [b"the first message creates its topic"])
        seen.wait_for(1)
        until("nsqlookupd knows the channel", lambda: CHANNEL in channels(nsqlookupd))


def channels(lookupd: Nsqlookupd) -> list[str]:
    channels: list[str] = lookupd.get(f"/channels?topic={TOPIC}").json()["channels"]
    return channels


def test_bad_nsqlookupds_do_not_delay_what_a_good_one_lists(
    nsqlookupd: Nsqlookupd, registered: Callable[..., Nsqd]
) -> None:
    nsqd = registered(nsqlookupd)
    with log_of() as log, black_hole() as hole:
        consumer = looking("127.0.0.1:1", hole, nsqlookupd, lookupd_poll_timeout=2.0)
        with running(consumer.add_handler(Recorder())):
            assert len(clients_of(nsqd)) == 1
            log.wait_for("WARNING", "nsqlookupd", "127.0.0.1:1")
            for words in ("cannot be reached", "within "):  # the rest of the 2 s
                until(words, lambda words=words: words in str(consumer.health().discovery))


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


def test_advertised_addresses_can_be_rewritten_and_chosen(
    nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd], registered: Callable[..., Nsqd]
) -> None:
    nsqd = nsqd_factory(lookupd=[nsqlookupd], broadcast_address="nowhere.invalid")
    create(nsqd)
    other = registered(nsqlookupd)
    until("registered", lambda: len(listed(nsqlookupd)) == 2)
    seen = Recorder()
    consumer = looking(
        nsqlookupd,
        rewrite_address=lambda address: address.replace("nowhere.invalid", "127.0.0.1"),
        accept_addresses={nsqd.tcp_address}.intersection,
    ).add_handler(seen)
    with running(consumer):
        publish(nsqd, [b"m"])
        (message,) = seen.wait_for(1)
        assert message.nsqd_address == nsqd.tcp_address
        assert not clients_of(other)


def test_an_nsqd_that_is_no_longer_listed_is_left_when_asked_to(
    nsqlookupd: Nsqlookupd, registered: Callable[..., Nsqd]
) -> None:
    """nsqlookupd forgets the nsqd, which works on: a consumer without ``prune`` still gets its messages."""
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
