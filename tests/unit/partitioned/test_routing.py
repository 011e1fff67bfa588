"""The router in a pool whose threads do not run: the test answers for nsqlookupds and nsqds."""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsq.discovery.lookups import Discovery
from nsq.errors import (
    ConnectionLost,
    InvalidCommand,
    NotLeader,
    NotWritable,
    PublishFailed,
    PublishUncertain,
    ServerError,
    TopicNotExist,
    UsageError,
)
from nsq.partitioned import blocked as blocked_partitions
from nsq.partitioned.routing import Router
from nsq.partitioned.table import ClusterAnswer, TopicAnswer
from nsq.partitioned.wire import Meta
from nsq.producer.pool import Pool
from nsq.producer.publishes import Publish, PublishFuture
from tests.fakes.pool import StillPool, bodies, conn_of, connect, lose, write

A, B, C = "10.0.0.1:4150", "10.0.0.2:4150", "10.0.0.3:4150"
NODES = (A, B, C)


class Scene:
    """A producer of a cluster with one nsqlookupd, and what its nodes have stored."""

    def __init__(
        self,
        leaders: dict[int, str],
        count: int = 2,
        *,
        known: bool = True,
        ordered: bool = False,
        **options: Any,
    ) -> None:
        self.pool = StillPool(partial(self._make_router, options))
        self.pool.detection.with_options()
        self.pool.nsqds.discovery.add_nsqlookupd("lookup:4161")
        self.truth, self.meta = dict(leaders), Meta(count, ordered=ordered)
        self.stored: dict[int, list[bytes]] = {}
        for address in NODES:
            self.pool.add(address)
        self.endpoints = {endpoint.address: endpoint for endpoint in self.pool.endpoints.all}
        if known:
            self.router.lookups.learn("orders")
            self.look_up()

    def _make_router(self, options: dict[str, Any], pool: Pool, discovery: Discovery) -> Router:
        self.router = Router(pool, discovery, **options)
        return self.router

    def look_up(self, leaders: dict[int, str] | None = None, *, known: bool = True) -> None:
        """Have the nsqlookupd answer, by default with the truth, and the pool's thread take its turn."""
        topic = TopicAnswer(dict(self.truth if leaders is None else leaders), self.meta, known)
        answer = ClusterAnswer("partitioned", topics=dict.fromkeys(self.router.lookups.topics, topic))
        self.router.lookups._heard("lookup:4161", "lookup:4161", answer, self.pool.time.now)
        self.turn()

    def become_original(self) -> None:
        """Have the nsqlookupd answer as that of an original NSQ, and the pool's thread take its turn."""
        original = ClusterAnswer("original", nsqds=frozenset({A}))
        self.router.lookups._heard("lookup:4161", "lookup:4161", original, self.pool.time.now)
        self.turn()

    def turn(self) -> None:
        """Let the pool's thread take its turn; end the connections that it gives up."""
        self.pool.turn()
        for endpoint in self.pool.endpoints.all:
            if endpoint.conn is not None and conn_of(endpoint).closes and not conn_of(endpoint).closed:
                lose(endpoint)
                endpoint._error = None
        self.pool.turn()

    def publish(self, body: bytes, seconds: float = 1000.0, **options: Any) -> Publish:
        given: Any = options
        made = self.pool.routing.new_publish(PublishFuture, "orders", body, None, given)
        self.pool.time.now += 0.00001  # no two calls begin at the same time
        self.pool.publish(made, seconds)
        return made

    def queued(self, address: str) -> list[bytes]:
        return bodies(conn_of(self.endpoints[address]).waiting)

    def answer(self, address: str, most: int = 1_000_000, *, hiccup: bool = False) -> None:
        """Have a node execute what was written to it, and answer. ``hiccup``: it refuses the first."""
        for endpoint in self.connected(address):
            write(endpoint)
            for _ in range(min(most, len(endpoint.sent))):
                if hiccup:
                    self.reply(endpoint, NotWritable("E_FAILED_ON_NOT_WRITABLE "))
                    hiccup = False
                elif self.execute(address, endpoint.sent[0]):
                    self.reply(endpoint)
                else:
                    self.reply(endpoint, NotLeader("E_FAILED_ON_NOT_LEADER "))
        self.turn()

    def connected(self, address: str) -> list[Any]:
        """The endpoints of a node that have a connection, that for a blocked partition too."""
        return [each for each in self.pool.endpoints.all if each.address == address and each.open is not None]

    def reply(self, to: Any, error: ServerError | None = None) -> None:
        """Have a node answer the oldest command of an endpoint, with OK or an error."""
        endpoint = self.endpoints[to] if isinstance(to, str) else to
        endpoint.on_error(endpoint.conn, error) if error else endpoint.on_ok(endpoint.conn, 1)

    def execute(self, address: str, batch: list[Publish]) -> bool:
        partition = int(batch[0].destination.split()[1])
        if self.truth.get(partition) != address:
            return False
        self.stored.setdefault(partition, []).extend(publish.body for publish in batch)
        return True

    def break_off(self, address: str, executed: int) -> None:
        """End a connection after its node has executed some commands that it does not answer."""
        for endpoint in self.connected(address):
            write(endpoint)
            for batch in list(endpoint.sent)[:executed]:
                self.execute(address, batch)
            lose(endpoint)
        self.turn()

    def reconnect(self, address: str) -> None:
        for endpoint in self.pool.endpoints.all:
            if endpoint.address == address and endpoint.open is None and endpoint.wanted is not None:
                connect(endpoint)
        self.turn()

    def heal(self) -> None:
        """Heal everything, until no publish waits."""
        for _ in range(20):
            self.pool.time.now += 4.0
            for address in NODES:
                self.reconnect(address)
            self.look_up()
            self.pool.time.now += 1.0
            self.turn()
            for address in NODES:
                self.answer(address)


