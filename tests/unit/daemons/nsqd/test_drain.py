from __future__ import annotations

from contextlib import nullcontext

import pytest

from nsq.daemons.nsqd.core.broker import Broker, Draining
from nsq.daemons.nsqd.daemon import Remaining, count_remaining
from tests.fakes.clock import FakeClock
from tests.unit.daemons.nsqd.core.consumer import Consumer


def test_a_drain_counts_messages_that_consumers_can_take() -> None:
    clock = FakeClock()
    broker = Broker(clock)
    for topic, channel in (("t", "consumed"), ("t", "alone"), ("paused", "c"), ("held", "c")):
        broker.topic(topic).channel(channel)
    consumers = [Consumer(rdy=1), Consumer(rdy=0), Consumer(rdy=0)]
    for consumer, topic, channel in zip(
        consumers, ("t", "paused", "held"), ("consumed", "c", "c"), strict=True
    ):
        broker.subscribe(topic, channel, consumer.subscriber)
    broker.pause(broker.topics["paused"].channels["c"], True)
    broker.pause(broker.topics["held"], True)
    for topic in ("t", "paused", "held", "no-channel"):
        broker.publish(topic, [b"1", b"2", b"3"])
    broker.publish_deferred("t", [(60.0, b"4")])
    clock.run_due()
    left = count_remaining(broker)
    assert left == Remaining(
        waiting=2,
        in_flight=1,
        deferred=1,
        channels=1,
        staying=(("t/alone", 4), ("paused/c", 3), ("held", 3), ("no-channel", 3)),
    )
    assert not left.nothing
    broker.topics["t"].channels["consumed"].empty()
    assert count_remaining(broker).nothing


def test_a_broker_that_drains_takes_no_messages() -> None:
    broker = Broker(FakeClock())
    broker.draining = True
    with pytest.raises(Draining, match="exiting"):
        broker.publish("t", [b"x"])
    with pytest.raises(Draining):
        broker.publish_deferred("t", [(1.0, b"x")])
    assert broker.topics == {}


def test_a_broker_that_drains_creates_only_the_first_channel_of_a_topic_with_messages() -> None:
    broker = Broker(FakeClock())
    for name in ("empty", "full", "consumed"):
        broker.topic(name)
    broker.topics["consumed"].channel("c")
    for name in ("full", "consumed"):
        broker.publish(name, [b"x"])
    broker.draining = True
    wanted = {
        ("new", ""): False,
        ("new", "c"): False,
        ("empty", ""): True,
        ("empty", "c"): False,
        ("full", "c"): True,
        ("consumed", "c"): True,
        ("consumed", "d"): False,
    }
    for (topic, channel), allowed in wanted.items():
        with nullcontext() if allowed else pytest.raises(Draining):
            broker.refuse_new(topic, channel)
    with pytest.raises(Draining):
        broker.subscribe("consumed", "d", Consumer(rdy=1).subscriber)
    assert broker.subscribe("full", "c", Consumer(rdy=1).subscriber).depth == 1
    with pytest.raises(Draining):
        broker.subscribe("full", "d", Consumer(rdy=1).subscriber)
