"""Order within a partition: each partition has a lane, in which one message at a time is handled.

    read loops       a delivery -> its lane
    a lane           one message at a time -> the inbox
    handler threads  handle and answer it -> its lane: the next one, or the same one again after a pause

A message that fails holds up its own lane; other lanes go on. The lane decides (``lanes``, which is pure),
the pool here obeys.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from nsq.config import checked_function
from nsq.connection.conn import Conn
from nsq.consumer.connections import backoff_strategy
from nsq.consumer.decisions import GiveUp, Requeue, check_result
from nsq.consumer.handlers import Handler, HandlerPool
from nsq.consumer.rdy import NsqdWindow, Outcome, RdyWindows, set_all
from nsq.consumer.reports import PartitionHealth
from nsq.errors import AlreadyResponded, ConfigError, FinFailed, InvalidMessage, ServerError
from nsq.log import Logger
from nsq.message import Message, MessageDelegate
from nsq.partitioned.consuming import Partitioned
from nsq.partitioned.lanes import Action, Decision, Do, Lane, OnStuck, Stuck
from nsq.partitioned.subscription import Reading

if TYPE_CHECKING:
    from nsq.consumer.engine import Engine

log = Logger("nsq.partitioned")

#: The most messages for which we remember that they were finished a second time.
_MOST_FINISHED_AGAIN = 1024


class Track:
    """A lane and its events. Whichever of our threads holds ``claim`` hands the events to the lane; no thread
    waits for it.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.events: deque[Callable[[float], list[Action]]] = deque()
        self.claim = threading.Lock()
        self._unanswered: dict[Message, None] = {}  # what a handler has begun

    def begin(self, message: Message) -> None:
        """Let the message be answered, as a handler begins it."""
        self._unanswered[message] = None
        self.lane.begin(message)

    def may_answer(self, message: Message) -> bool:
        return message in self._unanswered

    def claim_answer(self, message: Message) -> bool:
        """Claim the right to answer a message; return whether the caller has got it."""
        return self._unanswered.pop(message, self) is None


class LaneDelegate:
    """The delegate of the messages of one partition that come over one connection."""

    def __init__(self, conn: Conn, track: Track, pool: Ordered) -> None:
        self.conn = conn
        self.track = track
        self._pool = pool

    @property
    def address(self) -> str:
        return self.conn.address

    @property
    def topic(self) -> str:
        return self.conn.topic

    def holds(self, message: Message) -> bool:
        return self.track.may_answer(message) and self.conn.holds(message)

    def finish(self, message: Message, success: bool = True) -> None:
        self._claim(message)
        try:
            self.conn.finish(message, success)
        finally:  # it is handled, even if its answer reaches nsqd no more
            self._pool.post(self.track, partial(self.track.lane.finished, message))

    def finish_all(self, messages: list[Message]) -> None:
        for message in messages:
            with suppress(AlreadyResponded):
                self.finish(message)

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        """Keep the message for its next attempt: nsqd ignores the delay of a requeue here."""
        seconds = self._pool.pause(message.attempts) if delay is None else _checked_delay(delay)
        self._claim(message)
        lane = self.track.lane
        if lane.failed_attempt != lane.attempts:  # the handler has not raised
            self._pool.note_failure(lane, message, None)
        self._pool.tell_requeued(message)
        self._pool.post(self.track, partial(lane.requeued, message, seconds))

    def touch(self, message: Message) -> None:
        self.conn.touch(message)

    def time_out(self, message: Message) -> bool:
        dropped = self.conn.time_out(message)
        self._pool.post(self.track, partial(self.track.lane.lost, message))
        return dropped

    def _claim(self, message: Message) -> None:
        if not self.track.claim_answer(message):
            raise AlreadyResponded(f"{message!r} was answered before, or nsqd has it again")


def _checked_delay(delay: float) -> float:
    if not isinstance(delay, (int, float)) or not math.isfinite(delay):
        raise InvalidMessage(f"a requeue delay of {delay!r}; it must be a number of seconds")
    return max(0.0, delay)


