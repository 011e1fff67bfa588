"""What a running query knows and does on the driver: when a batch begins, what it takes, what may be deleted.

Between Spark, who asks (``stream.py``), and the log, the receivers and the gauges, who are arguments. Imports
neither pyspark nor pyarrow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from nsq.errors import Closed, ConnectionFailed, NsqError, SegmentLost, WalError, WalForeign
from nsq.spark.source import planning
from nsq.spark.source.admission import Amount, Limits, Pace, admitted, amount
from nsq.spark.source.backlog import Backlog
from nsq.spark.source.gauge import BacklogGauge
from nsq.spark.source.goal import Goal
from nsq.spark.source.offsets import Lost, Offset, Position, Slice, between, unread
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import names
from nsq.spark.wal.places import shown
from nsq.spark.wal.store import Claim, Segment, Wal

log = logging.getLogger("nsq.spark.source")

#: How long Spark is kept waiting for a batch, at the most, before it is told that there is none yet.
POLL = 0.5
#: The first time it is kept waiting until the receivers are at work, or for so long: Spark makes a batch of
#: the first answer even if there is nothing in it.
STARTING = 5.0
#: The log is listed that often at least: receivers elsewhere tell nobody when they seal a segment.
LISTING = 1.0
#: A receiver that does not seal in that time is not waited for; what it has comes with a later batch.
ROLLING = 5.0
#: For all nsqds to tell how much they have, before a run that is to read that much and end.
MEASURING = 60.0
#: Between two looks at receivers that have a lot to tell.
_PAUSE = 0.05
#: Between two attempts to have something sealed.
_AGAIN = 0.2
_STILL_WAITING = 10.0


class State(NamedTuple):
    """How the receivers of this query are, all together. ``paused`` says why they take nothing; ``connected``
    is whether any of them has an nsqd, as far as that is known here.
    """

    ready: bool = True
    connected: bool = True
    received: int = 0
    open: Amount = Amount()
    sealed: int = 0
    paused: str = ""


class Receivers(Protocol):
    """The processes that receive for this query; they may also be none."""

    def start(self) -> None: ...

    def state(self) -> State: ...

    def wait(self, seconds: float) -> None:
        """Until something has changed, but no longer."""

    def roll(self, patience: float) -> None:
        """Have them all seal what they have; return when they have, or have not within ``patience``."""

    def stop(self) -> None:
        """Gracefully, with a deadline of its own."""


class Feed:
    """Of one run of one query; used by one thread, except for ``leaving``."""

    def __init__(
        self,
        options: SourceOptions,
        wal: Wal,
        identity: str,
        claim: Claim,
        receivers: Receivers,
        backlog: BacklogGauge[Backlog],
        oldest: Callable[[Slice], float | None],
        *,
        wanted: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wanted = wanted
        self._options = options
        self._wal = wal
        self._identity = identity
        self._claim = claim
        self._receivers = receivers
        self._backlog = backlog
        self._clock = clock
        self._pace = Pace(options.linger, options.min_messages_per_trigger, options.max_trigger_delay)
        self._segments: list[Segment] = []
        self._present: frozenset[str] = frozenset()
        self._listed = float("-inf")
        self._sealed = -1
        self._receiving = False
        self._starting = True
        self._since: float | None = None
        self._read = Offset(identity)
        self._oldest = BacklogGauge("age", lambda: self._age(oldest), LISTING, clock)
        self._before: tuple[list[Segment], Backlog, float] | None = None
        self._goal: Goal | None = None
        self._told = float("-inf")

    # What Spark asks for

    def initial(self) -> dict[str, Any]:
        """Always the same: Spark asks again until the first batch is done."""
        return Offset(self._identity).to_json()

    def aim(self) -> None:
        """This run is to read what there is now, and end."""
        self._list()
        until = self._clock() + MEASURING
        while (measured := self._backlog.wait(LISTING)) is None and self._clock() < until:
            self._stay()  # nothing may be received before
        backlog = measured.value if measured else Backlog()
        if not backlog.asked:
            log.warning(
                "the backlog is unknown, so it is over when nothing comes for availableNowIdle: %s",
                backlog.silence or "no nsqd is known yet",
            )
        elif backlog.faults:
            log.warning("only what other nsqds have is waited for: %s", "; ".join(backlog.faults))
        self._before = (self._segments, backlog, self._clock())

    def latest(self, start: Mapping[str, Any], limits: Limits, poll: float = POLL) -> Mapping[str, Any]:
        """Where the next batch ends; ``start`` itself when there is none yet or, once aimed, no more."""
        read = self._checked(start)
        self._read = read
        self.receive()
        if self._before is not None:
            self._set_goal(read, *self._before)
        asked = began = self._clock()
        while True:
            end, due = self._next(read, limits)
            if end is not None:
                self._read = end
                return end.to_json()
            now = self._clock()
            if self._starting:
                began = now
                self._starting = now - asked < STARTING and not self._receivers.state().ready
            if self._goal is None and now - began >= poll:
                return start
            if self._goal is not None and self._is_over(self._goal, read, now):
                return start
            self._stay()
            left = LISTING if self._goal is not None else poll - (now - began)
            self._receivers.wait(max(_PAUSE, min(left, left if due is None else due)))

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[list[Slice]]:
        """The tasks of a batch."""
        self.receive()
        self._list()
        first, last = self._checked(start), self._checked(end)
        self._read = last  # also when it was promised before a restart
        slices, lost = between(first, last, self._segments)
        if lost:
            self._lament(lost)
        return planning.tasks(slices, self._options.target_partition_bytes, self._options.min_partitions)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark will never ask for anything up to there again."""
        self._forget(self._checked(end))

    def report(self) -> dict[str, Any]:
        """The log's figures are those of what is in no batch yet. ``lag`` is everything that is in none: also
        what waits in nsqd, or is in flight there, less what has come since nsqd was asked.
        """
        state = self._receivers.state()
        waiting = self._pending(unread(self._read, self._segments), state)
        measured = self._backlog.look()
        known = measured.value if measured is not None and measured.value.asked else None
        oldest = self._oldest.look()
        return {
            **self._sealed_so_far().to_json(),
            "lag": waiting.rows + known.unreceived(state.received) if known else None,
            "received": state.received,
            "walRows": waiting.rows,
            "walBytes": waiting.bytes,
            "nsqdDepth": known.depth if known else None,
            "nsqdInFlight": known.in_flight if known else None,
            "oldestSeconds": oldest.value if oldest else None,
            "paused": state.paused or None,
        }

    def _stay(self) -> None:
        """A process that waits would not notice that nobody waits for it."""
        if not self._wanted():
            raise Closed("nobody waits for a batch any more")

    # The end

    def leaving(self) -> None:
        """For any moment, even in the middle of everything else: a signal's handler calls it."""
        with suppress(OSError, NsqError):
            self._claim.leaving()

    def close(self) -> None:
        """What was received stays for the next run, and nothing else does: all is sealed and finished."""
        self.leaving()
        try:
            self._receivers.stop()
            self._backlog.stop()
            self._oldest.stop()
        finally:
            self._claim.release()

    # Batches

    def receive(self) -> None:
        """Begin to, at the first call."""
        if not self._receiving:
            self._receiving = True
            self._receivers.start()

    def _next(self, read: Offset, limits: Limits) -> tuple[Offset | None, float | None]:
        """The end of a batch; or None, and in how many seconds there will be one if nothing more comes."""
        state = self._receivers.state()
        now = self._clock()
        if state.sealed != self._sealed or now - self._listed >= LISTING:
            self._sealed = state.sealed
            self._list()
        limits = limits if self._goal is None else limits.tightened(rows=self._goal.left)
        waiting = unread(read, self._segments)
        pending = self._pending(waiting, state)
        if self._goal is not None:
            self._goal.look(now, pending.rows, state.ready)
        if not pending.rows:
            self._since = None
            if state.paused and any(map(read.has_read, self._segments)):
                # Perhaps because of what we have read, and would delete with the next batch only.
                self._forget(read)
        elif self._since is None:
            self._since = now
        due = self._pace_now().ripe_in(pending, now - (now if self._since is None else self._since), limits)
        if due != 0 or limits.rows == 0:
            return None, due
        if state.open.rows and not limits.reached(amount(waiting)):
            self._receivers.roll(ROLLING)
            self._list()
        end, taken = admitted(read, self._segments, self._present, limits)
        if not taken.rows:
            return None, _AGAIN
        self._since = None
        if self._goal is not None:
            self._goal.taken += taken.rows
        return end, None

    def _pace_now(self) -> Pace:
        # A run that is to end does not wait for rows that are not part of it.
        return self._pace if self._goal is None else Pace(self._options.linger, 0, 0.0)

    def _pending(self, waiting: Sequence[Slice], state: State) -> Amount:
        sealed = amount(waiting)
        return Amount(sealed.rows + state.open.rows, sealed.bytes + state.open.bytes)

    # AvailableNow

    def _set_goal(self, read: Offset, segments: Sequence[Segment], backlog: Backlog, began: float) -> None:
        options = self._options
        in_log = amount(unread(read, segments)).rows
        in_nsqd = backlog.waiting(options.wait_for_in_flight)
        log.info(
            "reading what there is: %d rows in the log, %d waiting in nsqd, %d in flight, %d deferred (%s)",
            *(in_log, backlog.depth, backlog.in_flight, backlog.deferred),
            "waited for" if options.wait_for_in_flight else "not waited for",
        )
        # What others have in flight comes only if they give it back, but then it was there when we began.
        self._goal = Goal(
            in_log + in_nsqd if backlog.asked else None,
            began,
            idle=options.available_now_idle,
            timeout=options.available_now_timeout,
            with_held=options.wait_for_in_flight,
        )
        self._before = None
        self._told = self._clock()

    def _is_over(self, goal: Goal, read: Offset, now: float) -> bool:
        measured = self._backlog.look()
        state = self._receivers.state()
        pending = self._pending(unread(read, self._segments), state).rows
        told = (measured.value, measured.began) if measured else (None, 0.0)
        reason = goal.verdict(now, pending, *told)
        if reason:
            silence = measured.value.silence if measured and goal.rows is None else ""
            if silence and not goal.taken and not state.connected:
                # Nobody to read from is not nothing to read.
                raise ConnectionFailed(f"no nsqd can be reached, so nothing was read: {silence}")
            log.info("done: %s", reason)
            # Spark asks for more only when everything up to here is committed; there will be no next batch
            # in this run with which to say so.
            self._forget(read)
            return True
        if now - self._told >= _STILL_WAITING:
            self._told = now
            more = "more" if goal.left is None else f"{goal.left} more"
            log.info("waiting for %s rows, %d of them received", more, pending)
        return False

    # The log

    def _list(self) -> None:
        folders = self._wal.receivers()
        if any(folder.open_bytes and not folder.alive for folder in folders):
            for segment in self._wal.recover():
                log.info("receiver %s is dead; %d rows recovered", segment.receiver, segment.rows)
            folders = self._wal.receivers()
        self._present = frozenset(folder.receiver for folder in folders)
        self._segments = self._wal.segments()
        self._listed = self._clock()

    def _forget(self, read: Offset) -> None:
        done = [segment for segment in self._wal.segments() if read.has_read(segment)]
        try:
            self._wal.delete(done)
            self._wal.discard_empty()
        except WalError as error:
            # They are in nobody's way but the disk's; the next commit tries again.
            log.warning("segments that were read cannot be deleted: %s", error)
        self._segments = [segment for segment in self._segments if not read.has_read(segment)]

    def _checked(self, told: Mapping[str, Any]) -> Offset:
        self._claim.check()
        offset = Offset.of_json(told)
        if offset.wal != self._identity:
            raise WalForeign(
                f"the checkpoint belongs to the log {offset.wal}, but {shown(self._wal.location)} is the log "
                f"{self._identity}: give option wal the old place, or begin a new checkpoint"
            )
        return offset

    def _lament(self, lost: Sequence[Lost]) -> None:
        files = ", ".join(f"{receiver}/{names.sealed_pattern(number)}" for receiver, number in lost)
        text = f"{shown(self._wal.location)} has lost what this batch needs: {files}"
        if self._options.fail_on_data_loss:
            raise SegmentLost(f"{text}; failOnDataLoss=false goes on without it")
        log.warning("%s; going on without it", text)

    def _sealed_so_far(self) -> Offset:
        at = dict(self._read.at)
        for segment in self._segments:
            at[segment.receiver] = max(self._read.position(segment.receiver), Position(segment.number))
        return Offset(self._identity, at)

    def _age(self, oldest: Callable[[Slice], float | None]) -> float | None:
        """Of the oldest row that is sealed and not read; None when there is none."""
        firsts: dict[str, Slice] = {}
        for piece in unread(self._read, list(self._segments)):
            firsts.setdefault(piece.segment.receiver, piece)
        ages = [age for piece in firsts.values() if (age := oldest(piece)) is not None]
        return round(max(ages), 3) if ages else None
