"""What a consumer tells of itself: snapshots, not live objects."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ConsumerStats:
    """Totals since the start, over connections that are gone as well."""

    received: int
    finished: int
    requeued: int
    timed_out: int
    given_up: int
    in_flight: int
    waiting: int
    connections: int


@dataclass(frozen=True, kw_only=True)
class ConnectionHealth:
    """One nsqd: its RDY and why it has that one."""

    nsqd_address: str
    rdy: int
    reason: str
    in_flight: int
    seconds_connected: float
    seconds_since_message: float


@dataclass(frozen=True, kw_only=True)
class ConsumerHealth:
    """``ok`` says whether messages can arrive; ``summary`` says it in a sentence."""

    ok: bool
    summary: str
    state: str
    max_in_flight: int
    paused: bool
    starved: bool
    backoff_level: int
    connections: list[ConnectionHealth] = field(default_factory=list)
    discovery: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class StopReport:
    """How a stop went. ``clean`` when nothing was left: else nsqd delivers ``in_flight`` messages again.

    ``cut_off`` are the nsqds that did not see the connection off in time: answers sent to them last may not
    have arrived.
    """

    clean: bool
    in_flight: int = 0
    cut_off: list[str] = field(default_factory=list)
    unfinished_threads: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.clean