class OneEach(RdyWindows):
    """A window of one for every connection, for nsqds that deliver in order: the next message comes when the
    one before it is finished. Failures and slow handlers hold up the connection of their message alone.
    """

    @property
    def allowed(self) -> int:
        return 2 * len(self.nsqds)  # also room for a second one where nsqd repeats a message

    def outcome(self, outcome: Outcome, now: float, *, first: bool = True, successes: int = 0) -> bool:
        return False

    def handled_late(self, now: float, timeout: float, least: int) -> bool:
        return False

    def set_targets(self, nsqds: list[NsqdWindow], now: float, in_flight: Mapping[Hashable, int]) -> None:
        stopped = self.why_stopped(now)
        set_all(nsqds, 0 if stopped else 1, stopped or "its messages come in order, one at a time")


class Ordered(Partitioned):
    """The dialect for ``ordered=True``: the handlers get one message of each partition at a time.

    ``on_stuck`` is the user's function that decides about a message that fails; by default it comes again
    after a growing pause. A message is reported as stuck after every ``stuck_after`` attempts. A partition in
    which a message comes before the one finished last is left if ``out_of_order`` is "stop".
    """

    windows = OneEach

    def __init__(
        self,
        engine: Engine,
        reading: Reading,
        *,
        on_stuck: OnStuck | None = None,
        stuck_after: int = 10,
        out_of_order: str = "handle",
    ) -> None:
        if out_of_order not in ("handle", "stop"):
            raise ConfigError(f"out_of_order is {out_of_order!r}; it must be 'handle' or 'stop'")
        super().__init__(engine, reading)
        self.wake = engine.owner.wake
        self._pool: HandlerPool
        self._strategy, self._longest_pause = (
            backoff_strategy(engine.config),
            engine.config.max_backoff_duration,
        )
        self._reporter = engine.reporter
        self._on_stuck = on_stuck
        self._stuck_after = stuck_after
        self._stop_out_of_order = out_of_order == "stop"
        self._tracks: dict[int, Track] = {}
        self._touch_interval = math.inf
        # As nsqd's errors name them: messages that were finished a second time, which it may refuse.
        self._finished_again: dict[str, None] = {}

    def make_pool(self, **arguments: Any) -> HandlerPool:
        self._pool = HandlerPool(
            max_attempts=0,
            requeue_delay=lambda attempts, _: self.pause(attempts),
            in_order=self._in_order,
            give_up_failed=self._give_up_failed,
            **arguments,
        )
        return self._pool

    def pause(self, attempts: int) -> float:
        """Return the seconds until the next attempt."""
        return min(self._strategy(attempts), self._longest_pause)

    def tell_requeued(self, message: Message) -> None:
        self._reporter.tell(self._reporter.hooks.requeued, message)

    def delegate(self, conn: Conn, partition: int) -> MessageDelegate:
        """Return the delegate for the messages of a new connection."""
        track = self._tracks.get(partition)
        if track is None:
            lane = Lane(partition, closing=_is_closing, stop_out_of_order=self._stop_out_of_order)
            track = self._tracks.setdefault(partition, Track(lane))
        self._touch_interval = min(self._touch_interval, conn.deliveries.msg_timeout / 4)
        return LaneDelegate(conn, track, self)

    # Events: our own threads carry them to the lane, others leave that to the owner.

    @property
    def put(self) -> Callable[[list[Message]], None]:
        return self._deliver

    def _deliver(self, messages: list[Message]) -> None:
        for message in messages:
            track = _delegate(message).track
            track.events.append(partial(track.lane.delivered, message))
            self._run(track)

    def post(self, track: Track, event: Callable[[float], list[Action]]) -> None:
        track.events.append(event)
        if self._pool.owns_current_thread():
            self._run(track)
        else:  # a thread of the program's, in which a signal may raise anywhere
            self.wake()

    def _run(self, track: Track) -> None:
        """Hand the lane its events, unless another thread does: that one also sees ours."""
        events = track.events
        while events and track.claim.acquire(False):
            try:
                while events:
                    for action in events.popleft()(time.monotonic()):
                        self._carry_out(action, track)
            finally:
                track.claim.release()
            if track.lane.next_due < math.inf:  # a pause has begun: the owner ends it
                self.wake()

    def _carry_out(self, action: Action, track: Track) -> None:
        message, lane = action.message, track.lane
        match action.do:
            case Do.HANDLE:
                self._pool.inbox.put(message)
            case Do.FINISH:
                fields = self._pool.fields_of(message)
                log.info("%r was handled before, and is finished without its handler", message, extra=fields)
                self._finished_again[_in_errors(message)] = None
                if len(self._finished_again) > _MOST_FINISHED_AGAIN:
                    self._finished_again.pop(next(iter(self._finished_again)), None)
                with suppress(AlreadyResponded):
                    _delegate(message).conn.finish(message)
            case Do.GIVE_BACK:
                with suppress(AlreadyResponded):
                    _delegate(message).conn.requeue(message, 0.0, False)
            case Do.REPORT:
                log.error(
                    "%r is out of order: it comes before %s, which was finished last. Somebody may have "
                    "rewound the channel, or a change of leaders has lost an answer; %s",
                    message,
                    lane.finished_last,
                    f"partition {lane.partition} stops" if lane.stopped else "it is handled",
                    extra=self._pool.fields_of(message),
                )
                self._reporter.tell(self._reporter.hooks.out_of_order, message)
            case Do.STOP:
                self.stop_partition(lane.partition)

    # The handlers.

    def _in_order(self, handler: Handler) -> Handler:
        def handle(message: Message) -> None:
            delegate = _delegate(message)
            track = delegate.track
            lane = track.lane
            track.begin(message)
            succeeded = False
            try:
                self._pool.refuse_old(message)
                check_result(handler(message))
                succeeded = True
            except BaseException as error:
                if self._pool.inherited or isinstance(error, GiveUp):
                    raise
                raise self._next_attempt(lane, message, error) from error
            finally:
                # Without its connection the message gets no answer below.
                if not delegate.conn.holds(message) and track.claim_answer(message):
                    success = succeeded and message.auto_response
                    track.events.append(partial(lane.finished if success else lane.lost, message))
                track.events.append(partial(lane.ended, message))
                self._run(track)

        return handle

    def _next_attempt(self, lane: Lane, message: Message, error: BaseException) -> Requeue | GiveUp:
        """Return what to raise for a message whose handler has failed: when it comes again, if at all."""
        asked, fields = isinstance(error, Requeue), self._pool.fields_of(message)
        if isinstance(error, Requeue) and error.delay is not None:
            self.note_failure(lane, message, None)
            return Requeue(error.delay, backoff=False)
        if message.responded or not message.auto_response:
            if not asked:
                text = "handler failed on %r, which is answered already or later"
                log.error(text, message, exc_info=error, extra=fields)
            return Requeue(0.0, backoff=False)
        stuck = self.note_failure(lane, message, None if asked else error)
        decision = self._decide(stuck)
        if decision is Decision.SKIP:
            return GiveUp(f"on_stuck skips it after {stuck.attempts} attempts")
        if decision is Decision.STOP:
            text = "on_stuck stops partition %d at %r"
            log.error(text, lane.partition, message, exc_info=stuck.error, extra=fields)
            lane.stop()
            self.stop_partition(lane.partition)
            return Requeue(0.0, backoff=False)
        if stuck.error is not None:
            log.error(
                "handler failed on %r; again in %g s, until then partition %d waits",
                message,
                decision,
                lane.partition,
                exc_info=error,
                extra=fields,
            )
        return Requeue(decision, backoff=False)

    def _decide(self, stuck: Stuck) -> float | Decision:
        usual = self.pause(stuck.attempts)
        if self._on_stuck is None:
            return usual
        try:
            decision = self._on_stuck(stuck)
        except BaseException:  # SystemExit too: the thread goes on
            log.exception("on_stuck failed on %r; it comes again after the usual pause", stuck.message)
            return usual
        if decision is None or isinstance(decision, Decision):
            return usual if decision is None else decision
        is_number = isinstance(decision, (int, float)) and not isinstance(decision, bool)
        if is_number and 0 <= decision < math.inf:
            return float(decision)
        log.error(
            "on_stuck returned %r for %r; it must return seconds, a Decision or None. The message comes "
            "again after the usual pause",
            decision,
            stuck.message,
        )
        return usual

    def note_failure(self, lane: Lane, message: Message, error: BaseException | None) -> Stuck:
        """Note that an attempt has failed; report every so many of them."""
        stuck = lane.failed(message, error, time.monotonic())
        if lane.attempts % self._stuck_after == 0:
            log.error(
                "partition %d is stuck: %d attempts at %r have failed",
                lane.partition,
                lane.attempts,
                message,
                extra=self._pool.fields_of(message),
            )
            self._reporter.tell(self._reporter.hooks.stuck, message)
        return stuck

    def _give_up_failed(self, message: Message, error: BaseException) -> None:
        lane = _delegate(message).track.lane
        if lane.failed_attempt == lane.attempts:  # on_stuck knows of this attempt
            lane.error = error
        else:
            self.note_failure(lane, message, error)

    # The clock: the owner.

    def turn(self, now: float) -> float:
        """Begin attempts that are due, and touch messages that wait; return when to be called again."""
        due = super().turn(now)
        for track in list(self._tracks.values()):
            lane = track.lane
            left = lane.left_unanswered(now)
            if left is not None and track.claim_answer(left):
                track.events.append(partial(lane.lost, left))
            if lane.due(now):
                track.events.append(lane.clock)
            self._run(track)
            self._touch(lane.unbegun(), now)
            due = min(due, lane.next_due)
        return min(due, now + self._touch_interval)

    def _touch(self, messages: Iterable[Message], now: float) -> None:
        """Touch messages past half of their time, so that nsqd does not repeat them while they wait."""
        for message in messages:
            conn = _delegate(message).conn
            soon, most = now + conn.deliveries.msg_timeout / 2, conn.deliveries.max_msg_timeout
            if now < message.expires_at <= soon and message.expires_at < message.received_at + most:
                with suppress(AlreadyResponded):
                    conn.touch(message)

    # Reports: any thread.

    @property
    def requeued_here(self) -> int:  # type: ignore[override]
        return sum([track.lane.requeued_here for track in list(self._tracks.values())])

    def expects(self, error: ServerError) -> bool:
        if not isinstance(error, FinFailed):
            return False
        named = [each for each in self._finished_again.copy() if each in error.text]
        return any(self._finished_again.pop(each, self) is None for each in named)

    def partitions(self, now: float) -> list[PartitionHealth]:
        tracks = sorted(self._tracks.items())
        return [_health(track.lane, now) for _, track in tracks]


