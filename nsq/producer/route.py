"""One nsqd's address and what there is for it: a line, or an attempt to get one, or a pause. State only: the
pool's lock guards it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from nsq.config import Config
from nsq.connection.dialing import describe
from nsq.producer.line import Line
from nsq.producer.reports import ConnectionState, ConnectionStats
from nsq.producer.standing import Standing


class Dial(NamedTuple):
    """A connection to be, and the thread that makes it."""

    line: Line
    thread: threading.Thread


class Route:
    """One address: its line, or the way to get one. Guarded by the pool's lock."""

    def __init__(self, address: str, config: Config) -> None:
        self.address = address
        self.standing = Standing(config.reconnect_initial, config.reconnect_max)
        self.line: Line | None = None
        self.dialling: Dial | None = None
        self.published = 0  # over lines that are gone
        self.failed = 0
        self.wanted = True  # or only as long as its connection lasts

    def state(self, now: float) -> ConnectionState:
        if self.dialling is not None:  # with a line too, until it takes publishes
            return "dialling"
        if self.line is not None:
            return "overdue" if self.line.overdue else "open"
        return "paused" if now < self.standing.due_at(urgent=False) else "idle"

    def stats(self, now: float, ending: Iterable[Line]) -> ConnectionStats:
        lines = [*ending, *([self.line] if self.line is not None else [])]
        return ConnectionStats(
            address=self.address,
            state=self.state(now),
            pending=sum(line.pending for line in lines),
            published=self.published + sum(line.published for line in lines),
            failed=self.failed + sum(line.failed for line in lines),
            reason=str(self.standing.reason or ""),
        )

    @property
    def started(self) -> Line | None:
        """Its line, unless that is a moment before it is started still."""
        return self.line if self.dialling is None else None

    @property
    def idle(self) -> bool:
        """Whether nobody sees to a connection."""
        return self.line is None and self.dialling is None

    @property
    def reason(self) -> str:
        """Why it has no line, in words that name it."""
        reason = self.standing.reason
        if reason is None:
            return f"{self.address}: {'still being dialled' if self.dialling else 'not reached yet'}"
        return describe(self.address, reason)
