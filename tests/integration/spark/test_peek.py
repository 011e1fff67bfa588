"""Peeking at messages: what it shows, and that it consumes nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nsq.config import Config
from nsq.errors import ConfigError, ConnectionFailed, UsageError
from nsq.http.nsqd import NsqdStats
from nsq.spark import lookups
from nsq.spark.lookups import Place
from nsq.testing import Nsqd, Nsqlookupd, V2Client
from nsq.testing.plugin import Factory
from nsq.wire import commands

pytest.importorskip("pyspark")

from nsq.spark.batch import PeekOptions, peek, places

from ..patience import eventually
from .receivers import with_neighbouring_ports


def options(*nsqds: Nsqd, **given: str) -> PeekOptions:
    return PeekOptions.of(
        {
            "mode": "peek",
            "topic": "orders",
            "nsqd": ",".join(nsqd.tcp_address for nsqd in nsqds),
            "nsqdHttp": ",".join(nsqd.http_address for nsqd in nsqds),
            "timeout": "60s",
            **given,
        }
    )


def create(nsqd: Nsqd, *channels: str) -> None:
    assert nsqd.post("/topic/create?topic=orders").status == 200
    for channel in channels:
        assert nsqd.post(f"/channel/create?topic=orders&channel={channel}").status == 200


def channels(nsqd: Nsqd) -> dict[str, int]:
    """The depth of each."""
    (topic,) = nsqd.get("/stats?format=json&topic=orders").json()["topics"]
    return {channel["channel_name"]: channel["depth"] for channel in topic["channels"]}


def topic_depth(nsqd: Nsqd) -> int:
    (topic,) = nsqd.get("/stats?format=json&topic=orders").json()["topics"]
    return int(topic["depth"])


@contextmanager
def in_background(action: Callable[[threading.Event], object]) -> Iterator[None]:
    """It is told when to end."""
    ending, faults = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            action(ending)
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=run, name="publisher")
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    assert faults == []


def test_a_look_sees_what_is_published_and_takes_nothing(nsqd: Nsqd) -> None:
    create(nsqd, "billing")
    looked_for = options(nsqd, limit="5")
    published = 0

    def publish(ending: threading.Event) -> None:
        nonlocal published
        while not ending.wait(0.001):
            assert nsqd.post("/pub?topic=orders", b"message").status == 200
            published += 1

    with in_background(publish):
        seen = peek(looked_for, places(looked_for))

    assert [message.body for message in seen] == [b"message"] * 5
    assert {message.nsqd_address for message in seen} == {nsqd.tcp_address}
    assert len({message.id for message in seen}) == 5
    # All of them wait for billing, and the channel of the look is gone.
    eventually(lambda: channels(nsqd), lambda found: found == {"billing": published})


def test_all_nsqds_are_looked_at(nsqd_factory: Factory[Nsqd]) -> None:
    first, second, without = nsqd_factory(), nsqd_factory(), nsqd_factory()
    create(first, "billing")
    create(second, "billing")
    looked_for = options(first, second, without, limit="40")

    def publish(ending: threading.Event) -> None:
        """As many as are looked for, once the look is there: all of them are needed."""
        eventually(lambda: min(len(channels(first)), len(channels(second))) == 2)
        for nsqd in (first, second):
            assert nsqd.post("/mpub?topic=orders", b"\n".join([b"message"] * 20)).status == 200

    with in_background(publish):
        seen = peek(looked_for, places(looked_for))

    counted = Counter(message.nsqd_address for message in seen)
    assert counted == {first.tcp_address: 20, second.tcp_address: 20}
    assert without.get("/stats?format=json").json()["topics"] == []


def test_nsqds_are_found_through_nsqlookupd(nsqd_factory: Factory[Nsqd], nsqlookupd: Nsqlookupd) -> None:
    nsqd = nsqd_factory(lookupd=[nsqlookupd], broadcast_address="127.0.0.1")
    create(nsqd, "billing")
    looked_for = PeekOptions.of({"mode": "peek", "topic": "orders", "lookupd": nsqlookupd.http_address})

    found = eventually(lambda: places(looked_for))

    assert found == [Place(nsqd.tcp_address, nsqd.http_address)]


def test_a_topic_that_no_nsqlookupd_knows_is_nowhere(nsqlookupd: Nsqlookupd) -> None:
    looked_for = PeekOptions.of({"mode": "peek", "topic": "orders", "lookupd": nsqlookupd.http_address})

    assert places(looked_for) == []
    with pytest.raises(UsageError, match="no nsqd has a topic 'orders'"):
        peek(looked_for, [])


def test_nothing_published_is_nothing_seen_when_the_time_is_up(nsqd: Nsqd) -> None:
    create(nsqd, "billing")
    looked_for = options(nsqd, timeout="1s")

    assert peek(looked_for, places(looked_for)) == []


def test_what_a_topic_keeps_for_its_first_channel_is_left_to_it(nsqd: Nsqd) -> None:
    create(nsqd)
    assert nsqd.post("/pub?topic=orders", b"message").status == 200
    looked_for = options(nsqd)

    with pytest.raises(UsageError, match="no lasting channel"):
        peek(looked_for, places(looked_for))

    assert topic_depth(nsqd) == 1
    assert channels(nsqd) == {}


def test_an_ephemeral_channel_is_no_company(nsqd: Nsqd) -> None:
    create(nsqd)
    looked_for = options(nsqd)
    with V2Client(nsqd.tcp_address) as tail:
        tail.identify()
        tail.send(commands.sub("orders", "tail#ephemeral"))
        tail.expect_ok()

        with pytest.raises(UsageError, match="no lasting channel"):
            peek(looked_for, places(looked_for))

        assert set(channels(nsqd)) == {"tail#ephemeral"}


def test_a_channel_that_goes_while_a_look_begins_ends_it(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    create(nsqd, "billing")
    looked_for = options(nsqd)
    nsqds_answer = lookups.stats_of
    questions = 0

    def stats_of(address: str, config: Config, topic: str) -> NsqdStats:
        nonlocal questions
        questions += 1
        if questions == 2:
            assert nsqd.post("/channel/delete?topic=orders&channel=billing").status == 200
        return nsqds_answer(address, config, topic)

    monkeypatch.setattr(lookups, "stats_of", stats_of)
    with pytest.raises(UsageError, match="may be lost: topic 'orders' has no lasting channel"):
        peek(looked_for, places(looked_for))

    assert eventually(lambda: channels(nsqd), lambda found: not found) == {}


def test_the_http_address_that_is_not_given_must_be_that_nsqds(nsqd: Nsqd) -> None:
    """The ports of a test's daemon are no neighbours."""
    wanted = PeekOptions.of({"mode": "peek", "topic": "orders", "nsqd": nsqd.tcp_address})

    with pytest.raises(ConfigError, match=f"{nsqd.tcp_address}.*option nsqdHttp"):
        places(wanted)


def test_the_http_address_is_the_port_above_by_default(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = with_neighbouring_ports(nsqd_factory)

    looked_for = PeekOptions.of({"mode": "peek", "topic": "orders", "nsqd": nsqd.tcp_address})

    assert places(looked_for) == [Place(nsqd.tcp_address, nsqd.http_address)]


def test_an_nsqd_that_is_not_reached_is_told(nsqd: Nsqd) -> None:
    create(nsqd, "billing")
    looked_for = options(nsqd, handshakeTimeout="1s")

    with pytest.raises(ConnectionFailed, match="not every nsqd of topic 'orders' was reached"):
        peek(looked_for, [Place("127.0.0.1:1", nsqd.http_address)])
