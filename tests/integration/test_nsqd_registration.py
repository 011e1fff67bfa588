"""nsqd and its nsqlookupds: registrations, also after failures, and the channels of new topics."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsq.testing import Network, Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from tests.fakes.nsqlookupd import Mute, black_hole
from tests.integration.clients import (
    channel_stats,
    consumer,
    finish_all,
    publish,
)
from tests.integration.judged import LATE, only_ours
from tests.integration.patience import eventually

#: Go's nsqd looks after a lost nsqlookupd every 15 seconds, and may need a second look.
UNTIL_REGISTERED_AGAIN = 100.0


def nodes(lookupd: Nsqlookupd, topic: str) -> set[str]:
    """The topic's nsqds, as its consumers find them."""
    reply = lookupd.get(f"/lookup?topic={topic.replace('#', '%23')}")
    producers = reply.json()["producers"] if reply.status == 200 else []
    return {f"{each['broadcast_address']}:{each['tcp_port']}" for each in producers}


def registered(lookupd: Nsqlookupd) -> set[str]:
    """The current registrations: ``topic:orders:``, ``channel:orders:archive``."""
    return {key for key in lookupd.get("/debug").json() if not key.startswith("client:")}


def keys(topic: str, channels: Iterable[str] = ()) -> set[str]:
    return {f"topic:{topic}:", *(f"channel:{topic}:{channel}" for channel in channels)}


def until_registered(
    lookupd: Nsqlookupd, wanted: Collection[str], within: float = 60.0, *, exactly: bool = True
) -> None:
    def seen() -> set[str]:
        return registered(lookupd) if exactly else registered(lookupd) & set(wanted)

    eventually(seen, lambda found: found == set(wanted), within)


def create(nsqd: Nsqd, topic: str, *channels: str) -> None:
    assert nsqd.post(f"/topic/create?topic={topic}").status == 200
    for channel in channels:
        assert nsqd.post(f"/channel/create?topic={topic}&channel={channel}").status == 200


def set_nsqlookupds(nsqd: Nsqd, *addresses: str) -> Any:
    body = json.dumps(addresses).encode()
    reply = nsqd.request("PUT", "/config/nsqlookupd_tcp_addresses", body)
    assert reply.status == 200
    return reply.json()


def until_depth(nsqd: Nsqd, channel: str, depth: int) -> None:
    eventually(
        lambda: channel_stats(nsqd, "orders", channel), lambda found: found and found["depth"] == depth
    )


@only_ours("Go's nsqd connects to nsqlookupds over TCP alone")
def test_nsqd_registers_with_an_nsqlookupd_on_a_unix_socket(
    nsqlookupd_factory: Factory[Nsqlookupd], nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> None:
    path = str(tmp_path / "lookupd.sock")
    lookupd = nsqlookupd_factory(tcp_address=path)
    create(nsqd_factory(lookupd_tcp_addresses=(path,)), "orders", "archive")
    until_registered(lookupd, keys("orders", ["archive"]))


class TestWhatIsRegistered:
    def test_nsqd_registers_its_broadcast_addresses(
        self, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]
    ) -> None:
        own = {"broadcast_address": "nsqd.example", "broadcast_tcp_port": 7, "broadcast_http_port": 8}
        create(nsqd_factory(lookupd=[nsqlookupd], **own), "orders")
        until_registered(nsqlookupd, keys("orders"))
        (node,) = nsqlookupd.get("/lookup?topic=orders").json()["producers"]
        reported = {name: node[name] for name in ("broadcast_address", "tcp_port", "http_port", "version")}
        wanted = {"broadcast_address": "nsqd.example", "tcp_port": 7, "http_port": 8, "version": "1.3.0"}
        assert reported == wanted

    def test_created_and_deleted_topics_and_channels_are_registered_and_unregistered(
        self, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]
    ) -> None:
        nsqd = nsqd_factory(lookupd=[nsqlookupd])
        publish(nsqd, "published", [b"x"])
        with consumer(nsqd, "consumed", "archive"):
            create(nsqd, "created", "archive", "billing")
            everything = keys("published") | keys("consumed", ["archive"])
            until_registered(nsqlookupd, everything | keys("created", ["archive", "billing"]))
            assert nsqd.post("/channel/delete?topic=created&channel=archive").status == 200
            until_registered(nsqlookupd, everything | keys("created", ["billing"]))
            assert nsqd.post("/topic/delete?topic=created").status == 200
            until_registered(nsqlookupd, everything)
            assert nodes(nsqlookupd, "created") == set()

    def test_an_ephemeral_channel_is_unregistered_with_its_last_consumer(
        self, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]
    ) -> None:
        nsqd = nsqd_factory(lookupd=[nsqlookupd])
        with consumer(nsqd, "orders", "tail#ephemeral"), consumer(nsqd, "log#ephemeral", "tail#ephemeral"):
            both = keys("orders", ["tail#ephemeral"]) | keys("log#ephemeral", ["tail#ephemeral"])
            until_registered(nsqlookupd, both)
        until_registered(nsqlookupd, keys("orders"))
        assert nsqlookupd.get("/topics").json()["topics"] == ["orders"]
        assert nsqlookupd.get("/channels?topic=orders").json()["channels"] == []

    def test_a_stopped_nsqd_is_unregistered_at_once(
        self, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]
    ) -> None:
        staying, leaving = nsqd_factory(lookupd=[nsqlookupd]), nsqd_factory(lookupd=[nsqlookupd])
        create(staying, "orders")
        create(leaving, "orders")
        both = {staying.tcp_address, leaving.tcp_address}
        eventually(lambda: nodes(nsqlookupd, "orders"), lambda found: found == both)
        leaving.stop()
        eventually(lambda: nodes(nsqlookupd, "orders"), lambda found: found == {staying.tcp_address})


