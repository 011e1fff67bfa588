from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import (
    BadMessage,
    ConnectionLost,
    MpubFailed,
    PubFailed,
    PublishUncertain,
    ServerError,
    server_error,
)
from nsq.producer.pending import Pending
from nsq.producer.transaction import State, Transaction

from .transactions import Slot, transaction

LOST = ConnectionLost("nsqd-a:4150: the connection is lost")


def pending(count: int, *, retry_uncertain: bool = False) -> tuple[Pending, list[Transaction]]:
    """With transactions whose tickets are 1, 2, …"""
    made = Pending(Slot(), retry_uncertain=retry_uncertain)
    transactions = [transaction() for _ in range(count)]
    for ticket, each in enumerate(transactions, 1):
        assert made.add(each, ticket, float(ticket))
    return made, transactions


def outcome(tx: Transaction) -> tuple[type[BaseException] | None, bool]:
    return type(tx.error) if tx.error else None, tx.again


def test_answers_go_to_the_oldest() -> None:
    queue, (first, second) = pending(2)
    assert queue.oldest() is first

    assert queue.stored(2) == ([first], [])
    assert (first.state, second.state) == (State.ANSWERED, State.PLACED)
    assert queue.stored(2) == ([second], [])
    assert len(queue) == 0
    assert queue.oldest() is None


def test_whoever_is_told_is_counted() -> None:
    queue = Pending(Slot(), retry_uncertain=False)
    counts: list[tuple[int, int]] = []

    class Told(Transaction):
        def answer(self, *args: Any, **options: Any) -> bool:
            counts.append((queue.published, queue.failed))
            return super().answer(*args, **options)

    for ticket in (1, 2):
        assert queue.add(Told(transaction().request, 0.0, 10.0), ticket, 0.0)
    queue.stored(2)
    queue.refused(PubFailed("E_PUB_FAILED"), 2)

    assert counts == [(1, 0), (1, 1)]


def test_an_answer_to_nothing_is_none() -> None:
    queue, _ = pending(0)

    assert queue.stored(0) == ([], [])
    assert queue.refused(BadMessage("E_BAD_MESSAGE"), 0) is None


def test_an_answer_to_what_was_not_sent_yet_is_none() -> None:
    queue, (first,) = pending(1)

    assert queue.stored(0) == ([], [])
    assert first.state is State.PLACED
    assert queue.stored(1) == ([first], [])


def test_several_answers_go_to_as_many_as_were_sent() -> None:
    queue, (first, given_up, third, unsent) = pending(4)
    given_up.give_up()

    assert queue.stored(3, times=4) == ([first, third], [given_up])
    assert unsent.state is State.PLACED
    assert list(map(queue.remove, [third, unsent])) == [False, True]


def test_an_answer_that_nobody_awaits_is_not_taken_for_that_of_the_next() -> None:
    queue, (first, second) = pending(2)
    first.give_up()

    assert queue.stored(2) == ([], [first])
    assert second.state is State.PLACED
    queue.refused(BadMessage("E_BAD_MESSAGE"), 2)
    assert outcome(second) == (BadMessage, False)


def test_what_is_over_is_not_added() -> None:
    queue, _ = pending(0)
    tx = transaction()
    tx.give_up()

    assert not queue.add(tx, 1, 0.0)
    assert len(queue) == 0


def test_a_callers_mistake_is_final() -> None:
    queue, (tx,) = pending(1)

    queue.refused(BadMessage("E_BAD_MESSAGE too big"), 1)

    assert (outcome(tx), tx.state) == ((BadMessage, False), State.ANSWERED)


def test_what_nsqd_could_not_store_may_go_elsewhere() -> None:
    queue, (tx,) = pending(1)

    queue.refused(PubFailed("E_PUB_FAILED exiting"), 1)

    assert (outcome(tx), tx.doubts) == ((PubFailed, True), ())


