"""Fakes of the connection that messages come from and answer to."""

from __future__ import annotations

import math
import struct
import threading
import time
from contextlib import suppress
from typing import Any

from nsq.connection.deliveries import TIMED_OUT
from nsq.consumer.decisions import GivenUp
from nsq.errors import AlreadyResponded
from nsq.message import Message
from tests.fakes.nsqd import A, id_of
from tests.fakes.threads import PATIENCE


def payload(body: bytes, *, header: bytes | None = None, detail: tuple[int, int] | None = None) -> bytes:
    """Return what a partitioned nsqd sends behind a message's id. ``header`` is None in a plain topic."""
    kind = b"" if header is None else b"\4%s%s" % (len(header).to_bytes(2, "big"), header)
    return kind + (b"" if detail is None else struct.pack(">QI", *detail)) + body


class Delegate:
    """Records its calls; ``held`` says whether the message counts as in flight."""

    address = A
    topic = "orders"

    def __init__(self, held: bool = True) -> None:
        self.held = held
        self.too_late = False
        self.notes: list[tuple[object, ...]] = []

    def _note(self, *note: object) -> None:
        self.notes.append(note)
        if self.too_late:
            raise AlreadyResponded("too late")

    def finish(self, message: Message, success: bool = True) -> None:
        self._note("finish", message)

    def finish_all(self, messages: list[Message]) -> None:
        for message in messages:
            with suppress(AlreadyResponded):
                self.finish(message)

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        self._note("requeue", message, delay, backoff)

    def touch(self, message: Message) -> None:
        self._note("touch", message)

    def holds(self, message: Message) -> bool:
        return self.held

    def time_out(self, message: Message) -> bool:
        self._note("time out", message)
        return self.held


class Desk:
    """Delivers messages, records answers, and receives the pool's calls."""

    address = A
    topic = "orders"

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.starved = False
        self.notes: list[tuple[Any, ...]] = []
        self.answered: set[bytes] = set()
        self.trouble: BaseException | None = None

    def note(self, *note: Any) -> None:
        with self._changed:
            self.notes.append(note)
            self._changed.notify_all()

    def _answer(self, message: Message, *note: Any) -> None:
        if message.id in self.answered or message.expires_at <= TIMED_OUT:
            raise AlreadyResponded("again")
        self.answered.add(message.id)
        self.note(*note)

    def finish(self, message: Message, success: bool = True) -> None:
        self._answer(message, "finish", int(message.id))

    def finish_all(self, messages: list[Message]) -> None:
        for message in messages:
            with suppress(AlreadyResponded):
                self.finish(message)

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        self._answer(message, "requeue", int(message.id), delay, backoff)

    def touch(self, message: Message) -> None: ...

    def holds(self, message: Message) -> bool:
        return message.id not in self.answered and message.expires_at > TIMED_OUT

    def give_up(self, given_up: list[tuple[Message, GivenUp]]) -> None:
        why, numbers = given_up[0][1], [int(message.id) for message, _ in given_up]
        said = [why.reason] if why.too_old else [str(why.error)] if why.error is not None else []
        self.note("give up old" if why.too_old else "give up", *numbers, *said)
        if self.trouble is not None:
            raise self.trouble

    def time_out(self, message: Message) -> bool:
        self.note("expired", int(message.id))
        if self.trouble is not None:
            raise self.trouble
        return True

    def wait_for(self, *notes: tuple[Any, ...]) -> None:
        """Wait until these are recorded, in any order."""
        with self._changed:
            assert self._changed.wait_for(lambda: all(note in self.notes for note in notes), PATIENCE), (
                self.notes
            )

    def message(
        self, number: int, *, attempts: int = 1, expires_at: float = math.inf, age: float = 0.0
    ) -> Message:
        timestamp = int((time.time() - age) * 1e9) if age else 0
        return Message(self, 0.0, expires_at, timestamp, attempts, id_of(number), b"body")
