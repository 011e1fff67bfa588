"""Which nsqds are wanted and which are dropped: by example, then by random histories; when nsqlookupds are
asked.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsq.connection.backoff import Pauses
from nsq.discovery.directory import (
    FAILURES,
    ROUNDS_TO_PRUNE,
    SPACING,
    Answer,
    Directory,
    Lookupd,
    LookupSchedule,
)

INTERVAL = 60.0
A, B, C, D = "a:4150", "b:4150", "c:4150", "d:4150"


def directory(*given: str, prune: bool = False) -> Directory:
    made = Directory(INTERVAL, prune=prune)
    made.give(given)
    return made


def listing(*addresses: str) -> Answer:
    return frozenset(addresses)


def dialed(subject: Directory) -> set[str]:
    """The nsqds that may be there."""
    return {address for address, nsqd in subject.nsqds.items() if subject.may_be_there(nsqd)}


def searched(subject: Directory) -> set[str]:
    """The nsqds that no nsqlookupd lists any more, and that may come back."""
    return set(subject.nsqds) - dialed(subject)


class TestListed:
    def found(self) -> Directory:
        subject = directory()
        subject.round_ended([listing(A), listing(B)], 0.0)
        return subject

    def test_an_nsqd_that_is_no_longer_listed_is_searched_for_an_interval(self) -> None:
        subject = self.found()
        for now, known in [(30.0, {A}), (30.0 + INTERVAL - 1.0, {A}), (30.0 + INTERVAL, set())]:
            subject.round_ended([listing(B)], now)
            assert (dialed(subject), searched(subject)) == ({B}, known)
        assert subject.to_drop() == []
        subject.heard([A])
        assert dialed(subject) == {A, B}

    def test_without_nsqlookupds_listed_ones_are_forgotten_and_not_dropped(self) -> None:
        subject = directory(A, prune=True)
        subject.heard([B])
        subject.round_ended([], 30.0)
        assert (set(subject.nsqds), subject.to_drop()) == ({A}, [])


class TestPruning:
    @pytest.mark.parametrize(
        ("rounds", "options", "dropped_at"),
        [
            pytest.param([[listing(B)]] * 4, {}, 3, id="three complete rounds"),
            pytest.param([[listing(B)]] * 9, {"prune": False}, None, id="only when asked for"),
            pytest.param([[listing()]] * 9, {"given": [A, B]}, None, id="never given ones"),
            pytest.param([[listing()], [listing()], [None]] * 3, {}, None, id="a failed lookup begins anew"),
            pytest.param([[listing(), listing(A, B)]] * 9, {}, None, id="one nsqlookupd has just started"),
            pytest.param([[listing(B)]] * 60, {"every": 1.0}, None, id="rounds that are close to each other"),
            pytest.param([[listing(B)]] * 61, {"every": 1.0}, 61, id="after an interval"),
            pytest.param([[listing(B)]] * 4, {"every": 1000.0}, 3, id="rounds that are far apart"),
        ],
    )
    def test_an_nsqd_is_dropped(
        self, rounds: list[list[Answer]], options: dict[str, object], dropped_at: int | None
    ) -> None:
        given = {"prune": True, "given": [], "every": INTERVAL, **options}
        subject = directory(*given["given"], prune=given["prune"])
        subject.heard([A, B])
        drops = {}
        for number, answers in enumerate(rounds, 1):
            subject.round_ended(answers, number * given["every"])
            if dropped := subject.to_drop():
                drops[number] = dropped
        assert drops == ({dropped_at: [A]} if dropped_at else {})
        subject.heard([A])
        assert A in dialed(subject)


ADDRESSES = st.sampled_from([A, B, C, D])
ANSWER = st.one_of(st.none(), st.frozensets(ADDRESSES))


class Life(RuleBasedStateMachine):
    """Anything that can happen to a consumer, with what must hold all the while."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.subject = Directory(INTERVAL, prune=True)
        self.given: set[str] = set()
        self.listed: frozenset[str] = frozenset()  # by the last round, if it was complete
        self.missed: dict[str, int] = {}

    @rule(seconds=st.floats(0.0, 100.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(address=ADDRESSES)
    def added(self, address: str) -> None:
        self.given.add(address)
        self.subject.give(self.given)

    @rule(address=ADDRESSES)
    def removed(self, address: str) -> None:
        self.given.discard(address)
        self.subject.give(self.given)
        assert set(self.subject.to_drop()) <= {address} - self.listed

    @rule(answers=st.lists(ANSWER, min_size=1, max_size=3))
    def asked(self, answers: list[Answer]) -> None:
        heard = [answer for answer in answers if answer is not None]
        self.listed = frozenset().union(*heard)
        for answer in heard:
            self.subject.heard(answer)
        self.subject.round_ended(answers, self.now)
        complete = len(heard) == len(answers)
        for address in [A, B, C, D]:
            missed = complete and address not in self.listed
            self.missed[address] = self.missed.get(address, 0) + 1 if missed else 0
        stale = {each for each, missed in self.missed.items() if missed >= ROUNDS_TO_PRUNE}
        assert set(self.subject.to_drop()) <= (stale - self.given if complete else set())

    @invariant()
    def given_and_listed_nsqds_are_dialed(self) -> None:
        assert self.given | self.listed <= dialed(self.subject)
        assert all(nsqd.given == (address in self.given) for address, nsqd in self.subject.nsqds.items())

    def teardown(self) -> None:
        """A complete round decides, whatever has happened."""
        self.subject.round_ended([listing(A, B), listing(B, C)], self.now)
        assert dialed(self.subject) == self.given | {A, B, C}


TestLife = Life.TestCase
TestLife.settings = settings(stateful_step_count=40)


def schedule(*lookupds: Lookupd, jitter: float = 0.0, chance: float = 0.5) -> LookupSchedule:
    made = LookupSchedule(60.0, jitter, 5.0, Pauses(1.0, 60.0, lambda: chance))
    made.lookupds.update({each.address: each for each in lookupds})
    return made


def answer(subject: LookupSchedule, lookupd: Lookupd, *addresses: str) -> None:
    subject.answered(lookupd, listing(*addresses), listing(*addresses), 0.0)


def answers(subject: LookupSchedule) -> dict[Hashable, Answer] | None:
    """What each said, if the round is over."""
    return {key: each.answer for key, each in subject.lookupds.items()} if subject.round_over() else None


class TestSchedule:
    @pytest.fixture(autouse=True)
    def make(self) -> None:
        self.a, self.b = Lookupd("a", "a"), Lookupd("b", "b")

    @pytest.mark.parametrize(("chance", "wait"), [(0.0, 51.0), (0.5, 60.0), (1.0, 69.0)])
    def test_the_first_question_is_due_at_once_and_every_interval_is_jittered(
        self, chance: float, wait: float
    ) -> None:
        subject = schedule(self.a, jitter=0.3, chance=chance)
        assert subject.next_due() == -math.inf
        for due in (0.0, wait, 2 * wait):
            assert subject.due(due) == [self.a]
            answer(subject, self.a, C)
            assert subject.next_due() == pytest.approx(due + wait)
            assert subject.due(due + wait - 0.1) == []

    def test_a_silent_nsqlookupd_fails_in_time_is_not_asked_twice_and_delays_no_other(self) -> None:
        subject = schedule(self.a, self.b)
        assert subject.due(0.0) == [self.a, self.b]
        answer(subject, self.b, C)
        assert (subject.next_due(), subject.overdue(4.9), subject.overdue(5.0)) == (5.0, [], [self.a])
        assert subject.failed(self.a, "silent", 5.0, still_busy=True)
        assert answers(subject) == {"a": None, "b": listing(C)}
        assert (subject.next_due(), subject.overdue(6.0), subject.due(59.0)) == (60.0, [], [])
        assert subject.due(60.0) == [self.b]
        assert not subject.failed(self.a, "gone", 60.0)  # known already
        assert subject.due(60.0) == [self.a]
        subject.failed(self.a, "silent", 65.0, still_busy=True)
        subject.answered(self.a, listing(C), listing(C), 66.0)  # a late answer counts
        assert (self.a.answer, self.a.ask_at) == (listing(C), 120.0)

    def test_a_failure_is_news_when_it_differs_and_when_it_comes_back(self) -> None:
        subject = schedule(self.a)

        def fails(error: str) -> bool:
            subject.due(subject.next_due())
            return subject.failed(self.a, error, 0.0)

        assert [fails(error) for error in ("x", "x", "y", "y")] == [True, False, True, False]
        subject.due(subject.next_due())
        answer(subject, self.a)
        assert fails("y")

    @pytest.mark.parametrize(("chance", "share"), [(0.0, 1.0), (1.0, 0.5)])
    def test_after_failures_pauses_grow_until_it_answers(self, chance: float, share: float) -> None:
        subject = schedule(self.a, chance=chance)
        now, waits = 0.0, []
        for _ in range(8):
            assert subject.due(now) == [self.a]
            subject.failed(self.a, "gone", now)
            waits.append((subject.next_due() - now) / share)
            now = subject.next_due()
        assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
        subject.due(now)
        subject.answered(self.a, listing(C), listing(C), now)
        assert subject.next_due() == now + 60.0
        subject.due(now + 60.0)
        subject.failed(self.a, "gone", now + 60.0)
        assert subject.next_due() == now + 60.0 + share

    @pytest.mark.parametrize(
        ("interval", "chance", "lists", "waits"),
        [
            (60.0, 0.0, [[]] * 7, [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]),
            (60.0, 1.0, [[]] * 7, [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]),
            (60.0, 0.0, [[], [], [C], []], [2.0, 4.0, 60.0, 2.0]),
            (0.1, 0.0, [[]], [0.1]),
        ],
        ids=["pauses grow", "they are random", "one was listed meanwhile", "the interval is shorter"],
    )
    def test_while_none_lists_an_nsqd_they_are_asked_sooner(
        self, interval: float, chance: float, lists: list[list[str]], waits: list[float]
    ) -> None:
        subject = LookupSchedule(interval, 0.0, 5.0, Pauses(1.0, 60.0, lambda: chance))
        subject.lookupds["a"] = self.a
        now, seen = 0.0, []
        for listed in lists:
            subject.due(now)
            subject.answered(self.a, listing(*listed), listing(*listed), now)
            seen.append(subject.next_due() - now)
            now = subject.next_due()
        assert seen == waits

    def test_while_one_lists_an_nsqd_the_others_are_asked_at_the_interval(self) -> None:
        subject = schedule(self.a, self.b)
        subject.due(0.0)
        answer(subject, self.a, C)
        answer(subject, self.b)
        assert subject.next_due() == 60.0

    def test_requests_bring_questions_forward_but_not_more_than_one_a_second(self) -> None:
        subject = schedule(self.a, self.b)
        subject.due(0.0)
        answer(subject, self.a, C)
        for now in (0.1, 0.2):
            subject.request(now)
        assert subject.due(SPACING - 0.01) == []
        assert subject.due(SPACING) == [self.a]  # the other one is being asked still
        answer(subject, self.a, C)
        assert subject.due(SPACING + 59.0) == []
        subject.request(50.0)
        assert subject.due(50.0) == [self.a]

    def test_a_request_leaves_one_that_keeps_failing_to_its_own_pauses_while_another_answers(self) -> None:
        subject = schedule(self.a, self.b)
        for _ in range(FAILURES):
            self.a.ask_at = 0.0
            subject.due(0.0)
            subject.failed(self.a, "gone", 0.0)
        answer(subject, self.b, C)
        self.a.ask_at = 59.0
        subject.request(10.0)
        assert subject.due(10.0) == [self.b]
        answer(subject, self.b, C)
        self.b.failures = FAILURES
        subject.request(20.0)
        assert subject.due(20.0) == [self.a, self.b]

    def test_a_round_ends_when_each_has_been_heard_since_the_last(self) -> None:
        subject = schedule(self.a, self.b)
        subject.due(0.0)
        answer(subject, self.a)
        answer(subject, self.a, C)  # the newest one counts
        assert answers(subject) is None
        subject.failed(self.b, "gone", 0.0)
        assert answers(subject) == {"a": listing(C), "b": None}
        assert answers(subject) is None
        answer(subject, self.b)
        del subject.lookupds["a"]
        assert answers(subject) == {"b": listing()}
        del subject.lookupds["b"]
        assert (answers(subject), subject.next_due()) == (None, math.inf)
