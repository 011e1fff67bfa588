"""RDY and backing off: by example, then by random histories."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any, Self

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsq.consumer.rdy import Backoff, HandlingLimit, NsqdWindow, Outcome, RdyWindows, exponential

SUCCESS, FAILURE, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL
IDLE, TURN = 10.0, 30.0
START = 1000.0


class World:
    """Windows and their connections, and a clock that ``tick`` moves."""

    def __init__(
        self,
        max_in_flight: int,
        *,
        longest: float = 120.0,
        picks: int = 0,
        kind: type[RdyWindows] = RdyWindows,
        grows: bool = False,
    ) -> None:
        self.backoff = Backoff(exponential(1.0), longest)
        self.windows = kind(
            max_in_flight, self.backoff, lambda keys: keys[picks % len(keys)], IDLE, TURN, grows
        )
        self.now = START
        self.in_flight: dict[Hashable, int] = {}
        self.rdy: dict[Hashable, int] = {}
        self.orders: list[tuple[Hashable, int]] = []

    def decide(self) -> None:
        """Obey one order after the other: between two of them no more messages may come than at the end."""
        self.orders = orders = self.windows.decide(self.now, self.in_flight)
        bound = max(self.windows.max_in_flight, self.windows.allowed, self.possible())
        grown = False
        for key, rdy in orders:
            assert rdy != self.rdy[key], "it has this RDY already"
            grown = grown or rdy > self.rdy[key]
            assert not grown or rdy > self.rdy[key], "one shrinks after another has grown"
            self.rdy[key] = rdy
            assert self.possible() <= bound

    def possible(self) -> int:
        """How many messages may be in flight, now or later."""
        return sum(max(self.rdy[key], self.in_flight[key]) for key in self.rdy)

    def connect(self, *keys: str, max_rdy: int = 2500) -> Self:
        for key in keys:
            self.in_flight[key] = self.rdy[key] = 0
            self.windows.connected(key, max_rdy, self.now)
            self.decide()
        return self

    def fail(self) -> Self:
        """Begin to back off."""
        self.answer("a", FAILURE, count=0)
        return self

    def disconnect(self, key: str) -> None:
        del self.in_flight[key], self.rdy[key]
        self.windows.disconnected(key)
        self.decide()

    def close(self, key: str) -> None:
        self.rdy[key] = 0
        self.windows.closing(key)
        self.decide()

    def expect(self, connections: int) -> None:
        self.windows.expected = connections
        self.decide()

    def receive(self, key: str, count: int = 1) -> None:
        self.in_flight[key] += count
        nsqd = self.windows.nsqds[key]
        news = self.now - nsqd.last_message_at >= IDLE
        nsqd.last_message_at = nsqd.has_sent_at = self.now
        if news:
            self.decide()

    def answer(self, key: str, outcome: Outcome = SUCCESS, count: int = 1) -> None:
        self.in_flight[key] -= count
        self.orders = []
        if self.windows.outcome(outcome, self.now) or self.windows.below_target:
            self.decide()

    def set_max_in_flight(self, count: int) -> None:
        self.windows.max_in_flight = count
        self.decide()

    def pause(self, paused: bool) -> None:
        self.windows.paused = paused
        self.decide()

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.windows.tick(self.now, self.in_flight)
        self.decide()


class TestShares:
    @pytest.mark.parametrize(
        ("max_in_flight", "shares"),
        [(9, [9]), (10, [5, 5]), (9, [3, 3, 3]), (10, [4, 3, 3]), (11, [4, 4, 3]), (3, [1, 1, 1])],
    )
    def test_shares_differ_by_one_at_most(self, max_in_flight: int, shares: list[int]) -> None:
        world = World(max_in_flight)
        world.expect(len(shares))
        world.connect(*"abc"[: len(shares)])
        assert sorted(world.rdy.values(), reverse=True) == shares

    def test_expected_connections_have_a_share_too(self) -> None:
        world = World(12)
        world.expect(3)
        world.connect("a")
        assert world.rdy == {"a": 4}
        world.expect(1)
        assert world.rdy == {"a": 12}

    def test_a_closing_connection_leaves_its_share_as_its_messages_are_answered(self) -> None:
        world = World(10).connect("a", "b")
        world.receive("a", 4)
        world.close("a")
        assert world.orders == [("b", 6)]
        assert "in flight" in world.windows.reason("b")
        world.answer("a", count=3)
        assert world.orders == [("b", 9)]
        world.disconnect("a")
        assert world.orders == [("b", 10)]

    def test_messages_in_flight_count_when_shares_move(self) -> None:
        world = World(10).connect("a")
        world.receive("a", 8)
        world.connect("b")
        assert world.rdy == {"a": 5, "b": 2}
        world.answer("a", count=2)
        assert world.rdy == {"a": 5, "b": 4}
        world.answer("a", count=1)
        assert world.rdy == {"a": 5, "b": 5}
        assert not world.windows.below_target


class TestMaxInFlight:
    def test_lowered_below_what_is_in_flight_nothing_new_comes(self) -> None:
        world = World(10).connect("a", "b")
        world.set_max_in_flight(8)
        assert world.rdy == {"a": 4, "b": 4}
        world.receive("a", 4)
        world.set_max_in_flight(4)
        assert world.rdy == {"a": 2, "b": 0}
        world.answer("a", count=2)
        assert world.rdy == {"a": 2, "b": 2}


class TestIdle:
    def test_all_nsqds_have_their_share_while_all_are_idle(self) -> None:
        world = World(10).connect("a", "b")
        world.tick(10 * IDLE)
        assert world.rdy == {"a": 5, "b": 5}

    def test_an_nsqd_whose_message_is_handled_for_long_is_not_idle(self) -> None:
        world = World(10).connect("a", "b")
        world.receive("b")
        world.now += IDLE
        world.receive("a")
        world.tick()
        assert world.rdy == {"a": 5, "b": 5}


class TestMoreConnectionsThanMessages:
    def test_a_turn_ends_when_no_message_comes(self) -> None:
        world = World(1).connect("a", "b")
        world.tick(IDLE - 1)
        assert world.orders == []
        world.tick(1)
        assert world.orders == [("a", 0), ("b", 1)]

    def test_a_turn_with_messages_lasts_longer(self) -> None:
        world = World(1).connect("a", "b")
        for _ in range(5):
            world.tick(5)
            world.receive("a")
            world.answer("a")
        assert world.rdy == {"a": 1, "b": 0}
        world.tick(5)
        assert world.rdy == {"a": 0, "b": 1}

    def test_each_connection_has_its_turn_whatever_is_picked(self) -> None:
        world = World(1)  # which always picks the first
        world.connect("a", "b", "c", "d")
        turns = []
        for _ in range(8):
            turns += [key for key, rdy in world.rdy.items() if rdy]
            world.tick(IDLE)
        assert turns == ["a", "b", "c", "d"] * 2

    def test_the_next_turn_waits_for_messages_in_flight(self) -> None:
        world = World(1).connect("a", "b")
        world.receive("a")
        world.tick(TURN)
        assert world.rdy == {"a": 0, "b": 0}
        assert "waits for messages in flight" in world.windows.reason("b")
        world.answer("a")
        assert world.rdy == {"a": 0, "b": 1}

    @pytest.mark.parametrize(("max_in_flight", "every"), [(2, 1), (2, 12), (3, 2), (3, 6), (4, 4)])
    def test_each_connection_is_served_alike_however_slow_handlers_are(
        self, max_in_flight: int, every: int
    ) -> None:
        world = World(max_in_flight).connect(*"abcde")
        world.windows.pick = random.Random(7).choice
        served, here = dict.fromkeys("abcde", 0), list[str]()
        for tick in range(400 * every):
            world.tick(5)
            if here and tick % every == 0:
                world.answer(here.pop(0))
            for key in served:
                if world.rdy[key] > world.in_flight[key]:
                    world.receive(key)
                    here.append(key)
                    served[key] += 1
        assert max(served.values()) <= 1.5 * min(served.values()), served


class TestBackingOff:
    def test_the_nsqd_that_has_sent_last_is_tested(self) -> None:
        world = World(10).connect("empty", "full")
        for level in range(3):
            world.tick(0.1)
            world.receive("full")
            world.answer("full", FAILURE)
            world.connect(f"new {level}")
            world.tick(2 ** (level + 1))
            assert {key for key, rdy in world.rdy.items() if rdy} == {"full"}

    def test_connections_are_tested_in_turn_until_a_message_comes(self) -> None:
        world = World(10).connect("a", "b", "c").fail()
        world.tick(2)
        testers = []
        for _ in range(6):
            testers += [key for key, rdy in world.rdy.items() if rdy]
            world.tick(IDLE)
        assert testers == ["a", "b", "c"] * 2

    def test_an_nsqd_that_sends_during_the_choice_does_no_harm(self) -> None:
        class Busy(NsqdWindow):
            """Its read loop gets a message whenever the owner looks."""

            sent = 0.0

            @property
            def has_sent_at(self) -> float:  # type: ignore[override]
                self.sent += 1.0
                return self.sent

            @has_sent_at.setter
            def has_sent_at(self, now: float) -> None: ...

        world = World(10).connect("a")
        world.windows.nsqds["a"] = Busy("a", 2500, rdy=10)
        world.answer("a", FAILURE, count=0)
        world.tick(2.0)
        assert world.rdy == {"a": 1}


class TestBackoff:
    def test_strategies_double_from_level_to_level_and_never_overflow(self) -> None:
        assert [exponential(1.0)(level) for level in (1, 2, 7, 100_000)] == [2, 4, 128, 2.0**62]
        assert [exponential(0.25, lambda: 0.5)(level) for level in (1, 2, 3)] == [0.25, 0.5, 1.0]

    def test_failures_climb_to_the_longest_wait_and_successes_go_down_again(self) -> None:
        asked: list[int] = []

        def strategy(level: int) -> float:
            asked.append(level)
            return 2.0**level

        backoff, now, seen = Backoff(strategy, 10.0), 0.0, []
        for outcome in [FAILURE] * 5 + [NEUTRAL] + [SUCCESS] * 3:
            assert backoff.outcome(outcome, now)
            seen.append((backoff.level, 0.0 if backoff.until is None else backoff.until - now))
            for ignored in Outcome:  # while it waits
                assert backoff.level == 0 or not backoff.outcome(ignored, now)
            now = backoff.until or now
            assert backoff.waiting == (backoff.level > 0)
            backoff.expire(now)
            assert not backoff.waiting
        assert seen == [(1, 2.0), (2, 4.0), (3, 8.0)] + [(3, 8.0)] * 3 + [(2, 4.0), (1, 2.0), (0, 0.0)]
        assert min(asked) == 1


class TestShareOfFailures:
    """When a consumer begins to back off, with the threshold of 0.5."""

    @staticmethod
    def failures_until_it_backs_off(backoff: Backoff, now: float = 0.0, **outcome: Any) -> int:
        for number in range(1, 1000):
            if backoff.outcome(FAILURE, now, **outcome):
                return number
        return 0

    @pytest.mark.parametrize(
        ("calls_at_once", "threshold", "expected"),
        [(1, 0.5, 14), (10, 0.5, 14), (25, 0.5, 35), (50, 0.5, 69), (1, 0.0, 1), (1, 0.9, 45)],
    )
    def test_a_service_that_is_down_is_noticed_after_some_failures(
        self, calls_at_once: int, threshold: float, expected: int
    ) -> None:
        backoff = Backoff(exponential(1.0), 60.0, threshold)
        backoff.set_at_once(calls_at_once)
        assert self.failures_until_it_backs_off(backoff) == expected

    def test_few_failures_among_successes_never_back_off(self) -> None:
        backoff = Backoff(exponential(1.0), 60.0, 0.5)
        assert self.failures_until_it_backs_off(backoff, successes=3) == 0
        assert backoff.failure_share < 0.5

    def test_later_attempts_count_only_if_there_have_been_no_first_ones(self) -> None:
        backoff = Backoff(exponential(1.0), 60.0, 0.5)
        backoff.outcome(FAILURE, 0.0, first=True)
        # Poison messages that return together.
        assert self.failures_until_it_backs_off(backoff, now=9.0, first=False) == 0
        # Nothing else for long. (They have failed more than ``window`` times already.)
        assert self.failures_until_it_backs_off(backoff, now=10.0, first=False) == 13

    def test_a_consumer_that_starts_in_an_outage_counts_every_attempt(self) -> None:
        backoff = Backoff(exponential(1.0), 60.0, 0.5)
        assert self.failures_until_it_backs_off(backoff, first=False) == 14

    def test_a_success_makes_later_attempts_count_for_nothing_again(self) -> None:
        backoff = Backoff(exponential(1.0), 60.0, 0.5)
        assert not backoff.outcome(FAILURE, 0.0, first=False, successes=1)
        assert self.failures_until_it_backs_off(backoff, first=False) == 0

    def test_with_a_threshold_of_zero_every_attempt_backs_off(self) -> None:
        backoff = Backoff(exponential(1.0), 60.0, 0.0)
        backoff.outcome(SUCCESS, 0.0, successes=100)
        assert backoff.outcome(FAILURE, 0.0, first=False)

    def test_the_test_message_counts_at_any_attempt(self) -> None:
        backoff = Backoff(exponential(1.0), 60.0, 0.5)
        self.failures_until_it_backs_off(backoff)
        backoff.expire(2.0)
        assert backoff.outcome(FAILURE, 2.0, first=False)
        assert backoff.level == 2

    def test_after_backing_off_the_share_begins_at_the_threshold(self) -> None:
        backoff = Backoff(exponential(1.0), 60.0, 0.5)
        self.failures_until_it_backs_off(backoff)
        backoff.expire(2.0)
        assert backoff.outcome(SUCCESS, 2.0)
        assert backoff.level == 0
        assert backoff.outcome(FAILURE, 2.0)


class TestRoomThatGrows:
    """The windows where the user has not set max_in_flight and one nsqd has many connections."""

    @pytest.mark.parametrize(
        ("max_in_flight", "connected", "rdy"), [(2, "abc", [1, 1, 1]), (2, "a", [1]), (9, "abc", [3, 3, 3])]
    )
    def test_each_connection_gets_a_message_at_least(
        self, max_in_flight: int, connected: str, rdy: list[int]
    ) -> None:
        world = World(max_in_flight, grows=True)
        world.expect(3)
        world.connect(*connected)
        assert list(world.rdy.values()) == rdy


def test_an_unknown_connection_has_no_window() -> None:
    world = World(1)
    assert world.windows.reason("x") == "not connected"
    world.windows.disconnected("x")
    world.windows.closing("x")
    assert world.windows.decide(START, {}) == []


class Anything(RuleBasedStateMachine):
    """nsqds that send as much as RDY allows and no more; the windows get the numbers in flight."""

    @initialize(
        max_in_flight=st.integers(0, 12),
        longest=st.sampled_from([0.0, 120.0]),
        chance=st.randoms(use_true_random=False),
    )
    def begin(self, max_in_flight: int, longest: float, chance: random.Random) -> None:
        self.world = World(max_in_flight, longest=longest)
        self.world.windows.pick = chance.choice
        self.limits: dict[Hashable, int] = {}
        self.closing: set[Hashable] = set()
        self.names = 0

    def keys(self) -> st.SearchStrategy[str]:
        return st.sampled_from(sorted(self.limits))

    @rule(max_rdy=st.sampled_from([1, 5, 2500]))
    def connect(self, max_rdy: int) -> None:
        self.names += 1
        name = f"{self.names:03}"
        self.limits[name] = max_rdy
        self.world.connect(name, max_rdy=max_rdy)

    @precondition(lambda self: self.limits)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        key = data.draw(self.keys())
        del self.limits[key]
        self.closing.discard(key)
        self.world.disconnect(key)

    @precondition(lambda self: self.limits)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        key = data.draw(self.keys())
        self.closing.add(key)
        self.world.close(key)

    @precondition(lambda self: self.limits)
    @rule(data=st.data(), count=st.integers(1, 12))
    def send(self, data: st.DataObject, count: int) -> None:
        key = data.draw(self.keys())
        room = self.world.rdy[key] - self.world.in_flight[key]
        if room > 0:
            self.world.receive(key, min(room, count))

    @precondition(lambda self: self.limits)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome), count=st.integers(1, 12))
    def answer(self, data: st.DataObject, outcome: Outcome, count: int) -> None:
        key = data.draw(self.keys())
        held = self.world.in_flight[key]
        if held:
            self.world.answer(key, outcome, min(held, count))

    @rule(seconds=st.sampled_from([0.1, 2.0, 5.0, 11.0, 40.0]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule(count=st.integers(0, 12))
    def set_max_in_flight(self, count: int) -> None:
        self.world.set_max_in_flight(count)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.world.pause(paused)

    @rule(count=st.integers(0, 6))
    def expect(self, count: int) -> None:
        self.world.expect(count)

    @invariant()
    def what_can_be_in_flight_is_bounded(self) -> None:
        world = self.world
        if world.possible() > world.windows.max_in_flight:
            # Somebody has lowered max_in_flight below that: no new message may come.
            assert all(world.rdy[key] <= world.in_flight[key] for key in self.limits)

    @invariant()
    def every_order_is_one_that_nsqd_takes(self) -> None:
        for key, limit in self.limits.items():
            assert 0 <= self.world.rdy[key] <= limit
            assert self.world.windows.nsqds[key].rdy == self.world.rdy[key]
        assert not {key for key, _ in self.world.orders} & self.closing
        assert len({key for key, _ in self.world.orders}) == len(self.world.orders)

    @invariant()
    def stopped_means_stopped(self) -> None:
        world = self.world
        if world.windows.paused or world.backoff.waiting or not world.windows.max_in_flight:
            assert not any(world.rdy.values())
        elif world.backoff.testing:
            assert sum(world.rdy.values()) <= 1

    @invariant()
    def every_connection_has_a_reason(self) -> None:
        assert all(self.world.windows.reason(key) for key in self.limits if key not in self.closing)

    def teardown(self) -> None:
        """Everything is answered, time passes, messages are there: each connection's turn comes."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for key in self.limits:
            world.in_flight[key] = 0
        world.pause(False)
        world.expect(0)
        if not world.windows.max_in_flight:
            world.set_max_in_flight(3)
        alive = self.limits.keys() - self.closing
        served: set[Hashable] = set()
        for _ in range(400):
            self.stopped_means_stopped()
            world.tick(5.0)
            ready = [key for key in alive if world.rdy[key]]
            served |= set(ready)
            if alive and not world.backoff.waiting:
                assert ready, "no connection may send"
            for key in ready:
                if world.rdy[key]:
                    world.receive(str(key))
                    self.what_can_be_in_flight_is_bounded()
                    world.answer(str(key))
            if served == alive and not world.backoff.level:
                break
        assert served == alive
        assert not world.backoff.level or not alive


