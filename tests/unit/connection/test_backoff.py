"""When an nsqd is dialed again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsq.connection.backoff import Backoff, Pauses
from nsq.errors import AuthFirst, ConnectionLost, DialFailed

REFUSED = DialFailed("nsqd-a:4150: connection refused")
UNAUTHORIZED = AuthFirst("E_AUTH_FIRST")


def test_at_first_it_is_due() -> None:
    backoff = Backoff(Pauses(0.25, 60.0, lambda: 0.0).draw_late)
    assert backoff.due_at(urgent=False) <= 0.0
    assert backoff.reason is None
    assert not backoff.final


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(Pauses(0.25, 3.0, lambda: 0.0).draw_late)
    pauses = []
    for _ in range(6):
        backoff.failed(REFUSED, 100.0)
        pauses.append(backoff.due_at(urgent=False) - 100.0)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 3.0, 3.0]


@given(st.floats(0.0, 1.0), st.integers(1, 3000))
def test_chance_takes_half_of_a_pause_at_most(chance: float, failures: int) -> None:
    backoff = Backoff(Pauses(0.25, 60.0, lambda: chance).draw_late)
    for _ in range(failures):
        backoff.failed(REFUSED, 0.0)
    whole = min(0.25 * 2.0 ** min(failures - 1, 20), 60.0)
    assert whole / 2 <= backoff.pause <= whole


def test_a_publish_without_any_connection_waits_for_a_second_at_most() -> None:
    backoff = Backoff(Pauses(0.25, 60.0, lambda: 0.0).draw_late)
    backoff.failed(REFUSED, 100.0)
    assert backoff.due_at(urgent=True) == 100.25
    for _ in range(20):
        backoff.failed(REFUSED, 100.0)
    assert backoff.due_at(urgent=True) == 101.0
    assert backoff.due_at(urgent=False) == 160.0


def test_a_success_makes_up_for_all_failures() -> None:
    backoff = Backoff(Pauses(0.25, 60.0, lambda: 0.0).draw_late)
    for _ in range(5):
        backoff.failed(UNAUTHORIZED, 100.0, final=True)
    backoff.succeeded()
    assert (backoff.failures, backoff.reason, backoff.final) == (0, None, False)
    backoff.failed(REFUSED, 200.0)
    assert backoff.due_at(urgent=False) == 200.25


def test_a_connection_that_worked_may_be_back_at_once() -> None:
    backoff = Backoff(Pauses(0.25, 60.0, lambda: 0.0).draw_late)
    backoff.failed(UNAUTHORIZED, 90.0, final=True)
    backoff.lost(ConnectionLost("gone"), 100.0)
    assert backoff.due_at(urgent=False) == 100.0
    assert str(backoff.reason) == "gone"
    assert not backoff.final
