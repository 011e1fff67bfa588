"""Which connections a consumer of a partitioned NSQ wants, as leaders move and options differ."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from nsq.config import Config
from nsq.connection.endpoint import Key, Wanted
from nsq.connection.subscription import Subscription
from nsq.consumer.reports import Reporter
from nsq.discovery.lookups import Discovery
from nsq.errors import ConfigError, ConnectionLost, DialFailed, NotLeader, NsqError, OrderIsMust, Unauthorized
from nsq.partitioned.ordered import dialect_for
from nsq.partitioned.subscription import PartitionSubscription
from nsq.partitioned.table import ClusterAnswer, TopicAnswer
from nsq.partitioned.wire import Meta

TOPIC = "orders"
A, B, C = "10.0.0.1:4150", "10.0.0.2:4150", "10.0.0.3:4150"
LOOKUPD = "10.0.0.9:4161"


class World:
    """A consumer's discovery whose thread does not run, and the engine that it reports to."""

    def __init__(
        self, nsqds: tuple[str, ...] = (), accept: Any = None, rewrite: Any = None, **given: Any
    ) -> None:
        self.wanted: dict[Key, Wanted] = {}
        self.reports = 0
        self.dropped: list[Key] = []
        windows = SimpleNamespace(max_in_flight=2)
        self.connections: Any = SimpleNamespace(table={}, windows=windows, max_in_flight_given=False)
        self.problems: list[NsqError] = []
        self.now = 100.0
        subscription, config = Subscription(TOPIC, "billing"), Config()
        engine: Any = SimpleNamespace(
            config=config,
            subscription=subscription,
            topic=TOPIC,
            name="nsq-test",
            owner=SimpleNamespace(wake=None, ask=lambda request: request()),
            reporter=Reporter(TOPIC, "billing", None),
            connections=self.connections,
            traced=False,
            options=given,
            leave=self.dropped.append,
            refuse=self.problems.append,
        )
        self.dialect = dialect_for(engine, given)
        self.discovery = Discovery(
            subscription,
            config,
            found=self._found,
            name="nsq-test",
            nsqds=nsqds,
            nsqlookupds=[LOOKUPD],
            rewrite=rewrite,
            accept=accept,
            other=self.dialect.asker,
            clock=lambda: self.now,
        )
        self.discovery._ask = lambda lookupd: None  # type: ignore[method-assign]
        self.discovery._switch(self.dialect.asker)
        leaders = self.dialect.leaders
        assert leaders is not None
        self.leaders = leaders

    @property
    def connected(self) -> list[Key]:
        return list(self.connections.table)

    @connected.setter
    def connected(self, keys: list[Key]) -> None:
        self.connections.table = dict.fromkeys(keys)

    def _found(self, wanted: dict[Key, Wanted]) -> None:
        self.wanted = wanted
        self.reports += 1

    @property
    def keys(self) -> set[Key]:
        return set(self.wanted)

    def answer(
        self, *leaders: str, partitions: int = 0, ordered: bool = False, extended: bool = False
    ) -> None:
        """Have the nsqlookupd say who leads the partitions from 0 on; "" is no leader."""
        led = {partition: leader for partition, leader in enumerate(leaders) if leader}
        meta = Meta(partitions or len(leaders), 1, ordered=ordered, extended=extended)
        answer = ClusterAnswer("partitioned", topics={TOPIC: TopicAnswer(led, meta)})
        self._hear(answer)

    def _hear(self, answer: ClusterAnswer) -> None:
        self.now += 1.0
        self.leaders.cluster.heard(LOOKUPD, answer, self.now)
        self.discovery._directory.heard(map(self.discovery.rewritten, [A, B, C]))
        self.turn()

    def turn(self) -> None:
        self.discovery.owner.run_requests()
        self.discovery._report()


def test_the_same_leaders_are_reported_once() -> None:
    world = World()
    world.answer(A, B)
    world.answer(A, B)
    assert world.reports == 1


