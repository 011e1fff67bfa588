from __future__ import annotations

import math
import pickle
from contextlib import nullcontext
from typing import Any

import pytest

from nsq.message import Message, finish_all
from tests.fakes.messages import Delegate
from tests.fakes.nsqd import id_of


def made(delegate: Delegate | None = None, *, expires_at: float = math.inf) -> Message:
    return Message(delegate or Delegate(), 1.0, expires_at, 17, 3, id_of(7), b"body")


def test_a_message_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="pass its body on"):
        pickle.dumps(made())


@pytest.mark.parametrize(
    ("body", "shown"),
    [(b"\xff\n", r"2 bytes: b'\xff\n'"), (b"x" * 41, f"41 bytes: b'{'x' * 40}'…")],
)
def test_the_repr_of_a_message_shows_topic_state_and_beginning_of_the_body(body: bytes, shown: str) -> None:
    delegate = Delegate()
    message = Message(delegate, 1.0, math.inf, 17, 3, id_of(7), body)
    assert repr(message) == f"<Message 0000000000000007 of orders, attempt 3, {shown}>"
    delegate.held = False
    assert "of orders, no longer in flight, attempt 3" in repr(message)


def test_a_plain_message_has_no_slots_for_partitions() -> None:
    assert len(Message.__slots__) == 9


@pytest.mark.parametrize(
    ("call", "note"),
    [
        (lambda message: message.finish(), ("finish",)),
        (lambda message: message.touch(), ("touch",)),
        (lambda message: message.requeue(), ("requeue", None, True)),
        (lambda message: message.requeue(2.5), ("requeue", 2.5, True)),
        (lambda message: message.requeue(0, backoff=False), ("requeue", 0, False)),
    ],
)
def test_answers_go_through_the_delegate(call, note) -> None:  # type: ignore[no-untyped-def]
    delegate = Delegate()
    message = made(delegate)
    call(message)
    assert delegate.notes == [(note[0], message, *note[1:])]


def test_a_message_knows_its_time_left() -> None:
    assert made(expires_at=math.inf).time_left == math.inf
    assert not made(expires_at=math.inf).expired
    assert made(expires_at=0.0).time_left == 0.0
    assert made(expires_at=0.0).expired


@pytest.mark.parametrize("too_late", [False, True])
@pytest.mark.parametrize(
    ("inside", "raises", "note"),
    [
        (lambda message: None, nullcontext(), ("finish",)),
        (lambda message: 1 / 0, pytest.raises(ZeroDivisionError), ("requeue", None, True)),
    ],
)
def test_the_end_of_a_with_block_finishes_the_message_and_an_error_requeues_it_in_time_or_too_late(
    inside: Any, raises: Any, note: tuple[Any, ...], too_late: bool
) -> None:
    delegate = Delegate()
    delegate.too_late = too_late
    message = made(delegate)
    with raises, message:
        assert delegate.notes == []
        inside(message)
    assert delegate.notes == [(note[0], message, *note[1:])]


def test_a_message_that_was_answered_within_its_with_block_is_not_answered_again() -> None:
    delegate = Delegate()
    with made(delegate) as message:
        message.requeue(1.0)
        delegate.held = False
    assert delegate.notes == [("requeue", message, 1.0, True)]


def test_finish_all_skips_messages_that_have_expired() -> None:
    one, late = Delegate(), Delegate()
    late.too_late = True
    a, b, c = made(one), made(late), made(one)
    finish_all([a, b, c])
    assert one.notes == [("finish", a), ("finish", c)]
    assert late.notes == [("finish", b)]