def test_while_many_publishes_wait_the_partitions_take_several_in_a_row() -> None:
    scene = Scene({0: A, 1: B})
    places = [scene.publish(b"x").destination for _ in range(4000)]
    assert places[:4] == ["orders 0", "orders 1"] * 2
    runs = [len(list(run)) for _, run in itertools.groupby(places[2000:3024])]
    assert sum(run == 64 for run in runs) >= 15
    assert abs(places.count("orders 0") - places.count("orders 1")) <= 128


def test_publishes_of_one_partition_that_wait_together_are_joined() -> None:
    scene = Scene({0: A, 1: A})
    for number in range(3):
        scene.publish(b"%d" % number, partition=0)
    scene.publish(b"other", partition=1)
    write(scene.endpoints[A])
    assert [[publish.body for publish in batch] for batch in scene.endpoints[A].sent] == [
        [b"0", b"1", b"2"],
        [b"other"],
    ]


def test_a_traced_publish_is_sent_alone() -> None:
    scene = Scene({0: A, 1: A})
    scene.publish(b"plain", partition=0)
    scene.publish(b"traced", partition=0, trace=7)
    assert b"PUB_TRACE orders 0\n" in write(scene.endpoints[A])
    assert len(scene.endpoints[A].sent) == 2


def test_a_topic_is_looked_up_when_it_is_first_published_to() -> None:
    scene = Scene({0: A, 1: B}, known=False)
    publish = scene.publish(b"first", partition=0)
    scene.turn()
    assert scene.router.lookups.topics == ("orders",)
    assert scene.router.urgent
    scene.look_up()
    assert scene.queued(A) == [b"first"]
    assert not publish.done()
    assert not scene.router.urgent


def test_a_topic_that_no_nsqlookupd_knows_is_an_error_once_a_later_question_is_answered() -> None:
    scene = Scene({0: A}, known=False)
    scene.router.lookups.learn("orders")
    scene.look_up(known=False)  # asked before the publish
    scene.pool.time.now += 1.0
    publish = scene.publish(b"x")
    scene.turn()
    assert not publish.done()
    scene.look_up(known=False)
    assert isinstance(publish.error, TopicNotExist)


def test_a_publish_with_a_key_waits_for_its_partition_and_one_without_does_not() -> None:
    scene = Scene({1: B})
    waiting = scene.publish(b"keyed", partition=0)
    scene.publish(b"any")
    scene.turn()
    assert scene.queued(B) == [b"any"]
    scene.truth[0] = C
    scene.look_up()
    assert scene.queued(C) == [b"keyed"]
    assert not waiting.done()