class TestUpheavals:
    def test_everything_is_registered_again_after_a_restart_of_nsqlookupd(
        self, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]
    ) -> None:
        nsqd = nsqd_factory(lookupd=[nsqlookupd])
        create(nsqd, "orders", "archive")
        until_registered(nsqlookupd, keys("orders", ["archive"]))
        nsqlookupd.stop()
        create(nsqd, "meanwhile", "archive")
        assert nsqd.post("/channel/delete?topic=orders&channel=archive").status == 200
        nsqlookupd.start()
        wanted = keys("orders") | keys("meanwhile", ["archive"])
        until_registered(nsqlookupd, wanted, UNTIL_REGISTERED_AGAIN)

    def test_a_connection_reset_while_idle_is_made_again(
        self, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]
    ) -> None:
        with Network() as network:
            link = network.link(nsqlookupd.tcp_address)
            nsqd = nsqd_factory(lookupd=[link.address], process=True)
            create(nsqd, "orders")
            until_registered(nsqlookupd, keys("orders"))
            link.reset()
            until_registered(nsqlookupd, set())
            create(nsqd, "returns")
            until_registered(nsqlookupd, keys("orders") | keys("returns"), UNTIL_REGISTERED_AGAIN)
            assert "a bug in nsqd" not in nsqd.log

    def test_the_list_of_nsqlookupds_can_be_changed_at_run_time(
        self, nsqlookupd_factory: Factory[Nsqlookupd], nsqd_factory: Factory[Nsqd]
    ) -> None:
        old, kept, new = (nsqlookupd_factory() for _ in range(3))
        nsqd = nsqd_factory(lookupd=[old, kept])
        create(nsqd, "orders", "archive")
        for lookupd in (old, kept):
            until_registered(lookupd, keys("orders", ["archive"]))
        wanted = [kept.tcp_address, new.tcp_address]
        assert set_nsqlookupds(nsqd, *wanted) == wanted
        until_registered(new, keys("orders", ["archive"]))
        until_registered(old, set())
        create(nsqd, "later")
        for lookupd in (kept, new):
            until_registered(lookupd, keys("orders", ["archive"]) | keys("later"))
        assert registered(old) == set()
        assert sorted(nsqd.get("/config/nsqlookupd_tcp_addresses").json()) == sorted(wanted)

    def test_an_nsqlookupd_that_never_answers_delays_nothing(
        self, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]
    ) -> None:
        with black_hole() as silent:
            nsqd = nsqd_factory(lookupd=[silent, nsqlookupd])
            began = time.monotonic()
            publish(nsqd, "orders", [b"body"])
            with consumer(nsqd, "orders", "archive") as client:
                assert client.expect_message().body == b"body"
            assert time.monotonic() - began < LATE
            until_registered(nsqlookupd, keys("orders", ["archive"]))
            nsqd.stop()


class TestChannelsOfOthers:
    """A new topic begins with the channels that it has elsewhere, so that those miss nothing of it."""

    @pytest.fixture
    def newcomer(self, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]) -> Nsqd:
        """An nsqd that registers next to one with the topic orders."""
        veteran, newcomer = (nsqd_factory(lookupd=[nsqlookupd]) for _ in range(2))
        create(veteran, "orders", "archive", "billing")
        create(newcomer, "known")
        known = keys("orders", ["archive", "billing"]) | keys("known")
        until_registered(nsqlookupd, known)
        return newcomer

    def test_a_channel_subscribed_before_the_first_publish_gets_every_message(self, newcomer: Nsqd) -> None:
        with consumer(newcomer, "orders", "own") as client:
            publish(newcomer, "orders", [b"body"])
            message = client.expect_message()
            finish_all(client, [message])
        assert message.body == b"body"
        for channel in ("archive", "billing"):
            until_depth(newcomer, channel, 1)

    @pytest.fixture
    def mute(self) -> Iterator[Mute]:
        with Mute() as mute:
            yield mute

    def test_a_new_topic_does_not_wait_for_ever_for_nsqlookupd(
        self, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd], mute: Mute
    ) -> None:
        create(nsqd_factory(lookupd=[nsqlookupd]), "orders", "archive")
        newcomer = self.knowing_both(nsqd_factory, nsqlookupd, mute, patience=0.3)
        publish(newcomer, "orders", [b"body"])
        until_depth(newcomer, "archive", 1)

    @staticmethod
    def knowing_both(
        nsqd_factory: Factory[Nsqd], nsqlookupd: Nsqlookupd, mute: Mute, patience: float
    ) -> Nsqd:
        newcomer = nsqd_factory(http_client_request_timeout=patience)
        create(newcomer, "known")
        set_nsqlookupds(newcomer, mute.address, nsqlookupd.tcp_address)
        until_registered(nsqlookupd, keys("orders", ["archive"]) | keys("known"))
        mute.wait_until_registered(60)
        return newcomer
