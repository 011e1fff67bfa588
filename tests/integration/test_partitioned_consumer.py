"""Consumers of a partitioned NSQ, over the test double: one connection for each partition, order, tracing."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from textwrap import dedent
from typing import Any

import pytest

import nsq
from nsq import aio
from nsq.consumer.reports import ConsumerHealth
from nsq.errors import ServerError
from nsq.partitioned import wire
from nsq.testing import Nsqd, Nsqlookupd, PartitionedCluster, V2Client
from nsq.wire import commands
from tests.fakes.programs import run_python

from .consuming import PATIENCE, until

TOPIC, CHANNEL = "orders", "billing"
QUICK = {"backoff_multiplier": 0.005, "reconnect_initial": 0.01, "lookupd_poll_interval": 1.0}


@pytest.fixture
def cluster() -> Iterator[PartitionedCluster]:
    with PartitionedCluster(nodes=3, first_twice=False) as cluster:
        yield cluster


def create(cluster: PartitionedCluster, partitions: int = 4, **options: Any) -> None:
    cluster.create_topic(TOPIC, partitions=partitions, channels=[CHANNEL], **options)


def send(cluster: PartitionedCluster, partition: int, *data: bytes) -> list[bytes]:
    """Send commands to the leader of a partition, each when the last one is answered; return the answers."""
    leader = until("a leader", lambda: cluster.leader(TOPIC, partition))
    answers = []
    with V2Client(leader.tcp_address) as client:
        for command in data:
            client.send(command)
            answers.append(client.frame().data)
    assert all(answer.startswith(b"OK") for answer in answers), answers
    return answers


def publish(cluster: PartitionedCluster, partition: int, numbers: Iterable[int]) -> None:
    """Publish numbered messages to a partition."""
    send(cluster, partition, *[commands.pub(f"{TOPIC} {partition}", b"%d" % number) for number in numbers])


def pub_ext(header: bytes, body: bytes) -> bytes:
    return wire.sized("PUB_EXT", TOPIC, 0, wire.extended(header, body))


class Handler:
    """Records what it gets, by partition."""

    def __init__(self, work: Callable[[nsq.Message], Any] = lambda message: None) -> None:
        self._changed = threading.Condition()
        self._work = work
        self.got: dict[int | None, list[int]] = defaultdict(list)
        self.messages: list[nsq.Message] = []

    def __call__(self, message: nsq.Message) -> Any:
        try:
            return self._work(message)
        finally:
            with self._changed:
                self.got[message.partition].append(int(message.body))
                self.messages.append(message)
                self._changed.notify_all()

    def wait_for(self, condition: Callable[[], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), dict(self.got)

    def wait_for_count(self, count: int) -> None:
        self.wait_for(lambda: len(self.messages) >= count)


class Hooks(nsq.ConsumerHooks):
    def __init__(self) -> None:
        self.errors: list[ServerError] = []
        self.stuck_messages: list[tuple[int, int]] = []
        self.disorder: list[int] = []

    def server_error(self, nsqd_address: str, error: ServerError) -> None:
        self.errors.append(error)

    def stuck(self, message: nsq.Message) -> None:
        self.stuck_messages.append((int(message.body), message.attempts))

    def out_of_order(self, message: nsq.Message) -> None:
        self.disorder.append(int(message.body))


@contextmanager
def consuming(
    cluster: PartitionedCluster, handler: Callable[[nsq.Message], Any], connections: int = 4, **options: Any
) -> Iterator[nsq.Consumer]:
    consumer = nsq.Consumer(TOPIC, CHANNEL, nsqlookupd=cluster.lookup_addresses, **{**QUICK, **options})
    consumer.add_handler(handler)
    with consumer:
        assert consumer.wait_until_connected(PATIENCE, connections), consumer.health()
        yield consumer


def test_a_rate_holds_for_all_partitions_in_order(cluster: PartitionedCluster) -> None:
    create(cluster, 2, ordered=True)
    for partition in range(2):
        publish(cluster, partition, range(6))
    times: list[float] = []
    handler = Handler(lambda message: times.append(time.monotonic()))
    with consuming(cluster, handler, 2, ordered=True, rate=20.0, threads=4):
        handler.wait_for_count(12)
    assert handler.got == {partition: list(range(6)) for partition in range(2)}
    assert max(times) - min(times) >= 11 / 20.0 - 0.1 - 0.01  # 0.1 s is the burst


def test_a_message_that_is_too_old_is_skipped_and_its_partition_goes_on(cluster: PartitionedCluster) -> None:
    create(cluster, 1, ordered=True)
    publish(cluster, 0, [1, 2])
    time.sleep(1.1)  # the shortest max_age is 1 s
    handler = Handler()
    with consuming(cluster, handler, 1, ordered=True, max_age=1.0) as consumer:
        until("given up", lambda: consumer.stats().given_up == 2)
        publish(cluster, 0, [3])
        handler.wait_for_count(1)
        until("finished", lambda: consumer.stats().finished == 3)
    assert handler.got == {0: [3]}


class TestPartitions:
    def test_new_partitions_are_found_and_reported_once(
        self, cluster: PartitionedCluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        create(cluster, 2)
        handler, changes = Handler(), list[tuple[int, int]]()

        class Hooks(nsq.ConsumerHooks):
            def partitions_changed(self, before: int, after: int) -> None:
                changes.append((before, after))

        with consuming(cluster, handler, 2, hooks=Hooks()) as consumer:
            cluster.add_partitions(TOPIC, 4)
            assert consumer.wait_until_connected(PATIENCE, 6), consumer.health()
            publish(cluster, 3, [7])
            handler.wait_for(lambda: handler.got[3] == [7])
        assert changes == [(2, 6)]
        assert caplog.text.count("partitions changed from 2 to 6") == 1

    @pytest.mark.parametrize("delay", [0.0, 0.3], ids=["at once", "without leaders first"])
    def test_a_topic_that_is_created_later_is_found(self, cluster: PartitionedCluster, delay: float) -> None:
        handler = Handler()
        with consuming(cluster, handler, 0):
            create(cluster, 2, writable_after=delay)
            publish(cluster, 1, [7])
            handler.wait_for(lambda: handler.got[1] == [7])

    def test_messages_carry_what_was_published(self, cluster: PartitionedCluster) -> None:
        create(cluster, 1, extended=True)
        header = wire.checked_header({"k": "v"}, trace_id=42, tag=None)
        handler = Handler()
        with consuming(cluster, handler, 1, trace=True):
            [answer] = send(cluster, 0, pub_ext(header, b"1"))
            handler.wait_for_count(1)
        [message], published = handler.messages, wire.published(answer)
        assert published is not None
        assert message.headers == {"k": "v"}
        assert (message.internal_id, message.trace_id, message.offset, message.size) == (
            published.internal_id,
            42,
            published.offset,
            published.size,
        )

    def test_tracing_is_switched_on_and_off_while_it_runs(
        self, cluster: PartitionedCluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        create(cluster, 1)
        handler = Handler()
        with caplog.at_level(logging.INFO, "nsq.trace"), consuming(cluster, handler, 1) as consumer:
            for number, on in enumerate((False, True, False)):
                consumer.trace(on)
                publish(cluster, 0, [number])
                handler.wait_for_count(number + 1)
        traced = [record for record in caplog.records if record.name == "nsq.trace"]
        assert [record.nsq_trace["internal_id"] for record in traced] == [handler.messages[1].internal_id]  # type: ignore[attr-defined]

    def test_a_tag_selects_messages(self, cluster: PartitionedCluster) -> None:
        create(cluster, 1, extended=True)
        tagged, others = Handler(), Handler()
        green = wire.checked_header(None, tag="green")
        with consuming(cluster, tagged, 1, desired_tag="green"), consuming(cluster, others, 1):
            send(cluster, 0, *[pub_ext(green, b"%d" % number) for number in range(5)])
            tagged.wait_for_count(5)
        assert [message.tag for message in tagged.messages] == ["green"] * 5
        assert not others.messages

    def test_a_header_selects_messages(self, cluster: PartitionedCluster) -> None:
        create(cluster, 1, extended=True)
        handler = Handler()
        with consuming(cluster, handler, 1, header_filter={"region": "eu"}):
            for number, region in enumerate(["us", "eu", "us", "eu"]):
                header = wire.checked_header({"region": region})
                send(cluster, 0, pub_ext(header, b"%d" % number))
            handler.wait_for_count(2)
        assert handler.got[0] == [1, 3]

    @pytest.mark.parametrize(("start", "expected"), [("end", [9]), ("offset:0", [0, 1, 2, 9])])
    def test_a_position_to_start_at_can_be_chosen(
        self, cluster: PartitionedCluster, start: str, expected: list[int]
    ) -> None:
        create(cluster, 1)
        publish(cluster, 0, range(3))
        handler = Handler()
        with consuming(cluster, handler, 1, start=start, threads=1):
            publish(cluster, 0, [9])
            handler.wait_for(lambda: 9 in handler.got[0])
            until("all finished", lambda: cluster.channel(TOPIC, 0, CHANNEL).in_flight == 0)
            for node in cluster.nodes:
                node.drop_connections()
            publish(cluster, 0, [10])
            handler.wait_for(lambda: 10 in handler.got[0])
        assert handler.got[0] == [*expected, 10], "a reconnect goes on where it was"


class TestMoves:
    @pytest.mark.parametrize(
        "answer",
        [
            "E_FAILED_ON_NOT_LEADER ",
            "E_FAILED_ON_NOT_WRITABLE ",
            "E_TOPIC_NOT_EXIST ",
            "E_SUB_EXTEND_NEED need",
            "E_SUB_EXTEND_FORBIDDON forbidden",
        ],
    )
    def test_passing_refusals_of_a_subscription_reach_no_user(
        self, cluster: PartitionedCluster, caplog: pytest.LogCaptureFixture, answer: str
    ) -> None:
        create(cluster, ordered=True)
        for node in cluster.nodes:
            node.refuse("SUB_ORDERED", answer, times=2)
        handler, hooks = Handler(), Hooks()
        with consuming(cluster, handler, ordered=True, hooks=hooks) as consumer:
            publish(cluster, 0, [1])
            handler.wait_for(lambda: handler.got[0] == [1])
            assert consumer.refusal is None
        assert hooks.errors == []
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

    def test_a_partition_that_is_said_to_have_moved_is_left_when_its_message_is_done(
        self, cluster: PartitionedCluster
    ) -> None:
        create(cluster, 1, ordered=True)
        begun, go_on = threading.Event(), threading.Event()

        def work(message: nsq.Message) -> None:
            begun.set()
            assert go_on.wait(PATIENCE)

        handler, hooks = Handler(work), Hooks()
        leader = cluster.leader(TOPIC, 0)
        [other, *_] = [node for node in cluster.nodes if node != leader]
        with consuming(
            cluster, handler, 1, ordered=True, hooks=hooks, lookupd_poll_interval=0.05
        ) as consumer:
            publish(cluster, 0, [1])
            assert begun.wait(PATIENCE)
            for lookup in cluster.lookups:
                lookup.claim(TOPIC, 0, other)
            until("the end begins", lambda: consumer.health().connections[0].rdy == 0)
            time.sleep(0.5)  # several answers of nsqlookupds
            assert cluster.channel(TOPIC, 0, CHANNEL).subscribers == 1
            go_on.set()
            until("it is finished", lambda: cluster.channel(TOPIC, 0, CHANNEL).finished == 1)
            until("it is left", lambda: cluster.channel(TOPIC, 0, CHANNEL).subscribers == 0)
            assert sum(node.received.get("CLS", 0) for node in cluster.nodes) == 1
            for lookup in cluster.lookups:
                lookup.tell_the_truth()
            publish(cluster, 0, [2])
            handler.wait_for(lambda: handler.got[0] == [1, 2])
        assert hooks.errors == []

    def test_a_node_that_stalls_is_left_without_its_answer_when_another_one_leads(
        self, cluster: PartitionedCluster
    ) -> None:
        create(cluster, 1, ordered=True)
        handler = Handler()
        with consuming(cluster, handler, 1, ordered=True, lookupd_poll_interval=0.2, read_timeout=300.0):
            publish(cluster, 0, [1])
            handler.wait_for_count(1)
            stalled = cluster.leader(TOPIC, 0)
            assert stalled is not None
            stalled.stall()
            until("another leader", lambda: cluster.leader(TOPIC, 0) not in (None, stalled))
            publish(cluster, 0, [2])
            handler.wait_for(lambda: handler.got[0] == [1, 2])

    def test_a_partition_without_a_leader_is_reported_as_missing(self) -> None:
        with PartitionedCluster(nodes=2) as cluster:
            create(cluster, 4, replicas=1)
            lost = cluster.leader(TOPIC, 1)
            assert lost is not None
            handler = Handler()
            with consuming(cluster, handler) as consumer:
                lost.kill()
                until("missing partitions", lambda: consumer.health().missing_partitions == [1, 3])
                assert "partitions 1, 3 without a leader" in consumer.health().summary
                publish(cluster, 0, [5])
                handler.wait_for(lambda: handler.got[0] == [5])
                lost.restart()
                until("all back", lambda: consumer.health().missing_partitions == [])
                assert consumer.wait_until_connected(PATIENCE, 4)


class TestOrder:
    def test_lanes_run_side_by_side(self, cluster: PartitionedCluster) -> None:
        create(cluster, 16, ordered=True)
        together = threading.Barrier(16)
        handler = Handler(lambda message: together.wait(PATIENCE))
        with consuming(cluster, handler, 16, ordered=True, threads=16):
            for partition in range(16):
                publish(cluster, partition, range(3))
            handler.wait_for_count(48)
        assert not together.broken

    def test_a_message_that_fails_holds_up_its_partition_alone(self, cluster: PartitionedCluster) -> None:
        create(cluster, 2, ordered=True)
        mended = threading.Event()

        def work(message: nsq.Message) -> None:
            if message.body == b"13" and not mended.is_set():
                raise ValueError("it does not work yet")

        handler, hooks = Handler(work), Hooks()
        with consuming(
            cluster,
            handler,
            2,
            ordered=True,
            threads=2,
            hooks=hooks,
            stuck_after=3,
            max_backoff_duration=0.05,
        ) as consumer:
            publish(cluster, 0, [13, 14])
            publish(cluster, 1, [23, 24])
            handler.wait_for(lambda: handler.got[1] == [23, 24])
            handler.wait_for(lambda: len(handler.got[0]) > 6)
            assert set(handler.got[0]) == {13}
            [stuck, fine] = consumer.health().partitions
            assert (stuck.stuck, fine.stuck) == (True, False)
            assert stuck.stuck_seconds > 0.0
            assert "partitions 0 stuck" in consumer.health().summary
            assert "b'13'" in stuck.stuck_at
            assert "does not work yet" in stuck.error
            until("two reports", lambda: len(hooks.stuck_messages) >= 2)
            assert hooks.stuck_messages[:2] == [(13, 3), (13, 6)]
            mended.set()
            handler.wait_for(lambda: handler.got[0][-1] == 14)
            assert not consumer.health().partitions[0].stuck
            assert consumer.stats().requeued == handler.got[0].count(13) - 1

    def test_a_skipped_message_goes_to_the_dead_letters_and_the_log_says_why(
        self, cluster: PartitionedCluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        create(cluster, 1, ordered=True)
        cluster.create_topic("dead", partitions=1)

        def work(message: nsq.Message) -> None:
            if message.body == b"13":
                raise nsq.GiveUp("no use")

        handler = Handler(work)
        with consuming(cluster, handler, 1, ordered=True, dead_letters="dead"):
            publish(cluster, 0, [13, 14])
            handler.wait_for(lambda: handler.got[0] == [13, 14])
        assert [message.body for message in cluster.messages("dead", 0)] == [b"13"]
        assert "no use" in caplog.text
        assert "topic dead has it" in caplog.text
        assert "max_attempts" not in caplog.text

    def test_a_channel_that_was_rewound_is_reported_and_consumed(
        self, cluster: PartitionedCluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        create(cluster, 1, ordered=True)
        handler, hooks = Handler(), Hooks()
        with consuming(cluster, handler, 1, ordered=True, hooks=hooks) as consumer:
            publish(cluster, 0, range(5))
            handler.wait_for_count(5)
            cluster.seek(TOPIC, 0, CHANNEL, 1)
            handler.wait_for(lambda: handler.got[0] == [*range(5), *range(1, 5)])
            until("a report", lambda: hooks.disorder == [1])
            assert consumer.stats().order_errors == 1
        assert "out of order" in caplog.text

    def test_messages_whose_fins_died_with_the_leader_come_again_and_are_reported(
        self, cluster: PartitionedCluster
    ) -> None:
        create(cluster, 1, ordered=True)
        handler, hooks = Handler(), Hooks()
        with consuming(cluster, handler, 1, ordered=True, hooks=hooks):
            publish(cluster, 0, range(5))
            until("all finished", lambda: cluster.channel(TOPIC, 0, CHANNEL).finished == 5)
            killed = cluster.leader(TOPIC, 0)
            assert killed is not None
            killed.kill(lost_fins=3)
            until("another leader", lambda: cluster.leader(TOPIC, 0) not in (None, killed))
            publish(cluster, 0, [5])
            handler.wait_for(lambda: handler.got[0][-1] == 5)
        assert handler.got[0] == [*range(5), 2, 3, 4, 5]
        assert hooks.disorder == [2]

    @pytest.mark.parametrize("twice", [True, "at once"])
    def test_a_first_message_that_comes_twice_is_handled_once(self, twice: Any) -> None:
        with PartitionedCluster(nodes=1, first_twice=twice) as cluster:
            create(cluster, 1, ordered=True)
            publish(cluster, 0, range(5))
            handler, hooks = Handler(), Hooks()
            with consuming(cluster, handler, 1, ordered=True, hooks=hooks):
                handler.wait_for(lambda: 4 in handler.got[0])
            assert handler.got[0] == list(range(5))
        assert hooks.errors == [], "E_FIN_FAILED for the second one is no news"


def test_coroutines_get_a_partition_in_order_too(cluster: PartitionedCluster) -> None:
    create(cluster, 2, ordered=True)
    got: dict[int | None, list[int]] = defaultdict(list)
    ends: set[int | None] = set()
    hooks = Hooks()

    async def handle(message: nsq.Message) -> None:
        got[message.partition].append(int(message.body))
        await asyncio.sleep(0.001)
        if message.body == b"3" and message.attempts < 4:
            raise ValueError("not yet")
        if message.body == b"5":
            ends.add(message.partition)
            if len(ends) == 2:
                over.set()

    over = asyncio.Event()

    async def main() -> None:
        options: dict[str, Any] = {**QUICK, "ordered": True, "stuck_after": 2, "hooks": hooks}
        consumer = aio.Consumer(TOPIC, CHANNEL, nsqlookupd=cluster.lookup_addresses, **options)
        consumer.add_handler(handle, concurrency=8)
        async with consumer:
            for partition in range(2):
                await asyncio.to_thread(publish, cluster, partition, range(6))
            await asyncio.wait_for(over.wait(), PATIENCE)

    asyncio.run(main())
    assert dict(got) == {partition: [0, 1, 2, 3, 3, 3, 3, 4, 5] for partition in range(2)}
    assert (3, 2) in hooks.stuck_messages
    with pytest.raises(nsq.ConfigError, match="on_stuck"):
        aio.Consumer(TOPIC, CHANNEL, nsqlookupd="127.0.0.1:1", ordered=True, on_stuck=print)


def test_a_coroutine_has_a_message_of_each_partition_unless_the_user_sets_a_smaller_max_in_flight(
    cluster: PartitionedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    create(cluster)

    async def main(set_before: int | None, windows: int) -> None:
        consumer = aio.Consumer(TOPIC, CHANNEL, nsqlookupd=cluster.lookup_addresses, **QUICK)
        if set_before is not None:
            consumer.consumer.set_max_in_flight(set_before)

        def have_windows() -> bool:
            connections = consumer.consumer.health().connections
            return len(connections) == 4 and sum(each.rdy for each in connections) == windows

        async with consumer:
            await asyncio.to_thread(until, "windows", have_windows)

    asyncio.run(main(None, 4))
    assert "take turns" not in caplog.text
    asyncio.run(main(3, 3))
    assert "take turns" in caplog.text


def test_an_nsqd_of_a_partitioned_nsq_without_its_nsqlookupds_is_warned_about(
    cluster: PartitionedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    create(cluster, 1)
    leader = cluster.leader(TOPIC, 0)
    assert leader is not None
    consumer = nsq.Consumer(TOPIC, CHANNEL, nsqd=leader.tcp_address)
    consumer.add_handler(Handler())
    with consumer:
        assert consumer.wait_until_connected(PATIENCE)
    assert caplog.text.count("belongs to a partitioned NSQ") == 1


class TestRefusals:
    @pytest.mark.parametrize(
        ("topic", "options", "error", "reason"),
        [
            ({"ordered": True}, {}, nsq.OrderIsMust, "give the consumer ordered=True"),
            ({}, {"partitions": [9]}, nsq.ConfigError, "orders has 4 partitions"),
            ({"registered_channels_only": True}, {}, nsq.ChannelNotRegistered, "E_SUB_CHANNEL"),
        ],
    )
    def test_a_topic_that_the_options_do_not_suit_ends_the_run(
        self,
        cluster: PartitionedCluster,
        topic: dict[str, Any],
        options: dict[str, Any],
        error: type[Exception],
        reason: str,
    ) -> None:
        cluster.create_topic(TOPIC, partitions=4, **topic)
        consumer = nsq.Consumer(TOPIC, "fresh", nsqlookupd=cluster.lookup_addresses, **{**QUICK, **options})
        consumer.add_handler(Handler())
        with pytest.raises(error, match=reason):
            consumer.run()

    @pytest.mark.parametrize(
        "options", [{"ordered": True}, {"partitions": [0]}, {"start": "end"}, {"trace": True}]
    )
    def test_the_original_nsq_ends_the_run_and_the_option_is_named(self, options: dict[str, Any]) -> None:
        with Nsqlookupd() as lookupd, Nsqd(lookupd=[lookupd]):
            consumer = nsq.Consumer(TOPIC, CHANNEL, nsqlookupd=lookupd.http_address, **{**QUICK, **options})
            consumer.add_handler(Handler())
            with pytest.raises(nsq.ConfigError, match=f"{next(iter(options))} needs a partitioned NSQ"):
                consumer.run()

    def test_with_nsqlookupds_of_the_original_nsq_nothing_is_loaded_for_a_partitioned_one(self) -> None:
        with Nsqlookupd() as lookupd, Nsqd(lookupd=[lookupd]) as nsqd:
            with V2Client(nsqd.tcp_address) as client:
                client.send(commands.pub(TOPIC, b"a message"))
            consume = f"""
                import sys
                import nsq
                consumer = nsq.Consumer({TOPIC!r}, {CHANNEL!r}, nsqlookupd={lookupd.http_address!r})
                consumer.add_handler(lambda message: consumer.request_stop())
                consumer.run()
                loaded = [name for name in sys.modules if "partitioned" in name]
                print(consumer._engine.discovery.kind, loaded)
            """
            ran = run_python("-c", dedent(consume))
            assert (ran.stdout, ran.stderr) == ("original []\n", "")

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"on_stuck": print}, "on_stuck has no effect without ordered=True"),
            ({"stuck_after": 3}, "stuck_after has no effect without ordered=True"),
            ({"out_of_order": "stop"}, "out_of_order has no effect without ordered=True"),
            ({"ordered": True, "on_stuck": 5}, "on_stuck is 5"),
            ({"ordered": True, "stuck_after": 0}, "stuck_after is 0"),
            ({"ordered": True, "out_of_order": "skip"}, "out_of_order is 'skip'"),
            ({"ordered": True, "max_attempts": 3}, "max_attempts"),
            ({"ordered": True, "start": "end"}, "start is given with ordered=True"),
            ({"ordered": True, "nsqd": "127.0.0.1:4150"}, "nsqd is given with ordered=True"),
            ({"cluster": "original", "ordered": True}, "ordered needs a partitioned NSQ"),
            ({"cluster": "original", "desired_tag": "green"}, "desired_tag needs a partitioned NSQ"),
            ({"cluster": "original", "header_filter": {"k": "v"}}, "header_filter needs a partitioned NSQ"),
        ],
    )
    def test_options_that_do_not_go_together_are_refused(self, options: dict[str, Any], reason: str) -> None:
        with pytest.raises(nsq.ConfigError, match=reason):
            nsq.Consumer(TOPIC, CHANNEL, nsqlookupd="127.0.0.1:1", **options)

    def test_an_ordered_consumer_takes_no_nsqd_later_either(self) -> None:
        consumer = nsq.Consumer(TOPIC, CHANNEL, nsqlookupd="127.0.0.1:1", ordered=True).add_handler(Handler())
        with consumer, pytest.raises(nsq.UsageError, match="ordered=True"):
            consumer.add_nsqd("127.0.0.1:4150")


def test_a_consumer_of_200_partitions_counts_its_threads() -> None:
    with PartitionedCluster(nodes=4, process=True) as cluster:
        create(cluster, 200, ordered=True, replicas=1)
        with consuming(cluster, Handler(), 200, ordered=True, threads=4) as consumer:
            health: ConsumerHealth = consumer.health()
            mine = [thread for thread in threading.enumerate() if thread.name.startswith(f"nsq-{TOPIC}")]
            assert 400 <= health.threads <= 420
            assert abs(len(mine) - health.threads) <= 5  # questions to nsqlookupds come and go
            publish(cluster, 199, [1])