@pytest.mark.parametrize("options", [{"partition": 0}, {}])
def test_a_leader_that_cannot_be_reached_is_left_out_where_an_nsqlookupd_names_another_node(
    options: dict[str, Any],
) -> None:
    scene = Scene({0: A}, count=1)
    lose(scene.endpoints[A])
    publish = scene.publish(b"1", **options)
    scene.turn()
    assert not scene.router._snapshots.topics["orders"].targets
    topic = TopicAnswer({0: B}, scene.meta)
    other = ClusterAnswer("partitioned", topics={"orders": topic})
    scene.pool.nsqds.discovery.add_nsqlookupd("l2:4161")
    scene.router.lookups._heard("l2:4161", "l2:4161", other, scene.pool.time.now)
    for _ in range(3):
        scene.turn()
    assert scene.queued(B) == [b"1"]
    assert not publish.done()


def test_a_publish_that_waits_in_vain_says_which_partition_it_waited_for() -> None:
    scene = Scene({1: B})
    publish = scene.publish(b"keyed", 5.0, partition=0)
    scene.turn()
    scene.pool.time.now += 6.0
    scene.turn()
    assert isinstance(publish.error, PublishFailed)
    assert "partition 0 had no leader in time" in str(publish.error)
    assert "partitions without a leader: 0" in str(publish.error)


def test_a_key_beyond_the_partitions_because_of_key_partitions_is_refused_at_once() -> None:
    scene = Scene({0: A, 1: B}, key_partitions={"orders": 8}, key_hash=int)
    scene.publish(b"x", key="9")
    with pytest.raises(UsageError, match=r"key_partitions has 8 for 'orders'.* partition 3, .*has 2"):
        scene.publish(b"x", key="11")


def test_a_new_leader_gets_nothing_while_the_former_one_owes_an_answer() -> None:
    scene = Scene({0: A, 1: B})
    scene.publish(b"1", partition=0)
    write(scene.endpoints[A])
    scene.truth[0] = C
    scene.look_up()
    scene.publish(b"2", partition=0)
    scene.turn()
    scene.turn()
    assert scene.queued(C) == []
    scene.answer(A)  # it is not the leader any more
    scene.look_up()
    scene.pool.time.now += 1.0
    for _ in range(3):
        scene.turn()
    assert scene.queued(C) == [b"1", b"2"]


def test_a_publish_without_a_key_goes_on_when_the_only_partition_is_not_held_back_any_more() -> None:
    scene = Scene({0: A}, count=1)
    scene.publish(b"1", partition=0)
    write(scene.endpoints[A])
    scene.truth[0] = C
    scene.look_up()
    scene.publish(b"any")
    scene.turn()
    assert scene.queued(C) == []
    scene.reply(A)
    scene.turn()
    assert scene.queued(C) == [b"any"]


def test_a_publish_without_a_key_goes_on_when_the_only_partition_has_no_others_that_wait() -> None:
    scene = Scene({0: A}, count=1)
    scene.publish(b"1", partition=0)
    write(scene.endpoints[A])
    scene.reply(A, NotWritable("E_FAILED_ON_NOT_WRITABLE "))
    scene.turn()
    scene.pool.time.now += 0.001
    scene.look_up()
    scene.publish(b"any")
    scene.turn()
    assert scene.queued(A) == []
    scene.pool.time.now += 0.06
    scene.turn()
    assert scene.queued(A) == [b"1", b"any"]


def test_a_refused_publish_rests_before_the_same_nsqd_is_tried_again() -> None:
    scene = Scene({0: A})
    scene.publish(b"1", partition=0)
    write(scene.endpoints[A])
    scene.reply(A, NotLeader("E_FAILED_ON_NOT_LEADER "))
    scene.pool.time.now += 0.001
    scene.look_up()
    assert scene.queued(A) == []
    assert scene.router.due_at == pytest.approx(scene.pool.time.now + 0.049)
    scene.pool.time.now += 0.05
    scene.turn()
    assert scene.queued(A) == [b"1"]


