"""One publish, from the call until it is known what became of it. Pure: no socket, clock or thread.

    WAITING   for a connection, at first or again
    PLACED    on a connection: it is sent, or will be
    ANSWERED  whatever is known of it is final: stored, or an error
    OVER      nobody waits for it any more; an answer that comes now is thrown away

A message is *surely not stored* while its bytes have not been handed to a stream, when nsqd said so, and
when nsqd refused an earlier command of the same connection for good: it executes commands in order, and
none behind that one. Whatever was sent and not answered *may be stored*.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import Protocol

from nsq.errors import NsqError, PublishFailed, PublishUncertain
from nsq.producer.confirmation import Confirmation
from nsq.producer.request import Request


class State(Enum):
    WAITING = "waiting"
    PLACED = "placed"
    ANSWERED = "answered"
    OVER = "over"


#: Looked up on its class a member of an Enum costs as much as a call, and this is done for every publish.
_WAITING, _PLACED, _ANSWERED, _OVER = State


class Holder(Protocol):
    """The connection a transaction is placed on."""

    address: str

    def withdraw(self, transaction: Transaction) -> bool:
        """Whether it is certain now that it is never sent."""


class Transaction:
    """With a ``future`` it is completed elsewhere; without one, its caller ``wait``s for it.

    ``error`` is None once it is stored. ``again`` tells that it may be tried elsewhere.
    """

    __slots__ = (
        "_lock",
        "_news",
        "again",
        "deadline",
        "doubts",
        "era",
        "error",
        "future",
        "holder",
        "left_behind",
        "placed_at",
        "request",
        "started",
        "state",
        "ticket",
    )

    def __init__(
        self, request: Request, started: float, deadline: float, future: Confirmation | None = None
    ) -> None:
        self.request = request
        self.started = started
        self.deadline = deadline
        self.future = future
        self.era = 0  # for the accounts of flush
        self.state = _WAITING
        self.holder: Holder | None = None  # where it was placed last
        self.ticket = 0
        self.placed_at = 0.0
        self.error: NsqError | None = None
        self.again = False
        self.left_behind = (
            False  # given up while it was on a connection, which keeps its place for its answer
        )
        self.doubts: tuple[str, ...] = ()  # who may have stored it
        self._lock = threading.Lock()  # guards all of the above that changes; the innermost of all locks
        self._news: threading.Lock | None = None  # released for whoever waits

    def __repr__(self) -> str:
        return f"<Transaction {self.request.topic} {self.state.value}>"

    def place(self, holder: Holder, ticket: int, now: float) -> bool:
        """Before it is sent; False when it must not be, as nobody waits for it any more."""
        with self._lock:
            if self.state is not _WAITING:
                return False
            self.state = _PLACED
            self.holder, self.ticket, self.placed_at = holder, ticket, now
            return True

    def answer(self, error: NsqError | None, *, again: bool = False, doubt: str = "") -> bool:
        """What became of it on its connection; False when nobody waits for it any more."""
        with self._lock:
            if self.state is not _PLACED:
                return False
            self.state = _WAITING if again else _ANSWERED
            self.error, self.again = error, again
            if doubt:
                self.doubts += (doubt,)
            news, self._news = self._news, None
        if news is not None:
            news.release()
        return True

    def wait(self, seconds: float) -> bool:
        """Whether it was answered within that time."""
        with self._lock:
            if self.state is not _PLACED:
                return True
            # A lock, not a Condition: it is made for nearly every publish.
            news = self._news = threading.Lock()
            news.acquire()
        return news.acquire(timeout=seconds) if seconds > 0 else news.acquire(blocking=False)

    def give_up(self) -> State:
        """Wait for it no longer. What its state was: when ANSWERED, the answer counts all the same."""
        with self._lock:
            state = self.state
            if state is not _ANSWERED:
                self.state = _OVER
            self.left_behind |= state is _PLACED
            return state

    def off_line(self) -> bool:
        """Whether there is nothing to expect from a connection."""
        return self.state is not _PLACED

    @property
    def ended(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.state is _ANSWERED or self.state is _OVER

    @property
    def over(self) -> bool:
        return self.state is _OVER


def unanswered(address: str, topic: str, reason: str) -> PublishUncertain:
    return PublishUncertain(
        f"publishing to {topic!r}: it was sent to {address} and not answered ({reason}); it may be stored"
    )


def failure(transaction: Transaction, reason: str) -> NsqError:
    """What to raise for a transaction that found nobody, or nobody again."""
    topic = transaction.request.topic
    if transaction.doubts:
        return unanswered(" and ".join(transaction.doubts), topic, f"then: {reason}")
    return PublishFailed(f"publishing to {topic!r}: {reason}")
