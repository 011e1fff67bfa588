"""What becomes of a message: decided before a handler begins it, and when the handler has raised. Pure.

Handlers on threads, batch handlers and those of nsq.aio all ask here. A handler that returns anything but
False has succeeded, and its message is finished.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nsq.errors import InvalidMessage, NsqError, UsageError
from nsq.message import Message

Exceptions = tuple[type[BaseException], ...]

#: The end of an error about async handlers.
NO_AWAIT = "Give an async def to the add_handler of nsq.aio.Consumer, which runs it on your event loop"


# What a handler may raise.


class Requeue(NsqError):
    """Raised by a handler to have the message delivered again, after ``delay`` seconds, with or without
    backing off. Not an error, so nothing is logged."""

    def __init__(self, delay: float | None = None, *, backoff: bool = True) -> None:
        super().__init__()  # no arguments: unpickling would pass them to __init__
        if delay is not None and not (isinstance(delay, (int, float)) and math.isfinite(delay)):
            raise InvalidMessage(f"a requeue delay of {delay!r}; it must be a number of seconds")
        self.delay = delay
        self.backoff = backoff

    def __str__(self) -> str:
        return "requeue"

    def __repr__(self) -> str:
        return f"Requeue(delay={self.delay!r}, backoff={self.backoff!r})"


class GiveUp(NsqError):
    """Raised by a handler that can never handle the message: it is given up at once, as after max_attempts,
    and goes to the dead letters. The text says why.
    """


class TooOld(GiveUp):
    """Raised for a message of an ordered partition that is too old when its handler is about to begin."""


def check_result(result: object) -> None:
    """Raise Requeue for False, as in pynsq, and UsageError for a result that shows that no handler has run.
    Any other result is a success.
    """
    if result is False:
        raise Requeue()
    if inspect.iscoroutine(result):
        result.close()  # else Python warns that it was never awaited
        raise UsageError(f"the handler returned a coroutine, which nothing here runs. {NO_AWAIT}")
    if inspect.isasyncgen(result) or inspect.isgenerator(result):
        kind = type(result).__name__
        raise UsageError(f"the handler returned a {kind}, which nothing here runs. Write a plain function")


# Decisions.


@dataclass(frozen=True)
class Again:
    """Requeue the message: it comes again after ``delay`` seconds. ``backoff``: it counts as a failure."""

    delay: float
    backoff: bool
    is_last: bool = False  # its attempts are used up, so that it is given up when it comes


@dataclass(frozen=True)
class GivenUp:
    """Give the message up. ``error`` is what its handler raised, if it is known."""

    reason: str
    error: BaseException | None = None
    too_old: bool = False  # its age is the reason: many messages may be too old together

    def __str__(self) -> str:
        return f"{self.reason}: {self.error}" if isinstance(self.error, GiveUp) else self.reason


Decision = Again | GivenUp
#: Messages to give up, and why.
ToGiveUp = list[tuple[Message, GivenUp]]


def decide_before(attempts: int, max_attempts: float, age: float = 0, max_age: float = 0) -> GivenUp | None:
    """Decide about a message that a handler is about to begin. None: it may. A ``max_age`` of 0 is none."""
    if 0.0 < max_age < age:
        return GivenUp(f"too old: {age:.1f} s (max_age is {max_age:g} s)", too_old=True)
    if attempts <= max_attempts:
        return None
    return GivenUp(f"its attempts were used up, by requeues or timeouts (max_attempts is {max_attempts})")


def decide(
    error: BaseException,
    attempts: int,
    max_attempts: float,
    delay: Callable[[BaseException | None], float],
    no_backoff: Exceptions = (),
    *,
    at_last_failure: bool = False,
    age_left: float = math.inf,
) -> Decision:
    """Decide about a message whose handler has raised ``error`` at this attempt. ``delay`` gets the error, or
    None if the handler has asked for the requeue. ``age_left`` are the seconds until it is too old.

    With ``at_last_failure`` a message that fails at its last attempt, or would be too old for its next one,
    is given up at once, while its error is known; otherwise when it comes once more.
    """
    if isinstance(error, TooOld):
        return GivenUp(str(error), too_old=True)
    if isinstance(error, GiveUp):
        return GivenUp("its handler gave it up", error)
    is_last = attempts >= max_attempts
    if isinstance(error, Requeue):
        return Again(delay(None) if error.delay is None else error.delay, error.backoff, is_last)
    if is_last and at_last_failure:
        return GivenUp(f"it failed at its last attempt (max_attempts is {max_attempts})", error)
    seconds = delay(error)
    if seconds > age_left and at_last_failure:
        return GivenUp(f"it failed, and would be too old for its next attempt in {seconds:g} s", error)
    return Again(seconds, not isinstance(error, no_backoff), is_last)


def outlook(decisions: Sequence[Decision], max_attempts: float, *, counted: bool) -> str:
    """Return, for the log, what becomes of the messages of a handler that has raised."""
    if not decisions:
        return "no answer now: answered before, timed out, or left to the program for later"
    again = [each for each in decisions if isinstance(each, Again)]
    given_up = len(decisions) - len(again)
    parts = []
    if again:
        least, most = (f"{pick(each.delay for each in again):g}" for pick in (min, max))
        seconds = least if least == most else f"{least} to {most}"
        parts.append(f"{len(again)} again in {seconds} s" if counted else f"again in {seconds} s")
        if all(each.is_last for each in again):
            parts.append(f"then given up (max_attempts is {max_attempts})")
    if given_up:
        parts.append(f"{given_up} given up" if counted else "given up")
    return ", ".join(parts)


def slowness(message: Message, now: float, begun_at: float) -> str:
    """Return, for the log, that a handler has used half of its message's time, and what to do."""
    waited, ran = begun_at - message.received_at, now - begun_at
    said = (
        f"{message!r} came {waited + ran:.2g} s ago, and its handler still runs. In "
        f"{message.expires_at - now:.2g} s nsqd delivers it again, perhaps to another consumer"
    )
    if waited > ran:
        return f"{said}. It waited {waited:.2g} s for a handler: give more threads, or a lower max_in_flight"
    return f"{said}: set auto_touch=True, or a longer msg_timeout"