def test_a_waiting_publish_is_refused_by_name_when_the_cluster_turns_out_to_be_an_original_one() -> None:
    scene = Scene({0: A}, known=False)
    keyed, plain = scene.publish(b"keyed", key="k"), scene.publish(b"plain")
    scene.turn()
    scene.become_original()
    assert isinstance(keyed.error, UsageError)
    assert plain.destination == "orders"
    assert sum(map(len, map(scene.queued, NODES))) == 1


def test_plain_comes_back_if_this_turns_out_to_be_the_original_nsq_while_the_router_is_made() -> None:
    def make(pool: Pool, discovery: Discovery) -> Router:
        discovery.kind = "original"
        pool.detection.is_original()
        return Router(pool, discovery)

    pool = StillPool(make)
    assert isinstance(pool.detection.with_options(), Router)
    pool.turn()
    with pytest.raises(UsageError, match="key= needs a partitioned NSQ"):
        pool.detection.with_options().new_publish(PublishFuture, "orders", b"x", None, {"key": "k"})


def test_topics_that_publishes_wait_for_are_looked_up_when_the_nsq_turns_out_to_be_partitioned() -> None:
    pool = StillPool(Router)
    waiting = pool.routing.new_publish(PublishFuture, "orders", b"x", None, {})
    pool.publish(waiting, 1000.0)
    pool.turn()
    lookups: Any = pool.detection.is_other(pool.nsqds.discovery)
    assert lookups.topics == ("orders",)
    assert isinstance(pool.routing, Router)


@pytest.mark.parametrize("known", [False, True])
def test_a_publish_that_was_made_before_the_cluster_turned_out_to_be_an_original_one_is_sent_as_such(
    known: bool,
) -> None:
    """For example one that waited for room in the meantime, however long."""
    scene = Scene({0: A}, count=1, known=known)
    router, pool = scene.router, scene.pool
    given: list[dict[str, Any]] = [{"key": "k"}, {"trace": 7}, {}]
    made = [router.new_publish(PublishFuture, "orders", b"x", None, options) for options in given]
    scene.become_original()
    pool.time.now += 60.0
    for late in made:
        pool.publish(late, 1000.0)
    scene.turn()
    keyed, traced, plain = made
    assert isinstance(keyed.error, UsageError)
    assert isinstance(traced.error, UsageError)
    assert not plain.done()
    assert b"".join(map(write, scene.endpoints.values())) == b"PUB orders\n\0\0\0\x01x"


def test_a_publish_that_was_made_before_then_is_refused_by_name_also_while_no_nsqd_is_connected() -> None:
    scene = Scene({0: A}, known=False)
    made = scene.router.new_publish(PublishFuture, "orders", b"x", None, {"key": "k"})
    for endpoint in scene.endpoints.values():
        lose(endpoint)
    scene.become_original()
    scene.pool.publish(made, 1000.0)
    scene.turn()
    assert isinstance(made.error, UsageError)


def test_a_round_trip_that_failed_before_the_cluster_became_an_original_one_is_sent_as_such() -> None:
    scene = Scene({0: A}, count=1)
    router, pool = scene.router, scene.pool
    publish = router.new_publish(PublishFuture, "orders", b"x", None, {"trace": 7})
    cause = ConnectionLost("gone")
    (verdict,) = publish.rules.lost([publish], cause, A, executed=True, retry_uncertain=False)
    assert verdict.again
    scene.become_original()
    pool.publish(publish, 1000.0)
    scene.turn()
    assert isinstance(publish.error, PublishUncertain)
    assert "trace= needs a partitioned NSQ" in str(publish.error)


def blocked(**options: Any) -> Scene:
    """Node A leads both partitions. It has been silent about the first one, whose publishes get an endpoint
    of their own.
    """
    scene = Scene({0: A, 1: A}, **options)
    scene.publish(b"blocked", partition=0)
    scene.publish(b"behind it", partition=1)
    write(scene.endpoints[A])
    scene.turn()
    assert scene.router.due_at <= scene.pool.time.now + blocked_partitions.BLOCKED_AFTER
    scene.pool.time.now += blocked_partitions.BLOCKED_AFTER + 0.01
    scene.turn()
    scene.reconnect(A)
    return scene


