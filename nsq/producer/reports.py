"""What a producer tells about itself: snapshots, and the report of an acknowledged publish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: idle: not dialled yet. paused: it failed, and is left alone for a while. overdue: connected, and behind
#: with an answer that somebody has given up waiting for; others are preferred.
ConnectionState = Literal["idle", "dialling", "open", "overdue", "paused"]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """nsqd has stored these messages. ``latency`` are the seconds from the call to the answer."""

    topic: str
    messages: int
    bytes: int
    nsqd_address: str
    latency: float


@dataclass(frozen=True, kw_only=True)
class ConnectionStats:
    """One nsqd. ``published`` and ``failed`` count messages that it stored, and publishes that came to
    nothing on it, tried again elsewhere or not; ``pending`` counts publishes it has not answered.
    """

    address: str
    state: ConnectionState
    pending: int
    published: int
    failed: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ProducerStats:
    """``pending`` counts publishes of which it is not known what became of them, wherever they are."""

    pending: int
    connections: tuple[ConnectionStats, ...]

    @property
    def published(self) -> int:
        return sum(each.published for each in self.connections)

    @property
    def failed(self) -> int:
        return sum(each.failed for each in self.connections)


@dataclass(frozen=True, kw_only=True)
class ProducerHealth:
    """Whether a publish would find an open connection, and for each nsqd that has none or is overdue, why."""

    healthy: bool
    problems: dict[str, str]
