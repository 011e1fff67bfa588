"""Who is nearer to nsqd is served first."""

from __future__ import annotations

from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.core.subscriber import ANYWHERE, REGION_LOCAL, ZONE_LOCAL
from tests.unit.daemons.nsqd.clock import FakeClock
from tests.unit.daemons.nsqd.core.consumer import Consumer


class Setup:
    def __init__(self, *consumers: tuple[int, int]) -> None:
        """Consumers by locality and RDY."""
        self.clock = FakeClock()
        self.broker = Broker(self.clock)
        self.consumers = [Consumer(rdy=rdy) for _, rdy in consumers]
        for consumer, (locality, _) in zip(self.consumers, consumers, strict=True):
            consumer.subscriber.locality = locality
            self.channel: Channel = self.broker.subscribe("t", "c", consumer.subscriber)

    def publish(self, count: int) -> list[int]:
        """How many each consumer has been given so far."""
        self.broker.publish("t", [b"%d" % number for number in range(count)])
        self.clock.settle()
        return [len(consumer.delivered) for consumer in self.consumers]


def test_the_nearest_with_room_gets_all_it_can_take() -> None:
    setup = Setup((ANYWHERE, 10), (ZONE_LOCAL, 3), (REGION_LOCAL, 4))
    assert setup.publish(2) == [0, 2, 0]
    assert setup.publish(4) == [0, 3, 3]
    assert setup.publish(4) == [3, 3, 4]
    assert setup.channel.delivered == [3, 4, 3]
    assert setup.channel.delivery_count == 10


def test_equally_near_ones_take_turns() -> None:
    setup = Setup((ZONE_LOCAL, 100), (ANYWHERE, 100), (ZONE_LOCAL, 100))
    assert setup.publish(10) == [5, 0, 5]
    for _ in range(10):
        setup.publish(1)
    assert [len(consumer.delivered) for consumer in setup.consumers] == [10, 0, 10]


def test_room_that_comes_back_nearby_is_used_again() -> None:
    setup = Setup((ZONE_LOCAL, 1), (ANYWHERE, 1))
    near, far = setup.consumers
    assert setup.publish(3) == [1, 1]
    assert not setup.channel.finish(far.subscriber, [far.delivered[0].id])
    assert not setup.channel.finish(near.subscriber, [near.delivered[0].id])
    setup.clock.settle()
    assert [len(near.delivered), len(far.delivered)] == [2, 1]
