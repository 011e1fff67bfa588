"""A pool whose threads stand still: the test does what they would, in the order that it wants.

Where two threads could meet, one of them is called in the middle of what the other does, from within a set, a
deque or a lock that they share.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import (
    AuthFirst,
    BadMessage,
    Closed,
    DialFailed,
    MpubFailed,
    NsqError,
    PubFailed,
    PublishFailed,
    PublishUncertain,
    QueueFull,
    UsageError,
)
from nsq.producer.endpoint import PublishingEndpoint
from nsq.producer.publishes import Publish
from nsq.producer.reports import Acknowledged, CloseReport, Failed, FlushReport
from nsq.threads import owner, waiters
from nsq.wire.commands import NOP
from tests.fakes.nsqd import A, B, C
from tests.fakes.pool import (
    End,
    Meanwhile,
    Stage,
    StillPool,
    answer,
    at_claim,
    bodies,
    conn_of,
    connect,
    interleaved,
    is_sent,
    is_stored,
    lose,
    nothing,
    refuse,
    waits_for_a_connection,
    waits_to_be_sent_again,
    waits_to_be_written,
    write,
)
from tests.fakes.threads import PATIENCE, in_thread

PAST = 0.0  # a deadline
BAD = BadMessage("E_BAD_MESSAGE")


@pytest.fixture
def pool() -> StillPool:
    return StillPool()


def run_by(pool: StillPool, *threads: threading.Thread) -> None:
    """These are its own threads."""
    loops: Any = pool.add().loops
    loops.threads = list(threads)
    pool.nsqds.note_own_threads()


def is_full(pool: StillPool) -> bool:
    """Whether it refuses another publish."""
    late = Publish("orders", b"late")
    with suppress(QueueFull):
        pool.publish(late, 10.0, block=False)
    return late not in pool.pending


class TestRoom:
    @pytest.mark.parametrize(
        ("options", "pending", "full"),
        [
            ({"max_pending": 2}, [1], False),
            ({"max_pending": 2}, [1, 1], True),
            ({"max_pending_bytes": 10}, [5, 4], False),
            ({"max_pending_bytes": 10}, [5, 5], True),
            ({"max_pending_bytes": 10}, [9, 1000], True),
            ({"max_pending_bytes": 10}, [1000], True),
        ],
        ids=["fewer", "as many", "fewer bytes", "as many bytes", "the last may be larger", "the first too"],
    )
    def test_is_limited(self, options: dict[str, int], pending: list[int], full: bool) -> None:
        pool = StillPool(**options)
        pool.make(*[b"x" * size for size in pending])
        assert is_full(pool) is full
        assert len(pool.waiting) == len(pending) + (not full)
        if full:
            with pytest.raises(QueueFull, match=rf"^{len(pending)} publishes are unanswered.*max_pending"):
                pool.publish(Publish("orders", b"late"), 10.0, block=False)

    @pytest.mark.parametrize(
        ("stage", "end"),
        [
            (is_sent, lambda pool, made: answer(pool.endpoints.all[0])),
            (is_sent, lambda pool, made: refuse(pool.endpoints.all[0], BAD)),
            (is_sent, lambda pool, made: lose(pool.endpoints.all[0])),
            (waits_to_be_written, lambda pool, made: pool.give_up(made)),
            (waits_to_be_written, lambda pool, made: pool.cancel(made)),
        ],
        ids=["stored", "refused", "lost", "too late", "interrupted"],
    )
    def test_every_end_makes_room_and_wakes_those_who_wait(self, stage: Stage, end: End) -> None:
        pool = StillPool(max_pending=1, max_pending_bytes=4)
        made = stage(pool)
        pool._room = room = Meanwhile()
        end(pool, made)
        assert made.done()
        assert room.wakes > 0
        assert pool.callbacks._queue.empty()  # there is no hook
        assert not is_full(pool)

    def test_what_was_sent_keeps_its_room_until_it_is_answered(self) -> None:
        pool = StillPool(max_pending=1)
        late = is_sent(pool)
        pool.give_up(late)
        error = late.error
        assert isinstance(error, PublishUncertain)
        assert is_full(pool)
        answer(pool.endpoints.all[0])
        assert not is_full(pool)
        assert late.error is error

    @pytest.mark.parametrize(
        ("happens", "error"),
        [
            (lambda pool, made: pool.cancel(made), None),
            (lambda pool, made: pool.ask_to_close(PAST), Closed),
            (lambda pool, made: None, QueueFull),
        ],
        ids=["there is room", "it is closed", "none is answered in time"],
    )
    def test_what_ends_the_wait(self, happens: End, error: type[NsqError] | None) -> None:
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

    def test_a_thread_of_its_own_does_not_wait(self) -> None:
        pool = StillPool(max_pending=1)
        pool.make(b"first")
        run_by(pool, threading.current_thread())
        assert is_full(pool)
        with pytest.raises(UsageError):
            pool.make(b"late")

    @given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=40))
    def test_never_more_than_allowed_and_one(self, steps: list[tuple[int, bool]]) -> None:
        pool = StillPool(max_pending_bytes=100)
        for size, ends in steps:
            publish = Publish("orders", b"x" * size)
            if sum(each.size for each in pool.pending) < 100:
                pool.publish(publish, 10.0, block=False)
            else:
                assert is_full(pool)
            if ends and pool.pending:
                pool.complete([next(iter(pool.pending))], None)


class TestGivingUp:
    @pytest.mark.parametrize(
        ("stage", "kind", "text", "kept"),
        [
            (waits_for_a_connection, PublishFailed, f"no nsqd could be reached in time: {A}", False),
            (waits_to_be_written, PublishFailed, f"{A} did not take it in time", False),
            (is_sent, PublishUncertain, f"sent to {A} and not answered (no answer in time)", True),
            (waits_to_be_sent_again, PublishUncertain, f"sent to {A} and not answered", False),
            (is_stored, type(None), "None", False),
        ],
    )
    @pytest.mark.parametrize("way", ["too late", "the producer was closed", "the call was interrupted"])
    def test_says_what_is_sure(self, way: str, stage: Stage, kind: type[Any], text: str, kept: bool) -> None:
        pool = StillPool(retry_uncertain=True)
        made = stage(pool)
        (endpoint,) = pool.endpoints.all
        for _ in range(2):
            if way == "the call was interrupted":
                pool.cancel(made)
            else:
                pool.give_up(made, "" if way == "too late" else way)
        assert (made in pool.pending) is kept
        pool.do_jobs()
        if way == "the call was interrupted":
            assert made.done() is not kept  # what was sent is not ended
            assert not endpoint.overdue
        else:
            assert endpoint.overdue is kept
        if made.done():
            assert type(made.error) is kind
            assert (text if way == "too late" or stage is is_stored else way) in str(made.error)
        if not endpoint.open:
            connect(endpoint)
        pool.turn()
        assert write(endpoint) == b""  # it is not sent any more
        assert not pool.waiting


class TestSettled:
    def test_hooks_are_told_once_and_of_the_first_end(self) -> None:
        told: list[Acknowledged | Failed] = []
        pool = StillPool(on_acknowledged=told.append, on_failed=told.append)
        endpoint = pool.add()
        pool.turn()
        made = pool.make(b"late", b"stored", b"refused", b"interrupted")
        pool.cancel(made[3])
        pool.time.now += 1.5
        write(endpoint)
        pool.give_up(made[0])
        pool.give_up(made[0])
        pool.complete(made[:2], None)
        pool.complete(made, BAD)
        pool.run_callbacks()
        late, stored, refused = told
        assert isinstance(late, Failed)
        assert isinstance(late.error, PublishUncertain)
        assert stored == Acknowledged("orders", 1, 6, A, 1.5)
        assert isinstance(refused, Failed)
        assert isinstance(refused.error, BadMessage)

    def test_a_hook_that_raises_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        pool = StillPool(on_acknowledged=lambda _: 1 / 0)
        pool.complete(pool.make(b"a"), None)
        pool.run_callbacks()
        assert "ZeroDivisionError" in caplog.text

    def test_events_for_a_slow_hook_are_dropped_rather_than_memory_used_up(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(waiters, "_MAX_EVENTS", 3)
        told: list[Acknowledged] = []
        pool = StillPool(on_acknowledged=told.append)
        pool.complete(pool.make(*[b"x"] * 10), None)
        assert pool.flush(PAST) == FlushReport(clean=False)  # answered, but the hook has not run
        pool.run_callbacks()
        assert len(told) == 3
        assert [record.args for record in caplog.records] == [(1,), (2,), (4,)]


class LossyPool(StillPool):
    """Loses most of the subtractions from the bytes that are left, as threads without the GIL may."""

    subtractions = 0

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_bytes_left" and getattr(self, name, 0) > value:  # type: ignore[operator]
            self.subtractions += 1
            if self.subtractions % 4:
                return
        super().__setattr__(name, value)


def test_lost_subtractions_do_not_exceed_the_bytes_that_may_be_pending() -> None:
    pool = LossyPool(max_pending_bytes=100_000)
    pool.add()
    pool.turn()
    while not is_full(pool):
        pool.publish(Publish("orders", b"x" * 100), 10.0, block=False)
    assert 100_000 <= sum(publish.size for publish in pool.pending) <= 101_000


class TestHandingOut:
    def test_overdue_ones_are_used_only_if_there_is_no_other(self, pool: StillPool) -> None:
        one, other = pool.add(A), pool.add(B)
        steps: list[tuple[Callable[[], object], list[PublishingEndpoint]]] = [
            (lambda: setattr(one, "overdue", True), [other]),
            (lambda: setattr(other, "overdue", True), [one, other]),
            (lambda: setattr(conn_of(one), "closed", True), [other]),
            (lambda: setattr(conn_of(other), "closed", True), []),
        ]
        for step, used in steps:
            step()
            pool.turn()
            assert [endpoint for endpoint, _ in pool.usable] == used

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
        conn = conn_of(pool.add())
        pool.turn()
        pool.usable, usable = (), pool.usable
        pool.make(b"0", b"1", b"2")
        pool.usable = usable
        late = iter([b"3", b"4"])
        conn.on_put = lambda: [pool.make(body) for body in (next(late, None),) if body]
        pool.turn()
        assert bodies(conn.waiting) == [b"0", b"1", b"2", b"3", b"4"]

    def test_what_comes_in_the_middle_of_a_choice_is_handed_out_too(self, pool: StillPool) -> None:
        """A thread has found no open connection, and puts its publish when the others are handed out."""
        endpoint = pool.add()
        pool.waiting = interleaved(deque, "__len__", behind=[lambda: pool.make(b"late")])
        pool._choose()
        assert bodies(conn_of(endpoint).waiting) == [b"late"]

    def test_a_connection_that_closes_in_the_middle_loses_nothing(self, pool: StillPool) -> None:
        conn = conn_of(pool.add())
        pool.make(b"0", b"1", b"2")
        conn.on_put = lambda: setattr(conn, "closed", len(conn.waiting) == 2)
        pool.turn()
        conn.closed = True
        pool.turn()
        assert bodies(pool.waiting) == [b"0", b"1", b"2"]
        assert all(each.endpoint is None for each in pool.waiting)

    @pytest.mark.parametrize("closer_first", [False, True])
    def test_what_a_closing_connection_gets_is_taken_back(self, pool: StillPool, closer_first: bool) -> None:
        """Its end is noticed by its own thread and by the one that has just published."""
        endpoint = pool.add()
        pool.turn()
        conn = conn_of(endpoint)
        conn.on_put = lambda: lose(endpoint) if closer_first else setattr(conn, "closed", True)
        (made,) = pool.make(b"body")
        if not closer_first:
            lose(endpoint)
        pool.turn()
        assert list(pool.waiting) == [made]
        assert pool.pending == {made}

    @pytest.mark.parametrize(
        ("patient", "left"), [(False, 1), (True, 8)], ids=["none waits", "behind one with a long timeout"]
    )
    def test_what_has_ended_does_not_pile_up(self, patient: bool, left: int) -> None:
        pool = StillPool(max_pending=3)
        pool.add(connected=False)
        stays = pool.make(*[b"patient"] * patient, seconds=10_000.0)
        for _ in range(100):
            pool.make(b"x" * 1000, seconds=1.0)
            pool.time.now += 2.0
            pool.turn()
        assert len(pool.waiting) <= left
        assert sum(len(each.body) for each in pool.waiting) < 100
        assert pool.pending == set(stays)

    def test_pauses_are_looked_at_once_when_a_publish_waits(
        self, pool: StillPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        endpoint = pool.add(connected=False)
        hurried: list[bool] = []
        monkeypatch.setattr(pool.endpoints, "hurry", lambda: hurried.append(True))
        counts = []
        steps: list[Callable[[], object]] = [
            nothing,
            lambda: pool.make(b"0"),
            lambda: pool.make(b"1"),
            lambda: connect(endpoint),
            lambda: lose(endpoint),
        ]
        for step in steps:
            step()
            pool.turn()
            counts.append(len(hurried))
        assert counts == [0, 1, 1, 1, 2]
        assert pool.urgent


class TestTakingBack:
    def test_in_front_of_what_waits_and_in_order(self, pool: StillPool) -> None:
        older = pool.make(b"0", b"1")
        pool.time.now += 1.0
        older += pool.make(b"2")
        pool.waiting.clear()
        pool.time.now += 1.0
        pool.make(b"3", b"4")
        pool.take_back(deque([older[0], NOP, older[1]]))
        pool.take_back(deque([NOP, older[2]]))  # of another connection
        pool.do_jobs()
        assert bodies(pool.waiting) == [b"0", b"1", b"2", b"3", b"4"]
        assert all(each.endpoint is None for each in pool.waiting)

    def test_what_one_connection_leaves_goes_round_among_the_others(self, pool: StillPool) -> None:
        one = pool.add(A)
        pool.turn()
        made = pool.make(b"0", b"1")
        lose(one)
        pool.usable = ()
        made += pool.make(b"2", b"3")  # stay behind
        others = [pool.add(B), pool.add(C)]
        pool.turn()
        assert [each.endpoint for each in made] in (others * 2, others[::-1] * 2)
        assert sorted(bodies(conn_of(each).waiting) for each in others) == [[b"0", b"2"], [b"1", b"3"]]


class TestHopeless:
    """Nsqds that refuse for good: waiting for them is pointless."""

    SAID = AuthFirst("E_AUTH_FIRST: give auth_secret")

    def refusing(self, pool: StillPool, address: str = A) -> PublishingEndpoint:
        endpoint = pool.add(address, connected=False)
        endpoint.backoff.failed(self.SAID, pool._clock(), final=True)
        return endpoint

    def test_what_the_only_one_said_is_raised_and_names_it(self) -> None:
        pool = StillPool(reconnect_initial=0.001)
        made = pool.make(b"0", b"1")
        self.refusing(pool)
        pool.time.now += 5.0
        (behind,) = pool.make(b"published after it refused")
        pool.turn()
        for each in made:
            assert isinstance(each.error, AuthFirst)
            assert each.error is not self.SAID  # callers must not share a traceback
            assert each.error.__notes__ == [f"said by {A}"]
        assert made[0].error is not made[1].error
        assert not hasattr(self.SAID, "__notes__")
        assert list(pool.waiting) == [behind]
        assert pool.pending == {behind}

    def test_what_several_said_is_told_of_each(self, pool: StillPool) -> None:
        (made,) = pool.make(b"0")
        self.refusing(pool, A)
        self.refusing(pool, B)
        pool.turn()
        assert isinstance(made.error, PublishFailed)
        assert f"{A}: E_AUTH_FIRST" in str(made.error)
        assert f"{B}: E_AUTH_FIRST" in str(made.error)

    @pytest.mark.parametrize("known", [False, True], ids=["none is known yet", "one may be better next time"])
    def test_others_are_waited_for(self, pool: StillPool, known: bool) -> None:
        (made,) = pool.make(b"0")
        if known:
            self.refusing(pool, A)
            pool.add(B, connected=False).backoff.failed(DialFailed("refused"), pool._clock())
        pool.turn()
        assert not made.done()
        assert list(pool.waiting) == [made]

    def test_one_that_may_be_stored_elsewhere_stays_uncertain(self) -> None:
        pool = StillPool(retry_uncertain=True)
        made = waits_to_be_sent_again(pool)
        pool.endpoints.all[0].backoff.failed(self.SAID, pool._clock(), final=True)
        pool.turn()
        assert isinstance(made.error, PublishUncertain)
        assert "E_AUTH_FIRST" in str(made.error)

    def test_one_that_is_cancelled_in_this_moment_is_only_taken_out(self, pool: StillPool) -> None:
        (made,) = pool.make(b"0")
        self.refusing(pool)
        at_claim(made, before=lambda: pool.cancel(made))
        pool.turn()
        assert isinstance(made.error, PublishFailed)
        assert not pool.waiting
        assert not pool.pending


class TestDeadlines:
    @pytest.mark.parametrize("other", [5.0, 20.0], ids=["sooner than the others", "later"])
    @pytest.mark.parametrize("when", ["before", "behind"])
    def test_none_is_missed_that_is_added_while_they_are_looked_at(self, when: str, other: float) -> None:
        pool = StillPool()
        late: list[Publish] = []
        (made,) = pool.make(b"first")
        pending = interleaved(set, "copy", **{when: [lambda: late.extend(pool.make(b"late", seconds=other))]})
        pending.update(pool.pending)
        pool.pending = pending
        pool.turn()
        for now in (5.0, 10.0, 20.0):
            pool.time.now = 1000.0 + now
            pool.turn()
            assert made.done() is (now >= 10.0)
            assert late[0].done() is (now >= other)
        assert not pool.pending

    def test_its_thread_is_woken_only_for_a_sooner_one(self, pool: StillPool) -> None:
        pool.add()
        pool.turn()
        jobs = []
        for seconds in (10.0, 20.0, 15.0, 5.0, 7.0):
            before = pool.owner._requests.qsize()
            pool.make(b"body", seconds=seconds)
            jobs.append(pool.owner._requests.qsize() - before)
            pool.turn()
        assert jobs == [1, 0, 0, 1, 0]

    @given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=20))
    def test_each_ends_at_its_own_and_the_thread_sleeps_until_the_next(self, seconds: list[float]) -> None:
        pool = StillPool()
        made = [*(pool.make(b"x", seconds=each)[0] for each in seconds)]
        pool.turn()
        for deadline in sorted({each.deadline for each in made}):
            assert pool._wakes_at <= deadline
            pool.time.now = deadline
            pool.turn()
            assert [each.done() for each in made] == [each.deadline <= deadline for each in made]
        assert pool._wakes_at == float("inf")


class TestAddresses:
    def addresses(self, pool: StillPool) -> list[str]:
        return [endpoint.address for endpoint in pool.endpoints.all]

    def test_new_ones_are_added_and_known_ones_left_alone(self, pool: StillPool) -> None:
        known = pool.add(A)
        for addresses in ([C, A, B], [A, B, C]):
            pool.nsqds.set_addresses(addresses)
            pool.turn()
            assert self.addresses(pool) == [A, C, B]
            assert pool.endpoints.all[0] is known

    def test_publishes_of_one_that_is_no_longer_listed_are_sent_elsewhere(self, pool: StillPool) -> None:
        gone, stays = pool.add(A), pool.add(B)
        pool.turn()
        pool.usable = ((gone, conn_of(gone)),)
        pool.make(b"0", b"1")
        pool.nsqds.set_addresses([B])
        pool.turn()
        assert pool.endpoints.all == (gone, stays)  # while its connection lasts
        lose(gone)
        pool.turn()
        assert pool.endpoints.all == (stays,)
        assert bodies(conn_of(stays).waiting) == [b"0", b"1"]

    def test_counts_of_one_that_is_gone_are_kept(self, pool: StillPool) -> None:
        gone = pool.add(A)
        pool.turn()
        pool.make(b"0")
        write(gone)
        answer(gone)
        pool.nsqds.set_addresses([])
        pool.turn()
        lose(gone)
        assert pool.endpoints.all == ()
        assert pool.stats().published == 1


def close_all_of(pool: StillPool) -> None:
    """From the call of close to its end, as long as nothing is left that it knows of."""
    pool.ask_to_close(pool._clock() + 1.0)
    pool.turn()
    assert pool.report == CloseReport(clean=True)


class TestClosing:
    @pytest.mark.parametrize("stage", [waits_for_a_connection, waits_to_be_written, is_sent])
    def test_it_waits_for_what_is_left_until_its_time_is_up(self, pool: StillPool, stage: Stage) -> None:
        made = stage(pool)
        pool.ask_to_close(pool.time.now + 5.0)
        pool.turn()
        pool.time.now += 4.7
        pool.turn()
        assert pool.report is None
        assert not pool.endpoints.all[0]._stopped
        pool.time.now += 0.1
        pool.turn()
        assert pool.report == CloseReport(clean=False, unanswered=1)
        assert isinstance(made.error, PublishUncertain if stage is is_sent else PublishFailed)
        assert "the producer was closed" in str(made.error)

    @pytest.mark.parametrize(
        ("stage", "end"),
        [
            (is_sent, lambda pool, made: answer(pool.endpoints.all[0])),
            (waits_to_be_written, lambda pool, made: pool.cancel(made)),
        ],
        ids=["answered", "cancelled"],
    )
    def test_it_is_told_when_the_last_has_ended(self, pool: StillPool, stage: Stage, end: End) -> None:
        made = stage(pool)
        pool.ask_to_close(pool._clock() + 5.0)
        pool.turn()
        assert pool.report is None
        pool.do_jobs()
        end(pool, made)
        assert pool.owner._requests.qsize() > 0
        pool.turn()
        assert pool.report == CloseReport(clean=True)

    def test_what_is_taken_back_meanwhile_is_still_sent(self, pool: StillPool) -> None:
        made = waits_to_be_written(pool)
        pool.ask_to_close(pool._clock() + 5.0)
        lose(pool.endpoints.all[0])
        other = pool.add(B)
        pool.turn()
        write(other)
        answer(other)
        pool.turn()
        assert pool.report == CloseReport(clean=True)
        assert made.error is None

    @pytest.mark.parametrize("stage", [is_stored, is_sent])
    def test_connections_may_say_goodbye_and_are_cut_off(self, pool: StillPool, stage: Stage) -> None:
        stage(pool)
        pool.ask_to_close(PAST)
        pool.turn()
        assert conn_of(pool.endpoints.all[0]).closes == [True, False]

    @pytest.mark.parametrize(
        ("seconds", "kept"), [(100.0, 0.25), (2.5, 0.25), (1.0, 0.1), (0.0, 0.0), (-5.0, 0.0)]
    )
    def test_some_time_is_kept_for_threads_to_end(self, pool: StillPool, seconds: float, kept: float) -> None:
        now = pool._clock()
        for each in (200.0, seconds, 150.0):  # the soonest counts
            pool._begin_close(now + each)
        assert pool._close_by == pytest.approx(now + seconds - kept)
        assert pool._join_by == pytest.approx(max(now + seconds, now + 0.1))

    @pytest.mark.parametrize("place", ["not pending yet", "pending", "connection", "written", "waiting"])
    def test_a_publish_that_is_just_being_handed_over_ends_too(self, pool: StillPool, place: str) -> None:
        """Close does not wait for it, as it may be its own signal handler that closes."""
        if place in ("connection", "written"):
            endpoint = pool.add()
            pool.turn()
            conn_of(endpoint).on_put = lambda: (place == "written" and write(endpoint), close_all_of(pool))
        elif place == "not pending yet":
            pool.pending = interleaved(set, "add", before=[lambda: close_all_of(pool)])
        elif place == "pending":
            pool.pending = interleaved(set, "add", behind=[lambda: close_all_of(pool)])
        else:
            pool.owner.wake = lambda: pool._gone or close_all_of(pool)  # type: ignore[method-assign, return-value]
        (made,) = pool.make(b"body")
        assert type(made.error) is (PublishUncertain if place == "written" else PublishFailed)
        assert "the producer was closed" in str(made.error)
        assert pool.callbacks._queue.get_nowait() is None
        if place == "written":
            lose(endpoint)
        assert not pool.pending

    def test_a_flush_in_the_middle_of_a_publish_does_not_wait_for_it(self, pool: StillPool) -> None:
        left: list[int] = []
        pool.callbacks.wait_until_run = lambda deadline: True  # type: ignore[method-assign]
        pool.pending = interleaved(set, "add", behind=[lambda: left.append(pool.flush(PAST).unanswered)] * 2)
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
            pool.callbacks.thread = threading.current_thread()
            with pytest.raises(UsageError, match="a future's callback"):
                call()
            pool.callbacks.thread = threading.Thread()
        assert not pool.closed

    def test_one_that_never_started_is_closed_at_once(self, pool: StillPool) -> None:
        pool.owner._once.release()
        assert pool.close(10.0) == CloseReport(clean=True)


class TestStarting:
    @pytest.mark.parametrize(
        ("refused", "closed", "error", "text"),
        [
            (True, False, PublishFailed, r"no thread can be started \(can't start new thread\)"),
            (False, True, Closed, "closed"),
            (False, False, PublishFailed, "did not start in time"),
        ],
    )
    def test_what_a_publish_may_find_instead(
        self, monkeypatch: pytest.MonkeyPatch, refused: bool, closed: bool, error: type[NsqError], text: str
    ) -> None:
        def start(target: object, name: str, failed: Callable[[RuntimeError], None]) -> None:
            pool.closed = closed
            if refused:
                failed(RuntimeError("can't start new thread"))

        monkeypatch.setattr(owner, "start_thread", start)
        pool = StillPool()
        pool._clock = time.monotonic  # the one that the wait itself looks at
        pool.owner.begun = False
        with pytest.raises(error, match=text):
            pool.make(b"body", seconds=1e-9)
        assert not pool.pending

    def test_they_are_started_once(self, pool: StillPool, monkeypatch: pytest.MonkeyPatch) -> None:
        starts: list[str] = []

        def start(target: Callable[[], None], name: str, failed: object) -> None:
            starts.append(name)
            target()  # while another thread starts them: it does nothing
            pool.owner.begun = True

        monkeypatch.setattr(owner, "start_thread", start)
        pool.owner.begun = False
        pool.make(b"0", b"1")
        assert starts == ["nsq-producer"]

    def test_the_threads_that_it_would_wait_for_are_known(self, pool: StillPool) -> None:
        thread = threading.Thread(target=nothing)
        thread.start()
        thread.join()
        run_by(pool, thread)
        assert pool.nsqds.own_threads == {thread.ident: thread}


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
            pool.make(b"late")

    def test_a_publish_that_the_fork_interrupted_ends(self, pool: StillPool) -> None:
        pool.pending = interleaved(set, "add", behind=[pool.abandon])
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
    def test_in_any_story(self, steps: list[str]) -> None:
        in_order(steps)


def in_order(steps: list[str]) -> None:
    """Everything is stored in the order of its publishing, however often it was sent again."""
    pool = StillPool(retry_uncertain=True)
    endpoint = pool.add()
    pool.turn()
    published = 0
    stored: list[bytes] = []
    for step in [*steps, *["turn", "lose", "turn", "connect", "turn", "write", "ok", "write", "ok"]]:
        conn = conn_of(endpoint)
        connected = not conn.closed and not conn.closes
        sent = [publish for batch in endpoint._sent for publish in batch]
        if step == "publish":
            pool.time.now += 1e-6
            pool.make(b"%03d" % published)
            published += 1
        elif step == "turn":
            pool.turn()
        elif step == "lose" and not conn.closed:
            lose(endpoint)
        elif step == "connect" and conn.closed:  # as ``_dial`` does
            endpoint._sent.clear()
            endpoint._error, endpoint._has_stored, endpoint._server_stopped = None, False, False
            connect(endpoint)
        elif step == "write" and connected:
            write(endpoint)
        elif step == "ok" and connected and sent:
            stored += bodies(sent)
            answer(endpoint, len(endpoint._sent))
        elif step in ("bad", "full") and connected and sent and len(endpoint._sent[0]) > 1:
            refuse(endpoint, BAD if step == "bad" else MpubFailed("E_MPUB_FAILED"))
        elif step == "full" and connected and sent:
            refuse(endpoint, PubFailed("E_PUB_FAILED"))
    assert stored == sorted(stored)
    assert len(stored) == published


class TestRaces:
    def test_a_caller_gives_up_while_it_is_handed_out(self, pool: StillPool) -> None:
        made = waits_for_a_connection(pool)
        (endpoint,) = pool.endpoints.all
        at_claim(made, before=lambda: (connect(endpoint), pool.turn(), write(endpoint)))
        pool.give_up(made)
        assert isinstance(made.error, PublishUncertain)

    def test_a_caller_gives_up_while_it_is_written(self, pool: StillPool) -> None:
        made = waits_to_be_written(pool)
        late: list[Future[None]] = []
        at_claim(made, behind=lambda: late.append(in_thread(lambda: pool.give_up(made))))
        assert write(pool.endpoints.all[0])
        late[0].result(PATIENCE)
        assert isinstance(made.error, PublishUncertain)

    def test_two_threads_give_up_at_once(self, pool: StillPool) -> None:
        """Its caller and the pool's thread: both wait for the same deadline. It was surely not sent."""
        made = waits_to_be_written(pool)
        other: list[Future[None]] = []
        at_claim(made, behind=lambda: other.append(in_thread(lambda: pool.give_up(made))))
        pool.give_up(made)
        other[0].result(PATIENCE)
        pool.do_jobs()
        assert isinstance(made.error, PublishFailed)
        assert not pool.endpoints.all[0].overdue

    def test_it_is_given_up_while_it_is_about_to_be_sent_again(self, pool: StillPool) -> None:
        made = is_sent(pool)
        (endpoint,) = pool.endpoints.all
        at_claim(made, behind=lambda: refuse(endpoint, PubFailed("E_PUB_FAILED")))
        pool.give_up(made)
        lose(endpoint)
        pool.turn()
        assert made.done()
        assert not pool.pending
        assert not pool.waiting

    def test_it_is_given_up_while_it_is_sent_elsewhere(self) -> None:
        """Its caller has found it claimed, and stands still; when it goes on, another nsqd gets it."""

        class Slow(StillPool):
            meanwhile: Any = staticmethod(nothing)

            def complete(self, publishes: list[Publish], error: NsqError | None) -> None:
                meanwhile, self.meanwhile = self.meanwhile, nothing
                meanwhile()
                super().complete(publishes, error)

        pool = Slow()
        made = is_sent(pool)
        (one,) = pool.endpoints.all
        other = pool.add(B)
        written: list[bytes] = []

        def refused_and_handed_on() -> None:
            refuse(one, PubFailed("E_PUB_FAILED"))
            lose(one)
            pool.turn()
            pool.meanwhile = lambda: written.append(write(other))

        at_claim(made, behind=refused_and_handed_on)
        pool.give_up(made)
        written.append(write(other))
        assert isinstance(made.error, PublishUncertain) or not any(written)

    @pytest.mark.parametrize("verb", ["give_up", "cancel"])
    def test_a_caller_that_is_interrupted_meanwhile_costs_no_room(self, pool: StillPool, verb: str) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        pool.pending = interleaved(set, "discard", "difference_update", before=[interrupt])
        made = waits_to_be_written(pool)
        with pytest.raises(KeyboardInterrupt):
            getattr(pool, verb)(made)
        pool.cancel(made)  # as its caller does
        pool.time.now += 100.0
        pool.turn()
        assert made.done()
        assert write(pool.endpoints.all[0]) == b""
        pool.turn()
        assert not pool.pending

    def test_the_answer_comes_while_it_is_suspected(self, pool: StillPool) -> None:
        is_sent(pool)
        (endpoint,) = pool.endpoints.all
        sent = interleaved(deque, "copy", behind=[lambda: answer(endpoint)])
        sent.extend(endpoint._sent)
        endpoint._sent = sent
        pool._suspect(endpoint)
        assert not endpoint.overdue