def test_a_batch_that_failed_midway_is_in_doubt() -> None:
    queue, (tx,) = pending(1)
    queue.refused(MpubFailed("E_MPUB_FAILED"), 1)
    assert (outcome(tx), tx.doubts) == ((MpubFailed, False), ("nsqd-a:4150",))

    queue, (tx,) = pending(1, retry_uncertain=True)
    queue.refused(MpubFailed("E_MPUB_FAILED"), 1)
    assert (outcome(tx), tx.doubts) == ((MpubFailed, True), ("nsqd-a:4150",))


def test_when_the_connection_ends_only_what_was_handed_over_is_in_doubt() -> None:
    queue, (sent, unsent) = pending(2)

    assert queue.ended(LOST, handed_over=1) == ([sent, unsent], [])

    assert outcome(sent) == (PublishUncertain, False)
    assert "nsqd-a:4150" in str(sent.error)
    assert (outcome(unsent), unsent.doubts) == ((ConnectionLost, True), ())
    assert len(queue) == 0


def test_what_is_in_doubt_is_tried_again_if_asked_to() -> None:
    queue, (sent,) = pending(1, retry_uncertain=True)

    queue.ended(LOST, handed_over=1)

    assert (outcome(sent), sent.doubts) == ((PublishUncertain, True), ("nsqd-a:4150",))


def test_behind_a_fatal_error_nothing_was_executed() -> None:
    queue, (refused, behind, far_behind) = pending(3)

    queue.refused(BadMessage("E_BAD_MESSAGE"), 3)
    queue.ended(LOST, handed_over=3)

    assert outcome(refused) == (BadMessage, False)
    for tx in (behind, far_behind):
        assert (outcome(tx), tx.doubts) == ((ConnectionLost, True), ())


def test_behind_an_error_that_is_not_fatal_all_is_in_doubt() -> None:
    for error in (server_error(b"E_FIN_FAILED"), server_error(b"E_OF_SOMEBODY_ELSE")):
        queue, (_, behind) = pending(2)

        queue.refused(error, 2)
        queue.ended(LOST, handed_over=2)

        assert outcome(behind) == (PublishUncertain, False), error


def test_a_server_that_goes_on_after_a_fatal_error_has_not_halted() -> None:
    queue, (_, stored, behind) = pending(3)

    queue.refused(PubFailed("E_PUB_FAILED"), 3)
    queue.stored(3)
    queue.ended(LOST, handed_over=3)

    assert outcome(stored) == (None, False)
    assert outcome(behind) == (PublishUncertain, False)


def test_what_is_never_sent_is_taken_out_once() -> None:
    queue, (first, second) = pending(2)

    assert queue.remove(second)
    assert not queue.remove(second)
    assert queue.ended(LOST, 2) == ([first], [])


@given(st.lists(st.sampled_from(["add", "give up", "ok", "refuse", "end"])), st.integers(0, 50))
def test_every_transaction_gets_exactly_its_own_answer(steps: list[str], handed_over: int) -> None:
    """Against a model that is nothing but a queue of who asked."""
    queue = Pending(Slot(), retry_uncertain=False)
    model: deque[Transaction] = deque()
    ticket = 0
    for step in steps:
        if step == "add":
            ticket += 1
            tx = transaction()
            queue.add(tx, ticket, 0.0)
            model.append(tx)
        elif step == "give up":
            for tx in model:
                tx.give_up()
        elif step in ("ok", "refuse"):
            error = ServerError("E_NEW no") if step == "refuse" else None
            settled = queue.refused(error, 99) if error else queue.stored(99)
            if not model:
                assert settled == (None if error else ([], []))
                continue
            expected = model.popleft()
            assert settled == (([], [expected]) if expected.over else ([expected], []))
            assert expected.over or expected.error is error
        else:
            ended = queue.ended(LOST, handed_over)
            assert ended.awaited == [tx for tx in model if not tx.over]
            assert ended.forsaken == [tx for tx in model if tx.over]
            for tx in ended.awaited:
                assert tx.again == (tx.ticket > handed_over)
            model.clear()
        assert len(queue) == len(model)