def destinations(endpoint: Any) -> list[str]:
    return [each.destination for each in conn_of(endpoint).waiting]


def test_a_blocked_partition_gets_an_endpoint_of_its_own_and_holds_up_no_other() -> None:
    scene = blocked()
    shared, own = scene.connected(A)
    scene.publish(b"healthy", partition=1)
    scene.publish(b"any")
    scene.publish(b"waits too", partition=0)
    scene.turn()
    assert destinations(shared) == ["orders 1", "orders 1"]
    scene.pool.time.now += 0.6  # nothing was answered on the shared connection: it is given up
    scene.turn()
    scene.pool.time.now += 0.1
    scene.look_up()
    assert [publish.body for publish in conn_of(own).waiting] == [b"blocked", b"waits too"]
    scene.reconnect(A)
    assert destinations(scene.endpoints[A]) == ["orders 1", "orders 1", "orders 1"]


def test_a_partition_that_is_well_again_shares_the_connection_again() -> None:
    scene = blocked()
    scene.pool.time.now += 1.0
    for _ in range(2):
        scene.turn()
        scene.reconnect(A)
        scene.answer(A)
        scene.pool.time.now += 0.1
        scene.look_up()
    scene.answer(A)
    assert set(scene.stored[0]) == {b"blocked"}
    (_, own) = scene.connected(A)
    scene.pool.time.now += blocked_partitions.AT_LEAST
    scene.turn()
    scene.turn()
    assert own.wanted is None
    assert scene.pool.endpoints.all == tuple(scene.endpoints.values())
    scene.publish(b"shared", partition=0)
    assert destinations(scene.endpoints[A]) == ["orders 0"]


@pytest.mark.parametrize("why", ["another leader", "nothing is sent", "no connection"])
def test_a_blocked_partition_loses_its_endpoint_when_it_needs_none(why: str) -> None:
    scene = blocked()
    if why == "another leader":
        scene.truth[0] = B
        scene.look_up()
    elif why == "no connection":
        lose(scene.connected(A)[1])
    else:
        scene.reply(A)
        scene.reply(A)
        scene.pool.time.now += blocked_partitions.UNUSED + 1.0
    for _ in range(3):
        scene.turn()
    assert scene.pool.endpoints.all == tuple(scene.endpoints.values())


def test_a_caller_whose_round_trip_is_not_answered_does_not_queue_behind_others_nor_they_behind_it() -> None:
    scene = Scene({0: A, 1: A})
    publish = scene.publish(b"1", partition=0)
    publish.rules.note_silence(publish, A)
    scene.publish(b"2", partition=0)
    scene.turn()
    (own,) = [each for each in scene.pool.endpoints.all if each.number]
    assert (own.address, own.label) == (A, f"{A}/1")
    scene.answer(A)
    scene.reconnect(A)
    scene.publish(b"3", partition=0)
    scene.turn()
    assert [each.body for each in conn_of(own).waiting] == [b"3"]


_events = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 1)),
        st.tuples(st.just("move"), st.tuples(st.integers(0, 1), st.sampled_from(NODES))),
        st.tuples(st.just("look_up"), st.none()),
        st.tuples(st.just("lie"), st.tuples(st.integers(0, 1), st.sampled_from(NODES))),
        st.tuples(st.just("answer"), st.tuples(st.sampled_from(NODES), st.integers(1, 3))),
        st.tuples(st.just("hiccup"), st.sampled_from(NODES)),
        st.tuples(st.just("write"), st.sampled_from(NODES)),
        st.tuples(st.just("break"), st.tuples(st.sampled_from(NODES), st.integers(0, 2))),
        st.tuples(st.just("reconnect"), st.sampled_from(NODES)),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 0.1, 1.0, 4.0])),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(_events)
