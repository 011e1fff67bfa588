"""What a handler's end means for its messages. Pure."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

from nsq.errors import InvalidMessage, NsqError, UsageError


class Requeue(NsqError):
    """Raise it in a handler to have the message delivered again: after ``delay`` seconds, with or without
    backing off. Not an error, so nothing is logged."""

    def __init__(self, delay: float | None = None, *, backoff: bool = True) -> None:
        super().__init__()  # no arguments: pickle hands them back
        if delay is not None and not (isinstance(delay, (int, float)) and math.isfinite(delay)):
            raise InvalidMessage(f"a requeue delay of {delay!r}; it must be a number of seconds")
        self.delay = delay
        self.backoff = backoff

    def __str__(self) -> str:
        return "requeue"


@dataclass(frozen=True)
class Verdict:
    """Finish it, or requeue it with this delay (None: the default one)."""

    finish: bool
    delay: float | None = None
    backoff: bool = True
    worth_logging: bool = False


FINISH = Verdict(finish=True)
REQUEUE = Verdict(finish=False)


def of_result(result: object) -> Verdict:
    """False asks for another try, as pynsq's handlers do; anything else is a success, None above all."""
    if inspect.iscoroutine(result):
        result.close()
        raise UsageError("the handler returned a coroutine, which nobody awaits: handlers run in threads")
    return REQUEUE if result is False else FINISH


def of_exception(fault: BaseException, no_backoff: tuple[type[BaseException], ...]) -> Verdict:
    if isinstance(fault, Requeue):
        return Verdict(finish=False, delay=fault.delay, backoff=fault.backoff)
    return Verdict(finish=False, backoff=not isinstance(fault, no_backoff), worth_logging=True)


@dataclass(frozen=True, kw_only=True)
class RequeueDelay:
    """How long a message waits when nobody says: longer with every attempt."""

    default: float
    longest: float
    jitter: float
    chance: Callable[[], float]

    def __call__(self, attempts: int) -> float:
        delay = min(self.default * attempts, self.longest)
        return min(delay * (1 + self.jitter * self.chance()), self.longest)
