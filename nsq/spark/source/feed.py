"""What a running query knows and does on the driver: when a batch begins, what it takes, what may be deleted.

Between Spark, who asks (``stream.py``), and the log, the receivers and the gauges, who are arguments. Imports
neither pyspark nor pyarrow.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nsq.errors import Closed, ConnectionFailed, NsqError, SegmentLost, WalError, WalForeign
from nsq.spark.receiver.pool import PoolStatus, ReceiverPool
from nsq.spark.source.backlog import AvailableNowTarget, Backlog, Poller
from nsq.spark.source.offsets import (
    Amount,
    Limits,
    Lost,
    Offset,
    Pace,
    Slice,
    admitted,
    amount,
    between,
    tasks,
    unread,
)
from nsq.spark.source.options import COMMITTED, LATEST, SourceOptions
from nsq.spark.wal import names
from nsq.spark.wal.readers import ReaderState, deletable
from nsq.spark.wal.store import Claim, Position, Segment, Wal, shown

log = logging.getLogger("nsq.spark.source")

#: How long Spark is kept waiting for a batch, at the most, before it is told that there is none yet.
POLL = 0.5
#: The first time it is kept waiting until the receivers are at work, or for so long: Spark makes a batch of
#: the first answer even if there is nothing in it.
STARTING = 5.0
#: The log is listed that often at least: receivers elsewhere do not report when they seal a segment.
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


class Feed:
    """Of one run of one query; used by one thread, except for ``leaving``."""

    def __init__(
        self,
        options: SourceOptions,
        wal: Wal,
        identity: str,
        claim: Claim,
        receivers: ReceiverPool,
        backlog: Poller[Backlog],
        oldest: Callable[[Slice], float | None],
        *,
        newest: Callable[[Segment], int | None],
        now: Callable[[], float] = time.time,
        wanted: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wanted = wanted
        self._newest = newest
        self._now = now
        self._state = wal.readers().get(options.reader)
        self._beginning: Offset | None = None
        self._compared = False
        self._turned = float("-inf")
        self._once = False
        self._foreign = False
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
        self._oldest = Poller("age", lambda: self._age(oldest), LISTING, clock)
        self._before: tuple[list[Segment], Backlog, float] | None = None
        self._target: AvailableNowTarget | None = None
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

    def latest(self, start: Mapping[str, Any], limits: Limits, *, once: bool = False) -> Mapping[str, Any]:
        """Where the next batch ends; ``start`` itself when there is none yet or, once aimed, no more.

        ``once``: it is the only batch of this run, and takes all that there was when the run began.
        """
        told = self._checked(start)
        read = self._begun(told)
        self._read = read
        if once and not self._once:
            self._once = True
            self.aim()
        self.receive()
        if self._before is not None:
            self._set_target(read, *self._before)
        asked = began = self._clock()
        while True:
            end, due = self._next(read, limits)
            if end is not None:
                self._read = end
                return (end if told.at else self._with_beginnings(end)).to_json()
            now = self._clock()
            if self._starting:
                began = now
                self._starting = now - asked < STARTING and not self._receivers.state().ready
            if self._target is None and now - began >= POLL:
                return start
            if self._target is not None and self._is_over(self._target, read, now):
                return start
            self._stay()
            left = LISTING if self._target is not None else POLL - (now - began)
            self._receivers.wait(max(_PAUSE, min(left, left if due is None else due)))

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[list[Slice]]:
        """The tasks of a batch."""
        self.receive()
        self._list()
        first, last = self._checked(start), self._checked(end)
        self._compare(last, first)
        if not last.foreign and (self._state is None or not self._state.begun):
            # From now on an offset without positions can only be that of another checkpoint.
            self._save(self._state.at if self._state else first.at, begun=True)
        self._read = last  # also when it was promised before a restart
        slices, lost = between(first, last, self._segments)
        if lost:
            self._lament(lost)
        return tasks(slices, self._options.target_partition_bytes, self._options.min_partitions)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark will never ask for anything up to there again."""
        committed = self._checked(end)
        if committed.at:
            self._note_committed(committed)
        self._delete_committed()

    def report(self) -> dict[str, Any]:
        """The log's figures are those of what is in no batch yet. ``lag`` is everything that is in none: also
        what waits in nsqd, or is in flight there, less what has come since nsqd was asked.
        """
        state = self._receivers.state()
        waiting = self._pending(unread(self._read, self._segments), state)
        measured = self._backlog.look()
        known = measured.value if measured is not None and measured.value.asked else None
        oldest = self._oldest.look()
        sealed = dict(self._read.at)
        for segment in self._segments:
            at = Position(segment.number)
            sealed[segment.receiver] = max(sealed.get(segment.receiver, at), at)
        return {
            **Offset(self._identity, sealed).to_json(),
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
        """End the wait when Spark is gone, which a waiting process does not notice otherwise."""
        if not self._wanted():
            raise Closed("the query that asked for a batch has ended")

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
        limits = limits if self._target is None else limits.tightened(rows=self._target.left)
        waiting = unread(read, self._segments)
        pending = self._pending(waiting, state)
        if self._target is not None:
            self._target.look(now, pending.rows, state.ready)
        if not pending.rows:
            self._since = None
            full = bool(state.paused) and not self._once and self._awaits_commit(read)
            if full and now - self._turned >= LISTING:
                # Spark commits a batch when it makes the next one: without rows, for the log is full of what
                # it has to commit first.
                self._turned = now
                return dataclasses.replace(read, origins={}, turn=read.turn + 1), None
        elif self._since is None:
            self._since = now
        if self._once and self._target is not None and not state.paused:
            # The only batch of this run begins when nothing more of its target will come.
            arrived = self._target.left is not None and pending.rows >= self._target.left
            if not arrived and not self._verdict(self._target, now, 0):
                return None, _AGAIN
        # Neither a run that is to end nor a log that is full gets more rows by waiting.
        waits = self._target is None and not state.paused
        pace = self._pace if waits else Pace(self._options.linger, 0, 0.0)
        due = pace.ripe_in(pending, now - (now if self._since is None else self._since), limits)
        if due != 0 or limits.rows == 0:
            return None, due
        if state.open_rows and not limits.reached(amount(waiting)):
            self._receivers.roll(ROLLING)
            self._list()
        end, taken = admitted(read, self._segments, self._present, limits)
        if not taken.rows:
            return None, _AGAIN
        self._since = None
        if self._target is not None:
            self._target.taken += taken.rows
        return end, None

    def _pending(self, waiting: Sequence[Slice], state: PoolStatus) -> Amount:
        sealed = amount(waiting)
        return Amount(sealed.rows + state.open_rows, sealed.bytes + state.open_bytes)

    # AvailableNow

    def _set_target(self, read: Offset, segments: Sequence[Segment], backlog: Backlog, began: float) -> None:
        options = self._options
        in_log = amount(unread(read, segments)).rows
        in_nsqd = backlog.waiting(options.wait_for_in_flight)
        log.info(
            "reading what there is: %d rows in the log, %d waiting in nsqd, %d in flight, %d deferred (%s)",
            *(in_log, backlog.depth, backlog.in_flight, backlog.deferred),
            "waited for" if options.wait_for_in_flight else "not waited for",
        )
        # What others have in flight comes only if they give it back, but then it was there when we began.
        self._target = AvailableNowTarget(
            in_log + in_nsqd if backlog.asked else None,
            began,
            idle=options.available_now_idle,
            timeout=options.available_now_timeout,
            with_held=options.wait_for_in_flight,
        )
        self._before = None
        self._told = self._clock()

    def _is_over(self, target: AvailableNowTarget, read: Offset, now: float) -> bool:
        measured = self._backlog.look()
        state = self._receivers.state()
        pending = self._pending(unread(read, self._segments), state).rows
        reason = self._verdict(target, now, pending)
        if reason:
            silence = measured.value.silence if measured and target.rows is None else ""
            if silence and not target.taken and not state.connected:
                # No nsqd that answers does not mean that there is nothing to read.
                raise ConnectionFailed(f"no nsqd can be reached, so nothing was read: {silence}")
            log.info("done: %s", reason)
            # Spark asks for more only when everything up to here is committed; there will be no next batch
            # in this run with which to say so.
            if self._state is not None and self._state.begun and read.at:
                self._note_committed(read)
            self._delete_committed()
            return True
        if now - self._told >= _STILL_WAITING:
            self._told = now
            more = "more" if target.left is None else f"{target.left} more"
            log.info("waiting for %s rows, %d of them received", more, pending)
        return False

    def _verdict(self, target: AvailableNowTarget, now: float, pending: int) -> str:
        measured = self._backlog.look()
        return target.verdict(now, pending, *((measured.value, measured.began) if measured else (None, 0.0)))

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

    def _delete_committed(self) -> None:
        """Of what every reader has committed, the segments that retention does not keep."""
        options = self._options
        deleted: list[Segment] = []
        try:
            deleted = deletable(
                self._wal.files(),
                (self._wal.readers() | ({options.reader: self._state} if self._state else {})).values(),
                now=self._now(),
                retention=options.retention,
                retention_bytes=min(options.retention_bytes, options.wal_max_bytes // 2),
            )
            self._wal.delete(deleted)
            self._wal.discard_empty()
        except WalError as error:
            # They only take room; the next commit tries again.
            log.warning("segments that were committed cannot be deleted: %s", error)
        gone = set(deleted)
        self._segments = [segment for segment in self._segments if segment not in gone]

    def _checked(self, told: Mapping[str, Any]) -> Offset:
        self._claim.check()
        offset = Offset.of_json(told)
        if offset.wal == self._identity:
            return offset
        text = (
            f"the checkpoint belongs to the log {offset.wal}, but {shown(self._wal.location)} is the log "
            f"{self._identity}"
        )
        if self._options.fail_on_data_loss:
            raise WalForeign(
                f"{text}: give option wal the old place; or, if that log is lost, failOnDataLoss=false goes "
                "on with this one"
            )
        if not self._foreign:
            self._foreign = True
            log.warning("%s; what was in it and not read is lost, going on with this one", text)
        return Offset(self._identity, foreign=True)

    # Where this reader begins

    def _begun(self, read: Offset) -> Offset:
        """``read`` itself, or where a checkpoint without offsets begins."""
        if read.at:
            self._compare(read, read)
            return read
        if self._beginning is None:
            self._beginning = self._choose_beginning()
        return dataclasses.replace(self._beginning, turn=read.turn)

    def _choose_beginning(self) -> Offset:
        options, state = self._options, self._state
        if state is not None and not state.begun and state.starting == options.starting:
            return Offset(self._identity, state.at)
        if state is not None and state.begun and not options.starting:
            raise WalForeign(
                f"reader {options.reader!r} has read the log {shown(self._wal.location)} before, but this "
                "checkpoint begins anew: a sink that remembers batch numbers, such as Parquet files, would "
                "leave out new rows without an error. Give the query its old checkpoint back; or give it an "
                "empty sink as well as the new checkpoint, and one of the options startingPosition=earliest "
                "(all that the log holds), startingPosition=committed (what was not read yet), "
                "startingPosition=latest or startingTimestamp; or let it read under another name: option "
                "reader"
            )
        self._list()
        at = self._beginning_at(state)
        self._save(at, begun=False)
        return Offset(self._identity, at)

    def _beginning_at(self, state: ReaderState | None) -> dict[str, Position]:
        options = self._options
        if options.starting_timestamp is not None:
            at: dict[str, Position] = {}
            passed = set()
            for segment in self._segments:
                newest = self._newest(segment) if segment.receiver not in passed else None
                if newest is not None and newest < options.starting_timestamp:
                    at[segment.receiver] = Position(segment.number)
                else:
                    passed.add(segment.receiver)
            return at
        if options.starting_position == LATEST:
            return {segment.receiver: Position(segment.number) for segment in self._segments}
        if options.starting_position == COMMITTED and state is not None:
            there = {segment.receiver for segment in self._segments} | self._present
            return {receiver: at for receiver, at in state.at.items() if receiver in there}
        return {}

    def _with_beginnings(self, end: Offset) -> Offset:
        """With the chosen beginning, which Spark's start, an offset without positions, does not tell."""
        chosen = self._beginning.at if self._beginning is not None else {}
        missing = {name: at for name, at in chosen.items() if name in end.at and name not in end.origins}
        return dataclasses.replace(end, origins={**end.origins, **missing})

    def _compare(self, reached: Offset, committed: Offset) -> None:
        """Refuse a checkpoint that has not ``reached`` what this reader has committed: it is not the one that
        it committed with.
        """
        state = self._state
        if self._compared or reached.foreign:
            return
        self._compared = True
        if state is None or not state.begun:
            if committed.at:
                self._save(committed.at, begun=True)
            return
        there = {segment.receiver for segment in self._wal.segments()}
        if any(at > reached.position(name) for name, at in state.at.items() if name in there):
            raise WalForeign(
                f"the checkpoint is older than what reader {self._options.reader!r} of the log "
                f"{shown(self._wal.location)} has committed: give the query the checkpoint that it used "
                "last, or, if two queries read this log in turn, give each a name of its own: option reader"
            )

    def _save(self, at: Mapping[str, Position], *, begun: bool) -> None:
        self._state = ReaderState(dict(at), begun, self._options.starting, self._now())
        self._wal.save_reader(self._options.reader, self._state)

    def _note_committed(self, committed: Offset) -> None:
        try:
            self._save(committed.at, begun=True)
        except WalError as error:
            # Spark knows it, and what is deleted now may make the room that is missing.
            log.warning("the position of reader %s cannot be noted: %s", self._options.reader, error)

    def _awaits_commit(self, read: Offset) -> bool:
        """Whether the log holds a segment that was read whole and that Spark has not committed."""
        state = self._state or ReaderState()
        return any(read.has_read(one) and not state.has_committed(one) for one in self._segments)

    def _lament(self, lost: Sequence[Lost]) -> None:
        files = ", ".join(f"{receiver}/{names.sealed_pattern(number)}" for receiver, number in lost)
        text = f"{shown(self._wal.location)} has lost what this batch needs: {files}"
        if self._options.fail_on_data_loss:
            raise SegmentLost(f"{text}; failOnDataLoss=false goes on without it")
        log.warning("%s; going on without it", text)

    def _age(self, oldest: Callable[[Slice], float | None]) -> float | None:
        """Of the oldest row that is sealed and not read; None when there is none."""
        firsts: dict[str, Slice] = {}
        for piece in unread(self._read, list(self._segments)):
            firsts.setdefault(piece.segment.receiver, piece)
        ages = [age for piece in firsts.values() if (age := oldest(piece)) is not None]
        return round(max(ages), 3) if ages else None
