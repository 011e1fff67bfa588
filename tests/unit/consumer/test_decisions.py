"""What a handler's result or error means for its message."""

from __future__ import annotations

from typing import Any

import pytest

from nsq.consumer.decisions import (
    Again,
    Decision,
    GivenUp,
    GiveUp,
    Requeue,
    TooOld,
    check_result,
    decide,
    decide_before,
    outlook,
    slowness,
)
from nsq.errors import UsageError
from nsq.message import Message
from tests.fakes.messages import Desk
from tests.fakes.nsqd import id_of

FAILED = ValueError("no such order")
EXEMPT = LookupError("not yet")
HOPELESS = GiveUp("cannot be read")


@pytest.mark.parametrize(
    ("error", "attempts", "options", "expected"),
    [
        (FAILED, 1, {}, Again(90.0, True)),
        (EXEMPT, 1, {"no_backoff": (LookupError,)}, Again(90.0, False)),
        (Requeue(), 1, {}, Again(90.0, True)),
        (Requeue(0.0, backoff=False), 1, {}, Again(0.0, False)),
        (HOPELESS, 1, {}, GivenUp("its handler gave it up", HOPELESS)),
        (FAILED, 5, {}, Again(90.0, True, is_last=True)),
        (FAILED, 4, {"at_last_failure": True}, Again(90.0, True)),
        (
            FAILED,
            5,
            {"at_last_failure": True},
            GivenUp("it failed at its last attempt (max_attempts is 5)", FAILED),
        ),
        (Requeue(), 5, {"at_last_failure": True}, Again(90.0, True, is_last=True)),
        (FAILED, 1, {"age_left": 89.0}, Again(90.0, True)),
        (FAILED, 1, {"age_left": 90.0, "at_last_failure": True}, Again(90.0, True)),
        (
            FAILED,
            1,
            {"age_left": 89.0, "at_last_failure": True},
            GivenUp("it failed, and would be too old for its next attempt in 90 s", FAILED),
        ),
        (TooOld("too old: 75 s"), 1, {}, GivenUp("too old: 75 s", too_old=True)),
    ],
)
def test_an_error_requeues_or_gives_up(
    error: BaseException, attempts: int, options: dict[str, Any], expected: Decision
) -> None:
    assert decide(error, attempts, 5, lambda error: 90.0, **options) == expected


def test_a_handler_gets_a_message_until_its_attempts_are_used_up() -> None:
    assert decide_before(5, 5) is None
    given_up = decide_before(6, 5)
    assert str(given_up) == "its attempts were used up, by requeues or timeouts (max_attempts is 5)"
    assert decide_before(6, float("inf")) is None


def test_a_message_that_is_too_old_is_given_up() -> None:
    assert decide_before(1, 5, 3675.0, 60.0) == GivenUp("too old: 3675.0 s (max_age is 60 s)", too_old=True)
    assert decide_before(1, 5, 60.0, 60.0) is None
    assert decide_before(1, 5, -5.0, 60.0) is None
    assert decide_before(1, 5, 75.0, 0.0) is None


def test_the_reason_has_the_words_of_a_handler_that_gives_up() -> None:
    assert str(GivenUp("its handler gave it up", HOPELESS)) == "its handler gave it up: cannot be read"
    assert str(GivenUp("it failed", FAILED)) == "it failed"  # the log has the error already


def test_the_usual_delay_is_asked_for_with_the_error_and_only_when_it_is_needed() -> None:
    asked: list[BaseException | None] = []
    for error in (FAILED, Requeue(), Requeue(5.0), HOPELESS):
        decide(error, 1, 5, lambda error: asked.append(error) or 90.0)
    assert asked == [FAILED, None]


@pytest.mark.parametrize(
    ("begun_at", "said"),
    [
        (
            1.0,
            "In 30 s nsqd delivers it again, perhaps to another consumer: set auto_touch=True, or a longer",
        ),
        (20.0, "It waited 20 s for a handler: give more threads, or a lower max_in_flight"),
    ],
)
def test_a_slow_handler_is_told_what_to_do(begun_at: float, said: str) -> None:
    message = Message(Desk(), 0.0, 60.0, 0, 1, id_of(1), b"body")
    assert said in slowness(message, 30.0, begun_at)


async def coroutine() -> None: ...


def test_only_false_and_what_has_not_run_are_no_success() -> None:
    for result in (None, True, 0, "", b"False"):
        check_result(result)
    with pytest.raises(Requeue):
        check_result(False)
    for result in (coroutine(), (each for each in [1])):
        with pytest.raises(UsageError):
            check_result(result)


@pytest.mark.parametrize(
    ("decisions", "counted", "expected"),
    [
        ([Again(90.0, True)], False, "again in 90 s"),
        ([Again(450.0, True, is_last=True)], False, "again in 450 s, then given up (max_attempts is 5)"),
        ([GivenUp("why")], False, "given up"),
        ([], False, "no answer now: answered before, timed out, or left to the program for later"),
        ([Again(90.0, True), Again(270.0, True)], True, "2 again in 90 to 270 s"),
        ([Again(90.0, True), GivenUp("why")], True, "1 again in 90 s, 1 given up"),
    ],
)
def test_the_log_says_what_becomes_of_the_messages(
    decisions: list[Decision], counted: bool, expected: str
) -> None:
    assert outlook(decisions, 5, counted=counted) == expected
