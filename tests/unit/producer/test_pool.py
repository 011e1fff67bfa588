"""A pool whose threads stand still: the test does what they would, in the order that it wants.

Where two threads could meet, one of them is called in the middle of what the other does, from within a set, a
deque or a lock that they share.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import (
    AuthFirst,
    BadMessage,
    Closed,
    ConnectionLost,
    DialFailed,
    MpubFailed,
    NsqError,
    PubFailed,
    PublishFailed,
    PublishUncertain,
    QueueFull,
    UsageError,
)
from nsq.producer import pool as pool_module
from nsq.producer.endpoint import Endpoint
from nsq.producer.pool import Callbacks
from nsq.producer.publishes import Publish
from nsq.producer.reports import Acknowledged, CloseReport, Failed, FlushReport
from nsq.waiting import Waiters
from nsq.wire.commands import NOP

from .fakes import A, B, C, Clock, FakeConn, StillPool, bodies, conn_of, connect, write

LOST = ConnectionLost(f"{A} closed the connection")
PAST = 0.0  # a deadline


@pytest.fixture
def pool() -> StillPool:
    return StillPool()


def lose(endpoint: Endpoint, cause: NsqError = LOST) -> None:
    """Its connection ends."""
    conn: Any = conn_of(endpoint)
    conn.closed = True
    endpoint.on_close(conn, cause)


def answer(endpoint: Endpoint, count: int = 1) -> None:
    conn: Any = conn_of(endpoint)
    endpoint.on_ok(conn, count)


def refuse(endpoint: Endpoint, error: Any) -> None:
    conn: Any = conn_of(endpoint)
    endpoint.on_error(conn, error)


def run_by(pool: StillPool, *threads: threading.Thread) -> None:
    """These are its own threads."""
    endpoint = pool._started()
    endpoint.threads = list(threads)
    pool._endpoints = (endpoint,)
    pool._note_own_threads()


class Meanwhile(Waiters):
    """For ``Pool._room``: what happens while a thread waits for room."""

    def __init__(self, happens: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.wakes = 0
        self._happens = happens

    def wait_for(self, condition: Callable[[], object], deadline: float = 0.0) -> bool:
        self._happens()
        return bool(condition())

    def wake(self) -> None:
        self.wakes += 1


class Claim:
    """For a publish's claim: what happens right before the first thread takes it, or right behind."""

    def __init__(
        self,
        publish: Publish,
        *,
        before: Callable[[], object] = lambda: None,
        behind: Callable[[], object] = lambda: None,
    ) -> None:
        self._publish, self._before, self._behind = publish, before, behind
        self._lock = publish.claim
        publish.claim = self  # type: ignore[assignment]

    def acquire(self, blocking: bool) -> bool:
        publish: Any = self._publish
        publish.claim = self._lock  # the others find the lock alone
        self._before()
        taken = self._lock.acquire(blocking)
        self._behind()
        return taken


class TestRoom:
    @pytest.mark.parametrize(
        ("options", "pending", "room"),
        [
            ({"max_pending": 2}, [1], True),
            ({"max_pending": 2}, [1, 1], False),
            ({"max_pending_bytes": 10}, [5, 4], True),
            ({"max_pending_bytes": 10}, [5, 5], False),
            ({"max_pending_bytes": 10}, [9, 1000], False),
            ({"max_pending_bytes": 10}, [1000], False),
        ],
        ids=["fewer", "as many", "fewer bytes", "as many bytes", "the last may be larger", "the first too"],
    )
    def test_among_so_many_and_so_many_bytes(
        self, options: dict[str, int], pending: list[int], room: bool
    ) -> None:
        pool = StillPool(**options)
        pool.make(*[b"x" * size for size in pending])
        late = Publish("orders", b"late")
        if room:
            pool.publish(late, 10.0, block=False)
        else:
            with pytest.raises(QueueFull, match=rf"^{len(pending)} publishes are unanswered.*max_pending"):
                pool.publish(late, 10.0, block=False)
        assert (late in pool.pending) is room
        assert bodies(pool.waiting)[len(pending) :] == [b"late"] * room

    @pytest.mark.parametrize("way", ["stored", "refused", "lost", "too late", "interrupted"])
    def test_every_end_makes_room_and_wakes_those_who_wait(self, way: str) -> None:
        pool = StillPool(max_pending=1, max_pending_bytes=4)
        endpoint = pool.add()
        pool.turn()
        (made,) = pool.make(b"body")
        pool._room = room = Meanwhile()
        if way in ("stored", "refused", "lost"):
            write(endpoint)
        ends: dict[str, Callable[[], object]] = {
            "stored": lambda: answer(endpoint),
            "refused": lambda: refuse(endpoint, BadMessage("E_BAD_MESSAGE")),
            "lost": lambda: lose(endpoint),
            "too late": lambda: pool.give_up(made),
            "interrupted": lambda: pool.cancel(made),
        }
        ends[way]()
        assert made.ended
        assert room.wakes > 0
        pool.publish(Publish("orders", b"next"), 10.0, block=False)

    def test_what_was_sent_keeps_its_room_until_it_is_answered(self) -> None:
        pool = StillPool(max_pending=1)
        endpoint = pool.add()
        pool.turn()
        (late,) = pool.make(b"late")
        write(endpoint)
        pool.give_up(late)
        assert late.ended
        with pytest.raises(QueueFull):
            pool.publish(Publish("orders", b"next"), 10.0, block=False)
        answer(endpoint)
        pool.publish(Publish("orders", b"next"), 10.0, block=False)

    @pytest.mark.parametrize(
        ("happens", "error"),
        [
            (lambda pool, made: pool.cancel(made), None),
            (lambda pool, made: pool.ask_to_close(PAST), Closed),
            (lambda pool, made: None, QueueFull),
        ],
        ids=["there is room", "it is closed", "none is answered in time"],
    )
    def test_what_ends_the_wait(
        self, happens: Callable[[StillPool, Publish], object], error: type[NsqError] | None
    ) -> None:
        pool = StillPool(max_pending=1)
        (made,) = pool.make(b"first")
        pool._room = Meanwhile(lambda: happens(pool, made))
        late = Publish("orders", b"late")
        if error is None:
            pool.publish(late, 10.0)
        else:
            with pytest.raises(error):
                pool.publish(late, 10.0)
        assert (late in pool.pending) is (error is None)

    @pytest.mark.parametrize(("block", "error"), [(True, UsageError), (False, QueueFull)])
    def test_a_thread_of_its_own_does_not_wait(self, block: bool, error: type[NsqError]) -> None:
        pool = StillPool(max_pending=1)
        pool.make(b"first")
        run_by(pool, threading.current_thread())
        with pytest.raises(error):
            pool.publish(Publish("orders", b"late"), 10.0, block=block)

    @pytest.mark.parametrize(
        ("hint", "room"),
        [(-1000, True), (0, True), (1, True), (10**9, True)],
        ids=["far too low", "used up", "nearly", "far too high"],
    )
    def test_a_wrong_hint_keeps_nobody_out(self, hint: int, room: bool) -> None:
        pool = StillPool(max_pending_bytes=100)
        pool._bytes_left = hint
        pool.publish(Publish("orders", b"x" * 10), 10.0, block=False)

    def test_a_hint_that_missed_a_publish_is_corrected_by_the_next_count(self) -> None:
        """As when two threads take some bytes at once, and one of the two is not subtracted."""
        pool = StillPool(max_pending_bytes=100)
        pool.make(b"x" * 40)
        pool._bytes_left += 40
        pool.make(b"x" * 40)
        pool.make(b"x" * 60)
        with pytest.raises(QueueFull):
            pool.publish(Publish("orders", b"late"), 10.0, block=False)

    @given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=40))
    def test_never_more_than_allowed_and_one(self, steps: list[tuple[int, bool]]) -> None:
        pool = StillPool(max_pending_bytes=100)
        for size, ends in steps:
            publish = Publish("orders", b"x" * size)
            used = sum(each.size for each in pool.pending)
            if used < 100:
                pool.publish(publish, 10.0, block=False)
            else:
                with pytest.raises(QueueFull):
                    pool.publish(publish, 10.0, block=False)
            if ends and pool.pending:
                pool.settled([next(iter(pool.pending))], None)


