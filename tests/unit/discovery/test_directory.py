"""Which nsqds are dialed, when, and which are dropped: by example, then by random histories; when nsqlookupds
are asked.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsq.discovery.directory import (
    ROUNDS_TO_PRUNE,
    SPACING,
    STEADY,
    Answer,
    Directory,
    Lookupd,
    LookupSchedule,
    Nsqd,
    Pauses,
    Status,
)

INITIAL, LONGEST, INTERVAL = 0.25, 60.0, 60.0
A, B, C, D = "a:4150", "b:4150", "c:4150", "d:4150"


def directory(*direct: str, chance: float = 1.0, prune: bool = False) -> Directory:
    made = Directory(Pauses(INITIAL, LONGEST, lambda: chance), INTERVAL, prune=prune)
    for address in direct:
        made.add(address, 0.0)
    return made


def listing(*addresses: str) -> Answer:
    return frozenset(addresses)


def connect(subject: Directory, now: float) -> list[str]:
    """Dial what is due, with success."""
    due = subject.due(now)
    for address in due:
        subject.dialed(address, None, now)
    return due


def fail(subject: Directory, *times: float) -> None:
    """Dial what is due, in vain."""
    for now in times:
        for address in subject.due(now):
            subject.dialed(address, "refused", now)


def known(subject: Directory, address: str) -> Nsqd | None:
    return next((each for each in subject.nsqds() if each.address == address), None)


class TestDirect:
    def test_is_due_at_once_and_once(self) -> None:
        subject = directory(A, A)
        assert subject.due(0.0) == [A]
        assert subject.due(1000.0) == []

    def test_is_dialed_again_for_ever_with_growing_pauses_of_its_own(self) -> None:
        subject = directory(A)
        now, pauses = 0.0, []
        for _ in range(100):
            fail(subject, now)
            due = subject.next_due()
            assert subject.due(due - 0.001) == []
            pauses.append(due - now)
            now = due
        assert pauses[:10] == pytest.approx([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0])
        assert max(pauses) == pytest.approx(LONGEST)
        subject.add(A, now - 1.0)  # again, which does not cut a pause short
        subject.add(B, now - 1.0)
        assert subject.due(now - 1.0) == [B]

    @pytest.mark.parametrize(
        ("failures", "lived", "pause"),
        [(3, STEADY - 0.1, 2.0), (3, STEADY, INITIAL), (7, 30.0, 32.0), (7, 32.0, INITIAL)],
    )
    def test_pauses_begin_anew_after_a_connection_that_outlived_them(
        self, failures: int, lived: float, pause: float
    ) -> None:
        subject = directory(A)
        fail(subject, *[100.0 * number for number in range(failures)])
        assert connect(subject, 1000.0) == [A]
        subject.lost(A, lived, "gone", 2000.0)
        assert subject.next_due() == 2000.0 + pause

    def test_one_that_is_removed_is_forgotten_or_dropped(self) -> None:
        subject = directory(A, B, C, D)
        assert set(subject.due(0.0)) == {A, B, C, D}
        subject.dialed(A, None, 0.0)
        subject.dialed(B, "refused", 0.0)
        for address in (A, B, C, D):
            subject.remove(address)
        subject.dialed(C, None, 0.0)  # it was being dialed meanwhile
        subject.dialed(D, "refused", 0.0)  # and so was this
        assert sorted(subject.to_drop()) == [A, C]
        assert subject.to_drop() == []
        assert (subject.expected(0.0), subject.due(1000.0)) == (0, [])
        for address in (A, C):
            subject.lost(address, 1.0, "", 1.0)
        assert subject.nsqds() == ()

    def test_one_that_is_added_again_while_it_is_closed_is_dialed_when_it_has_closed(self) -> None:
        subject = directory(A)
        connect(subject, 0.0)
        subject.remove(A)
        assert subject.to_drop() == [A]
        subject.add(A, 1.0)
        assert subject.due(1.0) == []
        subject.lost(A, 1.0, "", 2.0)
        assert subject.due(2.0) == [A]

    def test_a_connection_that_ends_before_its_dial_is_reported(self) -> None:
        subject = directory(A)
        subject.due(0.0)
        subject.lost(A, 0.001, "closed", 0.0)
        assert subject.due(100.0) == []  # still being dialed
        subject.dialed(A, None, 100.0)
        (nsqd,) = subject.nsqds()
        assert (nsqd.status, nsqd.dial_at, nsqd.error) == (Status.WAITING, 100.0 + INITIAL, "closed")
        assert subject.due(101.0) == [A]


class TestListed:
    def found(self, chance: float = 1.0) -> Directory:
        """A was listed, connected and lost at 20."""
        subject = directory(chance=chance)
        subject.round_ended([listing(A), listing(B)], 0.0)
        connect(subject, 0.0)
        assert not subject.wants_round()
        subject.lost(A, 20.0, "gone", 20.0)
        assert [subject.wants_round(), subject.wants_round()] == [True, False]
        return subject

    def test_is_due_as_soon_as_one_answers(self) -> None:
        subject = directory()
        subject.heard([A, B])
        assert set(subject.due(0.0)) == {A, B}
        subject.round_ended([listing(A, B), listing(B, C), None], 1.0)
        assert subject.due(1.0) == [C]

    def test_one_that_is_direct_as_well_counts_once_and_stays_while_it_is_listed(self) -> None:
        subject = directory(A)
        subject.heard([A])
        assert connect(subject, 0.0) == [A]
        assert subject.expected(0.0) == 1
        subject.remove(A)
        assert subject.to_drop() == []

    def test_a_lost_one_is_dialed_after_its_pause(self) -> None:
        subject = self.found()
        assert subject.due(20.0) == []
        assert subject.due(20.0 + INITIAL) == [A]

    def test_a_lost_one_that_is_listed_no_more_is_searched_and_not_dialed(self) -> None:
        subject = self.found()
        subject.round_ended([listing()], 20.1)
        asked = []
        for now in range(21, 29):
            assert subject.due(now) == []
            if subject.wants_round():
                subject.round_ended([listing()], now)
                asked.append(now)
        assert asked == [21, 22, 23, 24, 26]  # less and less often
        subject.round_ended([listing(A)], 28.5)  # it has restarted
        assert subject.due(32.0) == [A]

    @pytest.mark.parametrize(
        "answers", [[[None, listing(B)]] * 3, [[listing(), listing()], [None]]], ids=["at once", "later"]
    )
    def test_while_lookups_fail_what_is_known_is_dialed(self, answers: list[list[Answer]]) -> None:
        subject = self.found()
        for number, each in enumerate(answers):
            subject.round_ended(each, 20.0 + number)
        assert A in subject.due(1000.0)

    def test_one_that_is_listed_no_more_for_an_interval_is_forgotten(self) -> None:
        subject = self.found()
        subject.round_ended([listing(B)], 30.0)
        assert known(subject, A) is not None
        subject.round_ended([listing(B)], 30.0 + INTERVAL)
        assert known(subject, A) is None

    def test_without_nsqlookupds_what_is_connected_stays_until_it_is_lost(self) -> None:
        subject = self.found()
        subject.round_ended([], 30.0)
        assert [each.address for each in subject.nsqds()] == [B]
        subject.lost(B, 1000.0, "gone", 1000.0)
        assert (subject.nsqds(), subject.wants_round()) == ((), False)


class TestPruning:
    @pytest.mark.parametrize(
        ("rounds", "options", "dropped_at"),
        [
            pytest.param([[listing(B)]] * 4, {}, 3, id="three complete rounds"),
            pytest.param([[listing(B)]] * 9, {"prune": False}, None, id="only when asked for"),
            pytest.param([[listing()]] * 9, {"direct": [A, B]}, None, id="never direct ones"),
            pytest.param([[listing()], [listing()], [None]] * 3, {}, None, id="a failed lookup begins anew"),
            pytest.param([[listing(), listing(A, B)]] * 9, {}, None, id="one nsqlookupd has just started"),
            pytest.param([[listing(B)]] * 60, {"every": 1.0}, None, id="rounds that are close to each other"),
            pytest.param([[listing(B)]] * 61, {"every": 1.0}, 61, id="after an interval"),
            pytest.param([[listing(B)]] * 4, {"every": 1000.0}, 3, id="rounds that are far apart"),
        ],
    )
    def test_dropped(
        self, rounds: list[list[Answer]], options: dict[str, object], dropped_at: int | None
    ) -> None:
        given = {"prune": True, "direct": [], "every": INTERVAL, **options}
        subject = directory(*given["direct"], prune=given["prune"])
        subject.heard([A, B])
        connect(subject, 0.0)
        drops = {}
        for number, answers in enumerate(rounds, 1):
            subject.round_ended(answers, number * given["every"])
            if dropped := subject.to_drop():
                drops[number] = dropped
        assert drops == ({dropped_at: [A]} if dropped_at else {})
        if drops:
            subject.heard([A])  # again, before it has closed
            assert subject.due(1e6) == []
            subject.lost(A, 1e6, "", 1e6)
            assert subject.due(1e6) == [A]


def test_expected_counts_what_is_there_or_dialed_for_the_first_time() -> None:
    subject = directory(A, B, C)
    counts = [subject.expected(0.0)]
    subject.due(0.0)
    counts.append(subject.expected(0.0))
    subject.dialed(A, None, 0.0)
    subject.dialed(B, "refused", 0.0)
    counts += [subject.expected(0.0), subject.expected(INITIAL)]
    assert subject.due(INITIAL) == [B]
    counts.append(subject.expected(INITIAL))
    subject.dialed(B, None, INITIAL)
    counts.append(subject.expected(INITIAL))
    subject.lost(A, 1.0, "gone", 1.0)
    counts.append(subject.expected(100.0))
    assert counts == [3, 3, 2, 2, 2, 3, 2]


ADDRESSES = st.sampled_from([A, B, C, D])
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

    @rule(seconds=st.floats(0.0, 100.0), chance=st.floats(0.0, 1.0, exclude_max=True))
    def time_passes(self, seconds: float, chance: float) -> None:
        self.now += seconds
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
        for address in [A, B, C, D]:
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
        self.subject.dialed(address, None if ok else "refused", self.now)
        if not ok:
            self.paused(address)
            return
        self.connected.add(address)
        if address not in self.direct:
            self.settle_drops(allowed={address})  # removed while it was dialed

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
        nsqd = known(self.subject, address)
        if nsqd is None:
            return
        # Searching, of which this model knows nothing, counts as a setback too.
        assert self.drawn * self.ceiling(address) - 1e-6 <= nsqd.dial_at - self.now <= LONGEST
        self.setbacks[address] = self.setbacks.get(address, 0) + 1

    @invariant()
    def what_is_known_is_right(self) -> None:
        statuses = {each.address: each.status for each in self.subject.nsqds()}
        for status, addresses in [
            (Status.DIALING, self.dialing),
            (Status.CONNECTED, self.connected),
            (Status.LEAVING, self.leaving),
        ]:
            assert {address for address, has in statuses.items() if has is status} == addresses
        assert self.direct <= statuses.keys()
        self.setbacks = {each: count for each, count in self.setbacks.items() if each in statuses}

    def teardown(self) -> None:
        """Whatever has happened: what a complete round lists is connected within the longest pause."""
        for address in self.leaving:
            self.subject.lost(address, 1.0, "", self.now)
        for address in self.dialing:
            self.subject.dialed(address, None, self.now)
        self.subject.round_ended([listing(A, B), listing(B, C)], self.now)
        end = self.now + LONGEST
        while (due := self.subject.next_due()) <= end:
            connect(self.subject, max(due, self.now))
            self.subject.to_drop()
        statuses = {each.address: each.status for each in self.subject.nsqds()}
        assert all(statuses[address] is Status.CONNECTED for address in (A, B, C))


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

    def test_one_that_hangs_fails_in_time_is_not_asked_twice_and_delays_no_other(self) -> None:
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

    def test_a_late_answer_counts(self) -> None:
        subject = schedule(self.a)
        subject.due(0.0)
        subject.failed(self.a, "silent", 5.0, still_busy=True)
        answer(subject, self.a, C)
        assert (answers(subject), subject.next_due()) == ({"a": listing(C)}, 60.0)

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

    @pytest.mark.parametrize(("chance", "share"), [(0.0, 1.0), (1.0, 0.5)])
    def test_while_none_lists_an_nsqd_pauses_grow_from_two_seconds_to_the_interval(
        self, chance: float, share: float
    ) -> None:
        subject = schedule(self.a, self.b, chance=chance)
        now, waits = 0.0, []
        for _ in range(7):
            for lookupd in subject.due(now):
                subject.answered(lookupd, listing(), listing(), now)
            waits.append((subject.next_due() - now) / share)
            now = subject.next_due()
        assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]

    def test_while_one_lists_an_nsqd_the_others_are_asked_at_the_interval(self) -> None:
        subject = schedule(self.a, self.b)
        subject.due(0.0)
        answer(subject, self.a, C)
        answer(subject, self.b)
        assert subject.next_due() == 60.0

    def test_one_that_no_longer_lists_an_nsqd_is_asked_again_soon(self) -> None:
        subject = schedule(self.a, chance=0.0)
        now, waits = 0.0, []
        for listed in ([], [], [C], []):
            subject.due(now)
            subject.answered(self.a, listing(*listed), listing(*listed), now)
            waits.append(subject.next_due() - now)
            now = subject.next_due()
        assert waits == [2.0, 4.0, 60.0, 2.0]

    def test_an_interval_shorter_than_two_seconds_is_kept_while_none_lists_an_nsqd(self) -> None:
        subject = LookupSchedule(0.1, 0.0, 5.0, Pauses(1.0, 60.0, lambda: 0.0))
        subject.lookupds["a"] = self.a
        subject.due(0.0)
        answer(subject, self.a)
        assert subject.next_due() == 0.1

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
