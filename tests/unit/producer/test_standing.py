from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import AuthFirst, ConnectionLost, DialFailed
from nsq.producer.standing import URGENT_PAUSE, Standing

REFUSED = DialFailed("nsqd-a:4150: connection refused")


def test_at_first_it_is_due() -> None:
    standing = Standing(0.25, 60.0)

    assert standing.due_at(urgent=False) <= 0.0
    assert not standing.hopeless_since(0.0)


def test_pauses_double_up_to_the_longest() -> None:
    standing = Standing(0.25, 3.0)
    pauses = []
    for _ in range(6):
        standing.failed(REFUSED, 100.0, 1.0)
        pauses.append(standing.due_at(urgent=False) - 100.0)

    assert pauses == [0.25, 0.5, 1.0, 2.0, 3.0, 3.0]


@given(st.floats(0.0, 1.0), st.integers(1, 3000))
def test_chance_takes_half_of_a_pause_at_most(chance: float, failures: int) -> None:
    standing = Standing(0.25, 60.0)
    for _ in range(failures):
        standing.failed(REFUSED, 0.0, chance)
    whole = min(0.25 * 2.0 ** min(failures - 1, 20), 60.0)

    assert whole / 2 <= standing.pause <= whole


def test_nobody_who_has_no_choice_waits_longer_than_a_moment() -> None:
    standing = Standing(0.25, 60.0)
    standing.failed(REFUSED, 100.0, 1.0)
    assert standing.due_at(urgent=True) == 100.25
    for _ in range(20):
        standing.failed(REFUSED, 100.0, 1.0)

    assert standing.due_at(urgent=True) == 100.0 + URGENT_PAUSE
    assert standing.due_at(urgent=False) == 160.0


def test_an_answer_makes_good_for_all() -> None:
    standing = Standing(0.25, 60.0)
    for _ in range(5):
        standing.failed(REFUSED, 100.0, 1.0)
    standing.proven()
    assert standing.reason is None

    standing.failed(REFUSED, 200.0, 1.0)
    assert standing.due_at(urgent=False) == 200.25


def test_a_connection_that_worked_may_be_back_at_once() -> None:
    standing = Standing(0.25, 60.0)
    standing.lost(ConnectionLost("gone"), 100.0)

    assert standing.due_at(urgent=False) == 100.0
    assert str(standing.reason) == "gone"


@pytest.mark.parametrize(
    ("final", "failed_at", "hopeless"), [(True, 5.0, True), (True, 4.9, False), (False, 5.0, False)]
)
def test_hopeless_is_what_was_refused_for_good_during_the_call(
    final: bool, failed_at: float, hopeless: bool
) -> None:
    standing = Standing(0.25, 60.0)
    standing.failed(AuthFirst("E_AUTH_FIRST"), failed_at, 0.5, final=final)

    assert standing.hopeless_since(5.0) is hopeless


def test_hopeless_only_until_it_changes() -> None:
    standing = Standing(0.25, 60.0)
    standing.failed(AuthFirst("E_AUTH_FIRST"), 5.0, 0.5, final=True)
    standing.failed(REFUSED, 6.0, 0.5)
    assert not standing.hopeless_since(5.0)
    standing.failed(AuthFirst("E_AUTH_FIRST"), 7.0, 0.5, final=True)
    standing.proven()
    assert not standing.hopeless_since(5.0)