#: Where a publish is when it is given up or cancelled.
Stage = Callable[[StillPool], Publish]


def waits_for_a_connection(pool: StillPool) -> Publish:
    pool.add(connected=False)
    return pool.make(b"body")[0]


def waits_to_be_written(pool: StillPool) -> Publish:
    pool.add()
    pool.turn()
    return pool.make(b"body")[0]


def is_sent(pool: StillPool) -> Publish:
    made = waits_to_be_written(pool)
    write(pool._endpoints[0])
    return made


def waits_to_be_sent_again(pool: StillPool) -> Publish:
    made = is_sent(pool)
    lose(pool._endpoints[0])
    pool.turn()
    return made


def is_stored(pool: StillPool) -> Publish:
    made = is_sent(pool)
    answer(pool._endpoints[0])
    return made


class TestGivingUp:
    @pytest.mark.parametrize(
        ("stage", "kind", "text", "kept", "overdue"),
        [
            (waits_for_a_connection, PublishFailed, f"no nsqd could be reached in time: {A}", False, False),
            (waits_to_be_written, PublishFailed, f"{A} did not take it in time", False, False),
            (is_sent, PublishUncertain, f"sent to {A} and not answered (no answer in time)", True, True),
            (waits_to_be_sent_again, PublishUncertain, f"sent to {A} and not answered", False, False),
            (is_stored, None, "", False, False),
        ],
    )
    @pytest.mark.parametrize("reason", ["", "the producer was closed"])
    def test_says_what_is_sure(
        self,
        stage: Stage,
        kind: type[NsqError] | None,
        text: str,
        kept: bool,
        overdue: bool,
        reason: str,
    ) -> None:
        pool = StillPool(retry_uncertain=True)
        made = stage(pool)
        pool.give_up(made, reason)
        assert made.error is None if kind is None else type(made.error) is kind
        assert kind is None or (reason or text) in str(made.error)
        assert (made in pool.pending) is kept
        pool.do_jobs()
        assert pool._endpoints[0].overdue is overdue

    @pytest.mark.parametrize("stage", [waits_for_a_connection, waits_to_be_written, waits_to_be_sent_again])
    def test_what_was_given_up_is_not_sent(self, stage: Stage) -> None:
        pool = StillPool(retry_uncertain=True)
        made = stage(pool)
        pool.give_up(made)
        connect(pool._endpoints[0])
        pool.turn()
        assert write(pool._endpoints[0]) == b""
        assert not pool.waiting
        assert not pool.pending

    def test_an_answer_that_comes_too_late_frees_its_place_and_changes_nothing(self) -> None:
        pool = StillPool()
        made = is_sent(pool)
        pool.give_up(made)
        error = made.error
        answer(pool._endpoints[0])
        assert not pool.pending
        assert made.error is error

    def test_twice_is_once(self) -> None:
        told: list[Failed] = []
        pool = StillPool(on_failed=told.append)
        made = is_sent(pool)
        pool.give_up(made)
        pool.give_up(made)
        lose(pool._endpoints[0])
        pool.run_callbacks()
        assert [each.error for each in told] == [made.error]


