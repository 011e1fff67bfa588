"""When waiting for an nsqd is pointless."""

from __future__ import annotations

from typing import Any

import pytest

from nsq.config import Config
from nsq.connection.endpoint import Status, Wanted
from nsq.errors import AuthFirst, ConnectionLost, DialFailed
from nsq.producer.endpoint import PublishingEndpoint
from tests.fakes.clock import Clock
from tests.fakes.nsqd import A
from tests.fakes.pool import FakePool

REFUSED = DialFailed("nsqd-a:4150: connection refused")
UNAUTHORIZED = AuthFirst("E_AUTH_FIRST")


def endpoint(clock: Clock) -> PublishingEndpoint:
    """Without threads."""
    pool: Any = FakePool()
    return PublishingEndpoint(Wanted(A), pool, Config(reconnect_initial=4.0), clock, lambda: 0.0)


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
    made.status = Status.DIALING
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
    assert (made.state, made.reason) == ("idle", f"{A}: not reached yet")
    made.address = "nsqd-a:4150"
    made.backoff.failed(REFUSED, 5.0)
    clock.now = 8.9
    assert (made.state, made.reason) == ("paused", str(REFUSED))
    clock.now = 9.0
    assert made.state == "idle"
    made.status = Status.DIALING
    assert made.state == "dialing"
