"""How many messages a consumer takes at once: RDY over one and several nsqds, pauses, backoff."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from nsq import ConsumerHooks, GiveUp, Message, Requeue
from nsq.errors import ConfigError
from tests.behaviour.conftest import NsqdFactory
from tests.fakes.wire import Wire
from tests.integration.consuming import (
    PATIENCE,
    AnyNsqd,
    Gate,
    Recorder,
    channel_of,
    expect_drained,
    log_of,
    make_consumer,
    numbered,
    publish,
    rdys,
    running,
    until,
)


def in_flight(nsqds: Sequence[AnyNsqd]) -> int:
    """What all nsqds together have in flight, by their own account."""
    return sum(channel_of(nsqd)["in_flight_count"] for nsqd in nsqds)


# A rate.


def begun_at_a_rate(times: list[float], rate: float) -> None:
    """Check when handlers have begun: on average as the rate says, in no half second much more."""
    assert times[-1] - times[0] >= (len(times) - 4) / rate - 0.1 - 0.01  # a batch, and the burst of 0.1 s
    for begin in times:
        assert sum(begin <= each < begin + 0.5 for each in times) <= rate * 0.6 + 2


@pytest.mark.parametrize("kind", ["threads", "batch"])
def test_handlers_begin_no_more_messages_a_second_than_the_rate(nsqd: AnyNsqd, kind: str) -> None:
    times: list[float] = []
    consumer = make_consumer(nsqd, rate=40.0, threads=8, max_in_flight=300)
    if kind == "threads":
        consumer.add_handler(lambda message: times.append(time.monotonic()))
    else:
        consumer.add_batch_handler(lambda batch: times.extend([time.monotonic()] * len(batch)), 4, 0.0)
    publish(nsqd, numbered(40))
    with running(consumer):
        (health,) = consumer.health().connections
        assert (health.rdy, health.reason) == (200, "its share of 200, which the rate allows")
        expect_drained(nsqd)
    begun_at_a_rate(sorted(times), 40.0)


def test_a_rate_may_be_changed_at_any_time(nsqd: AnyNsqd) -> None:
    seen = Recorder()
    with running(make_consumer(nsqd, rate=1 / 60, threads=4).add_handler(seen)) as consumer:
        until("a window of one", lambda: rdys([nsqd]) == [1])
        publish(nsqd, numbered(20))
        seen.wait_for(1)
        consumer.set_rate(1000.0)
        seen.wait_for(10)
        consumer.set_rate(None)
        expect_drained(nsqd)
        for rate in (0.01, -1.0, True, "fast", float("nan")):
            with pytest.raises(ConfigError, match="rate is"):
                consumer.set_rate(rate)  # type: ignore[arg-type]


def test_a_message_that_waits_for_the_rate_does_not_time_out(nsqd: AnyNsqd) -> None:
    with running(make_consumer(nsqd, rate=0.7, msg_timeout=1.0).add_handler(Recorder())) as consumer:
        publish(nsqd, numbered(2))
        expect_drained(nsqd)
        assert consumer.stats().timed_out == 0


# max_in_flight.


def test_max_in_flight_is_for_all_nsqds_together(three: list[AnyNsqd]) -> None:
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


def test_nsqds_take_turns_if_there_are_more_than_messages_at_once(three: list[AnyNsqd]) -> None:
    gate = Gate()
    gate.let_go()
    # An nsqd that has its turn and nothing to send loses it, after the shortest times there are.
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
        until(
            "health says so", lambda: Counter(each.reason for each in consumer.health().connections) == wanted
        )
        for nsqd in three:
            expect_drained(nsqd)
    assert gate.most_held == 1
    assert gate.passed == 60


def test_idle_nsqds_leave_their_window_to_busy_ones(two: list[AnyNsqd]) -> None:
    busy, idle = two
    gate = Gate()
    consumer = make_consumer(
        two, threads=10, max_in_flight=10, low_rdy_idle_timeout=1.0, rdy_redistribute_interval=0.05
    )
    with running(consumer.add_handler(gate), connections=2):
        publish(busy, numbered(50))
        until("nine for the busy one", lambda: gate.held == 9)
        idle_ones = ["idle: its share is with connections that have messages"]
        until(
            "health says so",
            lambda: [each.reason for each in consumer.health().connections if each.rdy == 1] == idle_ones,
        )
        publish(idle, [b"news"])
        gate.wait_until_held(10)
        gate.let_go()
        for nsqd in two:
            expect_drained(nsqd)
    assert gate.most_held == 10


def test_a_change_of_max_in_flight_takes_effect_at_once(nsqd: AnyNsqd) -> None:
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


@pytest.mark.parametrize(
    ("granted", "options", "before_start", "rdy"),
    [
        ({}, {}, None, 2 * 3 + 2 * 10),
        ({}, {"max_in_flight": 5}, None, 5),
        ({}, {"max_in_flight": 5}, 7, 7),
        ({"max_rdy_count": 5}, {"max_in_flight": 100}, None, 5),
    ],
    ids=["from the handlers", "from the option", "set before the start", "limited by nsqd"],
)
def test_the_window_of_an_nsqd(
    nsqd_factory: NsqdFactory,
    granted: dict[str, int],
    options: dict[str, int],
    before_start: int | None,
    rdy: int,
) -> None:
    nsqd = nsqd_factory(**granted)
    consumer = make_consumer(nsqd, threads=3, **options).add_handler(Recorder())
    consumer.add_batch_handler(Recorder(), size=10)
    if before_start is not None:
        consumer.set_max_in_flight(before_start)
    with running(consumer):
        until("the window", lambda: rdys([nsqd]) == [rdy])
        (connection,) = consumer.health().connections
        assert connection.rdy == rdy
        assert ("limited by the nsqd's max_rdy_count of 5" in connection.reason) == bool(granted)


# Pause, starvation.


def test_a_pause_lasts_until_resume(nsqd: AnyNsqd, wire: Wire) -> None:
    seen = Recorder()
    consumer = make_consumer(nsqd, max_in_flight=5, transport=wire).add_handler(seen)
    with running(consumer):
        publish(nsqd, [b"before"])
        wire.expect(nsqd.tcp_address, "RDY 5", "FIN")
        for _ in range(2):
            consumer.pause()
        wire.expect(nsqd.tcp_address, "RDY 0")
        publish(nsqd, [b"after"])
        health = consumer.health()
        assert (health.ok, health.paused, health.summary) == (False, True, "no nsqd may send: paused")
        assert channel_of(nsqd)["depth"] == 1
        for _ in range(2):
            consumer.resume()
        wire.expect(nsqd.tcp_address, "RDY 5", "FIN")
        assert consumer.health().ok
        expect_drained(nsqd)
    assert seen.bodies == [b"before", b"after"]
    assert wire.rest(nsqd.tcp_address) == ["CLS"]


def test_a_consumer_may_start_paused(nsqd: AnyNsqd) -> None:
    publish(nsqd, [b"waits"])
    seen = Recorder()
    with running(make_consumer(nsqd, max_in_flight=0).add_handler(seen)) as consumer:
        assert consumer.health().summary == "no nsqd may send: max_in_flight is 0"
        consumer.set_max_in_flight(1)
        seen.wait_for(1)


@pytest.mark.parametrize(("max_in_flight", "starved_at"), [(1, 1), (2, 2), (4, 4), (10, 9)])
def test_a_consumer_is_starved_while_hardly_more_can_come(
    nsqd: AnyNsqd, max_in_flight: int, starved_at: int
) -> None:
    gate = Gate()
    consumer = make_consumer(nsqd, threads=max_in_flight, max_in_flight=max_in_flight).add_handler(gate)
    with running(consumer):
        for held in range(1, starved_at + 1):
            assert not consumer.is_starved
            publish(nsqd, [b"m"])
            gate.wait_until_held(held)
        assert consumer.is_starved
        assert consumer.health().starved
        gate.let_go()
        expect_drained(nsqd)
        until("its own account", lambda: not consumer.is_starved)


# Backing off. The body of a message says what its handler does at each attempt.

RETURNS = {b"good": None, b"bad": False}


class KeyNotFound(LookupError):
    pass


def handle(message: Message) -> object:
    words = message.body.split()
    word = words[min(message.attempts, len(words)) - 1]
    if word == b"later":
        raise Requeue(backoff=False)
    if word == b"hopeless":
        raise GiveUp("cannot be read")
    if word == b"exempt":
        raise KeyNotFound
    return RETURNS[word]


class Levels(ConsumerHooks):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def backing_off(self, level: int) -> None:
        self.seen.append(level)


#: Seconds of a pause: long, compared with the microseconds between two decisions about RDY.
PAUSE = 0.1
#: What becomes of messages, published one after the other; the levels; RDYs; answers.
BACKOFFS: dict[str, tuple[list[bytes], list[int], list[int], str]] = {
    "one level": ([b"good", b"bad good"], [1, 0], [5, 0, 1, 5], "FIN REQ FIN"),
    "three levels": (
        [b"bad bad bad good", b"good", b"good"],
        [1, 2, 3, 2, 1, 0],
        [5, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 5],
        "REQ REQ REQ FIN FIN FIN",
    ),
    "a requeue without backoff repeats the test": (
        [b"bad later good"],
        [1, 1, 0],
        [5, 0, 1, 0, 1, 5],
        "REQ REQ FIN",
    ),
    "a requeue without backoff changes nothing": ([b"later good"], [], [5], "REQ FIN"),
    "giving up repeats the test": ([b"bad hopeless", b"good"], [1, 1, 0], [5, 0, 1, 0, 1, 5], "REQ FIN FIN"),
    "giving up changes nothing": ([b"hopeless"], [], [5], "FIN"),
    "an exempt exception changes nothing": ([b"exempt good"], [], [5], "REQ FIN"),
}


@pytest.mark.parametrize("case", BACKOFFS)
def test_failures_back_off_and_successes_end_it(nsqd: AnyNsqd, wire: Wire, case: str) -> None:
    bodies, levels, expected, answers = BACKOFFS[case]
    hooks = Levels()
    consumer = make_consumer(
        nsqd,
        max_in_flight=5,
        max_backoff_duration=3600.0,
        backoff_after=0.0,
        backoff_strategy=lambda level: PAUSE,
        hooks=hooks,
        transport=wire,
    )
    with running(consumer.add_handler(handle, no_backoff=(LookupError,))):
        for number, body in enumerate(bodies, 1):
            publish(nsqd, [body])
            until("finished", lambda number=number: consumer.stats().finished == number)
        expect_drained(nsqd, requeues=answers.count("REQ"))
        until("the hooks", lambda: hooks.seen == levels)
    rest = [each for each in wire.rest(nsqd.tcp_address) if each != "CLS"]
    assert [int(each[4:]) for each in rest if each.startswith("RDY")] == expected
    # An answer is sent after the RDY that it causes, as it makes room for another message.
    assert [each.split()[0] for each in rest if not each.startswith("RDY")] == answers.split()
    if levels:
        assert rest.index("RDY 0") < rest.index("REQ 0")


def failing(level: int) -> float:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "paused for 0.002 s, then one message to try (backing off, step 1)"),
        ({"backoff_strategy": "full_jitter"}, "then one message to try"),
        ({"backoff_strategy": failing}, "exponential this time"),
        ({"max_backoff_duration": 0.0}, ""),
    ],
    ids=["exponential", "full jitter", "a function that fails", "switched off"],
)
def test_a_strategy_costs_no_message(nsqd: AnyNsqd, options: dict[str, Any], said: str) -> None:
    hooks = Levels()
    brisk = {"backoff_after": 0.0, "backoff_multiplier": 0.001, "max_backoff_duration": 60.0, "hooks": hooks}
    publish(nsqd, [b"bad good"])
    with (
        log_of() as log,
        running(make_consumer(nsqd, **{**brisk, **options}).add_handler(handle)) as consumer,
    ):
        until("finished", lambda: consumer.stats().finished == 1)
        until("over", lambda: consumer.health().backoff_level == 0)
        expect_drained(nsqd, requeues=1)
    assert not said or log.wait_for(said)
    assert hooks.seen == ([1, 0] if said else [])


@pytest.mark.parametrize("kind", ["one", "batch"])
def test_a_few_poison_messages_delay_no_other(nsqd: AnyNsqd, kind: str) -> None:
    hooks, good = Levels(), set()

    def handle_each(message: Message) -> bool:
        if message.body == b"good":
            good.add(message.id)
        return message.body == b"good"

    def handle_batch(messages: list[Message]) -> bool:
        return min([handle_each(message) for message in messages])

    consumer = make_consumer(
        nsqd, threads=8, hooks=hooks, max_backoff_duration=3600.0, default_requeue_delay=3600.0
    )
    if kind == "one":
        consumer.add_handler(handle_each)
    else:
        consumer.add_batch_handler(handle_batch, size=10, wait=0.01, threads=2)
    with log_of() as log, running(consumer):
        publish(nsqd, ([b"good"] * 99 + [b"bad"]) * 10)
        until("the good ones", lambda: len(good) == 990)
        until("answered", lambda: channel_of(nsqd)["in_flight_count"] == 0)
        assert consumer.health().failure_share < 0.5
        log.wait_for("of the last 20 calls of handlers failed; no backing off below 50 %")
    assert hooks.seen == []


def test_a_dead_service_is_called_a_few_times_before_the_first_pause(nsqd: AnyNsqd) -> None:
    seen, hooks = Recorder(lambda message: False), Levels()
    consumer = make_consumer(
        nsqd, threads=8, max_backoff_duration=3600.0, backoff_multiplier=1000.0, hooks=hooks
    )
    with running(consumer.add_handler(seen)):
        publish(nsqd, numbered(200))
        until("backing off", lambda: hooks.seen == [1])
        until("answered", lambda: channel_of(nsqd)["in_flight_count"] == 0)
        assert 14 <= len(seen.messages) <= 20 + 16


def test_nothing_ends_a_backoff_before_its_time(nsqd: AnyNsqd) -> None:
    """Neither other failures, nor successes of messages in flight, nor a pause, nor a new connection."""
    gate, together, hooks = Gate(), threading.Barrier(3), Levels()

    def fail_together(message: Message) -> object:
        return gate(message) if message.body == b"good" else together.wait(PATIENCE) < 0

    options = {"threads": 4, "reconnect_initial": 0.01, "hooks": hooks, "max_backoff_duration": 3600.0}
    consumer = make_consumer(nsqd, **options, backoff_after=0.0, backoff_strategy=lambda level: 3600.0)
    with running(consumer.add_handler(fail_together)):
        publish(nsqd, [b"good"])
        gate.wait_until_held(1)
        publish(nsqd, [b"bad"] * 3)
        until("requeued", lambda: consumer.stats().requeued == 3)
        gate.let_go()
        until("finished", lambda: consumer.stats().finished == 1)
        consumer.pause()
        consumer.resume()
        nsqd.restart()
        until("there again", lambda: rdys([nsqd]) == [0] and consumer.health().connections)
        health = consumer.health()
        assert (health.ok, health.backoff_level, "backing off for" in health.summary) == (False, 1, True)
        assert rdys([nsqd]) == [0]
    assert hooks.seen == [1]


def test_one_message_from_one_nsqd_tests_whether_a_backoff_is_over(two: list[AnyNsqd]) -> None:
    gate = Gate()

    def fail_once(message: Message) -> object:
        return gate(message) if message.body != b"bad" or message.attempts > 1 else False

    consumer = make_consumer(
        two, threads=6, max_in_flight=6, max_backoff_duration=10.0, backoff_multiplier=0.05, backoff_after=0.0
    )
    with running(consumer.add_handler(fail_once), connections=2):
        until("equal shares", lambda: rdys(two) == [3, 3])
        publish(two[0], [b"bad"])
        until("backing off", lambda: consumer.health().backoff_level == 1)
        # Known here a little earlier than there: until then nsqd would send more than one.
        until("nsqd knows it", lambda: max(rdys(two)) <= 1)
        for nsqd in two:
            publish(nsqd, numbered(8))
        gate.wait_until_held(1)
        (busy,) = [each for each in consumer.health().connections if each.in_flight]
        assert (busy.rdy, busy.reason) == (1, "backing off (level 1): tries one message")
        assert sorted(rdys(two)) == [0, 1]
        gate.let_go()
        until("equal shares again", lambda: rdys(two) == [3, 3])
        expect_drained(two[0], requeues=1)
        expect_drained(two[1])


def test_a_connection_that_is_lost_during_the_test_is_followed_by_another_test(nsqd: AnyNsqd) -> None:
    gate, hooks = Gate(), Levels()
    quick = {
        "threads": 2,
        "max_backoff_duration": 10.0,
        "backoff_after": 0.0,
        "backoff_multiplier": 0.01,
        "reconnect_initial": 0.01,
    }
    consumer = make_consumer(nsqd, **quick, max_in_flight=5, hooks=hooks)
    with running(consumer.add_handler(lambda message: message.attempts > 1 and (gate(message), True)[1])):
        publish(nsqd, [b"bad"])
        gate.wait_until_held(1)
        nsqd.restart()
        until("there again", lambda: consumer.stats().received == 3)  # and waits for the end of the run
        assert (rdys([nsqd]), consumer.health().backoff_level, gate.held) == ([1], 1, 1)
        gate.let_go()
        until("all of it", lambda: rdys([nsqd]) == [5])
        expect_drained(nsqd, requeues=None)
    assert hooks.seen == [1, 0]
