"""The driver's side of a running query: decides when a batch begins and what it takes.

``stream.py`` passes Spark's calls on to a ``Feed``. ``reader.py`` says which offsets fit the log, and
``view.py`` what the log holds and what may be deleted. Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsq.errors import Closed, ConnectionFailed, NsqError, SegmentLost, WalError
from nsq.log import Logger
from nsq.spark.receiver.pool import PoolStatus, ReceiverPool
from nsq.spark.source.backlog import AvailableNowTarget, Backlog, Poller
from nsq.spark.source.offsets import (
    Amount,
    Limits,
    Offset,
    Slice,
    admitted,
    amount,
    between,
    names_of,
    tasks,
    unread,
)
from nsq.spark.source.options import SourceOptions
from nsq.spark.source.reader import Reader
from nsq.spark.source.view import LogView
from nsq.spark.wal import readers
from nsq.spark.wal.names import Listing, Position, ReceiverState, Segment
from nsq.spark.wal.store import shown

if TYPE_CHECKING:
    from nsq.spark.wal.log import Wal

log = Logger("nsq.spark.source")

# All in seconds.
#: The longest that ``latest`` blocks Spark before it answers that there is no batch yet.
POLL = 0.5
#: The longest that the first ``latest`` waits for the receivers to be ready: Spark makes a batch of the first
#: answer even if it is empty. An AvailableNow run waits as long for their connections before it ends.
STARTING = 5.0
#: The longest between two listings of the log: receivers on other hosts do not report their new segments.
LISTING = 1.0
#: The longest that an AvailableNow run waits, before it begins, for the nsqds to report their depths.
MEASURING = 60.0
#: The shortest wait for news of the receivers.
_PAUSE = 0.05
#: The pause before another attempt to make a batch of pending rows.
_AGAIN = 0.2
_STILL_WAITING = 10.0
#: How old the nsqds' depths in a report may be, and how long it waits for newer ones.
RECENT, REPORTING = 3.0, 1.0
_NO_ANSWER = f"the nsqds have not said their depths for {RECENT:g} s"
_NO_NSQD = "no nsqd is known, so neither lag nor nsqdDepth"
#: The shortest time between two looks for the errors that receivers on a cluster have noted.
NOTED = 5.0
_LONGEST_ERROR = 1000


@dataclass(eq=False)
class Feed:
    """One run of one query; used by one thread, except for ``leaving``."""

    options: SourceOptions
    wal: Wal
    reader: Reader
    receivers: ReceiverPool
    backlog: Poller[Backlog]

    def __post_init__(self) -> None:
        self._view = LogView(self.options, self.wal, self.reader, self._receivers_full)
        self._job_errors = Poller("receivers", self._noted_errors, NOTED)
        self._error = ""  # as last logged
        self._own: frozenset[str] = frozenset()  # the receivers that this query has started
        self._received: dict[str, int] = {}  # by receiver, what the others have received
        self._parent = os.getppid()
        self._sealed = -1  # how many segments the receivers had sealed at the last listing
        self._starting = True
        self._since: float | None = None  # since when rows are pending
        self._read = Offset(self.reader.identity)
        self._last_empty_batch = float("-inf")
        self._once = False
        self._before: tuple[list[Segment], Backlog, float] | None = None
        self._target: AvailableNowTarget | None = None
        self._warned: set[str] = set()
        self._target_set_at = self._logged_at = float("-inf")

    # What Spark calls

    def initial(self) -> dict[str, Any]:
        """The start of a new checkpoint. Always the same: Spark calls this until the first batch is done."""
        return Offset(self.reader.identity).to_json()

    def start_available_now(self) -> None:
        """Prepare an AvailableNow run, which reads what there is now and then ends."""
        self.backlog.pause = POLL  # poll often: the run ends when nsqd has no more
        # A checkpoint that begins anew may begin before what this reader has committed.
        anew = self.options.starting or not self.reader.state.begun
        self._list({} if anew else None)
        until = time.monotonic() + MEASURING
        while (measured := self.backlog.last_answer(LISTING)) is None and time.monotonic() < until:
            self._check_driver()  # receivers must not start before the backlog is measured
        backlog = measured or Backlog()
        errors = "; ".join(backlog.errors)
        if not backlog.asked:
            log.warning(
                "the backlog is unknown, so the run ends when no row comes for availableNowIdle: %s",
                errors or "no nsqd is known yet",
            )
        elif errors:
            log.warning("the run waits only for the messages of the other nsqds: %s", errors)
        self._before = (self._view.segments, backlog, time.monotonic())

    def latest(self, start: Mapping[str, Any], limits: Limits, *, once: bool = False) -> Mapping[str, Any]:
        """Where the next batch ends; ``start`` itself when there is no batch yet, or no more after
        ``start_available_now``.

        ``once``: this is the only batch of the run, and takes all that there was when the run began.
        """
        begin = self.reader.parse(start)
        self.backlog.last_answer()  # ask the nsqds now, for the report of this trigger
        self._read = self.reader.begin(begin, lambda: self._list({}))
        # Spark makes a batch of the first answer even if it is empty. The offset of that batch must say that
        # the checkpoint has begun.
        nothing = start if begin.begun else self.reader.end(begin, dataclasses.replace(self._read, turn=1))
        if once and not self._once:
            self._once = True
            self.start_available_now()
        self.receivers.start()
        if self._before is not None:
            self._set_target(*self._before)
        asked = began = time.monotonic()
        while True:
            end, due = self._next(limits)
            if end is not None:
                self._read = end
                return self.reader.end(begin, end)
            now = time.monotonic()
            if self._starting:
                began = now
                self._starting = now - asked < STARTING and not self.receivers.state().ready
            left = LISTING
            if self._target is None:
                left = POLL - (now - began)
                if left <= 0:
                    return nothing
            elif self._is_over(self._target, now):
                return nothing
            self._check_driver()
            self.receivers.wait(max(_PAUSE, left if due is None else min(left, due)))

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[list[Slice]]:
        """The tasks of a batch."""
        self.receivers.start()
        first, last = self.reader.parse(start), self.reader.parse(end)
        self.reader.compare(last, first)
        if not last.foreign and not self.reader.state.begun:
            # Saved, so that we can recognize a new checkpoint: its offset has not begun.
            self.reader.save(self.reader.state.at, begun=True)
        self._read = last  # Spark may have got this offset before a restart
        self._refresh()
        slices, lost = between(first, last, self._view.segments)
        if lost:
            self._lose("segments that this batch needs", names_of(lost))
        return tasks(slices, self.options.target_partition_bytes, self.options.min_partitions)

    def _list(self, after: Mapping[str, Position] | None = None) -> Listing:
        """List the log, and note what each receiver has received: it counts also when it is gone."""
        listing = self._view.refresh(after, self._read.at.keys())
        self._own |= {*self.receivers.status().receivers}
        counts = {each.receiver: each.status.received for each in listing.receivers}
        self._received = self._received | counts
        return listing

    def _refresh(self) -> None:
        """List the log. Raises SegmentLost when it lacks what this query has not read."""
        listing = self._list()
        if lost := readers.lost(self._read.at, listing.receivers):
            self._lose(f"what reader {self.options.reader!r} has not read", lost)

    def _lose(self, what: str, names: Sequence[str]) -> None:
        """Raise SegmentLost, or with failOnDataLoss=false warn, once."""
        text = f"{shown(self.wal.location)} lacks {what}: {', '.join(names)}"
        if text in self._warned:
            return
        self.reader.claim.verify()  # a query that took our name over has deleted what it read
        if self.options.fail_on_data_loss:
            raise SegmentLost(f"{text}; failOnDataLoss=false goes on without it")
        self._warned.add(text)
        log.warning("%s; going on without it", text)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Note that Spark is done with everything up to ``end``, and delete what retention does not keep."""
        committed = self.reader.parse(end)
        if committed.at:
            self.reader.note_committed(committed)
        self._view.delete_committed()

    def report(self) -> dict[str, Any]:
        """The figures for Spark's progress report, about messages that are in no batch yet. ``lag`` counts
        those in the log, and those waiting or in flight in nsqd, less what we received since nsqd was asked.
        """
        state = self.receivers.state()
        waiting, oldest = self._pending(), self._view.oldest(self._read)
        known = self.backlog.recent_answer(RECENT, REPORTING) or Backlog(errors=(_NO_ANSWER,))
        received = self.received()
        error = self._why_failing(state, known)
        sealed = dict(self._read.at)
        for segment in self._view.segments:
            at = Position(segment.number)
            sealed[segment.receiver] = max(sealed.get(segment.receiver, at), at)
        return {
            **Offset(self.reader.identity, sealed).to_json(),
            "lag": waiting.rows + known.unreceived(received) if known.asked else None,
            "received": received,
            "walRows": waiting.rows,
            "walBytes": waiting.bytes,
            "nsqdDepth": known.depth if known.asked else None,
            "nsqdInFlight": known.in_flight if known.asked else None,
            "oldestSeconds": None if oldest is None else round(max(0.0, time.time() - oldest / 1e9), 3),
            "paused": self._paused(state) or None,
            "error": error or None,
            "receivers": state.alive + sum(each.alive for each in self._elsewhere(state)),
        }

    def received(self) -> int:
        """The messages that our receivers took since the query started, and that those elsewhere took since
        they started, as far as they report it. Never falls. Any thread may ask.
        """
        state, others, own = self.receivers.status(), self._received, self._own
        own |= {*state.receivers}
        return state.received + sum(count for name, count in others.items() if name not in own)

    def _elsewhere(self, state: PoolStatus) -> list[ReceiverState]:
        """The receivers that this query has not started."""
        own = self._own | {*state.receivers}
        return [each for each in self._view.receivers if each.receiver not in own]

    def _noted_errors(self) -> list[str]:
        try:
            return self.wal.job_errors()
        except WalError:
            return []  # the listing of the log fails too, and says so

    def _why_failing(self, state: PoolStatus, known: Backlog) -> str:
        """What is wrong with receivers, here or elsewhere, or with the nsqds and nsqlookupds; also logged."""
        elsewhere = [each.status.error for each in self._elsewhere(state) if each.alive]
        noted = self._job_errors.last_answer() or []
        nsqds = known.errors or (() if known.asked else (_NO_NSQD,))
        error = "; ".join(dict.fromkeys(filter(None, [state.error, *elsewhere, *noted, *nsqds])))
        error = error[:_LONGEST_ERROR]
        if error != self._error:
            self._error = error
            log.warning("receiving: %s", error or "the errors are over")
        return error

    def _paused(self, state: PoolStatus) -> str:
        """Why receiving is paused, here or elsewhere; empty when it is not."""
        if state.paused:
            return state.paused
        if self._view.full:
            return f"the log holds {self._view.size:,} bytes, of {self.options.wal_max_bytes:,} at most"
        reasons = [each.status.paused for each in self._elsewhere(state) if each.alive]
        return next(filter(None, reasons), "")

    def _receivers_full(self) -> bool:
        """Whether a receiver has paused because the log is full. Elsewhere walMaxBytes may be smaller."""
        state = self.receivers.status()
        return bool(state.full) or any(each.alive and each.status.full for each in self._elsewhere(state))

    def _check_driver(self) -> None:
        """Raise Closed when the JVM is gone: a process that waits does not notice that otherwise."""
        if os.getppid() != self._parent:
            raise Closed("the query that asked for a batch has ended")

    # The end

    def leaving(self) -> None:
        """Announce that this query is leaving; safe at any moment, because a signal handler calls it."""
        with suppress(OSError, NsqError):
            self.reader.claim.leaving()

    def close(self) -> None:
        """Stop the receivers and release the reader's name. What they received stays in the log."""
        self.leaving()
        try:
            self.receivers.stop()
            self.backlog.stop()
            self._job_errors.stop()
        finally:
            self.reader.claim.release()

    # Batches

    def _next(self, limits: Limits) -> tuple[Offset | None, float | None]:
        """The end of a batch; or None, and in how many seconds to try again (None: when something comes)."""
        options, target = self.options, self._target
        state, now = self.receivers.state(), time.monotonic()
        if state.sealed != self._sealed or now - self._view.listed_at >= LISTING:
            self._sealed = state.sealed
            self._refresh()
        pending = self._pending()
        self._since = (self._since or now) if pending.rows else None
        if target is not None:
            limits = limits.tightened(target.left)
            target.note_rows(now, pending.rows, state.ready)
            if self._once and not self._paused(state):
                # The only batch of this run waits until no more rows of the target will come.
                arrived = target.left is not None and pending.rows >= target.left
                if not arrived and not target.verdict(now, 0, self.backlog.last_answer() or Backlog()):
                    return None, _AGAIN
        if self._since is None:
            full = self._paused(state) and not self._once and now - self._last_empty_batch >= LISTING
            if not full or not self._view.awaits_commit(self._read):
                return None, None
            # The log is full of rows that Spark has read but not committed. Spark commits a batch when it
            # makes the next one, so make one without rows.
            self._last_empty_batch = now
            return dataclasses.replace(self._read, origins={}, turn=self._read.turn + 1), None
        if limits.rows == 0:
            return None, None
        if not limits.reached(pending):
            # A wait brings no more rows in an AvailableNow run, nor while the log is full.
            few = (
                target is None and not self._paused(state) and pending.rows < options.min_messages_per_trigger
            )
            due = (options.max_trigger_delay if few else options.linger) - (now - self._since)
            if due > 0:
                return None, due
        present = {each.receiver for each in self._view.receivers if not each.ended}
        end, taken = admitted(self._read, self._view.segments, present, limits)
        if not taken.rows:
            return None, _AGAIN
        self._since = now  # rows that come while Spark works on this batch count as pending since now
        if target is not None:
            target.taken += taken.rows
        return end, None

    def _pending(self) -> Amount:
        """Unread rows in the log."""
        return amount(self._view.unread(self._read))

    # AvailableNow

    def _set_target(self, segments: Sequence[Segment], backlog: Backlog, began: float) -> None:
        with_held = self.options.wait_for_in_flight
        in_log = amount(unread(self._read, segments)).rows
        log.info(
            "reading what there is: %d rows in the log, %d waiting in nsqd, %d in flight, %d deferred (%s)",
            *(in_log, backlog.depth, backlog.in_flight, backlog.deferred),
            "waited for" if with_held else "not waited for",
        )
        # Messages in flight at other clients come only if these requeue them, but they existed at the start.
        rows = in_log + backlog.waiting(with_held) if backlog.asked else None
        self._target = AvailableNowTarget(rows, began, self.options)
        self._before = None
        self._target_set_at = self._logged_at = time.monotonic()

    def _is_over(self, target: AvailableNowTarget, now: float) -> bool:
        measured, state = self.backlog.last_answer() or Backlog(), self.receivers.state()
        pending = self._pending().rows
        reason = target.verdict(now, pending, measured)
        if reason and now - self._target_set_at < STARTING and not self._subscribed(state, measured):
            return False
        if reason:
            silence = "" if measured.asked else "; ".join(measured.errors)
            connected = state.connections or not state.wanted  # unknown with receivers on other hosts
            if target.rows is None and silence and not target.taken and not connected:
                # When no nsqd answers, there may still be messages to read.
                raise ConnectionFailed(f"no nsqd can be reached, so nothing was read: {silence}")
            log.info("done: %s", reason)
            if not self.options.receivers and measured.depth:
                log.warning(
                    "%d messages wait in nsqd: option receivers is 0, so a receiver elsewhere must take them",
                    measured.depth,
                )
            # Spark asks for more only when it has committed everything up to here. It reports a commit with
            # the next batch, of which there is none in this run, so note it now.
            if self.reader.state.begun and self._read.at:
                self.reader.note_committed(self._read)
            self._view.delete_committed()
            return True
        if now - self._logged_at >= _STILL_WAITING:
            self._logged_at = now
            more = "more" if target.left is None else f"{target.left} more"
            log.info("waiting for %s rows, %d of them received", more, pending)
        return False

    def _subscribed(self, state: PoolStatus, measured: Backlog) -> bool:
        """Whether all connections exist, and so the channel; a run that ends earlier misses new messages."""
        wanted = max(1, measured.asked) * max(1, len(self.options.named_topics))
        return not state.wanted or state.connections >= wanted
