"""When nsqlookupds are asked, and what counts as their answer."""

from __future__ import annotations

import pytest

from nsq.consumer.rounds import SPACING, Pace, Rounds

A, B = "lookupd-a", "lookupd-b"
LISTED = frozenset(["n:4150"])


def rounds(
    *, interval: float = 60.0, jitter: float = 0.0, timeout: float = 5.0, chance: float = 0.5
) -> Rounds[str]:
    return Rounds(Pace(interval, jitter, timeout, lambda: chance), 0.0)


def complete(subject: Rounds[str], now: float, answer: frozenset[str] | None = LISTED) -> None:
    assert subject.begin([A], now) == [A]
    subject.answered(A, answer)
    subject.end(now)


class TestWhen:
    def test_the_first_is_due_at_once(self) -> None:
        assert rounds().due(0.0)

    @pytest.mark.parametrize(("chance", "wait"), [(0.0, 51.0), (0.5, 60.0), (1.0, 69.0)])
    def test_every_interval_is_jittered(self, chance: float, wait: float) -> None:
        subject = rounds(jitter=0.3, chance=chance)
        for start in (0.0, 1000.0):
            complete(subject, start)
            assert subject.next_due() == pytest.approx(start + wait)
            assert not subject.due(start + wait - 0.1)
            assert subject.due(start + wait)

    def test_a_request_brings_it_forward_but_not_more_than_one_a_second(self) -> None:
        subject = rounds()
        complete(subject, 0.0)
        subject.request(0.1)
        subject.request(0.2)
        assert not subject.due(SPACING - 0.01)
        assert subject.due(SPACING)
        complete(subject, SPACING)
        assert not subject.due(SPACING + 59.0)
        subject.request(50.0)
        assert subject.due(50.0)

    def test_a_requested_one_does_not_wait_for_stragglers_but_a_regular_one_does(self) -> None:
        subject = rounds(interval=2.0)
        subject.begin([A, B], 0.0)
        assert not subject.due(3.0)
        subject.request(3.0)
        assert subject.due(3.0)

    def test_when_nobody_answers_it_is_repeated_sooner_but_less_and_less_so(self) -> None:
        subject = rounds(chance=1.0)
        waits, now = [], 0.0
        for _ in range(8):
            complete(subject, now, None)
            waits.append(subject.next_due() - now)
            now = subject.next_due()
        assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
        complete(subject, now)
        assert subject.next_due() == now + 60.0
        complete(subject, now + 60.0, None)
        assert subject.next_due() == now + 62.0


class TestRound:
    def test_is_over_when_all_have_answered(self) -> None:
        subject = rounds()
        subject.begin([A, B], 0.0)
        assert subject.answered(A, LISTED)
        assert not subject.over(1.0)
        assert subject.answered(B, None)
        assert subject.over(1.0)
        assert subject.end(1.0) == {A: LISTED, B: None}
        assert not subject.over(100.0)

    def test_is_over_when_its_time_is_up(self) -> None:
        subject = rounds()
        subject.begin([A, B], 0.0)
        subject.answered(A, LISTED)
        assert subject.next_due() == 5.0
        assert not subject.over(4.9)
        assert subject.over(5.0)
        assert subject.missing == {B}
        assert subject.end(5.0) == {A: LISTED, B: None}
        assert not subject.answered(B, LISTED)  # too late

    def test_who_is_busy_is_not_asked_twice_and_the_next_round_takes_its_answer(self) -> None:
        subject = rounds()
        subject.begin([A, B], 0.0)
        subject.answered(A, LISTED)
        assert subject.end(1.0) == {A: LISTED, B: None}
        assert subject.begin([A, B], 1.0) == [A]
        assert subject.answered(B, LISTED)
        subject.answered(A, None)
        assert subject.end(2.0) == {A: None, B: LISTED}
        assert sorted(subject.begin([A, B], 3.0)) == [A, B]

    def test_one_that_is_withdrawn_counts_for_nothing(self) -> None:
        subject = rounds()
        subject.begin([A, B], 0.0)
        subject.withdraw(A)
        assert not subject.answered(A, LISTED)
        subject.answered(B, LISTED)
        subject.withdraw(B)
        assert subject.over(0.0)
        assert subject.end(0.0) == {}