class TestCancelling:
    @pytest.mark.parametrize(
        ("stage", "ended"),
        [
            (waits_for_a_connection, True),
            (waits_to_be_written, True),
            (waits_to_be_sent_again, True),
            (is_sent, False),
            (is_stored, True),
        ],
    )
    def test_ends_what_is_not_sent_yet(self, stage: Stage, ended: bool) -> None:
        pool = StillPool(retry_uncertain=True)
        made = stage(pool)
        pool.cancel(made)
        pool.cancel(made)
        assert made.ended is ended
        assert (made in pool.pending) is not ended
        endpoint = pool._endpoints[0]
        if not endpoint.open:
            connect(endpoint)
        pool.turn()
        assert write(endpoint) == b""

    def test_before_it_was_published_at_all(self) -> None:
        pool = StillPool()
        made = Publish("orders", b"body")
        pool.cancel(made)
        assert isinstance(made.error, PublishFailed)
        assert "interrupted" in str(made.error)

    def test_a_close_that_waits_for_it_goes_on(self) -> None:
        pool = StillPool()
        (made,) = pool.make(b"body")
        pool.ask_to_close(pool._clock() + 10.0)
        pool.turn()
        assert pool.report is None
        pool.cancel(made)
        assert pool._to_do.qsize() > 0
        pool.turn()
        assert pool.report == CloseReport(clean=True)


class TestSettled:
    @pytest.mark.parametrize("error", [None, BadMessage("E_BAD_MESSAGE")])
    def test_ends_all_of_them(self, pool: StillPool, error: NsqError | None) -> None:
        made = pool.make(b"a", b"b")
        other = pool.make(b"c")
        pool.settled(made, error)
        assert [each.error for each in made] == [error] * 2
        assert pool.pending == set(other)
        assert pool.unended == 1

    @pytest.mark.parametrize("closed", [False, True])
    def test_a_close_that_waits_is_told(self, pool: StillPool, closed: bool) -> None:
        (made,) = pool.make(b"a")
        pool.do_jobs()
        pool.closed = closed
        pool.settled([made], None)
        assert (pool._to_do.qsize() > 0) is closed

    def test_hooks_are_told_once_and_of_the_first_end(self) -> None:
        told: list[Acknowledged | Failed] = []
        clock = Clock()
        pool = StillPool(clock=clock, on_acknowledged=told.append, on_failed=told.append)
        endpoint = pool.add()
        pool.turn()
        made = pool.make(b"late", b"stored", b"refused", b"interrupted")
        pool.cancel(made[3])
        clock.now += 1.5
        write(endpoint)
        pool.give_up(made[0])
        pool.settled(made[:2], None)
        pool.settled(made, BadMessage("E_BAD_MESSAGE"))
        pool.run_callbacks()
        late, stored, refused = told
        assert isinstance(late, Failed)
        assert isinstance(late.error, PublishUncertain)
        assert stored == Acknowledged("orders", 1, 6, A, 1.5)
        assert isinstance(refused, Failed)
        assert isinstance(refused.error, BadMessage)

    def test_without_a_hook_nothing_is_queued(self, pool: StillPool) -> None:
        pool.settled(pool.make(b"a"), None)
        assert pool.callbacks._queue.qsize() == 0

    def test_a_hook_that_raises_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        def fail(_: Acknowledged) -> None:
            raise ValueError("no metrics today")

        pool = StillPool(on_acknowledged=fail)
        pool.settled(pool.make(b"a"), None)
        pool.run_callbacks()
        assert "no metrics today" in caplog.text


class TestHandingOut:
    def test_what_waits_goes_round(self, pool: StillPool) -> None:
        made = pool.make(b"0", b"1", b"2", b"3")
        endpoints = [pool.add(address) for address in (A, B)]
        pool.turn()
        assert [bodies(conn_of(each).waiting) for each in endpoints] == [[b"0", b"2"], [b"1", b"3"]]
        assert [each.endpoint for each in made] == endpoints * 2
        assert not pool.waiting

    def test_overdue_ones_get_something_only_if_there_is_no_other(self, pool: StillPool) -> None:
        one, other = pool.add(A), pool.add(B)
        one.overdue = True
        pool.turn()
        assert used(pool) == [other]
        other.overdue = True
        pool.turn()
        assert used(pool) == [one, other]
        conn_of(one).closed = True
        pool.turn()
        assert used(pool) == [other]
        conn_of(other).closed = True
        pool.turn()
        assert used(pool) == []
        assert not pool.connected

    def test_what_has_ended_is_passed_over_and_its_room_given_back(self, pool: StillPool) -> None:
        made = pool.make(b"0", b"1", b"2")
        pool.give_up(made[0])
        made[1].end(PublishUncertain("given up while it was about to be sent again"))
        endpoint = pool.add()
        pool.turn()
        assert bodies(conn_of(endpoint).waiting) == [b"2"]
        assert pool.pending == {made[2]}

    def test_nothing_overtakes_those_that_wait(self, pool: StillPool) -> None:
        """While the pool's thread hands out, a thread publishes."""
        endpoint = pool.add()
        conn = conn_of(endpoint)
        pool.turn()
        pool.usable, usable = (), pool.usable
        pool.make(b"0", b"1", b"2")
        pool.usable = usable
        late = iter([b"3", b"4"])

        def publish() -> None:
            for body in late:
                pool.make(body)
                return

        conn.on_put = publish
        pool.turn()
        assert bodies(conn.waiting) == [b"0", b"1", b"2", b"3", b"4"]

    def test_what_comes_right_before_the_connections_are_known_is_handed_out_too(self) -> None:
        """A thread has found no open connection, and has not put its publish yet."""

        class Slow(StillPool):
            late: Callable[[], object] = staticmethod(lambda: None)

            @property
            def usable(self) -> Any:
                return self._usable

            @usable.setter
            def usable(self, usable: Any) -> None:
                self.late()
                self._usable = usable

        pool = Slow()
        endpoint = pool.add()
        pool.late = lambda: pool.make(b"late")  # type: ignore[method-assign, assignment]
        pool._choose()
        assert bodies(conn_of(endpoint).waiting) == [b"late"]

    def test_a_connection_that_closes_in_the_middle_loses_nothing(self, pool: StillPool) -> None:
        endpoint = pool.add()
        conn = conn_of(endpoint)
        pool.make(b"0", b"1", b"2")

        def close() -> None:
            conn.closed = len(conn.waiting) == 2

        conn.on_put = close
        pool.turn()
        conn.closed = True
        pool.turn()
        assert bodies(pool.waiting) == [b"0", b"1", b"2"]
        assert all(each.endpoint is None for each in pool.waiting)

    @pytest.mark.parametrize("closer_first", [False, True])
    def test_what_is_put_into_a_connection_that_closes_is_taken_back_once(
        self, pool: StillPool, closer_first: bool
    ) -> None:
        """Its end is noticed by its own thread and by the one that has just published."""
        endpoint = pool.add()
        pool.turn()
        conn = conn_of(endpoint)

        def close() -> None:
            if closer_first:
                lose(endpoint)
            conn.closed = True

        conn.on_put = close
        (made,) = pool.make(b"body")
        if not closer_first:
            lose(endpoint)
        pool.turn()
        assert list(pool.waiting) == [made]
        assert pool.pending == {made}

    def test_while_no_nsqd_can_be_reached_what_ended_does_not_pile_up(self) -> None:
        clock = Clock()
        pool = StillPool(clock=clock, max_pending=3)
        pool.add(connected=False)
        for number in range(100):
            pool.make(b"%d" % number, seconds=1.0)
            clock.now += 2.0
            pool.turn()
        assert len(pool.waiting) <= 1
        assert not pool.pending

    def test_nor_behind_one_with_a_long_timeout(self) -> None:
        clock = Clock()
        pool = StillPool(clock=clock, max_pending=3)
        pool.add(connected=False)
        (patient,) = pool.make(b"patient", seconds=10_000.0)
        for number in range(100):
            pool.make(b"%d" % number, seconds=1.0)
            clock.now += 2.0
            pool.turn()
        assert len(pool.waiting) <= 8
        assert pool.pending == {patient}

    def test_one_that_pauses_is_told_once_that_something_waits(self, pool: StillPool) -> None:
        endpoint = pool.add(connected=False)
        rings = []
        steps: list[Callable[[], object]] = [
            lambda: None,
            lambda: pool.make(b"0"),
            lambda: pool.make(b"1"),
            lambda: connect(endpoint),
            lambda: lose(endpoint),
        ]
        for step in steps:
            step()
            pool.turn()
            rings.append(endpoint._bell.qsize())
        assert rings == [0, 1, 1, 1, 2]
        assert pool.urgent


