from __future__ import annotations

import pytest

from nsq.errors import BadTopic, PubFailed, PublishFailed, PublishUncertain
from nsq.producer.transaction import State, failure

from .transactions import Slot, transaction


def test_from_the_call_to_the_answer() -> None:
    tx, slot = transaction(), Slot()
    assert tx.state is State.WAITING

    assert tx.place(slot, 1, 5.0)
    assert (tx.state, tx.holder, tx.ticket, tx.placed_at) == (State.PLACED, slot, 1, 5.0)
    assert not tx.wait(0.0)

    assert tx.answer(None)
    assert tx.wait(0.0)
    assert (tx.state, tx.error, tx.again) == (State.ANSWERED, None, False)


def test_an_error_is_news_too() -> None:
    tx = transaction()
    tx.place(Slot(), 1, 0.0)
    error = BadTopic("E_BAD_TOPIC no")

    tx.answer(error)

    assert tx.wait(0.0)
    assert (tx.state, tx.error, tx.again) == (State.ANSWERED, error, False)


def test_what_may_be_tried_again_can_be_placed_again() -> None:
    tx, second = transaction(), Slot("nsqd-b:4150")
    tx.place(Slot(), 1, 0.0)
    tx.answer(PubFailed("E_PUB_FAILED"), again=True)
    assert tx.wait(0.0)
    assert (tx.state, tx.again) == (State.WAITING, True)

    assert tx.place(second, 7, 1.0)
    assert not tx.wait(0.0)  # the news of before is not told twice
    tx.answer(None)

    assert tx.wait(0.0)
    assert (tx.holder, tx.error) == (second, None)


def test_given_up_before_it_is_placed_it_is_never_sent() -> None:
    tx = transaction()

    assert tx.give_up() is State.WAITING
    assert tx.over
    assert not tx.left_behind
    assert not tx.place(Slot(), 1, 0.0)


def test_given_up_while_it_is_placed_its_answer_is_awaited_by_nobody() -> None:
    tx = transaction()
    tx.place(Slot(), 1, 0.0)

    assert tx.give_up() is State.PLACED
    assert tx.left_behind
    assert not tx.answer(None)
    assert tx.over


def test_given_up_too_late_the_answer_counts() -> None:
    tx = transaction()
    tx.place(Slot(), 1, 0.0)
    tx.answer(None)

    assert tx.give_up() is State.ANSWERED
    assert (tx.over, tx.left_behind, tx.error) == (False, False, None)


def test_giving_up_twice_changes_nothing() -> None:
    tx = transaction()
    tx.place(Slot(), 1, 0.0)
    tx.give_up()

    assert tx.give_up() is State.OVER
    assert tx.left_behind


def test_a_failure_without_doubt() -> None:
    fault = failure(transaction(), "nsqd-a:4150: refused")

    assert type(fault) is PublishFailed
    assert str(fault) == "publishing to 'orders': nsqd-a:4150: refused"
    assert (fault.retry, fault.maybe_stored) == (True, False)


def test_a_failure_after_a_doubt_is_uncertain_and_names_who_may_have_it() -> None:
    tx = transaction()
    tx.place(Slot("nsqd-a:4150"), 1, 0.0)
    tx.answer(PublishUncertain("lost"), again=True, doubt="nsqd-a:4150")
    tx.place(Slot("nsqd-b:4150"), 1, 0.0)
    tx.answer(PublishUncertain("lost"), again=True, doubt="nsqd-b:4150")

    fault = failure(tx, "nobody is left")

    assert type(fault) is PublishUncertain
    assert "nsqd-a:4150 and nsqd-b:4150" in str(fault)
    assert "nobody is left" in str(fault)


@pytest.mark.parametrize("state", ["waiting", "answered"])
def test_only_what_is_placed_is_answered(state: str) -> None:
    tx = transaction()
    if state == "answered":
        tx.place(Slot(), 1, 0.0)
        tx.answer(None)

    assert not tx.answer(BadTopic("E_BAD_TOPIC"))
    assert tx.error is None
