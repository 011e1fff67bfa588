"""A producer's reports: snapshots, results of flush and close, and events for hooks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from nsq.errors import NsqError

#: idle: not dialed yet. paused: failed, the next dial comes later. overdue: connected, but a publish has
#: waited in vain for its answer; other nsqds are preferred.
ConnectionState = Literal["idle", "dialing", "open", "overdue", "paused"]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A publish that nsqd has stored. ``latency`` counts the seconds from the call to the answer."""

    topic: str
    messages: int
    bytes: int
    nsqd_address: str
    latency: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A publish that is not stored, or not surely: ``error`` is the exception that the publish raised."""

    topic: str
    messages: int
    bytes: int
    error: NsqError
    latency: float


@dataclass(frozen=True, kw_only=True)
class FlushReport:
    """The result of a flush. ``clean``, and true, when all is done: else ``unanswered`` publishes have not
    ended, or some callbacks and hooks have not run.
    """

    clean: bool
    unanswered: int = 0

    def __bool__(self) -> bool:
        return self.clean


@dataclass(frozen=True, kw_only=True)
class CloseReport(FlushReport):
    """The result of a close: ``unanswered`` publishes were ended with an error."""

    unfinished_threads: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ConnectionStats:
    """One nsqd. ``published`` counts the messages that it stored, ``failed`` the publishes that failed on it,
    tried again elsewhere or not, and ``pending`` the publishes that it has not answered.
    """

    address: str
    state: ConnectionState = "idle"
    pending: int = 0
    published: int = 0
    failed: int = 0
    reason: str = ""

    def with_further(self, other: ConnectionStats) -> ConnectionStats:
        """Add the counts of a further endpoint for the same nsqd."""
        return replace(
            self,
            pending=self.pending + other.pending,
            published=self.published + other.published,
            failed=self.failed + other.failed,
        )


@dataclass(frozen=True, kw_only=True)
class ProducerStats:
    """A producer's counters. ``pending`` counts all publishes that have not ended. ``published`` and
    ``failed`` are totals since the start, also over nsqds that are gone.
    """

    pending: int
    published: int
    failed: int
    connections: tuple[ConnectionStats, ...]


@dataclass(frozen=True, kw_only=True)
class ProducerHealth:
    """Whether a publish would find an open connection, or none has been needed yet; and the problem of each
    nsqd that has one, or of ``nsqlookupd`` if that names no nsqd.
    """

    healthy: bool
    problems: dict[str, str]
