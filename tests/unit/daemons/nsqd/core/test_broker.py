from __future__ import annotations

import pytest

from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Channel, TooManyConsumers
from nsq.daemons.nsqd.core.topic import Topic
from tests.fakes.clock import FakeClock
from tests.unit.daemons.nsqd.core.consumer import Consumer


class Witness:
    """An observer that records, and starts topics."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def topic_created(self, topic: Topic) -> None:
        self.events.append(f"+{topic.name}")
        topic.start()

    def topic_deleted(self, topic: Topic) -> None:
        self.events.append(f"-{topic.name}")

    def channel_created(self, channel: Channel) -> None:
        self.events.append(f"+{channel.topic_name}/{channel.name}")

    def channel_deleted(self, channel: Channel) -> None:
        self.events.append(f"-{channel.topic_name}/{channel.name}")


class Setup:
    def __init__(self, *, max_consumers: int = 0) -> None:
        self.clock = FakeClock()
        self.broker = Broker(
            self.clock,
            node_id=7,
            max_channel_consumers=max_consumers,
        )
        self.witness = Witness()
        self.broker.observer = self.witness

    def consumer(self, topic: str, channel: str, rdy: int = 10) -> tuple[Consumer, Channel]:
        consumer = Consumer(rdy=rdy)
        return consumer, self.broker.subscribe(topic, channel, consumer.subscriber)


def test_everything_is_observed_and_deleted_once() -> None:
    setup = Setup()
    setup.broker.publish("t", [b"a"])
    consumer, channel = setup.consumer("t", "c")
    setup.consumer("t", "d")
    setup.broker.delete_topic("t")
    assert setup.witness.events == ["+t", "+t/c", "+t/d", "-t/c", "-t/d", "-t"]
    assert consumer.closed == 1
    setup.broker.unsubscribe(channel, consumer.subscriber)
    setup.clock.advance(100.0)
    assert setup.broker.topics == {}
    assert setup.clock.idle
    with pytest.raises(KeyError):
        setup.broker.delete_topic("t")


def test_a_late_farewell_does_not_delete_a_channels_successor() -> None:
    setup = Setup()
    old, old_channel = setup.consumer("t", "c#ephemeral")
    setup.broker.delete_channel(setup.broker.topic("t"), "c#ephemeral")
    new, new_channel = setup.consumer("t", "c#ephemeral")
    setup.broker.unsubscribe(old_channel, old.subscriber)
    assert setup.broker.topic("t").channels == {"c#ephemeral": new_channel}
    assert new.closed == 0


def test_the_limit_of_consumers_holds_for_every_channel() -> None:
    setup = Setup(max_consumers=1)
    setup.consumer("t", "c")
    setup.consumer("t", "d")
    with pytest.raises(TooManyConsumers):
        setup.consumer("t", "c")


def test_a_consumer_that_breaks_an_ephemeral_channel_while_it_is_served() -> None:
    """The channel, its topic and all that waited are gone in the middle of a round."""
    setup = Setup()

    class Breaks(Consumer):
        def deliver(self, messages: list) -> None:  # type: ignore[type-arg]
            super().deliver(messages)
            setup.broker.unsubscribe(channel, self.subscriber)

    consumer = Breaks(rdy=1)
    channel = setup.broker.subscribe("t#ephemeral", "c#ephemeral", consumer.subscriber)
    sound, _ = setup.consumer("t", "c")
    setup.broker.publish("t#ephemeral", [b"a", b"b"])
    setup.broker.publish("t", [b"x"])
    setup.clock.advance(1000.0)
    assert list(setup.broker.topics) == ["t"]
    assert sound.bodies[0] == b"x"


def test_closing_disconnects_consumers_and_keeps_the_messages() -> None:
    setup = Setup()
    consumer, channel = setup.consumer("t", "c", rdy=0)
    setup.broker.publish("t", [b"a"])
    setup.broker.publish_deferred("t", [(5.0, b"b")])
    setup.clock.run_due()
    left = [(backlog, [each.body for each in taken]) for backlog, taken in setup.broker.close()]
    assert left == [(channel.backlog, []), (setup.broker.topics["t"].backlog, [])]
    assert consumer.closed == 1
    assert (channel.depth, channel.deferred_count) == (1, 1)  # the storage writes the deferred one
    assert setup.clock.idle
