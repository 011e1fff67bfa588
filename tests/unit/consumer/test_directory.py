"""Which nsqds are dialled, when, and which are dropped; first by example, then whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsq.consumer.directory import ROUNDS_TO_PRUNE, STEADY, Answer, Directory, Known, Pauses, State

INITIAL, LONGEST, INTERVAL = 0.25, 60.0, 60.0
A, B, C = "a:4150", "b:4150", "c:4150"


def directory(*, chance: float = 0.5, prune: bool = False, longest: float = LONGEST) -> Directory:
    return Directory(Pauses(INITIAL, longest, lambda: chance), INTERVAL, prune=prune)


def listing(*addresses: str) -> Answer:
    return frozenset(addresses)


def connect(subject: Directory, now: float) -> list[str]:
    """Dial what is due, with success."""
    due = subject.due(now)
    for address in due:
        subject.dialed(address, None, now)
    return due


def known(subject: Directory, address: str) -> Known | None:
    return next((each for each in subject.known() if each.address == address), None)


class TestDirect:
    def test_is_due_at_once_and_once(self) -> None:
        subject = directory()
        subject.add(A, 0.0)
        subject.add(A, 0.0)
        assert subject.due(0.0) == [A]
        assert subject.due(1000.0) == []

    def test_is_dialled_again_after_failures_for_ever_with_growing_pauses(self) -> None:
        subject = directory(chance=1.0, longest=2.0)
        subject.add(A, 0.0)
        now, pauses = 0.0, []
        for _ in range(100):
            assert subject.due(now) == [A]
            subject.dialed(A, "refused", now)
            due = subject.next_due()
            assert due is not None
            assert subject.due(due - 0.001) == []
            pauses.append(due - now)
            now = due
        assert pauses[:5] == pytest.approx([0.25, 0.5, 1.0, 2.0, 2.0])
        assert max(pauses) == pytest.approx(2.0)

    def test_each_address_has_its_own_pause(self) -> None:
        subject = directory(chance=1.0)
        subject.add(A, 0.0)
        for now in (0.0, 1.0, 2.0):
            subject.due(now)
            subject.dialed(A, "refused", now)
        subject.add(B, 2.0)
        assert subject.due(2.0) == [B]
        subject.dialed(B, "refused", 2.0)
        assert subject.next_due() == 2.0 + INITIAL

    @pytest.mark.parametrize(("lived", "pause"), [(STEADY - 0.1, 2.0), (STEADY, INITIAL)])
    def test_the_pause_begins_anew_after_a_connection_that_lasted(self, lived: float, pause: float) -> None:
        subject = directory(chance=1.0)
        subject.add(A, 0.0)
        for now in (0.0, 1.0, 2.0):
            subject.due(now)
            subject.dialed(A, "refused", now)
        assert connect(subject, 10.0) == [A]
        subject.lost(A, lived, "gone", 100.0)
        assert subject.next_due() == 100.0 + pause

    def test_a_connection_shorter_than_the_pauses_before_it_is_no_success(self) -> None:
        subject = directory(chance=1.0)
        subject.add(A, 0.0)
        for now in (0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0):
            subject.due(now)
            subject.dialed(A, "refused", now)
        connect(subject, 700.0)
        subject.lost(A, 30.0, "gone", 730.0)
        assert subject.next_due() == 730.0 + INITIAL * 2**7

    def test_one_that_is_removed_is_forgotten_or_dropped(self) -> None:
        subject = directory()
        for address in (A, B, C):
            subject.add(address, 0.0)
        assert set(subject.due(0.0)) == {A, B, C}
        subject.dialed(A, None, 0.0)
        subject.dialed(B, "refused", 0.0)
        for address in (A, B, C):
            subject.remove(address)
        subject.dialed(C, None, 0.0)  # it was being dialled meanwhile
        assert sorted(subject.to_drop()) == [A, C]
        assert subject.to_drop() == []
        assert (subject.expected(0.0), subject.due(1000.0)) == (0, [])
        for address in (A, C):
            subject.lost(address, 1.0, "", 1.0)
        assert subject.known() == ()

    def test_one_that_is_removed_while_its_dial_fails_is_forgotten(self) -> None:
        subject = directory()
        subject.add(A, 0.0)
        subject.due(0.0)
        subject.remove(A)
        subject.dialed(A, "refused", 0.0)
        assert subject.known() == ()

    def test_one_that_is_added_again_while_it_is_closed_is_dialled_when_it_has_closed(self) -> None:
        subject = directory()
        subject.add(A, 0.0)
        connect(subject, 0.0)
        subject.remove(A)
        assert subject.to_drop() == [A]
        subject.add(A, 1.0)
        assert subject.due(1.0) == []
        subject.lost(A, 1.0, "", 2.0)
        assert subject.due(2.0) == [A]

    def test_a_connection_that_ends_before_its_dial_is_reported(self) -> None:
        subject = directory(chance=1.0)
        subject.add(A, 0.0)
        subject.due(0.0)
        subject.lost(A, 0.001, "closed", 0.0)
        assert subject.due(100.0) == []  # still being dialled
        subject.dialed(A, None, 100.0)
        assert known(subject, A) == Known(A, True, False, State.WAITING, 100.0 + INITIAL, "closed")
        assert subject.due(101.0) == [A]

    def test_adding_it_again_does_not_cut_a_pause_short(self) -> None:
        subject = directory()
        subject.add(A, 0.0)
        subject.due(0.0)
        subject.dialed(A, "refused", 0.0)
        subject.add(A, 0.0)
        assert subject.due(0.0) == []


class TestListed:
    def test_is_due_as_soon_as_one_answers(self) -> None:
        subject = directory()
        subject.heard([A, B])
        assert set(subject.due(0.0)) == {A, B}
        subject.round_ended([listing(A, B), listing(B, C), None], 1.0)
        assert subject.due(1.0) == [C]

    def test_one_that_is_direct_as_well_counts_once(self) -> None:
        subject = directory()
        subject.add(A, 0.0)
        subject.heard([A])
        assert subject.due(0.0) == [A]
        subject.dialed(A, None, 0.0)
        assert subject.expected(0.0) == 1
        subject.remove(A)
        assert subject.to_drop() == []  # the nsqlookupd still lists it

    def test_a_lost_one_wants_a_round_and_is_dialled_after_its_pause(self) -> None:
        subject = directory(chance=1.0)
        subject.round_ended([listing(A)], 0.0)
        connect(subject, 0.0)
        assert not subject.wants_round()
        subject.lost(A, 20.0, "gone", 20.0)
        assert subject.wants_round()
        assert not subject.wants_round()
        assert subject.due(20.0) == []
        assert subject.due(20.0 + INITIAL) == [A]

    def test_a_lost_one_that_is_listed_no_more_is_searched_and_not_dialled(self) -> None:
        subject = directory(chance=1.0)
        subject.round_ended([listing(A)], 0.0)
        connect(subject, 0.0)
        subject.lost(A, 20.0, "gone", 20.0)
        subject.round_ended([listing()], 20.1)
        subject.wants_round()
        asked = []
        for now in (21.0, 22.0, 23.0, 24.0, 25.0, 26.0, 27.0, 28.0):
            assert subject.due(now) == []
            if subject.wants_round():
                subject.round_ended([listing()], now)
                asked.append(now)
        assert asked == [21.0, 22.0, 23.0, 24.0, 26.0]  # less and less often
        subject.round_ended([listing(A)], 28.5)  # it has restarted
        assert subject.due(32.0) == [A]

    def test_one_that_is_listed_no_more_for_an_interval_is_forgotten(self) -> None:
        subject = directory()
        subject.round_ended([listing(A)], 0.0)
        subject.due(0.0)
        subject.dialed(A, "refused", 0.0)
        subject.round_ended([listing()], 1.0)
        assert known(subject, A) is not None
        subject.round_ended([listing()], 1.0 + INTERVAL)
        assert subject.known() == ()

    def test_while_lookups_fail_what_is_known_is_dialled(self) -> None:
        subject = directory()
        subject.round_ended([listing(A), listing(B)], 0.0)
        connect(subject, 0.0)
        subject.lost(A, 20.0, "gone", 20.0)
        for now in (20.0, 100.0, 1000.0):
            subject.round_ended([None, listing(B)], now)
        assert subject.due(1000.0) == [A]

    def test_a_failed_round_brings_back_what_a_complete_one_had_taken(self) -> None:
        subject = directory()
        subject.round_ended([listing(A)], 0.0)
        connect(subject, 0.0)
        subject.lost(A, 20.0, "gone", 20.0)
        subject.round_ended([listing()], 20.1)
        subject.round_ended([None], 30.0)
        assert subject.due(100.0) == [A]

    def test_one_that_accepts_and_hangs_up_meets_growing_pauses(self) -> None:
        subject = directory(chance=1.0)
        now, dials = 0.0, []
        for _ in range(6):
            subject.round_ended([listing(A)], now)
            assert connect(subject, now) == [A]
            dials.append(now)
            subject.lost(A, 0.01, "E_AUTH_FAILED", now)
            due = subject.next_due()
            assert due is not None
            now = due
        assert dials == pytest.approx([0.0, 0.25, 0.75, 1.75, 3.75, 7.75])

    def test_with_nobody_left_to_ask_what_is_connected_stays_until_it_is_lost(self) -> None:
        subject = directory(prune=True)
        subject.round_ended([listing(A, B)], 0.0)
        subject.due(0.0)
        subject.dialed(A, None, 0.0)
        subject.dialed(B, "refused", 0.0)
        subject.round_ended([], 1.0)
        assert [each.address for each in subject.known()] == [A]
        assert subject.to_drop() == []
        subject.lost(A, 1000.0, "gone", 1000.0)
        assert subject.known() == ()
        assert not subject.wants_round()


class TestPruning:
    def drops(self, *rounds: list[Answer], prune: bool = True, direct: bool = False) -> list[list[str]]:
        """What is dropped after each round, a poll interval apart, of which the first connects to A and B."""
        subject = directory(prune=prune)
        if direct:
            subject.add(A, 0.0)
        dropped = []
        for number, answers in enumerate(rounds):
            now = number * INTERVAL
            subject.round_ended(answers, now)
            dropped.append(subject.to_drop())
            connect(subject, now)
        return dropped

    def test_three_complete_rounds_without_it_drop_an_nsqd(self) -> None:
        rounds = [[listing(A, B)], [listing(B)], [listing(B)], [listing(B)], [listing(B)]]
        assert self.drops(*rounds) == [[], [], [], [A], []]

    def test_only_when_asked_for(self) -> None:
        assert self.drops([listing(A)], *[[listing()]] * 9, prune=False) == [[]] * 10

    def test_never_a_direct_one(self) -> None:
        assert self.drops([listing(A)], *[[listing()]] * 9, direct=True) == [[]] * 10

    def test_a_failed_lookup_begins_the_count_anew(self) -> None:
        rounds: list[list[Answer]] = [[listing(A), listing(B)]]
        rounds += [[listing(), listing(B)], [listing(), listing(B)], [None, listing(B)]] * 3
        assert self.drops(*rounds) == [[]] * 10

    def test_one_that_has_just_started_takes_nothing_from_the_others(self) -> None:
        assert self.drops([listing(A), listing(A)], *[[listing(), listing(A)]] * 9) == [[]] * 10

    def test_rounds_that_follow_each_other_fast_are_not_enough(self) -> None:
        subject = directory(prune=True)
        subject.round_ended([listing(A)], 0.0)
        connect(subject, 0.0)
        for now in range(1, 20):
            subject.round_ended([listing()], float(now))
        assert subject.to_drop() == []
        subject.round_ended([listing()], 1.0 + INTERVAL)
        assert subject.to_drop() == [A]

    def test_rounds_that_are_far_apart_count_no_more_than_others(self) -> None:
        subject = directory(prune=True)
        subject.round_ended([listing(A)], 0.0)
        connect(subject, 0.0)
        dropped = []
        for now in (1000.0, 2000.0, 3000.0):
            subject.round_ended([listing()], now)
            dropped.append(subject.to_drop())
        assert dropped == [[], [], [A]]

    def test_one_that_is_listed_again_while_it_is_closed_is_dialled_when_it_has_closed(self) -> None:
        subject = directory(prune=True)
        for now in range(5):
            subject.round_ended([listing(A) if now == 0 else listing()], now * INTERVAL)
            connect(subject, now * INTERVAL)
            if subject.to_drop():
                break
        subject.heard([A])
        assert subject.due(1000.0) == []
        subject.lost(A, 1000.0, "", 1000.0)
        assert subject.due(1000.0) == [A]


class TestExpected:
    def test_counts_what_is_there_or_dialled_or_due(self) -> None:
        subject = directory(chance=1.0)
        for address in (A, B, C):
            subject.add(address, 0.0)
        assert subject.expected(0.0) == 3
        subject.due(0.0)
        assert subject.expected(0.0) == 3
        subject.dialed(A, None, 0.0)
        subject.dialed(B, "refused", 0.0)
        assert subject.expected(0.0) == 2
        subject.remove(A)
        assert subject.expected(0.0) == 1

    def test_does_not_count_on_one_that_was_refused_until_it_is_there(self) -> None:
        subject = directory(chance=1.0)
        subject.add(A, 0.0)
        subject.due(0.0)
        subject.dialed(A, "refused", 0.0)
        assert subject.expected(INITIAL) == 0
        assert subject.due(INITIAL) == [A]
        assert subject.expected(INITIAL) == 0
        subject.dialed(A, None, INITIAL)
        assert subject.expected(INITIAL) == 1

    def test_nor_on_one_that_was_lost(self) -> None:
        subject = directory(chance=1.0)
        subject.add(A, 0.0)
        connect(subject, 0.0)
        subject.lost(A, 1.0, "gone", 1.0)
        assert subject.expected(1.0 + INITIAL) == 0


ADDRESSES = st.sampled_from([A, B, C, "d:4150"])
ANSWER = st.one_of(st.none(), st.frozensets(ADDRESSES))


class Life(RuleBasedStateMachine):
    """Anything that can happen to a consumer, with what must hold all the while."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.drawn = 0.5
        self.subject = Directory(Pauses(INITIAL, LONGEST, lambda: self.drawn), INTERVAL, prune=True)
        self.direct: set[str] = set()
        self.dialing: set[str] = set()
        self.connected: set[str] = set()
        self.leaving: set[str] = set()
        self.setbacks: dict[str, int] = {}
        self.missed: dict[str, int] = {}

    @rule(seconds=st.floats(0.0, 100.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(chance=st.floats(0.0, 1.0, exclude_max=True))
    def luck_turns(self, chance: float) -> None:
        self.drawn = chance

    @rule(address=ADDRESSES)
    def added(self, address: str) -> None:
        self.direct.add(address)
        self.subject.add(address, self.now)

    @rule(address=ADDRESSES)
    def removed(self, address: str) -> None:
        self.direct.discard(address)
        self.subject.remove(address)
        self.settle_drops(allowed={address})

    @rule(answers=st.lists(ANSWER, min_size=1, max_size=3))
    def asked(self, answers: list[Answer]) -> None:
        heard = [answer for answer in answers if answer is not None]
        listed = frozenset().union(*heard)
        for answer in heard:
            self.subject.heard(answer)
        self.subject.round_ended(answers, self.now)
        complete = len(heard) == len(answers)
        for address in [A, B, C, "d:4150"]:
            missed = complete and address not in listed
            self.missed[address] = self.missed.get(address, 0) + 1 if missed else 0
        stale = {each for each, missed in self.missed.items() if missed >= ROUNDS_TO_PRUNE}
        self.settle_drops(allowed=stale - self.direct if complete else set())

    def settle_drops(self, allowed: set[str]) -> None:
        dropped = set(self.subject.to_drop())
        assert dropped <= self.connected & allowed
        self.connected -= dropped
        self.leaving |= dropped

    @rule()
    def dials(self) -> None:
        for address in self.subject.due(self.now):
            assert address not in self.dialing | self.connected | self.leaving
            self.dialing.add(address)

    @rule(address=ADDRESSES, ok=st.booleans())
    def dialed(self, address: str, ok: bool) -> None:
        if address not in self.dialing:
            return
        self.dialing.remove(address)
        if ok:
            self.subject.dialed(address, None, self.now)
            self.connected.add(address)
            if address not in self.direct:
                self.settle_drops(allowed={address})  # removed while it was dialled
        else:
            self.subject.dialed(address, "refused", self.now)
            self.paused(address)

    @rule(address=ADDRESSES, lived=st.floats(0.0, 1000.0))
    def lost(self, address: str, lived: float) -> None:
        if address in self.connected:
            if lived >= max(STEADY, self.ceiling(address)):
                self.setbacks[address] = 0
            self.connected.remove(address)
            self.subject.lost(address, lived, "gone", self.now)
            self.paused(address)
        elif address in self.leaving:
            self.leaving.remove(address)
            self.subject.lost(address, lived, "", self.now)

    def ceiling(self, address: str) -> float:
        return min(LONGEST, INITIAL * 2.0 ** self.setbacks.get(address, 0))

    def paused(self, address: str) -> None:
        place = known(self.subject, address)
        if place is None:
            self.setbacks.pop(address, None)
            return
        assert place.dial_at is not None
        assert 0.0 <= place.dial_at - self.now <= LONGEST
        # Searching, of which this model knows nothing, counts as a setback too.
        assert place.dial_at - self.now >= self.drawn * self.ceiling(address) - 1e-6
        self.setbacks[address] = self.setbacks.get(address, 0) + 1

    @invariant()
    def what_is_connected_is_known_as_such(self) -> None:
        states = {each.address: each.state for each in self.subject.known()}
        for state, addresses in [
            (State.DIALING, self.dialing),
            (State.CONNECTED, self.connected),
            (State.LEAVING, self.leaving),
        ]:
            assert {address for address, has in states.items() if has is state} == addresses

    @invariant()
    def forgotten_is_forgotten(self) -> None:
        for address in list(self.setbacks):
            if known(self.subject, address) is None:
                del self.setbacks[address]

    @invariant()
    def direct_ones_are_never_given_up(self) -> None:
        assert self.direct <= {each.address for each in self.subject.known()}

    def teardown(self) -> None:
        """Whatever has happened: what a complete round lists is connected within the longest pause."""
        for address in self.leaving:
            self.subject.lost(address, 1.0, "", self.now)
        for address in self.dialing:
            self.subject.dialed(address, None, self.now)
        self.subject.round_ended([listing(A, B), listing(B, C)], self.now)
        end = self.now + LONGEST
        while (due := self.subject.next_due()) is not None and due <= end:
            connect(self.subject, max(due, self.now))
            self.subject.to_drop()
        states = {each.address: each.state for each in self.subject.known()}
        assert all(states[address] is State.CONNECTED for address in (A, B, C))


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
