"""A lane: what happens to the messages of one partition, one after the other. Pure.

A delivery becomes the current message when the one before is done: it is handled, perhaps after a pause
handled again, and finished. A lane outlives connections: its handler may still work on a message when a new
leader of the partition delivers that message again, and the lane keeps the second delivery until the handler
has ended. ``ordered`` carries the actions out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from nsq.message import Message


class Position(NamedTuple):
    """A message's place in its partition."""

    internal_id: int
    offset: int

    @classmethod
    def of(cls, message: Message) -> Position:
        return cls(message.internal_id or 0, message.offset or 0)

    def is_before(self, other: Position) -> bool:
        return self.internal_id < other.internal_id or self.offset < other.offset


# What the user decides about a message that fails.


class Decision(Enum):
    """What ``on_stuck`` may return besides a number of seconds: ``SKIP`` gives the message up, so that the
    partition goes on after it; ``STOP`` leaves the partition, and the message, to other consumers.
    """

    SKIP = "skip"
    STOP = "stop"


@dataclass(frozen=True)
class Stuck:
    """A message whose handler has failed, and which holds up its partition."""

    message: Message
    attempts: int
    seconds: float
    """The time since the message's first failure."""
    error: BaseException | None
    """What the handler raised; None if it returned False or asked for another attempt."""

    @property
    def partition(self) -> int | None:
        return self.message.partition


#: Returns the seconds until the next attempt (0: at once), a Decision, or None for the usual, growing pause.
OnStuck = Callable[[Stuck], "float | Decision | None"]


# The lane.


class Do(Enum):
    """What a lane has done with a message."""

    HANDLE = 1
    FINISH = 2
    """Finish it without the handler, which has handled it before."""
    GIVE_BACK = 3
    """Requeue it: its connection is closing."""
    REPORT = 4
    """Report that it comes before the message finished last."""
    STOP = 5
    """Stop the partition, as the user wants no message out of order."""


class Action(NamedTuple):
    do: Do
    message: Message


class State(Enum):
    """What happens to the current message."""

    QUEUED = 1
    HANDLED = 2
    """A handler works on it, or has ended and left the answer for later."""
    PAUSED = 3
    """It waits for its next attempt."""


