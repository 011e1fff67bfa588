"""A log in memory that fails on request, messages that record their answers, and a clock."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from nsq.errors import AlreadyResponded, WalError
from nsq.message import Message
from nsq.spark.wal.names import Segment


class ScriptedLog:
    """Batches are lists of bodies. ``errors`` are raised by the next appends, ``None`` for one that works;
    ``roll_errors`` likewise."""

    receiver = "receiver-1"

    def __init__(self) -> None:
        self.open: list[bytes] = []
        self.segments: list[list[bytes]] = []
        self.errors: list[Exception | None] = []
        self.roll_errors: list[Exception | None] = []
        self.attempts = 0
        self.closed = False

    @property
    def bodies(self) -> list[bytes]:
        return [body for segment in [*self.segments, self.open] for body in segment]

    @property
    def open_rows(self) -> int:
        return len(self.open)

    @property
    def open_bytes(self) -> int:
        return sum(map(len, self.open))

    @property
    def written(self) -> int:
        return sum(map(len, self.bodies))

    def append(self, batch: Any) -> None:
        self.attempts += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.open += batch

    def roll(self) -> Segment | None:
        error = self.roll_errors.pop(0) if self.roll_errors else None
        if error is not None:
            raise error
        if not self.open:
            return None
        rows, size = self.open_rows, self.open_bytes
        self.segments.append(self.open)
        self.open = []
        return Segment(self.receiver, len(self.segments), rows, size)

    def close(self) -> Segment | None:
        self.closed = True
        return self.roll()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def disk_full() -> WalError:
    return WalError("000001.open cannot be written: No space left on device")


class Time:
    """``wait`` lets it pass, and says whether ``stopping``."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stopping = False
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        if not self.stopping:
            self.now += seconds
        return self.stopping


class Nsqd:
    """The delegate of its messages."""

    address = "127.0.0.1:4150"
    topic = "orders"

    def __init__(self, now: float = 100.0, msg_timeout: float = 60.0) -> None:
        self._now = now
        self._msg_timeout = msg_timeout
        self.finished: list[bytes] = []

    def message(self, body: bytes, received_at: float | None = None) -> Message:
        at = self._now if received_at is None else received_at
        return Message(self, at, at + self._msg_timeout, 7, 1, b"0123456789abcdef", body)

    def messages(self, *bodies: bytes) -> list[Message]:
        return [self.message(body) for body in bodies]

    def finish(self, message: Message) -> None:
        if message.body in self.finished:
            raise AlreadyResponded("finished before")
        self.finished.append(message.body)

    def finish_all(self, messages: list[Message]) -> None:
        for message in messages:
            with suppress(AlreadyResponded):
                self.finish(message)

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        raise AssertionError("the consumer requeues, not the intake")

    def touch(self, message: Message) -> None:
        raise AssertionError("no message is touched")

    def holds(self, message: Message) -> bool:
        return message.body not in self.finished

    def time_out(self, message: Message) -> bool:
        raise AssertionError("the consumer drops messages, not the intake")