def test_a_moved_partition_gets_its_connection_when_the_former_one_has_ended() -> None:
    world = World(ordered=True)
    world.answer(A, B, ordered=True)
    world.connected = [(A, 0), (B, 1)]
    world.answer(C, B, ordered=True)
    assert world.dropped == [(A, 0)]
    assert world.keys == {(B, 1)}
    world.connected = [(B, 1)]
    world.dialect.lost((A, 0), None)
    world.turn()
    assert world.keys == {(C, 0), (B, 1)}


def test_a_connection_to_a_partition_that_is_listed_no_more_is_kept() -> None:
    world = World()
    world.answer(A, B)
    world.connected = [(A, 0), (B, 1)]
    world.answer("", B)
    assert world.dropped == []
    assert world.leaders.missing == (0,)


def test_a_partition_that_was_stopped_is_left_and_not_wanted_again() -> None:
    world = World()
    world.answer(A, B)
    world.connected = [(A, 0), (B, 1)]
    world.dialect.stop_partition(0)
    world.turn()
    assert world.dropped == [(A, 0)]
    assert world.keys == {(B, 1)}
    world.connected = [(B, 1)]
    world.answer(C, B)
    assert world.keys == {(B, 1)}


def test_only_chosen_partitions_are_wanted_and_missed() -> None:
    world = World(partitions=[1, 2])
    world.answer(A, B, "", "", partitions=4)
    assert world.keys == {(B, 1)}
    assert world.leaders.missing == (2,)


def test_the_topics_headers_are_known_before_the_subscription_and_followed() -> None:
    world = World()
    for extended in (False, True):
        world.answer(A, extended=extended)
        [want] = world.wanted.values()
        assert isinstance(want.subscription, PartitionSubscription)
        assert want.subscription.identify == ({"extend_support": True} if extended else {})


def test_a_leader_that_the_user_does_not_accept_is_not_wanted() -> None:
    world = World(accept=lambda addresses: [A])
    world.discovery._directory.nsqds.clear()
    world.leaders.cluster.heard(
        LOOKUPD, ClusterAnswer("partitioned", topics={TOPIC: TopicAnswer({0: A, 1: B}, Meta(2))}), 1.0
    )
    world.discovery._directory.heard([A])
    world.turn()
    assert world.keys == {(A, 0)}


@pytest.mark.parametrize(
    ("given", "answer", "problem"),
    [
        ({}, partial(World.answer, ordered=True), OrderIsMust),
        ({"ordered": True}, World.answer, ConfigError),
    ],
)
def test_a_topic_that_the_options_do_not_suit_is_reported_once_until_it_does(
    given: dict[str, Any], answer: Any, problem: type[NsqError]
) -> None:
    world = World(**given)
    for _ in range(2):
        answer(world, A, B)
    assert [type(each) for each in world.problems] == [problem]
    assert world.keys == set()
    world.answer(A, B, ordered=bool(given))
    assert world.keys == {(A, 0), (B, 1)}


@pytest.mark.parametrize(
    ("error", "passing", "dropped"),
    [
        (NotLeader("x"), True, True),
        (DialFailed("x"), False, False),
        (Unauthorized("x"), False, False),
    ],
)
def test_a_refusal_has_the_nsqlookupds_asked_at_once(error: NsqError, passing: bool, dropped: bool) -> None:
    world = World()
    world.answer(A, B)
    questions = world.leaders
    asked = questions._refresh._asked
    world.now += 5.0
    assert world.dialect.refused((A, 0), error) is passing
    world.discovery.owner.run_requests()
    world.discovery._turn()
    assert questions._refresh._asked == asked + 1
    assert (world.keys == {(B, 1)}) is dropped


