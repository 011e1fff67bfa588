from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from nsq.producer.answers import Answers
from nsq.producer.courier import Courier
from nsq.producer.transaction import State, Transaction

from .transactions import Slot, transaction

PATIENCE = 20.0


class Watched:
    """Answers whose doings can be waited for, by a clock that is set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.completed: queue.SimpleQueue[Transaction] = queue.SimpleQueue()
        self.expired: queue.SimpleQueue[Transaction] = queue.SimpleQueue()
        self.answers = Answers(self._complete, self._expire, lambda: self.now)

    def _complete(self, several: list[Transaction]) -> None:
        for tx in several:
            self.completed.put(tx)

    def _expire(self, tx: Transaction) -> None:
        tx.give_up()
        self.expired.put(tx)


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.answers.stop(PATIENCE)


def test_what_is_put_is_completed(watched: Watched) -> None:
    tx = transaction()
    watched.answers.watch(tx)
    watched.answers.put(tx)

    assert watched.completed.get(timeout=PATIENCE) is tx


def test_what_reaches_its_deadline_expires_the_earliest_first(watched: Watched) -> None:
    late, early, later = (transaction(deadline=at) for at in (20.0, 10.0, 30.0))
    for tx in (late, early, later):
        watched.answers.watch(tx)
    watched.now = 25.0
    poke = transaction(deadline=5.0)  # sooner than all others: the thread looks again
    watched.answers.watch(poke)

    expired = [watched.expired.get(timeout=PATIENCE) for _ in range(3)]
    assert [tx for tx in expired if tx is not poke] == [early, late]
    assert watched.expired.empty()


def test_what_was_answered_does_not_expire(watched: Watched) -> None:
    tx = transaction(deadline=1.0)
    tx.place(Slot(), 1, 0.0)
    tx.answer(None)
    watched.answers.watch(tx)
    watched.now = 2.0
    overdue = transaction(deadline=0.5)
    watched.answers.watch(overdue)

    assert watched.expired.get(timeout=PATIENCE) is overdue
    assert watched.expired.empty()


def test_what_has_ended_is_not_kept_until_its_deadline(watched: Watched) -> None:
    for _ in range(5000):
        tx = transaction(deadline=1000.0)
        tx.give_up()
        watched.answers.watch(tx)

    assert len(watched.answers._watched) <= 1025


def test_all_that_was_put_is_completed_before_the_end() -> None:
    watched = Watched()
    transactions = [transaction() for _ in range(100)]
    watched.answers.watch(transactions[0])
    for tx in transactions:
        watched.answers.put(tx)
    watched.answers.stop(PATIENCE)

    assert [watched.completed.get(block=False) for _ in transactions] == transactions


def test_one_that_was_never_needed_has_no_thread() -> None:
    watched = Watched()
    watched.answers.stop(PATIENCE)
    assert not watched.answers.is_current_thread


def test_the_courier_carries_in_turn_what_somebody_waits_for() -> None:
    carried: list[Transaction] = []
    courier = Courier(carried.append)
    first, given_up, last = (transaction() for _ in range(3))
    given_up.give_up()
    for tx in (first, given_up, last):
        courier.put(tx)
    courier.stop(PATIENCE)

    assert carried == [first, last]
    assert not courier.busy
    assert given_up.state is State.OVER


class Scarce(threading.Thread):
    """The first cannot be started."""

    left = 0

    def start(self) -> None:
        type(self).left += 1
        if self.left == 1:
            raise RuntimeError("can't start new thread")
        super().start()


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scarce, "left", 0)
    monkeypatch.setattr("threading.Thread", Scarce)


def test_a_thread_that_was_not_to_be_had_is_tried_again(scarce: None, watched: Watched) -> None:
    first, second = transaction(), transaction()
    with pytest.raises(RuntimeError):
        watched.answers.watch(first)
    watched.answers.watch(second)
    watched.answers.put(second)
    assert watched.completed.get(timeout=PATIENCE) is second


def test_so_is_the_couriers(scarce: None) -> None:
    carried: list[Transaction] = []
    courier = Courier(carried.append)
    first, second = transaction(), transaction()
    with pytest.raises(RuntimeError):
        courier.put(first)
    assert not courier.busy
    courier.put(second)
    courier.stop(PATIENCE)
    assert carried == [second]