class Lane:
    """One partition. Pure: events in, actions out.

    Events are handed in one after the other; ``begin`` and ``failed`` are called by the one handler that has
    the current message. ``closing`` tells whether a message's connection takes no more.
    """

    def __init__(
        self,
        partition: int,
        *,
        closing: Callable[[Message], bool],
        stop_out_of_order: bool = False,
    ) -> None:
        self.partition = partition
        self.waiting: deque[Message] = deque()
        self.current: Message | None = None
        self.state = State.QUEUED
        self.retry_at = -math.inf
        self.finished_last: Position | None = None
        self.disorders = 0
        self.repeated = 0
        self.requeued_here = 0
        self.stopped = False
        # The message that was attempted last: the same one comes again after a reconnect.
        self.attempts = 0
        self.failed_attempt = 0
        self.failing: Message | None = None
        self.failed_since: float | None = None
        self.error: BaseException | None = None
        self._attempted: Position | None = None
        self._reported: Position | None = None
        self._closing = closing
        self._stop_out_of_order = stop_out_of_order
        self._ended = False  # the handler, if one has begun
        self._finished = False  # the message has its answer, but the handler may still run

    # The handler that has the current message.

    def begin(self, message: Message) -> None:
        """Count an attempt. nsqd's own count begins anew with every connection."""
        self.state = State.HANDLED
        position = Position.of(message)
        if position != self._attempted:
            self._attempted, self.attempts, self.failed_attempt = position, 0, 0
            self.failing = self.failed_since = self.error = None
        self.attempts += 1
        message.attempts = self.attempts

    def failed(self, message: Message, error: BaseException | None, now: float) -> Stuck:
        self.failing, self.error, self.failed_attempt = message, error, self.attempts
        if self.failed_since is None:
            self.failed_since = now
        return Stuck(message, self.attempts, now - self.failed_since, error)

    def stop(self) -> None:
        """Hold back every message from now on: the connection is about to be closed."""
        self.stopped = True

    # Events.

    def delivered(self, message: Message, now: float) -> list[Action]:
        self.waiting.append(message)
        return self._next(now)

    def ended(self, message: Message, now: float) -> list[Action]:
        """Note that the handler has ended. Its message may have its answer, or get it later."""
        if message is not self.current:
            return []
        self._ended = True
        return self._after_answer(now)

    def finished(self, message: Message, now: float) -> list[Action]:
        """Note that a message is done, even if its answer reaches nsqd no more."""
        position = Position.of(message)
        if message is self.current:
            self.finished_last = position
            self._finished = True
            return self._after_answer(now)
        if self.finished_last is None or not position.is_before(self.finished_last):
            self.finished_last = position
        return []

    def requeued(self, message: Message, delay: float, now: float) -> list[Action]:
        """Note that the message gets another attempt, in ``delay`` seconds."""
        if message is not self.current:
            return []
        self.retry_at = math.inf if self.stopped else now + delay
        self.state = State.PAUSED
        self.requeued_here += 1
        return self._after_answer(now)

    def lost(self, message: Message, now: float) -> list[Action]:
        """Note that nsqd has the message again, and no handler works on it."""
        if message is not self.current:
            return []
        self.current = None
        return self._next(now)

    def clock(self, now: float) -> list[Action]:
        """Begin the next attempt if it is due."""
        return self._after_answer(now)

    # Decisions.

    def due(self, now: float) -> bool:
        """Whether ``clock`` would change anything."""
        message = self.current
        if message is None or self.state is not State.PAUSED or not self._ended:
            return False
        return self.retry_at <= now or message.expires_at <= now or self._closing(message)

    @property
    def next_due(self) -> float:
        return self.retry_at if self.current is not None and self.state is State.PAUSED else math.inf

    def left_unanswered(self, now: float) -> Message | None:
        """Return the message whose handler left the answer for later, if its time is up."""
        message = self.current
        if message is None or self.state is not State.HANDLED or not self._ended or self._finished:
            return None
        return message if message.expires_at <= now else None

    def unbegun(self) -> list[Message]:
        """Return the messages that no handler works on: they wait for one, or for their next attempt."""
        current, waiting = self.current, list(self.waiting.copy())
        return waiting if current is None or self.state is State.HANDLED else [current, *waiting]

    def _after_answer(self, now: float) -> list[Action]:
        message = self.current
        if message is None or not self._ended:
            return []
        if self._finished:
            self.current = None
            self.failing = self.failed_since = self.error = None
            return self._next(now)
        if self.state is not State.PAUSED:
            return []
        if message.expires_at <= now:
            self.current = None
            return self._next(now)
        if self._closing(message):
            self.current = None
            return [Action(Do.GIVE_BACK, message), *self._next(now)]
        if self.retry_at <= now:
            return [self._queue(message)]
        return []

    def _next(self, now: float) -> list[Action]:
        """Take waiting messages until one is current."""
        actions: list[Action] = []
        while self.current is None and self.waiting:
            message = self.waiting.popleft()
            if message.expires_at <= now:
                continue
            position = Position.of(message)
            if position == self.finished_last:
                self.repeated += 1
                actions.append(Action(Do.FINISH, message))
            elif self._closing(message):
                actions.append(Action(Do.GIVE_BACK, message))
            else:
                actions += self._check(message, position)
                actions += self._take(message, position, now)
        return actions

    def _check(self, message: Message, position: Position) -> list[Action]:
        if self.finished_last is None or not position.is_before(self.finished_last):
            return []
        if position == self._reported:
            return []
        self._reported = position
        self.disorders += 1
        if not self._stop_out_of_order:
            return [Action(Do.REPORT, message)]
        self.stopped = True
        return [Action(Do.REPORT, message), Action(Do.STOP, message)]

    def _take(self, message: Message, position: Position, now: float) -> list[Action]:
        self.current = message
        self._finished = False
        pausing = position == self._attempted and self.retry_at > now
        if not (self.stopped or pausing):
            return [self._queue(message)]
        # It has failed before, on another connection: its pause goes on.
        self.state, self._ended = State.PAUSED, True
        if self.stopped:
            self.retry_at = math.inf
        return []

    def _queue(self, message: Message) -> Action:
        self.state, self._ended, self._finished = State.QUEUED, False, False
        self.retry_at = -math.inf
        return Action(Do.HANDLE, message)