class TestTakingBack:
    def test_in_front_of_what_waits_and_in_order(self, pool: StillPool) -> None:
        older = pool.make(b"0", b"1", b"2")
        pool.waiting.clear()
        pool.make(b"3", b"4")
        pool.take_back(deque([older[0], NOP, older[1], NOP, older[2]]))
        pool.do_jobs()
        assert bodies(pool.waiting) == [b"0", b"1", b"2", b"3", b"4"]
        assert all(each.endpoint is None for each in pool.waiting)

    def test_what_one_connection_leaves_is_handed_to_another(self, pool: StillPool) -> None:
        one = pool.add(A)
        pool.turn()
        made = pool.make(b"0", b"1")
        other = pool.add(B)
        lose(one)
        pool.turn()
        assert bodies(conn_of(other).waiting) == [b"0", b"1"]
        assert [each.endpoint for each in made] == [other, other]

    def test_what_is_published_before_its_jobs_are_done_stays_behind(self, pool: StillPool) -> None:
        endpoint = pool.add()
        pool.turn()
        pool.make(b"0", b"1")
        lose(endpoint)
        pool.usable = ()
        pool.make(b"2")
        pool.turn()
        assert bodies(pool.waiting) == [b"0", b"1", b"2"]


class TestHopeless:
    """Nsqds that refuse for good: waiting for them is pointless."""

    SAID = AuthFirst("E_AUTH_FIRST: give auth_secret")

    def refusing(self, pool: StillPool, address: str = A) -> Endpoint:
        endpoint = pool.add(address, connected=False)
        endpoint.backoff.failed(self.SAID, pool._clock(), 1.0, final=True)
        return endpoint

    def test_what_the_only_one_said_is_raised_and_names_it(self, pool: StillPool) -> None:
        first, second = pool.make(b"0", b"1")
        self.refusing(pool)
        pool.turn()
        for made in (first, second):
            assert isinstance(made.error, AuthFirst)
            assert made.error is not self.SAID  # callers must not share a traceback
            assert made.error.__notes__ == [f"said by {A}"]
        assert first.error is not second.error
        assert not hasattr(self.SAID, "__notes__")
        assert not pool.waiting
        assert not pool.pending

    def test_what_several_said_is_told_of_each(self, pool: StillPool) -> None:
        (made,) = pool.make(b"0")
        self.refusing(pool, A)
        self.refusing(pool, B)
        pool.turn()
        assert isinstance(made.error, PublishFailed)
        assert f"{A}: E_AUTH_FIRST" in str(made.error)
        assert f"{B}: E_AUTH_FIRST" in str(made.error)

    def test_one_that_may_be_better_the_next_time_is_waited_for(self, pool: StillPool) -> None:
        (made,) = pool.make(b"0")
        self.refusing(pool, A)
        pool.add(B, connected=False).backoff.failed(DialFailed("refused"), pool._clock(), 1.0)
        pool.turn()
        assert not made.ended
        assert list(pool.waiting) == [made]

    def test_none_that_is_known_is_waited_for(self, pool: StillPool) -> None:
        (made,) = pool.make(b"0")
        pool.turn()
        assert not made.ended

    def test_one_that_may_be_stored_elsewhere_stays_uncertain(self) -> None:
        pool = StillPool(retry_uncertain=True)
        made = waits_to_be_sent_again(pool)
        (endpoint,) = pool._endpoints
        endpoint.backoff.failed(self.SAID, pool._clock(), 1.0, final=True)
        pool.turn()
        assert isinstance(made.error, PublishUncertain)
        assert "E_AUTH_FIRST" in str(made.error)

    def test_only_what_was_published_before_it_refused(self) -> None:
        clock = Clock()
        pool = StillPool(clock=clock, reconnect_initial=0.001)
        (before,) = pool.make(b"before")
        self.refusing(pool)
        clock.now += 5.0
        (behind,) = pool.make(b"behind")
        pool.turn()
        assert isinstance(before.error, AuthFirst)
        assert list(pool.waiting) == [behind]

    def test_one_that_is_cancelled_in_this_moment_is_only_taken_out(self, pool: StillPool) -> None:
        (made,) = pool.make(b"0")
        self.refusing(pool)
        Claim(made, before=lambda: pool.cancel(made))
        pool.turn()
        assert isinstance(made.error, PublishFailed)
        assert not pool.waiting
        assert not pool.pending