def test_whatever_happens_each_partition_of_an_ordered_topic_stores_all_in_the_order_of_the_calls(
    events: list[tuple[str, Any]],
) -> None:
    scene = Scene({0: A, 1: B}, ordered=True)
    published: dict[int, list[bytes]] = {0: [], 1: []}
    publishes = []
    for number, (event, argument) in enumerate(events):
        if event == "publish":
            body = b"%d" % number
            published[argument].append(body)
            publishes.append(scene.publish(body, 100_000.0, partition=argument))
        elif event == "move":
            partition, node = argument
            scene.truth[partition] = node
        elif event == "look_up":
            scene.look_up()
        elif event == "lie":
            partition, node = argument
            scene.look_up({**scene.truth, partition: node})
        elif event == "answer":
            scene.answer(*argument)
        elif event == "hiccup":
            scene.answer(argument, hiccup=True)
        elif event == "write":
            for endpoint in scene.connected(argument):
                write(endpoint)
        elif event == "break":
            scene.break_off(*argument)
        elif event == "reconnect":
            scene.reconnect(argument)
        else:
            scene.pool.time.now += argument
            scene.turn()
        scene.pool.time.now += 0.0001
    scene.heal()
    assert [publish for publish in publishes if not publish.done() or publish.error is not None] == []
    for partition, bodies_ in published.items():
        assert list(dict.fromkeys(scene.stored.get(partition, []))) == bodies_
    assert not scene.router._busy
    assert not scene.pool.pending


def test_a_topic_without_order_has_several_batches_under_way() -> None:
    scene = Scene({0: A}, count=1)
    for body in (b"1", b"2", b"3"):
        scene.publish(body, partition=0)
        write(scene.endpoints[A])
    assert len(scene.endpoints[A].sent) == 3


def test_an_answer_that_allows_one_more_try_does_so_after_others_too() -> None:
    scene = Scene({0: A}, count=1)
    publish = scene.publish(b"1", partition=0)
    for error in (NotLeader(""), NotLeader(""), InvalidCommand("E_INVALID what")):
        scene.turn()
        write(scene.endpoints[A])
        scene.reply(A, error)
        scene.turn()
        scene.reconnect(A)
        scene.pool.time.now += 2.0
        scene.look_up()
        assert not publish.done()
    write(scene.endpoints[A])
    scene.reply(A, InvalidCommand("E_INVALID what"))
    assert isinstance(publish.error, InvalidCommand)


def test_the_end_of_a_batch_wakes_the_pool_when_it_begins_with_a_publish_without_a_key() -> None:
    scene = Scene({0: A}, count=1, ordered=True)
    scene.publish(b"first")
    scene.answer(A)
    scene.publish(b"any")
    scene.publish(b"1", partition=0)
    scene.turn()
    write(scene.endpoints[A])
    scene.publish(b"2", partition=0)
    scene.turn()
    assert [[publish.body for publish in batch] for batch in scene.endpoints[A].sent] == [[b"any", b"1"]]
    assert scene.pool.owner._requests.empty()
    scene.reply(A)
    assert scene.pool.owner._requests.qsize() == 1
    scene.turn()
    assert scene.queued(A) == [b"2"]


def test_futures_that_waited_for_the_table_are_under_way_one_batch_of_a_partition_at_a_time() -> None:
    scene = Scene({0: A, 1: A}, known=False, ordered=True)
    for number in range(2):
        scene.publish(b"zero %d" % number, partition=0)
        scene.publish(b"one %d" % number, partition=1)
    scene.turn()
    scene.look_up()
    assert sorted(scene.queued(A)) == [b"one 0", b"one 1", b"zero 0", b"zero 1"]
    write(scene.endpoints[A])
    scene.publish(b"zero 2", partition=0)
    scene.turn()
    assert scene.queued(A) == []
    scene.answer(A)
    assert scene.queued(A) == [b"zero 2"]


def test_the_connection_of_a_traced_publish_may_end_while_its_line_is_made() -> None:
    scene = Scene({0: A, 1: A})
    scene.router.trace("orders", True)
    publish = scene.router.new_publish(PublishFuture, "orders", b"x", None)
    conns: list[Any] = [SimpleNamespace(local_ip="10.0.0.9"), None]

    class Ending:
        address = A
        conn = property(lambda self: conns.pop(0))

    publish.endpoint = Ending()  # type: ignore[assignment]
    scene.router.log_publish(publish, {})
    assert conns == [None]
