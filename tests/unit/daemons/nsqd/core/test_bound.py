"""--max-channel-depth: the oldest messages go."""

from __future__ import annotations

import asyncio

from nsq.daemons.nsqd.core.bound import Bound
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.core.topic import Topic
from tests.fakes.clock import FakeClock
from tests.unit.daemons.nsqd.core.consumer import Consumer


class World:
    def __init__(self, most: int = 3) -> None:
        self.clock = FakeClock()
        self.warnings: list[str] = []
        self.broker = Broker(self.clock, bound=Bound(most, self.clock, self.warnings.append))

    def channel(self, topic: str = "t", name: str = "c") -> Channel:
        return self.broker.topic(topic).channel(name)

    def publish(self, *numbers: int, topic: str = "t") -> None:
        self.broker.publish(topic, [b"%d" % number for number in numbers])
        self.clock.run_due()

    def consume(self, rdy: int, topic: str = "t", name: str = "c") -> Consumer:
        consumer = Consumer(rdy=rdy)
        self.broker.subscribe(topic, name, consumer.subscriber)
        self.clock.run_due()
        return consumer


def waiting(place: Channel | Topic) -> list[int]:
    return [int(message.body) for message in asyncio.run(place.peek(100, 1000))]


def test_a_channel_and_a_topic_without_channel_keep_the_newest_messages() -> None:
    world = World()
    channel, topic = world.channel(), world.broker.topic("alone")
    for numbers in ([1, 2], [3, 4, 5], range(6, 26)):
        for name in ("t", "alone"):
            world.publish(*numbers, topic=name)
    assert waiting(channel) == waiting(topic) == [23, 24, 25]
    assert channel.dropped_count == topic.dropped_count == 22
    first = topic.channel("first")
    world.clock.run_due()
    world.publish(26, topic="alone")
    assert waiting(first) == [24, 25, 26]
    assert first.dropped_count == 1


def test_what_consumers_have_room_for_is_not_dropped() -> None:
    world = World()
    channel = world.channel()
    consumer = world.consume(rdy=10)
    world.publish(*range(1, 15))
    assert [int(body) for body in consumer.held] == list(range(1, 11))
    assert waiting(channel) == [12, 13, 14]
    assert channel.dropped_count == 1


def test_a_requeue_drops_nothing_and_a_later_message_pushes_out_one() -> None:
    world = World()
    channel = world.channel()
    consumer = world.consume(rdy=2)
    world.publish(*range(1, 6))
    world.broker.unsubscribe(channel, consumer.subscriber)
    world.clock.run_due()
    assert waiting(channel) == [3, 4, 5, 1, 2]
    world.publish(6)
    assert waiting(channel) == [4, 5, 1, 2, 6]
    assert channel.dropped_count == 1


def test_a_deferred_message_counts_when_it_is_due() -> None:
    world = World()
    channel = world.channel()
    world.publish(1, 2, 3)
    world.broker.publish_deferred("t", [(5.0, b"4"), (5.0, b"5")])
    world.clock.run_due()
    assert (waiting(channel), channel.deferred_count) == ([1, 2, 3], 2)
    world.clock.advance(6.0)
    assert (waiting(channel), channel.deferred_count) == ([3, 4, 5], 0)


def test_a_topic_without_channel_keeps_what_is_deferred() -> None:
    world = World()
    world.broker.topic("t")
    world.broker.publish_deferred("t", [(5.0, b"1")])
    world.publish(2, 3, 4)
    assert waiting(world.broker.topics["t"]) == [2, 3, 4, 1]
    channel = world.channel()
    world.clock.run_due()
    assert (waiting(channel), channel.deferred_count, channel.dropped_count) == ([2, 3, 4], 1, 0)
    world.clock.advance(6.0)
    assert waiting(channel) == [3, 4, 1]


def test_nothing_is_dropped_at_the_start_and_then_one_for_each_that_comes() -> None:
    """As after a restart with a smaller bound, or a mistyped one."""
    world = World(most=100)
    channel, topic = world.channel(), world.broker.topic("alone")
    for name in ("t", "alone"):
        world.publish(*range(10), topic=name)
    world.broker.bound = Bound(3, world.clock, world.warnings.append)
    assert world.broker.bound is not None
    world.broker.bound.look_at_start(world.broker.topics.values())
    assert world.warnings == [
        f"{name} has 10 waiting messages, 7 more than --max-channel-depth (3): the oldest will be dropped as "
        "new ones come"
        for name in ("channel t/c", "topic alone")
    ]
    world.clock.run_due()
    assert len(waiting(channel)) == 10
    first = topic.channel("first")
    world.clock.run_due()
    assert waiting(first) == list(range(10))
    for name in ("t", "alone"):
        world.publish(10, 11, topic=name)
    assert waiting(channel) == waiting(first) == list(range(2, 12))
    consumer = world.consume(rdy=9)
    world.publish(12)
    assert waiting(channel) == [11, 12]
    assert len(consumer.held) == 9


def test_a_paused_topic_and_its_channels_have_a_bound_each() -> None:
    world = World()
    channel, topic = world.channel(), world.broker.topics["t"]
    world.publish(1, 2, 3)
    world.broker.pause(topic, True)
    world.publish(*range(4, 9))
    assert (waiting(channel), waiting(topic)) == ([1, 2, 3], [6, 7, 8])
    world.broker.pause(topic, False)
    world.clock.run_due()
    assert waiting(channel) == [6, 7, 8]


def test_an_emptied_topic_leaves_its_next_messages_no_more_room() -> None:
    world = World()
    topic = world.broker.topic("t")
    world.publish(1, 2, 3)
    world.broker.pause(topic, True)
    channel = world.channel()
    topic.empty()
    world.broker.pause(topic, False)
    world.publish(*range(4, 9))
    assert waiting(channel) == [6, 7, 8]


def test_an_ephemeral_channel_has_only_its_own_limit() -> None:
    world = World()
    channel = world.channel(name="c#ephemeral")
    world.publish(*range(10))
    assert (len(waiting(channel)), channel.dropped_count) == (10, 0)


def test_drops_are_told_once_a_minute() -> None:
    world = World(most=1)
    for number in range(25):
        world.channel(topic=f"t{number}")
    for _ in range(3):
        world.publish(1, 2, 3, topic="t1")
    assert world.warnings == ["channel t1/c has dropped its oldest 2 messages: --max-channel-depth is 1"]
    for number in range(25):
        world.publish(1, 2, topic=f"t{number}")
    world.clock.advance(59.0)
    assert len(world.warnings) == 1
    world.clock.advance(2.0)
    assert world.warnings[1] == "channel t1/c has dropped its oldest 8 messages: --max-channel-depth is 1"
    assert world.warnings[-1] == "so have 5 other topics and channels"
    assert len(world.warnings) == 22
    world.clock.advance(120.0)
    assert len(world.warnings) == 22
    world.publish(1, topic="t2")
    assert world.warnings[-1] == "channel t2/c has dropped its oldest 1 messages: --max-channel-depth is 1"