class Copied(set[Publish]):
    """For ``Pool.pending``: what happens right before it is copied, or right behind."""

    def __init__(self, *, before: Callable[[], object], behind: Callable[[], object]) -> None:
        super().__init__()
        self._happens = [behind, before]

    def copy(self) -> set[Publish]:
        if self._happens:
            self._happens.pop()()
        copied = set(self)
        if self._happens:
            self._happens.pop()()
        return copied


class TestDeadlines:
    @pytest.mark.parametrize("other", [5.0, 20.0], ids=["sooner than the others", "later"])
    @pytest.mark.parametrize("when", ["before", "behind"])
    def test_none_is_missed_that_is_added_while_they_are_looked_at(self, when: str, other: float) -> None:
        clock = Clock()
        pool = StillPool(clock=clock)
        late: list[Publish] = []

        def publish() -> None:
            late.extend(pool.make(b"late", seconds=other))

        nothing: Callable[[], object] = lambda: None  # noqa: E731
        pending = Copied(
            before=publish if when == "before" else nothing, behind=publish if when == "behind" else nothing
        )
        (made,) = pool.make(b"first")
        pending.update(pool.pending)
        pool.pending = pending
        pool.turn()
        for now in sorted([5.0, 10.0, 20.0]):
            clock.now = 1000.0 + now
            pool.turn()
            assert made.ended is (now >= 10.0)
            assert late[0].ended is (now >= other)
        assert not pool.pending

    def test_its_thread_is_woken_only_for_a_sooner_one(self) -> None:
        pool = StillPool()
        pool.add()
        pool.turn()
        jobs = []
        for seconds in (10.0, 20.0, 15.0, 5.0, 7.0):
            before = pool._to_do.qsize()
            pool.make(b"body", seconds=seconds)
            jobs.append(pool._to_do.qsize() - before)
            pool.turn()
        assert jobs == [1, 0, 0, 1, 0]

    @given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=20))
    def test_each_ends_at_its_own_and_the_thread_sleeps_until_the_next(self, seconds: list[float]) -> None:
        clock = Clock()
        pool = StillPool(clock=clock)
        made = [*(pool.make(b"x", seconds=each)[0] for each in seconds)]
        pool.turn()
        for deadline in sorted({each.deadline for each in made}):
            assert pool._wakes_at <= deadline
            clock.now = deadline
            pool.turn()
            assert [each.ended for each in made] == [each.deadline <= deadline for each in made]
        assert pool._wakes_at == float("inf")

    def test_what_was_sent_is_uncertain_then(self) -> None:
        clock = Clock()
        pool = StillPool(clock=clock)
        made = is_sent(pool)
        clock.now += 10.0
        pool.turn()
        assert isinstance(made.error, PublishUncertain)
        pool.turn()
        assert pool._endpoints[0].overdue

    def test_one_that_answers_meanwhile_is_not_overdue(self, pool: StillPool) -> None:
        made = is_sent(pool)
        pool.give_up(made)
        answer(pool._endpoints[0])
        pool.turn()
        assert not pool._endpoints[0].overdue


