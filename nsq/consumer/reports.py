"""What a consumer tells of itself: snapshots, and hooks for metrics and tracing.

Hooks cost nothing while there are none.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nsq.errors import ConfigError, NsqError, ServerError
from nsq.message import Message

log = logging.getLogger("nsq.consumer")

#: Events that may wait for the hooks' thread.
_MAX_EVENTS = 100_000


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
        """Its time was up before it was answered: nsqd delivers it again."""

    def given_up(self, message: Message) -> None: ...

    def server_error(self, nsqd_address: str, error: ServerError) -> None:
        """An error frame, such as E_FIN_FAILED; also one that refuses the subscription, such as
        E_UNAUTHORIZED.
        """

    def backing_off(self, level: int) -> None:
        """Delivery stops for a while; 0 when it is back to normal."""


class HookRunner:
    """Queues events for the thread that calls the hooks; ``active`` is false when there are none."""

    def __init__(self, hooks: ConsumerHooks | None, name: str) -> None:
        if hooks is not None and not isinstance(hooks, ConsumerHooks):
            raise ConfigError(f"hooks is {hooks!r}; it must be an instance of a subclass of ConsumerHooks")
        self.hooks = hooks or ConsumerHooks()
        self.active = hooks is not None
        self.lost = 0
        self._queue: queue.SimpleQueue[tuple[Callable[..., None], tuple[object, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name=f"{name}-hooks", daemon=True)

    def start(self) -> None:
        """RuntimeError when no thread can be had."""
        if self.active:
            self._thread.start()

    def tell(self, hook: Callable[..., None], *args: object) -> None:
        if not self.active:
            return
        if self._queue.qsize() >= _MAX_EVENTS:
            # Rather no metrics than no memory. What is lost is counted, and told of once in a while.
            self.lost += 1
            if self.lost & (self.lost - 1) == 0:
                log.warning("the hooks are too slow: %d events were dropped so far", self.lost)
            return
        self._queue.put((hook, args))

    def owns_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self, deadline: float) -> bool:
        """Let the thread finish what is queued; whether it has ended by the deadline.

        May be called again.
        """
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            hook, args = event
            try:
                hook(*args)
            except BaseException:
                # SystemExit too: without the thread, events would pile up.
                log.exception("the hook %s failed", getattr(hook, "__qualname__", hook))