def test_a_node_that_refused_again_after_a_quiet_time_is_asked_for_at_the_end_of_its_pause() -> None:
    """Although another partition, which has no leader for long, lets the pauses between questions grow."""
    world = World()
    world.answer(A, "")
    refresh = world.leaders._refresh
    asked_after = []
    for _ in range(2):
        world.now += 10.0
        world.discovery._turn()
        world.answer(A, "")
        assert world.keys == {(A, 0)}
        world.dialect.refused((A, 0), NotLeader("x"))
        world.turn()
        refused_at = world.now
        while not world.keys:
            world.now += 0.04
            world.discovery.owner.run_requests()
            world.discovery._turn()
            if refresh._asked_at == world.now:
                topic = TopicAnswer({0: A}, Meta(2))
                answer = ClusterAnswer("partitioned", topics={TOPIC: topic})
                world.leaders.cluster.heard(LOOKUPD, answer, world.now)
            world.turn()
        asked_after.append(round(world.now - refused_at, 2))
    assert asked_after == [0.04, 0.24]


def test_a_node_that_does_not_lead_is_left_out_under_its_rewritten_address_too() -> None:
    world = World(rewrite=lambda address: address.replace("10.0.0", "127.0.0"))
    world.answer(A, B)
    assert world.keys == {("127.0.0.1:4150", 0), ("127.0.0.2:4150", 1)}
    world.dialect.refused(("127.0.0.1:4150", 0), NotLeader("x"))
    world.turn()
    assert world.keys == {("127.0.0.2:4150", 1)}


@pytest.mark.parametrize("disputed", [False, True])
def test_a_leader_that_cannot_be_reached_is_left_out_where_an_nsqlookupd_names_another_node(
    disputed: bool,
) -> None:
    world = World()
    world.answer(A, B)
    topic = TopicAnswer({0: C if disputed else A, 1: B}, Meta(2))
    world.leaders.cluster.heard("l2", ClusterAnswer("partitioned", topics={TOPIC: topic}), 1.0)
    world.turn()
    assert world.keys == {(A, 0), (B, 1)}
    world.dialect.refused((A, 0), DialFailed("x"))
    world.turn()
    assert world.keys == {(C if disputed else A, 0), (B, 1)}


def test_the_end_of_a_connection_has_them_asked_too_unless_it_was_meant() -> None:
    world = World()
    world.answer(A, B)
    asks = []
    for cause in (None, ConnectionLost("x")):
        world.now += 5.0
        world.dialect.lost((A, 0), cause)
        world.discovery.owner.run_requests()
        world.discovery._turn()
        asks.append(world.leaders._refresh._asked)
    assert asks == [0, 1]


def test_an_nsqlookupd_that_the_user_adds_counts_although_the_cluster_does_not_list_it() -> None:
    world = World()
    questions = world.leaders
    world.discovery.add_nsqlookupd("10.0.0.8:4161")
    for lookupd in ("10.0.0.8:4161", LOOKUPD):
        questions._heard(lookupd, lookupd, ClusterAnswer("partitioned", (LOOKUPD,)), 1.0)
    assert questions.cluster._said.keys() == {"10.0.0.8:4161", LOOKUPD}
    world.discovery.remove_nsqlookupd("10.0.0.8:4161")
    questions._heard(LOOKUPD, LOOKUPD, ClusterAnswer("partitioned", (LOOKUPD,)), 2.0)
    assert questions.cluster._said.keys() == {LOOKUPD}


def test_an_nsqlookupd_that_the_user_removes_has_no_say_any_more_although_the_cluster_listed_it() -> None:
    world = World()
    other, discovery = "10.0.0.8:4161", world.discovery
    questions = world.leaders

    def hear(lookupd: str, *listed: str, leader: str) -> None:
        world.now += 1.0
        topics = {TOPIC: TopicAnswer({0: leader}, Meta(1))}
        answer = ClusterAnswer("partitioned", listed, other, topics)
        discovery.owner.ask(partial(questions._heard, lookupd, lookupd, answer, world.now))
        discovery.owner.run_requests()

    discovery.add_nsqlookupd(other)
    discovery._turn()
    hear(LOOKUPD, LOOKUPD, other, leader=A)
    hear(other, LOOKUPD, other, leader=A)
    discovery.remove_nsqlookupd(other)
    discovery._turn()
    hear(LOOKUPD, LOOKUPD, leader=B)
    assert questions.cluster.table(TOPIC).leaders == {0: B}
    assert questions.cluster._said.keys() == {LOOKUPD}
