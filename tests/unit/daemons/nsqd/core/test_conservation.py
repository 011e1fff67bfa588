"""Random events lose, double, hasten and forget no message."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from nsq.daemons.nsqd.core.backlog import Message
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Channel, NotInFlight
from tests.fakes.clock import FakeClock
from tests.unit.daemons.nsqd.core.consumer import Consumer

CHANNELS = ("one", "two")
SECONDS = st.sampled_from([0.001, 0.25, 1.0, 1.5, 3.0, 10.0])
MAX_MSG_TIMEOUT = 5.0
ROUNDING = 1e-6


class Member(Consumer):
    """Checks every delivery in the moment it is made."""

    def __init__(self, world: Conservation, channel: str, rdy: int, msg_timeout: float) -> None:
        super().__init__(rdy=rdy, msg_timeout=msg_timeout, max_msg_timeout=MAX_MSG_TIMEOUT)
        self.world = world
        self.name = channel
        self.present = True

    def deliver(self, messages: list[Message]) -> None:
        super().deliver(messages)
        assert self.present
        assert not self.full
        assert not self.subscriber.closing
        assert not self.channel.paused
        assert len(self.subscriber.in_flight) <= self.subscriber.rdy
        for message in messages:
            self.world.saw_delivery(self.name, message)

    @property
    def channel(self) -> Channel:
        return self.world.topic.channels[self.name]


class Conservation(RuleBasedStateMachine):
    """One topic, two channels. The model knows for each channel which messages are alive, and no more."""

    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.broker = Broker(self.clock)
        self.topic = self.broker.topic("t")
        for name in CHANNELS:
            self.topic.channel(name)
        self.everyone: list[Member] = []
        self.published = 0
        self.waiting_in_topic: set[bytes] = set()
        self.alive: dict[str, set[bytes]] = {name: set() for name in CHANNELS}
        self.attempts: dict[str, Counter[bytes]] = {name: Counter() for name in CHANNELS}
        self.not_before: dict[str, dict[bytes, float]] = {name: {} for name in CHANNELS}
        self.done_with = dict.fromkeys(CHANNELS, 0)  # deliveries that were finished or emptied away
        self.requeues = dict.fromkeys(CHANNELS, 0)

    def saw_delivery(self, channel: str, message: Message) -> None:
        assert message.body in self.alive[channel]
        assert self.clock.now() >= self.not_before[channel].get(message.body, 0.0)
        self.attempts[channel][message.body] += 1
        assert message.attempts == self.attempts[channel][message.body]

    @initialize(target=members, rdy=st.sampled_from([1, 3, 100]))
    def first_member(self, rdy: int) -> Member:
        return self._join("one", rdy, 4.0)

    # Publishing.

    def _new_bodies(self, count: int, not_before: float = 0.0) -> list[bytes]:
        bodies = [b"%d" % number for number in range(self.published, self.published + count)]
        self.published += count
        for name in CHANNELS:
            self.not_before[name].update(dict.fromkeys(bodies, not_before))
        self.waiting_in_topic.update(bodies)
        self._topic_flows()
        return bodies

    def _topic_flows(self) -> None:
        if not self.topic.paused:
            for name in CHANNELS:
                self.alive[name] |= self.waiting_in_topic
            self.waiting_in_topic.clear()

    @rule(count=st.sampled_from([2, 7, 150]))
    def publish(self, count: int) -> None:
        self.broker.publish("t", self._new_bodies(count))

    @rule(delay=SECONDS)
    def publish_deferred(self, delay: float) -> None:
        (body,) = self._new_bodies(1, self.clock.now() + delay)
        self.broker.publish_deferred("t", [(delay, body)])

    @rule()
    def empty_topic(self) -> None:
        self.topic.empty()
        self.waiting_in_topic.clear()

    @rule(paused=st.booleans())
    def pause_topic(self, paused: bool) -> None:
        self.topic.pause(paused)
        self._topic_flows()

    # Consumers.

    @rule(
        target=members,
        channel=st.sampled_from(CHANNELS),
        rdy=st.sampled_from([0, 1, 3, 100]),
        timeout=st.sampled_from([1.0, 4.0]),
    )
    def subscribe(self, channel: str, rdy: int, timeout: float) -> Member:
        return self._join(channel, rdy, timeout)

    def _join(self, channel: str, rdy: int, timeout: float) -> Member:
        member = Member(self, channel, rdy, timeout)
        self.everyone.append(member)
        self.broker.subscribe("t", channel, member.subscriber)
        return member

    @rule(target=members, member=consumes(members))
    def unsubscribe(self, member: Member) -> object:
        member.present = False
        self.everyone.remove(member)
        self.requeues[member.name] += len(member.held)
        self.broker.unsubscribe(member.channel, member.subscriber)
        return multiple()

    @rule(member=members, rdy=st.sampled_from([0, 1, 2, 5, 100]))
    def ready(self, member: Member, rdy: int) -> None:
        if not member.subscriber.closing:
            member.subscriber.rdy = rdy
            member.channel.wake(member.subscriber)

    @rule(member=members)
    def start_closing(self, member: Member) -> None:
        member.subscriber.closing = True
        member.subscriber.rdy = 0

    @rule(member=members, full=st.booleans())
    def congest(self, member: Member, full: bool) -> None:
        member.full = full
        if not full:
            member.channel.wake(member.subscriber)

    # Answers.

    def _ids(self, member: Member, data: st.DataObject) -> list[bytes]:
        self.work_is_done()
        held = list(member.subscriber.in_flight)
        return data.draw(st.lists(st.sampled_from(held), unique=True, min_size=1, max_size=5)) if held else []

    @rule(member=members, data=st.data())
    def finish(self, member: Member, data: st.DataObject) -> None:
        message_ids = self._ids(member, data)
        for message_id in message_ids:
            self.alive[member.name].remove(member.subscriber.in_flight[message_id].body)
            self.done_with[member.name] += 1
        assert not member.channel.finish(member.subscriber, message_ids)

    @rule(member=members, data=st.data(), delay=st.just(0.0) | SECONDS)
    def requeue(self, member: Member, data: st.DataObject, delay: float) -> None:
        for message_id in self._ids(member, data):
            body = member.subscriber.in_flight[message_id].body
            self.not_before[member.name][body] = self.clock.now() + delay
            self.requeues[member.name] += 1
            member.channel.requeue(member.subscriber, message_id, delay)

    @rule(member=members, data=st.data())
    def touch(self, member: Member, data: st.DataObject) -> None:
        for message_id in self._ids(member, data):
            member.channel.touch(member.subscriber, message_id)

    @rule(member=members, data=st.data(), verb=st.sampled_from(["finish", "touch"]))
    def answer_what_was_answered_before(self, member: Member, data: st.DataObject, verb: str) -> None:
        gone = [message.id for message in member.delivered if message.id not in member.subscriber.in_flight]
        if gone:
            message_id = data.draw(st.sampled_from(gone))
            if verb == "finish":
                assert member.channel.finish(member.subscriber, [message_id])
            else:
                with pytest.raises(NotInFlight):
                    member.channel.touch(member.subscriber, message_id)

    # The channel.

    @rule(channel=st.sampled_from(CHANNELS), paused=st.booleans())
    def pause(self, channel: str, paused: bool) -> None:
        self.topic.channels[channel].pause(paused)

    @rule(channel=st.sampled_from(CHANNELS))
    def empty(self, channel: str) -> None:
        self.done_with[channel] += self.topic.channels[channel].in_flight_count
        self.topic.channels[channel].empty()
        self.alive[channel].clear()

    # Time.

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._nobody_waits_in_vain()

    @rule()
    def work_is_done(self) -> None:
        self.clock.run_due()
        self._nobody_waits_in_vain()

    def _nobody_waits_in_vain(self) -> None:
        for channel in self.topic.channels.values():
            if channel.depth and not channel.paused:
                assert not any(subscriber.room for subscriber in channel.subscribers)
        assert all(member.flushed == len(member.delivered) for member in self.everyone)

    # What holds at every moment.

    @invariant()
    def everything_is_in_exactly_one_place(self) -> None:
        for name, channel in self.topic.channels.items():
            waiting = channel.backlog.take(len(channel.backlog))
            channel.backlog.put(waiting)
            found = [message.body for message in waiting]
            found += [message.body for _, _, message, _ in channel.deferred._heap]
            for member in self._members_of(name):
                found += member.held
            assert len(found) == len(set(found))
            assert set(found) == self.alive[name]

    @invariant()
    def counters_agree_with_contents(self) -> None:
        assert self.topic.message_count == self.published
        assert self.topic.depth == len(self.waiting_in_topic)
        for name, channel in self.topic.channels.items():
            members = self._members_of(name)
            assert channel.subscribers == [member.subscriber for member in members]
            assert channel.in_flight_count == sum(len(member.held) for member in members)
            in_all = channel.depth + channel.deferred_count + channel.in_flight_count
            assert in_all == len(self.alive[name])
            assert sum(channel.delivered) == sum(self.attempts[name].values())
            assert channel.requeue_count == self.requeues[name]
            ended = self.done_with[name] + channel.requeue_count + channel.timeout_count
            assert sum(channel.delivered) == ended + channel.in_flight_count
            for member in members:
                assert member.subscriber.message_count == len(member.delivered)

    @invariant()
    def nothing_outstays_its_deadline(self) -> None:
        if self.clock.busy:
            return  # its timer has not had its turn yet
        for member in self.everyone:
            for message in member.subscriber.in_flight.values():
                assert message.deadline > self.clock.now() - ROUNDING
                assert message.deadline <= message.delivered_at + MAX_MSG_TIMEOUT + ROUNDING
        for channel in self.topic.channels.values():
            assert all(due > self.clock.now() - ROUNDING for due, _, _, _ in channel.deferred._heap)

    def _members_of(self, name: str) -> list[Member]:
        return [member for member in self.everyone if member.name == name]

    def teardown(self) -> None:
        """Deliver and finish everything: no message and no timer is left."""
        self.topic.pause(False)
        self._topic_flows()
        for member in list(self.everyone):
            self.unsubscribe(member)
        for name in CHANNELS:
            channel = self.topic.channels[name]
            channel.pause(False)
            last = self._join(name, 10_000, 4.0)
            self.clock.advance(11.0)
            last.subscriber.rdy = 0
            for message_id in list(last.subscriber.in_flight):
                self.alive[name].remove(last.subscriber.in_flight[message_id].body)
                self.done_with[name] += 1
                assert not channel.finish(last.subscriber, [message_id])
            assert not self.alive[name]
        self.everything_is_in_exactly_one_place()
        self.clock.advance(20.0)
        assert self.clock.idle


TestConservation = Conservation.TestCase
TestConservation.settings = settings(stateful_step_count=60)
