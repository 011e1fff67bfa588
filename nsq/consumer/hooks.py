"""What users may hook into a consumer: metrics, tracing. No dependency, no cost while unused.

Hooks run on a thread of their own, in the order of events: a slow one delays other hooks, never a message.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from nsq.errors import ConfigError, NsqError, ServerError
from nsq.message import Message

log = logging.getLogger("nsq.consumer")

#: Events that may wait for the hooks' thread.
_MAX_EVENTS = 100_000


class ConsumerHooks:
    """Override what is of interest; everything here does nothing."""

    def connected(self, nsqd_address: str) -> None: ...

    def disconnected(self, nsqd_address: str, cause: NsqError | None) -> None:
        """``cause`` is None when it was meant to end."""

    def received(self, messages: list[Message]) -> None: ...

    def finished(self, message: Message) -> None: ...

    def requeued(self, message: Message) -> None: ...

    def timed_out(self, message: Message) -> None:
        """Its time was up before it was answered: nsqd delivers it again."""

    def given_up(self, message: Message) -> None: ...

    def server_error(self, nsqd_address: str, error: ServerError) -> None:
        """An error frame, such as E_FIN_FAILED."""

    def backing_off(self, level: int) -> None:
        """Delivery stops for a while; 0 when it is back to normal."""


class HookRunner:
    """Queues events for the thread that calls the hooks; ``active`` is false when nobody listens."""

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
        """Let the thread finish what is queued; whether it has ended by the deadline."""
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
