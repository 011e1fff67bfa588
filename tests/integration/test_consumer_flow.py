"""Flow control: RDY over one and several nsqds, pausing, backoff."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from nsq import ConsumerHooks, Message, Requeue
from nsq.consumer.reports import ConsumerHealth
from nsq.errors import ConfigError
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory

from .consuming import (
    Gate,
    Recorder,
    channel_of,
    clients_of,
    create,
    expect_drained,
    make_consumer,
    numbered,
    publish,
    rdys,
    running,
    until,
)


def in_flight(nsqds: Sequence[Nsqd]) -> int:
    """What all nsqds together have in flight, by their own account."""
    return sum(channel_of(nsqd)["in_flight_count"] for nsqd in nsqds)


# max_in_flight.


def test_max_in_flight_is_for_all_nsqds_together(three: list[Nsqd]) -> None:
    gate = Gate()
    with running(
        make_consumer(three, threads=20, max_in_flight=7).add_handler(gate), connections=3
    ) as consumer:
        gate.wait_until_held(7)
        assert in_flight(three) == consumer.stats().in_flight == 7
        for passed in range(1, 10):
            gate.let_go(1)
            gate.wait_until_passed(passed)
            gate.wait_until_held(7)
        until("nsqd has all answers", lambda: in_flight(three) == 7)
        # Asked one after the other, while a window may be moved from one to the next.
        until("nowhere more", lambda: sum(rdys(three)) <= 7)
        gate.let_go()
        gate.wait_until_passed(60)
        for nsqd in three:
            expect_drained(nsqd)
    assert gate.most_held == 7


def test_more_nsqds_than_messages_at_once(three: list[Nsqd]) -> None:
    gate = Gate()
    gate.let_go()
    # Whoever has its turn and nothing to send loses it, after the shortest times there are.
    consumer = make_consumer(
        three,
        threads=4,
        max_in_flight=1,
        low_rdy_idle_timeout=1.0,
        low_rdy_timeout=1.0,
        rdy_redistribute_interval=0.05,
    )
    with running(consumer.add_handler(gate), connections=3):
        until("one has its turn", lambda: sorted(rdys(three)) == [0, 0, 1])
        shared = "3 connections share a max_in_flight of 1"
        wanted = {f"{shared}: waits for its turn": 2, f"{shared}: has its turn": 1}
        # At any moment the turn may be on its way from one to the next.
        until("told so", lambda: Counter(each.reason for each in consumer.health().connections) == wanted)
        for nsqd in three:
            expect_drained(nsqd)
    assert gate.most_held == 1
    assert gate.passed == 60


def test_set_max_in_flight_takes_effect_at_once(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(30))
    gate = Gate()
    with running(make_consumer(nsqd, threads=10, max_in_flight=2).add_handler(gate)) as consumer:
        gate.wait_until_held(2)
        consumer.set_max_in_flight(6)
        gate.wait_until_held(6)
        assert rdys([nsqd]) == [6]
        consumer.set_max_in_flight(3)
        until("the smaller window", lambda: rdys([nsqd]) == [3])
        gate.let_go(3)
        gate.wait_until_passed(3)
        until("no new ones while more are held", lambda: channel_of(nsqd)["in_flight_count"] == 3)
        assert gate.held == 3
        gate.let_go()
        expect_drained(nsqd)
        with pytest.raises(ConfigError, match="max_in_flight is -1"):
            consumer.set_max_in_flight(-1)
    assert gate.most_held == 6


def test_max_in_flight_follows_from_the_handlers(nsqd: Nsqd) -> None:
    create(nsqd)
    consumer = make_consumer(nsqd, threads=3).add_handler(Recorder())
    consumer.add_batch_handler(Recorder(), size=10)
    with running(consumer):
        assert consumer.health().max_in_flight == 2 * 3 + 2 * 10
        until("the window", lambda: rdys([nsqd]) == [26])


def test_what_nsqd_allows_limits_the_window(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(max_rdy_count=5)
    create(nsqd)
    with running(make_consumer(nsqd, max_in_flight=100).add_handler(Recorder())) as consumer:
        until("the window", lambda: rdys([nsqd]) == [5])
        (connection,) = consumer.health().connections
        assert connection.rdy == 5
        assert "limited by the nsqd's max_rdy_count of 5" in connection.reason


# Pause, starvation.


def test_pause_and_resume(nsqd: Nsqd) -> None:
    create(nsqd)
    seen = Recorder()
    with running(make_consumer(nsqd).add_handler(seen)) as consumer:
        publish(nsqd, [b"before"])
        seen.wait_for(1)
        consumer.pause()
        until("paused", lambda: rdys([nsqd]) == [0])
        publish(nsqd, [b"after"])
        health = consumer.health()
        assert (health.ok, health.paused, health.summary) == (False, True, "no nsqd may send: paused")
        assert channel_of(nsqd)["depth"] == 1
        consumer.resume()
        seen.wait_for(2)
        assert consumer.health().ok
        expect_drained(nsqd)
    assert seen.bodies == [b"before", b"after"]


def test_a_consumer_may_start_paused(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"waits"])
    seen = Recorder()
    with running(make_consumer(nsqd, max_in_flight=0).add_handler(seen)) as consumer:
        assert consumer.health().summary == "no nsqd may send: max_in_flight is 0"
        consumer.set_max_in_flight(1)
        seen.wait_for(1)


def test_is_starved_while_hardly_more_can_come(nsqd: Nsqd) -> None:
    create(nsqd)
    gate = Gate()
    with running(make_consumer(nsqd, threads=4, max_in_flight=4).add_handler(gate)) as consumer:
        assert not consumer.is_starved
        publish(nsqd, numbered(2))
        gate.wait_until_held(2)
        assert not consumer.is_starved
        publish(nsqd, numbered(2))
        gate.wait_until_held(4)
        assert consumer.is_starved
        assert consumer.health().starved
        gate.let_go()
        expect_drained(nsqd)
        until("its own account", lambda: not consumer.is_starved)


# Latency.


@pytest.mark.parametrize(
    ("options", "bound"), [({}, 0.25), ({"low_latency": True}, 0.1)], ids=["default", "low_latency"]
)
def test_a_message_does_not_wait_in_nsqds_buffer(nsqd: Nsqd, options: dict[str, bool], bound: float) -> None:
    create(nsqd)
    delays: list[float] = []
    answers: list[float] = []
    seen = Recorder(lambda message: delays.append(time.time() - message.timestamp / 1e9))
    with running(make_consumer(nsqd, max_in_flight=100, **options).add_handler(seen)):
        for count in range(1, 12):
            began = time.time()
            assert nsqd.get("/ping").status == 200
            answers.append(time.time() - began)
            publish(nsqd, [b"now"])
            seen.wait_for(count)
        (client,) = clients_of(nsqd)
    # The median, as the machine may be busy at any moment, and for all that nobody holds: go-nsq's is 135 ms.
    assert statistics.median(delays) < bound + 5 * statistics.median(answers)
    assert client["user_agent"].startswith("nsq-python/")


# Backing off.


class Backoffs(ConsumerHooks):
    def __init__(self) -> None:
        self.levels: list[int] = []

    def backing_off(self, level: int) -> None:
        self.levels.append(level)


def in_pause(health: ConsumerHealth) -> ConsumerHealth | None:
    """Given back while nothing is let through, not even one message to test the waters."""
    return health if "backing off for" in health.summary else None


def test_failures_back_off_and_a_success_ends_it(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"fails twice"])
    hooks = Backoffs()
    times: list[float] = []

    def handle(message: Message) -> bool:
        times.append(time.monotonic())
        return message.attempts > 2 or message.body == b"one more"

    seen = Recorder(handle)
    # 0.5 s at level 1, 1 s at level 2, 0.5 s again on the way back.
    consumer = make_consumer(nsqd, max_backoff_duration=10.0, backoff_multiplier=0.25, hooks=hooks)
    with running(consumer.add_handler(seen)):
        # Whoever looks late sees the second time.
        health = until("backing off", lambda: in_pause(consumer.health()))
        assert not health.ok
        assert health.backoff_level in (1, 2)
        seen.wait_for(3)
        publish(nsqd, [b"one more"])  # for the way back
        until("back to normal", lambda: consumer.health().backoff_level == 0)
        expect_drained(nsqd, requeues=2)
        until("the hooks", lambda: hooks.levels == [1, 2, 1, 0])
    assert times[1] - times[0] >= 0.49
    assert times[2] - times[1] >= 0.99


def test_one_message_tests_the_waters(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"bad"])
    gate = Gate()

    def handle(message: Message) -> bool | None:
        if message.body == b"bad" and message.attempts == 1:
            return False
        return gate(message)

    consumer = make_consumer(nsqd, threads=4, max_backoff_duration=10.0, backoff_multiplier=0.05)
    with running(consumer.add_handler(handle)):
        until("backing off", lambda: consumer.health().backoff_level == 1)
        # Known here a little earlier than there: until then nsqd would send more than one.
        until("told so", lambda: channel_of(nsqd)["clients"][0]["ready_count"] <= 1)
        publish(nsqd, numbered(8))
        gate.wait_until_held(1)
        (connection,) = consumer.health().connections
        assert connection.reason == "backing off (level 1): tests the waters with one message"
        assert (connection.rdy, connection.in_flight) == (1, 1)
        gate.let_go()
        expect_drained(nsqd, requeues=1)


@pytest.mark.parametrize(
    "fault", [LookupError("ours"), Requeue(backoff=False)], ids=["no_backoff", "Requeue(backoff=False)"]
)
def test_some_failures_do_not_back_off(nsqd: Nsqd, fault: Exception) -> None:
    create(nsqd)
    publish(nsqd, [b"again"])
    hooks = Backoffs()

    def fail_once(message: Message) -> None:
        if message.attempts == 1:
            raise fault

    seen = Recorder(fail_once)
    consumer = make_consumer(nsqd, max_backoff_duration=60.0, hooks=hooks)
    with running(consumer.add_handler(seen, no_backoff=(LookupError,))):
        seen.wait_for(2)
        expect_drained(nsqd, requeues=1)
    assert hooks.levels == []