class TestAddresses:
    def addresses(self, pool: StillPool) -> list[str]:
        return [endpoint.address for endpoint in pool._endpoints]

    def test_new_ones_are_dialed_and_known_ones_left_alone(self, pool: StillPool) -> None:
        known = pool.add(A)
        pool.set_addresses([C, A, B])
        pool.turn()
        assert self.addresses(pool) == [A, B, C]
        assert pool._endpoints[0] is known
        assert [each.dialing for each in pool._endpoints] == [False, True, True]
        pool.set_addresses([A, B, C])
        pool.turn()
        assert self.addresses(pool) == [A, B, C]

    @pytest.mark.parametrize(
        ("state", "stays"), [("open", True), ("dialing", True), ("closed", False), ("never dialed", False)]
    )
    def test_one_that_is_listed_no_more_stays_as_long_as_its_connection(
        self, pool: StillPool, state: str, stays: bool
    ) -> None:
        endpoint = pool.add(A, connected=state in ("open", "closed"))
        endpoint.dialing = state == "dialing"
        if state == "closed":
            conn_of(endpoint).closed = True
        pool.set_addresses([])
        pool.turn()
        assert (endpoint in pool._endpoints) is stays
        assert endpoint._stopped is not stays

    def test_what_it_left_is_sent_elsewhere(self, pool: StillPool) -> None:
        gone, stays = pool.add(A), pool.add(B)
        pool.turn()
        pool.usable = ((gone, conn_of(gone)),)
        pool.make(b"0", b"1")
        pool.set_addresses([B])
        lose(gone)
        pool.turn()
        assert pool._endpoints == (stays,)
        assert bodies(conn_of(stays).waiting) == [b"0", b"1"]

    def test_one_that_is_listed_again_in_time_stays(self, pool: StillPool) -> None:
        endpoint = pool.add(A)
        pool.set_addresses([])
        pool.turn()
        pool.set_addresses([A])
        pool.do_jobs()
        conn_of(endpoint).closed = True
        pool.turn()
        assert pool._endpoints == (endpoint,)

    def test_one_that_is_listed_again_too_late_is_another(self, pool: StillPool) -> None:
        endpoint = pool.add(A)
        pool.set_addresses([])
        conn_of(endpoint).closed = True
        pool.turn()
        pool.set_addresses([A])
        pool.turn()
        assert self.addresses(pool) == [A]
        assert pool._endpoints[0] is not endpoint

    def test_without_more_threads_the_others_go_on(
        self, pool: StillPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse() -> Endpoint:
            raise RuntimeError("can't start new thread")

        pool.add(A)
        monkeypatch.setattr(pool, "_started", refuse)
        pool.set_addresses([A, B])
        pool.turn()
        assert self.addresses(pool) == [A]
        assert f"{B} is not dialed: no thread can be started" in caplog.text

    def test_a_spare_one_needs_no_threads(self, pool: StillPool, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse() -> Endpoint:
            raise RuntimeError("can't start new thread")

        pool.discovery.asks = True
        pool._keep_spare()
        spare = pool._spare
        monkeypatch.setattr(pool, "_started", refuse)
        pool.set_addresses([A, B])
        pool.turn()
        assert pool._endpoints == (spare,)
        assert pool._spare is None
        assert pool.addresses == (A,)


class Added(set[Publish]):
    """For ``Pool.pending``: what happens when a publish has been added."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens = happens

    def add(self, publish: Publish) -> None:
        super().add(publish)
        self._happens()


def close_all_of(pool: StillPool) -> None:
    """From the call of close to its end, as long as nothing is left that it knows of."""
    pool.ask_to_close(pool._clock() + 1.0)
    pool.turn()
    assert pool.report == CloseReport(clean=True)


class TestClosing:
    def test_nothing_new_is_taken(self, pool: StillPool) -> None:
        pool.ask_to_close(PAST)
        late = Publish("orders", b"late")
        with pytest.raises(Closed):
            pool.publish(late, 10.0)
        assert not pool.pending
        assert not pool.waiting

    @pytest.mark.parametrize("stage", [waits_for_a_connection, waits_to_be_written, is_sent])
    def test_it_waits_for_what_is_left_until_its_time_is_up(self, stage: Stage) -> None:
        clock = Clock()
        pool = StillPool(clock=clock)
        made = stage(pool)
        pool.ask_to_close(clock.now + 5.0)
        pool.turn()
        clock.now += 4.7
        pool.turn()
        assert pool.report is None
        assert not pool._endpoints[0]._stopped
        clock.now += 0.1
        pool.turn()
        assert pool.report == CloseReport(clean=False, unanswered=1)
        assert isinstance(made.error, PublishUncertain if stage is is_sent else PublishFailed)
        assert "the producer was closed" in str(made.error)

    def test_it_ends_when_the_last_is_answered(self) -> None:
        pool = StillPool()
        made = is_sent(pool)
        pool.ask_to_close(pool._clock() + 5.0)
        pool.turn()
        assert pool.report is None
        answer(pool._endpoints[0])
        pool.turn()
        assert pool.report == CloseReport(clean=True)
        assert made.error is None

    def test_what_is_taken_back_meanwhile_is_still_sent(self, pool: StillPool) -> None:
        one = pool.add(A)
        pool.turn()
        made = pool.make(b"0")
        pool.ask_to_close(pool._clock() + 5.0)
        lose(one)
        other = pool.add(B)
        pool.turn()
        write(other)
        answer(other)
        pool.turn()
        assert pool.report == CloseReport(clean=True)
        assert made[0].error is None

    @pytest.mark.parametrize(
        ("stage", "closes"), [(is_stored, [True, False]), (is_sent, [True, False])], ids=["stored", "sent"]
    )
    def test_connections_may_say_goodbye_and_are_cut_off(self, stage: Stage, closes: list[bool]) -> None:
        pool = StillPool()
        stage(pool)
        pool.ask_to_close(PAST)
        pool.turn()
        assert conn_of(pool._endpoints[0]).closes == closes

    @pytest.mark.parametrize(
        ("seconds", "kept"), [(100.0, 0.25), (2.5, 0.25), (1.0, 0.1), (0.0, 0.0), (-5.0, 0.0)]
    )
    def test_some_time_is_kept_for_threads_to_end(self, seconds: float, kept: float) -> None:
        pool = StillPool()
        now = pool._clock()
        pool._begin_close(now + seconds)
        assert pool._close_by == pytest.approx(now + seconds - kept)
        assert pool._join_by == pytest.approx(max(now + seconds, now + 0.1))

    def test_the_soonest_of_several_closes_counts(self, pool: StillPool) -> None:
        now = pool._clock()
        for seconds in (50.0, 5.0, 20.0):
            pool._begin_close(now + seconds)
        assert pool._join_by == now + 5.0

    @pytest.mark.parametrize("place", ["pending", "connection", "waiting"])
    def test_a_publish_in_the_middle_of_being_handed_over_ends_all_the_same(self, place: str) -> None:
        """Close does not wait for it, as it may be its own signal handler that closes."""
        pool = StillPool()
        if place == "connection":
            endpoint = pool.add()
            pool.turn()
            conn_of(endpoint).on_put = lambda: close_all_of(pool)
        elif place == "pending":
            pool.pending = Added(lambda: close_all_of(pool))
        else:
            pool.look = lambda: pool._gone or close_all_of(pool)  # type: ignore[method-assign, return-value]
        (made,) = pool.make(b"body")
        assert isinstance(made.error, PublishFailed)
        assert "the producer was closed" in str(made.error)
        assert not pool.pending
        assert pool.callbacks._queue.get_nowait() is None

    def test_one_that_was_written_in_that_moment_is_uncertain(self) -> None:
        pool = StillPool()
        endpoint = pool.add()
        pool.turn()

        def write_and_close() -> None:
            write(endpoint)
            close_all_of(pool)

        conn_of(endpoint).on_put = write_and_close
        (made,) = pool.make(b"body")
        assert isinstance(made.error, PublishUncertain)
        lose(endpoint)
        assert not pool.pending

    def test_its_future_runs_its_callbacks(self) -> None:
        """Whatever was put behind the end of their thread."""
        ran: list[str] = []
        callbacks = Callbacks()
        callbacks.put(lambda: ran.append("before"))
        callbacks.stop()
        callbacks.put(lambda: ran.append("behind"))
        callbacks._run()
        callbacks.put(lambda: ran.append("late"))
        assert ran == ["before", "behind", "late"]

    def test_a_flush_in_the_middle_of_a_publish_does_not_wait_for_it(self) -> None:
        pool = StillPool()
        pool._up = False
        left: list[int] = []
        pool.pending = Added(lambda: left.append(pool.flush(PAST).unanswered))
        pool._up = True
        pool.callbacks.wait_until_run = lambda deadline: True  # type: ignore[method-assign]
        pool.make(b"a", b"b")
        assert left == [0, 1]
        assert pool.flush(PAST) == FlushReport(clean=False, unanswered=2)

    def test_neither_flush_nor_close_waits_for_its_own_thread(self, pool: StillPool) -> None:
        calls: list[Callable[[], object]] = [lambda: pool.flush(PAST), lambda: pool.close(0.0)]
        for call in calls:
            run_by(pool, threading.current_thread())
            with pytest.raises(UsageError, match="a thread of the producer's own"):
                call()
            run_by(pool)
            pool.callbacks.ident = _thread.get_ident()
            with pytest.raises(UsageError, match="a future's callback"):
                call()
            pool.callbacks.ident = 0
        assert not pool.closed

    def test_one_that_never_started_is_closed_at_once(self) -> None:
        pool = StillPool()
        pool._boot.release()
        assert pool.close(10.0) == CloseReport(clean=True)


class TestStarting:
    def test_without_a_thread_a_publish_fails_at_once(
        self, pool: StillPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(pool_module, "start_thread", refuse)
        pool._up = False
        with pytest.raises(PublishFailed, match=r"no thread can be started \(can't start new thread\)"):
            pool.publish(Publish("orders", b"body"), 10.0)
        assert not pool.pending

    def test_one_that_starts_them_is_enough(self, pool: StillPool, monkeypatch: pytest.MonkeyPatch) -> None:
        starts: list[str] = []

        def start(target: Callable[[], None], name: str, failed: object) -> None:
            starts.append(name)
            pool._up = True

        monkeypatch.setattr(pool_module, "start_thread", start)
        pool._up = False
        pool.make(b"0", b"1")
        assert starts == ["nsq-producer-start"]

    @pytest.mark.parametrize(
        ("happens", "error", "text"),
        [
            (lambda pool: setattr(pool, "closed", True), Closed, "closed"),
            (lambda pool: None, PublishFailed, "did not start in time"),
        ],
    )
    def test_what_a_publish_may_find_instead(
        self,
        pool: StillPool,
        monkeypatch: pytest.MonkeyPatch,
        happens: Callable[[StillPool], None],
        error: type[NsqError],
        text: str,
    ) -> None:
        monkeypatch.setattr(pool_module, "start_thread", lambda *_: happens(pool))
        pool._up = False
        with pytest.raises(error, match=text):
            pool.publish(Publish("orders", b"body"), -1.0)

    def test_the_threads_that_it_would_wait_for_are_known(self, pool: StillPool) -> None:
        thread = threading.Thread(target=lambda: None)
        endpoint = pool.add()
        endpoint.threads = [thread]
        thread.start()
        thread.join()
        pool._note_own_threads()
        assert pool.own_threads == {thread.ident}


class TestChild:
    """In a forked child."""

    def test_everything_is_left_to_the_parent(self, pool: StillPool) -> None:
        endpoint = pool.add()
        pool.turn()
        made = pool.make(b"0", b"1")
        pool.abandon()
        assert conn_of(endpoint).abandoned
        assert {type(each.error).__name__ for each in made} == {"Forked"}
        with pytest.raises(Closed):
            pool.publish(Publish("orders", b"late"), 10.0)

    def test_a_publish_that_the_fork_interrupted_ends(self, pool: StillPool) -> None:
        pool.pending = Added(pool.abandon)
        (made,) = pool.make(b"0")
        assert isinstance(made.error, Closed)


#: What a thread that publishes one after the other does not see.
STEPS = ["publish", "publish", "publish", "write", "ok", "bad", "full", "lose", "connect", "turn"]


class TestOrder:
    @pytest.mark.parametrize(
        "story",
        [
            "publish publish write publish write lose",
            "publish write lose turn publish connect turn write lose",
            "publish write publish lose",
            "publish publish write publish write bad lose",
            "publish publish write publish write bad turn lose",
            "publish write publish write publish full lose",
            "publish publish write publish write publish bad turn lose turn connect turn publish",
        ],
    )
    def test_what_is_sent_again_keeps_its_order(self, story: str) -> None:
        in_order(story.split())

    @given(st.lists(st.sampled_from(STEPS), max_size=30))
    def test_whatever_happens(self, steps: list[str]) -> None:
        in_order(steps)


def used(pool: StillPool) -> list[Any]:
    return [endpoint for endpoint, _ in pool.usable]


def in_order(steps: list[str]) -> None:
    """Whatever was sent again and again and is stored in the end is stored in the order of its publishing."""
    clock = Clock()
    pool = StillPool(clock=clock, retry_uncertain=True)
    endpoint = pool.add()
    pool.turn()
    published = 0
    stored: list[bytes] = []

    def connected() -> bool:
        return not conn_of(endpoint).closed and not conn_of(endpoint).closes

    for step in [*steps, *["turn", "lose", "turn", "connect", "turn", "write", "ok", "write", "ok"]]:
        sent = [publish for batch in endpoint._sent for publish in batch]
        if step == "publish":
            clock.now += 1e-6
            pool.make(b"%03d" % published)
            published += 1
        elif step == "turn":
            pool.turn()
        elif step == "lose" and not conn_of(endpoint).closed:
            lose(endpoint)
        elif step == "connect" and conn_of(endpoint).closed:
            begin_anew(endpoint)
        elif step == "write" and connected():
            write(endpoint)
        elif step == "ok" and connected() and sent:
            stored += bodies(sent)
            answer(endpoint, len(endpoint._sent))
        elif step in ("bad", "full") and connected() and len(endpoint._sent[0] if sent else []) > 1:
            refuse(endpoint, BadMessage("E_BAD_MESSAGE") if step == "bad" else MpubFailed("E_MPUB_FAILED"))
        elif step == "full" and connected() and sent:
            refuse(endpoint, PubFailed("E_PUB_FAILED"))
    assert stored == sorted(stored)
    assert len(stored) == published


def begin_anew(endpoint: Endpoint) -> FakeConn:
    """As ``_dial`` does."""
    endpoint._sent.clear()
    endpoint._error, endpoint._proven, endpoint._halted = None, False, False
    return connect(endpoint)


class TestRaces:
    def test_a_caller_gives_up_while_it_is_handed_out_and_written(self, pool: StillPool) -> None:
        endpoint = pool.add(connected=False)
        (made,) = pool.make(b"body")

        def send() -> None:
            connect(endpoint)
            pool.turn()
            write(endpoint)

        Claim(made, before=send)
        pool.give_up(made)
        assert isinstance(made.error, PublishUncertain)

    def test_two_threads_give_up_at_once(self, pool: StillPool) -> None:
        """Its caller and the pool's thread: both wait for the same deadline. It was surely not sent."""
        made = waits_to_be_written(pool)
        Claim(made, behind=lambda: pool.give_up(made))
        pool.give_up(made)
        pool.do_jobs()
        assert isinstance(made.error, PublishFailed)
        assert not pool._endpoints[0].overdue

    def test_it_is_given_up_while_it_is_about_to_be_sent_again(self, pool: StillPool) -> None:
        made = is_sent(pool)
        (endpoint,) = pool._endpoints
        Claim(made, behind=lambda: refuse(endpoint, PubFailed("E_PUB_FAILED")))
        pool.give_up(made)
        lose(endpoint)
        pool.turn()
        assert made.ended
        assert not pool.pending
        assert not pool.waiting

    def test_it_is_given_up_while_it_is_sent_elsewhere(self) -> None:
        """Its caller has found it claimed, and stands still; when it goes on, another nsqd gets it."""

        class Slow(StillPool):
            meanwhile: Callable[[], object] | None = None

            def settled(self, publishes: list[Publish], error: NsqError | None) -> None:
                meanwhile, self.meanwhile = self.meanwhile, None
                if meanwhile is not None:
                    meanwhile()
                super().settled(publishes, error)

        pool = Slow()
        one = pool.add(A)
        pool.turn()
        (made,) = pool.make(b"body")
        write(one)
        other = pool.add(B)

        def refused_and_handed_on() -> None:
            refuse(one, PubFailed("E_PUB_FAILED"))
            lose(one)
            pool.turn()
            pool.meanwhile = lambda: written.append(write(other))

        written: list[bytes] = []
        Claim(made, behind=refused_and_handed_on)
        pool.give_up(made)
        written.append(write(other))
        if any(written):
            assert isinstance(made.error, PublishUncertain)

    @pytest.mark.parametrize("give_up", [True, False], ids=["gives up", "cancels"])
    def test_a_caller_that_is_interrupted_while_it_ends_its_publish_costs_no_room(
        self, give_up: bool
    ) -> None:
        class Interrupting(set[Publish]):
            interrupts = True

            def interrupt(self) -> None:
                if self.interrupts:
                    self.interrupts = False
                    raise KeyboardInterrupt

            def discard(self, publish: Publish) -> None:
                self.interrupt()
                super().discard(publish)

            def difference_update(self, *others: Any) -> None:
                self.interrupt()
                super().difference_update(*others)

        clock = Clock()
        pool = StillPool(clock=clock)
        pool.pending = Interrupting()
        made = waits_to_be_written(pool)
        with pytest.raises(KeyboardInterrupt):
            pool.give_up(made) if give_up else pool.cancel(made)
        pool.cancel(made)  # as its caller does
        clock.now += 100.0
        pool.turn()
        assert made.ended
        assert write(pool._endpoints[0]) == b""
        pool.turn()
        assert not pool.pending

    def test_the_answer_comes_while_it_is_suspected(self, pool: StillPool) -> None:
        class Racing(Endpoint):
            @property
            def pending(self) -> int:
                left = super().pending
                if left:
                    answer(self)
                return left

        endpoint = Racing(pool, pool._config, pool._clock, pool._chance)
        endpoint.address = A
        pool._endpoints = (endpoint,)
        connect(endpoint)
        pool.turn()
        pool.make(b"body")
        write(endpoint)
        pool._suspect(endpoint)
        assert not endpoint.overdue

    def test_what_was_given_up_does_not_keep_its_bytes(self) -> None:
        clock = Clock()
        pool = StillPool(clock=clock, max_pending_bytes=10_000)
        pool.add(connected=False)
        pool.make(b"patient", seconds=10_000.0)
        for _ in range(200):
            pool.make(b"x" * 1000, seconds=1.0)
            clock.now += 2.0
            pool.turn()
        assert sum(len(each.body) for each in pool.waiting) <= 2 * 10_000
