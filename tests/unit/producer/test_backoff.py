"""When an nsqd is dialed again, and when waiting for it is pointless."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.config import Config
from nsq.discovery.directory import Pauses
from nsq.errors import AuthFirst, ConnectionLost, DialFailed
from nsq.producer.endpoint import Backoff, Endpoint
from tests.fakes.clock import Clock
from tests.fakes.pool import FakePool

REFUSED = DialFailed("nsqd-a:4150: connection refused")
UNAUTHORIZED = AuthFirst("E_AUTH_FIRST")


def test_at_first_it_is_due() -> None:
    backoff = Backoff(Pauses(0.25, 60.0, lambda: 0.0))
    assert backoff.due_at(urgent=False) <= 0.0
    assert backoff.reason is None
    assert not backoff.final


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(Pauses(0.25, 3.0, lambda: 0.0))
    pauses = []
    for _ in range(6):
        backoff.failed(REFUSED, 100.0)
        pauses.append(backoff.due_at(urgent=False) - 100.0)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 3.0, 3.0]


@given(st.floats(0.0, 1.0), st.integers(1, 3000))
def test_chance_takes_half_of_a_pause_at_most(chance: float, failures: int) -> None:
    backoff = Backoff(Pauses(0.25, 60.0, lambda: chance))
    for _ in range(failures):
        backoff.failed(REFUSED, 0.0)
    whole = min(0.25 * 2.0 ** min(failures - 1, 20), 60.0)
    assert whole / 2 <= backoff.pause <= whole


def test_a_publish_without_any_connection_waits_for_a_second_at_most() -> None:
    backoff = Backoff(Pauses(0.25, 60.0, lambda: 0.0))
    backoff.failed(REFUSED, 100.0)
    assert backoff.due_at(urgent=True) == 100.25
    for _ in range(20):
        backoff.failed(REFUSED, 100.0)
    assert backoff.due_at(urgent=True) == 101.0
    assert backoff.due_at(urgent=False) == 160.0


def test_a_success_makes_up_for_all_failures() -> None:
    backoff = Backoff(Pauses(0.25, 60.0, lambda: 0.0))
    for _ in range(5):
        backoff.failed(UNAUTHORIZED, 100.0, final=True)
    backoff.succeeded()
    assert (backoff.failures, backoff.reason, backoff.final) == (0, None, False)
    backoff.failed(REFUSED, 200.0)
    assert backoff.due_at(urgent=False) == 200.25


def test_a_connection_that_worked_may_be_back_at_once() -> None:
    backoff = Backoff(Pauses(0.25, 60.0, lambda: 0.0))
    backoff.failed(UNAUTHORIZED, 90.0, final=True)
    backoff.lost(ConnectionLost("gone"), 100.0)
    assert backoff.due_at(urgent=False) == 100.0
    assert str(backoff.reason) == "gone"
    assert not backoff.final


def endpoint(clock: Clock) -> Endpoint:
    """Without threads."""
    pool: Any = FakePool()
    return Endpoint(pool, Config(reconnect_initial=4.0), clock, lambda: 0.0)


@pytest.mark.parametrize(
    ("final", "since", "now", "cannot_succeed"),
    [
        (True, 5.0, 5.0, True),
        (True, 4.0, 500.0, True),
        (True, 5.5, 5.9, True),
        (True, 5.5, 6.0, False),
        (False, 5.0, 5.0, False),
    ],
    ids=[
        "refused at the moment of the call",
        "refused during the call",
        "refused a moment before",
        "refused longer ago",
        "may be better the next time",
    ],
)
def test_hopeless_is_an_nsqd_that_has_just_refused_for_good(
    final: bool, since: float, now: float, cannot_succeed: bool
) -> None:
    """At 5 s."""
    clock = Clock()
    made = endpoint(clock)
    made.backoff.failed(UNAUTHORIZED, 5.0, final=final)
    clock.now = now
    assert made.cannot_succeed(since) is cannot_succeed


def test_an_nsqd_that_was_not_dialed_yet_is_not_hopeless() -> None:
    assert not endpoint(Clock()).cannot_succeed(0.0)


def test_while_it_is_dialed_again_it_is_hopeless_only_if_it_refused_during_the_call() -> None:
    made = endpoint(Clock())
    made.backoff.failed(UNAUTHORIZED, 5.0, final=True)
    made.dialing = True
    assert made.cannot_succeed(5.0)
    assert not made.cannot_succeed(5.1)


@pytest.mark.parametrize(
    "change",
    [
        lambda backoff: backoff.failed(REFUSED, 6.0),
        lambda backoff: backoff.lost(ConnectionLost("gone"), 6.0),
        lambda backoff: backoff.succeeded(),
    ],
    ids=["refused for now", "lost", "succeeded"],
)
def test_hopeless_only_until_it_changes(change: Any) -> None:
    made = endpoint(Clock())
    made.backoff.failed(UNAUTHORIZED, 5.0, final=True)
    assert made.cannot_succeed(5.0)
    change(made.backoff)
    assert not made.cannot_succeed(5.0)


def test_the_state_tells_a_pause_from_what_may_be_dialed() -> None:
    clock = Clock()
    made = endpoint(clock)
    assert (made.state, made.reason) == ("idle", ": not reached yet")
    made.address = "nsqd-a:4150"
    made.backoff.failed(REFUSED, 5.0)
    clock.now = 8.9
    assert (made.state, made.reason) == ("paused", str(REFUSED))
    clock.now = 9.0
    assert made.state == "idle"
    made.dialing = True
    assert made.state == "dialing"
