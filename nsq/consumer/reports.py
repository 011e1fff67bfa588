"""A consumer's reports: snapshots, and hooks for metrics and tracing."""

from __future__ import annotations

from dataclasses import dataclass, field

from nsq.errors import NsqError, ServerError
from nsq.message import Message


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
    """The result of a stop. ``clean`` when nothing was left: else nsqd delivers ``in_flight`` messages again.

    ``cut_off`` are the nsqds that did not end the connection in time: the last answers sent to them may not
    have arrived.
    """

    clean: bool
    in_flight: int = 0
    cut_off: list[str] = field(default_factory=list)
    unfinished_threads: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.clean


# Hooks.


class ConsumerHooks:
    """Override what is of interest; everything here does nothing.

    Hooks run on a thread of their own, in the order of events: a slow one delays other hooks, never a
    message.
    """

    def connected(self, nsqd_address: str) -> None: ...

    def disconnected(self, nsqd_address: str, cause: NsqError | None) -> None:
        """``cause`` is None when it was meant to end."""

    def heartbeat(self, nsqd_address: str) -> None:
        """nsqd has asked for a sign of life, and gets it."""

    def received(self, messages: list[Message]) -> None: ...

    def finished(self, message: Message) -> None: ...

    def requeued(self, message: Message) -> None: ...

    def timed_out(self, message: Message) -> None:
        """A message's time was up before it was answered: nsqd delivers it again."""

    def given_up(self, message: Message) -> None: ...

    def server_error(self, nsqd_address: str, error: ServerError) -> None:
        """An error frame, such as E_FIN_FAILED; also one that refuses the subscription, such as
        E_UNAUTHORIZED.
        """

    def backing_off(self, level: int) -> None:
        """Delivery stops for a while; 0 when it is back to normal."""