def dialect_for(engine: Engine, options: Mapping[str, Any]) -> Partitioned:
    """Return the dialect for these options, of those that need a partitioned NSQ."""
    stuck_after = options.get("stuck_after", 1)
    if type(stuck_after) is not int or stuck_after < 1:
        raise ConfigError(f"stuck_after is {stuck_after!r}; it must be a whole number from 1 up")
    checked_function("on_stuck", options.get("on_stuck"))
    policy = {name: options[name] for name in ("on_stuck", "stuck_after", "out_of_order") if name in options}
    reading = Reading.checked(**{name: value for name, value in options.items() if name not in policy})
    if reading.ordered:
        return Ordered(engine, reading, **policy)
    for name in policy:
        raise ConfigError(f"{name} has no effect without ordered=True")
    return Partitioned(engine, reading)


def _delegate(message: Message) -> LaneDelegate:
    delegate = message._delegate
    assert isinstance(delegate, LaneDelegate)
    return delegate


def _in_errors(message: Message) -> str:
    """Return a message's id as nsqd writes it into E_FIN_FAILED."""
    return f"[{' '.join(map(str, message.id))}]"


def _is_closing(message: Message) -> bool:
    return _delegate(message).conn.deliveries.closing


def _health(lane: Lane, now: float) -> PartitionHealth:
    message, since, error = lane.failing, lane.failed_since, lane.error
    if message is None or since is None:
        return PartitionHealth(partition=lane.partition, stopped=lane.stopped, order_errors=lane.disorders)
    return PartitionHealth(
        partition=lane.partition,
        stopped=lane.stopped,
        order_errors=lane.disorders,
        attempts=lane.attempts,
        stuck_seconds=now - since,
        stuck_at=repr(message),
        error="" if error is None else repr(error),
    )
