"""A producer's reports: snapshots, results of flush and close, and events for hooks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nsq.errors import NsqError

#: idle: not dialed yet. paused: it failed, and is left alone for a while. overdue: connected, and a publish
#: has waited in vain for its answer; others are preferred.
ConnectionState = Literal["idle", "dialing", "open", "overdue", "paused"]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """nsqd has stored these messages. ``latency`` are the seconds from the call to the answer."""

    topic: str
    messages: int
    bytes: int
    nsqd_address: str
    latency: float


@dataclass(frozen=True, slots=True)
class Failed:
    """These messages came to nothing, or may have: ``error`` is what the publish raised."""

    topic: str
    messages: int
    bytes: int
    error: NsqError
    latency: float


@dataclass(frozen=True, kw_only=True)
class FlushReport:
    """The result of a flush. ``clean``, and true, when nothing was left: else ``unanswered`` publishes have
    not ended, or callbacks and hooks of others have not run.
    """

    clean: bool
    unanswered: int = 0

    def __bool__(self) -> bool:
        return self.clean


@dataclass(frozen=True, kw_only=True)
class CloseReport(FlushReport):
    """The result of a close: ``unanswered`` publishes were ended with an error, and some threads may be
    unfinished.
    """

    unfinished_threads: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ConnectionStats:
    """One nsqd. ``published`` and ``failed`` count messages that it stored, and publishes that came to
    nothing on it, tried again elsewhere or not; ``pending`` counts publishes it has not answered.
    """

    address: str
    state: ConnectionState = "idle"
    pending: int = 0
    published: int = 0
    failed: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ProducerStats:
    """``pending`` counts publishes that have not ended, wherever they are. ``published`` and ``failed`` are
    totals since the start, with those of nsqds that have left.
    """

    pending: int
    published: int
    failed: int
    connections: tuple[ConnectionStats, ...]


@dataclass(frozen=True, kw_only=True)
class ProducerHealth:
    """Whether a publish would find an open connection, and for each nsqd that has none or is overdue, why."""

    healthy: bool
    problems: dict[str, str]
