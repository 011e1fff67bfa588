"""RDY: first by example, then whatever happens."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsq.consumer.rdy import Backoff, HandlingLimit, Nsqd, OneEach, Order, Outcome, RdyWindows, exponential

SUCCESS, FAILURE, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL
IDLE, TURN = 10.0, 30.0
START = 1000.0


class World:
    """Windows and the connections they are for; time stands still unless told otherwise."""

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
        self.orders: list[Order] = []

    def decide(self) -> None:
        """Obey one after the other: at no moment in between may more come than at the end."""
        self.orders = orders = self.windows.decide(self.now, self.in_flight)
        bound = max(self.windows.max_in_flight, self.windows.allowed, self.possible())
        grown = False
        for order in orders:
            assert order.rdy != self.rdy[order.key], "said already"
            grown = grown or order.rdy > self.rdy[order.key]
            assert not grown or order.rdy > self.rdy[order.key], "one shrinks behind one that grows"
            self.rdy[order.key] = order.rdy
            assert self.possible() <= bound

    def possible(self) -> int:
        """How many messages may be in flight, now or later."""
        return sum(max(self.rdy[key], self.in_flight[key]) for key in self.rdy)

    def connect(self, *keys: str, max_rdy: int = 2500) -> None:
        for key in keys:
            self.in_flight[key] = self.rdy[key] = 0
            self.windows.connected(key, max_rdy, self.now)
            self.decide()

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
    def test_one_connection_gets_it_all(self) -> None:
        world = World(200)
        world.connect("a")
        assert world.orders == [Order("a", 200)]

    def test_the_first_shrinks_before_the_second_grows(self) -> None:
        world = World(10)
        world.connect("a", "b")
        assert world.orders == [Order("a", 5), Order("b", 5)]

    @pytest.mark.parametrize(
        ("max_in_flight", "shares"), [(9, [3, 3, 3]), (10, [4, 3, 3]), (11, [4, 4, 3]), (3, [1, 1, 1])]
    )
    def test_the_remainder_of_a_division_is_given_out_too(
        self, max_in_flight: int, shares: list[int]
    ) -> None:
        world = World(max_in_flight)
        world.expect(3)
        world.connect("a", "b", "c")
        assert sorted(world.rdy.values(), reverse=True) == shares

    def test_shares_are_cut_for_those_that_are_expected(self) -> None:
        world = World(12)
        world.expect(3)
        world.connect("a")
        assert world.rdy == {"a": 4}
        world.expect(1)
        assert world.rdy == {"a": 12}

    def test_the_limit_of_an_nsqd_holds(self) -> None:
        world = World(100)
        world.connect("a", max_rdy=7)
        assert world.rdy == {"a": 7}
        assert "max_rdy_count of 7" in world.windows.reason("a")

    def test_an_rdy_that_has_not_changed_is_not_sent_again(self) -> None:
        world = World(10)
        world.connect("a")
        world.tick()
        assert world.orders == []

    def test_one_that_goes_leaves_its_share(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.disconnect("a")
        assert world.orders == [Order("b", 10)]

    def test_one_that_closes_leaves_its_share_as_its_messages_are_answered(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.receive("a", 4)
        world.close("a")
        assert world.orders == [Order("b", 6)]
        assert "in flight" in world.windows.reason("b")
        world.answer("a", count=4)
        assert world.orders == [Order("b", 10)]

    def test_what_is_in_flight_counts_when_shares_move(self) -> None:
        world = World(10)
        world.connect("a")
        world.receive("a", 8)
        world.connect("b")
        assert world.rdy == {"a": 5, "b": 2}
        world.answer("a", count=2)
        assert world.rdy == {"a": 5, "b": 4}
        world.answer("a", count=1)
        assert world.rdy == {"a": 5, "b": 5}
        assert not world.windows.below_target


class TestMaxInFlight:
    def test_a_lower_max_in_flight_shrinks_the_windows(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.set_max_in_flight(4)
        assert world.rdy == {"a": 2, "b": 2}

    def test_a_max_in_flight_below_what_is_in_flight_waits_for_answers(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.receive("a", 5)
        world.set_max_in_flight(4)
        assert world.rdy == {"a": 2, "b": 0}
        world.answer("a", count=3)
        assert world.rdy == {"a": 2, "b": 2}

    def test_a_max_in_flight_of_zero_stops_all_and_says_why(self) -> None:
        world = World(10)
        world.connect("a")
        world.set_max_in_flight(0)
        assert world.rdy == {"a": 0}
        assert world.windows.reason("a") == "max_in_flight is 0"
        world.set_max_in_flight(3)
        assert world.rdy == {"a": 3}


class TestPause:
    def test_a_pause_lasts_until_resume(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.pause(True)
        assert set(world.orders) == {Order("a", 0), Order("b", 0)}
        assert world.windows.reason("a") == "paused"
        world.connect("c")
        world.tick(100.0)
        assert world.orders == []
        world.pause(False)
        assert sum(world.rdy.values()) == 10


class TestIdle:
    def test_the_share_of_an_idle_connection_goes_to_those_with_messages(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.now += IDLE
        world.receive("a")
        world.tick()
        assert world.rdy == {"a": 9, "b": 1}
        assert "idle" in world.windows.reason("b")

    def test_a_message_brings_the_share_of_an_idle_connection_back(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.now += IDLE
        world.receive("a")
        world.tick()
        world.receive("b")
        assert world.rdy == {"a": 5, "b": 5}

    def test_when_all_are_idle_all_have_their_share(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.tick(10 * IDLE)
        assert world.rdy == {"a": 5, "b": 5}

    def test_a_connection_with_a_message_in_flight_is_not_idle(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.receive("b")
        world.now += IDLE
        world.receive("a")
        world.tick()
        assert world.rdy == {"a": 5, "b": 5}


class TestMoreConnectionsThanMessages:
    def test_as_many_connections_as_messages_have_a_turn(self) -> None:
        world = World(2)
        world.expect(3)
        world.connect("a", "b", "c")
        assert world.rdy == {"a": 1, "b": 1, "c": 0}
        assert world.windows.reason("c") == "3 connections share a max_in_flight of 2: waits for its turn"
        assert "has its turn" in world.windows.reason("a")

    def test_a_turn_that_is_not_used_goes_to_another_connection(self) -> None:
        world = World(1)
        world.connect("a", "b")
        world.tick(IDLE - 1)
        assert world.orders == []
        world.tick(1)
        assert world.orders == [Order("a", 0), Order("b", 1)]

    def test_a_turn_that_is_used_stays_for_a_while(self) -> None:
        world = World(1)
        world.connect("a", "b")
        for _ in range(5):
            world.tick(5)
            world.receive("a")
            world.answer("a")
        assert world.rdy == {"a": 1, "b": 0}
        world.tick(5)
        assert world.rdy == {"a": 0, "b": 1}

    def test_every_connection_gets_its_turn_whatever_chance_says(self) -> None:
        world = World(1)  # which always picks the first
        world.connect("a", "b", "c", "d")
        turns = []
        for _ in range(8):
            turns += [key for key, rdy in world.rdy.items() if rdy]
            world.tick(IDLE)
        assert turns == ["a", "b", "c", "d"] * 2

    def test_the_turn_of_a_lost_connection_goes_to_another_one(self) -> None:
        world = World(1)
        world.connect("a", "b", "c")
        world.disconnect("a")
        assert sum(world.rdy.values()) == 1

    def test_a_turn_begins_once_the_messages_in_flight_are_answered(self) -> None:
        world = World(1)
        world.connect("a", "b")
        world.receive("a")
        world.tick(TURN)
        assert world.rdy == {"a": 0, "b": 0}
        assert "waits for messages in flight" in world.windows.reason("b")
        world.answer("a")
        assert world.rdy == {"a": 0, "b": 1}


class TestBackingOff:
    def test_one_failure_stops_all_and_one_message_tests_the_waters(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.receive("a")
        world.answer("a", FAILURE)
        assert set(world.orders) == {Order("a", 0), Order("b", 0)}
        assert world.windows.reason("b") == "backing off for 2 s more (level 1)"
        world.tick(1.9)
        assert world.orders == []
        world.tick(0.1)
        assert world.orders == [Order("a", 1)]
        assert "tests the waters with one" in world.windows.reason("a")
        assert "another connection" in world.windows.reason("b")

    def test_a_success_at_level_one_ends_the_backoff(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.answer("a", FAILURE, count=0)
        world.tick(2)
        world.receive("a")
        world.answer("a")
        assert world.rdy == {"a": 5, "b": 5}

    def test_every_level_has_its_test(self) -> None:
        world = World(10)
        world.connect("a")
        world.answer("a", FAILURE, count=0)
        seen = []
        for wait, outcome in [(2, FAILURE), (4, NEUTRAL), (4, SUCCESS), (2, SUCCESS)]:
            world.tick(wait - 0.1)
            assert world.orders == []
            world.tick(0.1)
            seen.append(world.rdy["a"])
            world.receive("a")
            world.answer("a", outcome)
            seen.append(world.rdy["a"])
        assert seen == [1, 0, 1, 0, 1, 0, 1, 10]

    def test_the_connection_that_sent_last_tests_the_waters(self) -> None:
        world = World(10)
        world.connect("empty", "full")
        for level in range(3):
            world.tick(0.1)
            world.receive("full")
            world.answer("full", FAILURE)
            world.connect(f"new {level}")
            world.tick(2 ** (level + 1))
            assert {key for key, rdy in world.rdy.items() if rdy} == {"full"}

    def test_a_testing_connection_that_is_lost_is_replaced(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.answer("a", FAILURE, count=0)
        world.tick(2)
        world.disconnect("a")
        assert world.rdy == {"b": 1}

    def test_a_testing_connection_without_messages_is_replaced(self) -> None:
        world = World(10)
        world.connect("a", "b")
        world.answer("a", FAILURE, count=0)
        world.tick(2)
        world.tick(IDLE)
        assert world.rdy == {"a": 0, "b": 1}

    def test_all_connections_test_in_turn_until_one_has_a_message(self) -> None:
        world = World(10)
        world.connect("a", "b", "c")
        world.answer("a", FAILURE, count=0)
        world.tick(2)
        testers = []
        for _ in range(6):
            testers += [key for key, rdy in world.rdy.items() if rdy]
            world.tick(IDLE)
        assert testers == ["a", "b", "c"] * 2

    def test_a_new_connection_waits_with_the_others(self) -> None:
        world = World(10)
        world.connect("a")
        world.answer("a", FAILURE, count=0)
        world.connect("b")
        assert world.orders == []
        world.tick(2)
        assert sum(world.rdy.values()) == 1
        world.connect("c")
        assert sum(world.rdy.values()) == 1

    def test_the_last_connection_may_be_lost_during_a_backoff(self) -> None:
        world = World(10)
        world.connect("a")
        world.answer("a", FAILURE, count=0)
        world.disconnect("a")
        world.tick(2)
        world.connect("b")
        assert world.rdy == {"b": 1}

    def test_a_message_in_the_middle_of_the_choice_does_no_harm(self) -> None:
        class Busy(Nsqd):
            """Its read loop gets a message whenever the owner looks."""

            sent = 0.0

            @property
            def has_sent_at(self) -> float:  # type: ignore[override]
                self.sent += 1.0
                return self.sent

            @has_sent_at.setter
            def has_sent_at(self, now: float) -> None: ...

        world = World(10)
        world.connect("a")
        world.windows.nsqds["a"] = Busy("a", 2500, rdy=10)
        world.answer("a", FAILURE, count=0)
        world.tick(2.0)
        assert world.rdy == {"a": 1}

    def test_a_test_waits_until_messages_in_flight_are_answered(self) -> None:
        world = World(1)
        world.connect("a", "b")
        world.receive("a")
        world.answer("b", FAILURE, count=0)
        world.tick(2)
        assert world.rdy == {"a": 1, "b": 0}


class TestRoomThatGrows:
    """Of a max_in_flight that the user has not set, where one nsqd has many connections."""

    def test_every_connection_gets_one_even_beyond_max_in_flight(self) -> None:
        world = World(2, grows=True)
        world.connect("a", "b", "c")
        assert world.rdy == {"a": 1, "b": 1, "c": 1}

    @pytest.mark.parametrize(
        ("max_in_flight", "grows", "turns"),
        [(2, False, True), (3, False, False), (2, True, False), (0, False, False)],
    )
    def test_without_room_that_grows_connections_take_turns(
        self, max_in_flight: int, grows: bool, turns: bool
    ) -> None:
        assert World(max_in_flight, grows=grows).windows.must_take_turns(3) is turns

    def test_connections_to_come_count_too(self) -> None:
        world = World(2, grows=True)
        world.expect(8)
        world.connect("a")
        assert world.rdy == {"a": 1}

    def test_a_larger_max_in_flight_is_shared_as_ever(self) -> None:
        world = World(9, grows=True)
        world.connect("a", "b", "c")
        assert world.rdy == {"a": 3, "b": 3, "c": 3}


class TestOneEach:
    @pytest.mark.parametrize("max_in_flight", [1, 2, 100])
    def test_every_connection_has_one_whatever_max_in_flight_is(self, max_in_flight: int) -> None:
        world = World(max_in_flight, kind=OneEach)
        world.connect("a", "b", "c")
        assert world.rdy == {"a": 1, "b": 1, "c": 1}

    def test_one_is_never_passed_on(self) -> None:
        world = World(1, kind=OneEach)
        world.connect("a", "b")
        assert not world.windows.must_take_turns(2)
        world.tick(10 * TURN)
        assert world.rdy == {"a": 1, "b": 1}
        assert world.orders == []

    def test_a_failure_stops_no_connection(self) -> None:
        world = World(10, kind=OneEach)
        world.connect("a", "b")
        world.receive("a")
        world.answer("a", FAILURE)
        assert world.rdy == {"a": 1, "b": 1}
        assert world.backoff.level == 0

    def test_slow_handlers_stop_no_connection(self) -> None:
        world = World(10, kind=OneEach)
        world.connect("a", "b")
        assert not world.windows.handled_late(world.now, 60.0, 1)
        world.decide()
        assert world.rdy == {"a": 1, "b": 1}

    def test_a_repeated_message_takes_no_window_away(self) -> None:
        world = World(10, kind=OneEach)
        world.connect("a", "b")
        world.receive("a", 2)
        world.decide()
        assert world.rdy == {"a": 1, "b": 1}

    def test_pause_stops_all_and_resume_starts_all(self) -> None:
        world = World(10, kind=OneEach)
        world.connect("a", "b")
        world.pause(True)
        assert world.rdy == {"a": 0, "b": 0}
        world.pause(False)
        assert world.rdy == {"a": 1, "b": 1}
        assert "order" in world.windows.reason("a")

    def test_a_closing_connection_gets_none(self) -> None:
        world = World(10, kind=OneEach)
        world.connect("a", "b")
        world.close("a")
        world.tick(TURN)
        assert world.rdy == {"a": 0, "b": 1}


def test_an_unknown_connection_has_no_window() -> None:
    world = World(1)
    assert world.windows.reason("x") == "not connected"
    world.windows.disconnected("x")
    world.windows.closing("x")
    assert world.windows.decide(START, {}) == []


class Anything(RuleBasedStateMachine):
    """nsqds that send as much as RDY allows and no more; the windows are told what is in flight."""

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
            # It was lowered below what is in flight: then nothing new may come from anybody.
            assert all(world.rdy[key] <= world.in_flight[key] for key in self.limits)

    @invariant()
    def every_order_is_one_that_nsqd_takes(self) -> None:
        for key, limit in self.limits.items():
            assert 0 <= self.world.rdy[key] <= limit
            assert self.world.windows.nsqds[key].rdy == self.world.rdy[key]
        assert not {order.key for order in self.world.orders} & self.closing
        assert len({order.key for order in self.world.orders}) == len(self.world.orders)

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
        """Everything is answered, time passes, messages are there: everybody's turn comes."""
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
                assert ready, "nobody may send"
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

    def test_the_handling_limit_halves_once_in_a_timeout_and_grows_while_all_are_quick(self) -> None:
        limit, now = HandlingLimit(), START
        seen = []
        for step in (
            "late",
            "late at once",
            "late",
            "late",
            "late",
            "late",
            "quick",
            "slow",
            "quick",
            "quick",
        ):
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

    def test_the_handling_limit_bounds_the_windows_and_says_so(self) -> None:
        world = World(40)
        world.connect("a")
        assert world.windows.handling.expired(world.now, self.TIMEOUT, 40, 1)
        world.tick()
        assert world.orders == [Order("a", 20)]
        assert world.windows.reason("a") == "its share of 20, which the handlers manage in time"
        world.set_max_in_flight(8)
        assert world.orders == [Order("a", 8)]
