"""The owner's side: starts receiver processes, keeps them alive, asks them to seal, knows how they are.

    with Crew(options, wal) as crew:        # nothing runs yet
        crew.start()
        crew.wait(10.0)                     # something to read?
        crew.roll(5.0)                      # then it is in segments now
        wal.segments()

Each process has a thread that reads what it says and starts the next one when it dies. Must not import
pyspark or pyarrow.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from nsq.errors import Closed, ConfigError, NsqError
from nsq.spark.receiver.berth import Berth
from nsq.spark.receiver.child import LONGEST_BEGIN, begin_line, receiver_command
from nsq.spark.receiver.protocol import Roll
from nsq.spark.receiver.settings import packed
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.store import Wal

#: What is left of a stop's time for processes to die once they are killed.
_LAST_MOMENTS = 5.0


@dataclass(frozen=True, kw_only=True)
class CrewStatus:
    """Of all receivers together. ``received`` and ``sealed`` count over all lives, the rest the present ones.

    ``alive`` of them are receiving; ``deaths`` ended unasked. ``paused`` and ``errors`` are for people.
    """

    receivers: tuple[str, ...] = ()
    alive: int = 0
    deaths: int = 0
    received: int = 0
    sealed: int = 0
    open_rows: int = 0
    open_bytes: int = 0
    connections: int = 0
    in_flight: int = 0
    paused: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


class Crew:
    """For any thread. ``count`` processes, by default as many as ``options.receivers``.

    ``wal`` is used by ``roll`` alone, in the caller's thread: what a dead receiver left is sealed there.
    ``command`` is what starts a receiver, ``environment`` what it gets beside ours.
    """

    def __init__(
        self,
        options: SourceOptions,
        wal: Wal,
        count: int | None = None,
        *,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._wal = wal
        # Made here, so that settings that cannot be handed over are an error here.
        begin = begin_line(packed(options))
        if len(begin) > LONGEST_BEGIN:
            raise ConfigError(f"options of {len(begin):,} bytes are more than a receiver can be handed")
        self._changed = threading.Condition()  # guards everything below, and the berths
        self._tokens = itertools.count(1)
        self._state = "new"
        name = f"nsq-spark-{options.topic}/{options.channel}"
        self._berths = [
            Berth(f"{name}-{place}", begin, self._changed, command or receiver_command(), environment or {})
            for place in range(options.receivers if count is None else count)
        ]

    @property
    def fault(self) -> NsqError | None:
        """Why there is no use in waiting: receivers cannot work with these settings, or here at all, and are
        not started any more."""
        return next((berth.fault for berth in self._berths if berth.fault is not None), None)

    def start(self) -> None:
        """Start the processes; returns at once. A second time it does nothing."""
        with self._changed:
            if self._over:
                raise Closed("this crew has been stopped")
            if self._state == "running":
                return
            self._state = "running"
            for berth in self._berths:
                berth.thread.start()

    def wait(self, timeout: float) -> bool:
        """Whether there is something to read: rows that a roll would seal, or segments that nobody asked for
        since the last one. Returns at once when there is a ``fault``, or no crew any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._news() or self.fault or self._over, max(0.0, timeout))
            return self._news()

    def wait_until_ready(self, timeout: float) -> bool:
        """Whether all receivers are at work within the time."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready() or self.fault or self._over, max(0.0, timeout))
            return self._ready()

    def roll(self, timeout: float) -> bool:
        """Have everything sealed that is in the log now; whether that is so.

        False when a receiver did not answer within the time, died instead, or cannot seal. Raises WalError
        when what a dead one has left cannot be looked after.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            for berth in self._berths:
                berth.unread = False
            token = next(self._tokens)
            asked = [(berth, berth.child) for berth in self._berths if berth.ready and berth.child]
        # Without the lock: a pipe is I/O, even one that never blocks.
        for _, child in asked:
            child.say(Roll(token))
        with self._changed:

            def unanswered() -> list[Berth]:
                # One that has died answers by what is recovered of it.
                return [berth for berth, child in asked if berth.child is child and berth.answered < token]

            self._changed.wait_for(
                lambda: not unanswered() or self._over, max(0.0, deadline - time.monotonic())
            )
            failed = [berth for berth, child in asked if berth.child is child and berth.roll_error]
            complete = not unanswered() and not failed
        self._recover()
        return complete

    def _recover(self) -> None:
        """Have sealed what dead receivers left, if any has died since the last time."""
        with self._changed:
            left = [berth.unrecovered for berth in self._berths]
            if not any(left):
                return
        self._wal.recover()
        with self._changed:
            for berth, lives in zip(self._berths, left, strict=True):
                berth.unrecovered -= lives

    def status(self) -> CrewStatus:
        with self._changed:
            berths = self._berths
            now = [berth.status for berth in berths]
            return CrewStatus(
                receivers=tuple(berth.receiver for berth in berths if berth.receiver),
                alive=sum(berth.ready for berth in berths),
                deaths=sum(berth.deaths for berth in berths),
                received=sum(berth.received_before + berth.status.received for berth in berths),
                sealed=sum(berth.sealed_before + berth.status.sealed for berth in berths),
                open_rows=sum(status.open_rows for status in now),
                open_bytes=sum(status.open_bytes for status in now),
                connections=sum(status.connections for status in now),
                in_flight=sum(status.in_flight for status in now),
                paused=_distinct(status.paused for status in now),
                errors=_distinct(berth.error or berth.status.error for berth in berths),
            )

    def stop(self, timeout: float = 30.0) -> bool:
        """Have them finish what is in flight and seal; whether all did.

        Those that have not ended within the time are killed: what they had finished is in the log.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            started = [berth for berth in self._berths if berth.thread.ident is not None]
            self._state = "stopped"
            for berth in self._berths:
                berth.closing = True
            children = [berth.child for berth in started if berth.child is not None]
            self._changed.notify_all()
        for child in children:
            child.dismiss()
        for berth in started:
            berth.thread.join(max(0.0, deadline - time.monotonic()))
        for berth in started:
            berth.kill()
        for berth in started:
            berth.thread.join(_LAST_MOMENTS)
        return all(berth.graceful for berth in started)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # With the lock held.

    @property
    def _over(self) -> bool:
        return self._state == "stopped"

    def _news(self) -> bool:
        return any(berth.unread or berth.unrecovered or berth.status.open_rows for berth in self._berths)

    def _ready(self) -> bool:
        return all(berth.ready for berth in self._berths)


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))