TestAnything = Anything.TestCase
TestAnything.settings = settings(stateful_step_count=40)


class TestHandlingLimit:
    """Messages that time out before their handlers are done make the windows smaller for a while."""

    TIMEOUT = 60.0

    def test_it_halves_once_in_a_timeout_and_grows_while_handlers_are_quick(self) -> None:
        limit, now = HandlingLimit(), START
        seen = []
        for step in ["late", "late at once", *["late"] * 4, "quick", "slow", "quick", "quick"]:
            if step != "late at once":
                now += self.TIMEOUT
            if step.startswith("late"):
                limit.expired(now, self.TIMEOUT, 40, 3)
            else:
                limit.relax(now, self.TIMEOUT, 40, 1.0 if step == "quick" else 31.0)
            seen.append(limit.limit)
        assert seen == [20, 20, 10, 5, 3, 3, 4, 4, 5, 6]
        while limit.active:
            now += self.TIMEOUT
            assert limit.relax(now, self.TIMEOUT, 40, 0.0)
        assert not limit.relax(now + self.TIMEOUT, self.TIMEOUT, 40, 0.0)

    @pytest.mark.parametrize("lower", [0, 4, 20])
    def test_it_is_not_forgotten_while_max_in_flight_is_lower(self, lower: int) -> None:
        limit = HandlingLimit()
        assert limit.expired(START, self.TIMEOUT, 40, 1)
        assert not limit.relax(START + self.TIMEOUT, self.TIMEOUT, lower, 0.0)
        assert limit.limit == 20

    def test_it_limits_the_windows_and_the_reason_says_so(self) -> None:
        world = World(40).connect("a")
        assert world.windows.handling.expired(world.now, self.TIMEOUT, 40, 1)
        world.tick()
        assert world.orders == [("a", 20)]
        assert world.windows.reason("a") == "its share of 20, which the handlers manage in time"
        world.set_max_in_flight(8)
        assert world.orders == [("a", 8)]
