from __future__ import annotations

import pytest

from nsq.connection.session import Session
from nsq.errors import AlreadyResponded, NotNsqd, WireError
from nsq.message import Message
from nsq.wire.frames import HEARTBEAT, OK, ErrorReply, Oks, Response, encode_error, encode_response
from nsq.wire.identify import IdentifyReply

from ..scripted import A, id_of, message


class Owner:
    """As far as a session looks at it."""

    address = A


def session(*, max_frame: int = 1 << 20, **reply: int) -> Session:
    return Session(IdentifyReply(**reply), Owner(), max_frame=max_frame)  # type: ignore[arg-type]


def deliver(subject: Session, *numbers: int, now: float = 0.0) -> list[Message]:
    """As a connection takes them in."""
    messages, others = subject.parse(b"".join(message(number) for number in numbers), now)
    assert others == []
    subject.admit(messages, now)
    return messages


class TestReading:
    def test_frames_of_all_kinds_across_chunks(self) -> None:
        subject = session()
        wire = encode_response(HEARTBEAT) + message(1, b"one", attempts=2) + encode_error(b"E_FIN_FAILED x")
        taken = [subject.parse(bytes([byte]), 5.0) for byte in wire]
        (received,) = [message for messages, _ in taken for message in messages]
        heartbeat, error = [other for _, others in taken for other in others]
        assert heartbeat == Response(HEARTBEAT)
        assert isinstance(received, Message)
        assert (received.id, received.body, received.attempts) == (id_of(1), b"one", 2)
        assert error == ErrorReply(b"E_FIN_FAILED x")

    def test_frames_of_all_kinds_in_one_chunk(self) -> None:
        subject = session()
        one, two = message(1), message(2)
        messages, others = subject.parse(one + encode_response(HEARTBEAT) + two, 5.0)
        assert [received.id for received in messages] == [id_of(1), id_of(2)]
        assert others == [Response(HEARTBEAT)]
        assert subject.parse(one, 6.0)[1] == []

    def test_nothing_but_oks_are_one(self) -> None:
        subject, ok, heartbeat = session(), encode_response(OK), encode_response(HEARTBEAT)

        _, (oks,) = subject.parse(3 * ok + ok[:4], 5.0)
        assert oks.data == OK
        assert isinstance(oks.data, Oks)
        assert oks.data.times == 3

        _, (single,) = subject.parse(ok[4:], 5.0)
        assert (single, type(single.data)) == (Response(OK), bytes)
        assert subject.parse(ok + heartbeat + ok, 5.0)[1] == [Response(OK), Response(HEARTBEAT), Response(OK)]

    def test_a_message_that_is_not_held_is_not_let_go_of(self) -> None:
        subject = session()
        subject.set_rdy(2)
        (first,) = deliver(subject, 1)
        (again,) = deliver(subject, 1)
        with pytest.raises(AlreadyResponded):
            subject.release(first)
        assert subject.holds(again)
        assert subject.in_flight == 1
        subject.release(again)
        assert subject.in_flight == 0

    def test_a_messages_time_runs_from_its_reading(self) -> None:
        subject = session(msg_timeout=30_000)
        subject.set_rdy(1)
        (received,) = deliver(subject, 1, now=100.0)
        assert (received.received_at, received.expires_at) == (100.0, 130.0)

    def test_an_nsqd_that_says_nothing_has_the_usual_limits(self) -> None:
        subject = session()
        assert (subject.msg_timeout, subject.max_msg_timeout, subject.max_rdy) == (60.0, 900.0, 2500)

    def test_frames_are_limited(self) -> None:
        with pytest.raises(WireError, match="limit of 64"):
            session(max_frame=64).parse(message(1, b"x" * 100), 0.0)

    def test_a_wrong_port_is_named(self) -> None:
        with pytest.raises(NotNsqd):
            session().parse(b"HTTP/1.1 400 Bad Request\r\n", 0.0)


class TestInFlight:
    def test_from_admission_to_release(self) -> None:
        subject = session()
        subject.set_rdy(2)
        one, two = deliver(subject, 1, 2)
        assert subject.in_flight == subject.received == 2
        subject.release(one)
        assert not subject.holds(one)
        assert subject.holds(two)
        assert subject.in_flight == 1

    def test_a_second_release_is_refused(self) -> None:
        subject = session()
        subject.set_rdy(1)
        (one,) = deliver(subject, 1)
        subject.release(one)
        with pytest.raises(AlreadyResponded, match=r"0001 .* from nsqd-a:4150 is not in flight"):
            subject.release(one)

    def test_the_same_id_again_is_another_message(self) -> None:
        subject = session()
        subject.set_rdy(1)
        (first,) = deliver(subject, 1)
        subject.release(first)
        (second,) = deliver(subject, 1)
        assert not subject.holds(first)
        with pytest.raises(AlreadyResponded):
            subject.release(first)
        subject.release(second)
        assert subject.in_flight == 0

    def test_redelivery_of_what_is_still_here_overtakes_it(self) -> None:
        subject = session()
        subject.set_rdy(1)
        (first,) = deliver(subject, 1)
        (second,) = deliver(subject, 1)
        assert subject.in_flight == 1
        assert not subject.holds(first)
        assert subject.holds(second)
        assert first.expired
        assert subject.expire(0.0) == [first]
        assert subject.timed_out == 1
        assert subject.expire(0.0) == []

    def test_everything_at_once(self) -> None:
        subject = session()
        subject.set_rdy(3)
        messages = deliver(subject, 1, 2, 3)
        assert subject.release_all() == messages
        assert subject.in_flight == 0


class TestTime:
    def test_expiry_lets_go_of_what_is_over(self) -> None:
        subject = session(msg_timeout=10_000)
        subject.set_rdy(2)
        (old,) = deliver(subject, 1, now=0.0)
        (young,) = deliver(subject, 2, now=5.0)
        assert subject.expire(9.999) == []
        assert subject.expire(10.0) == [old]
        assert subject.timed_out == 1
        assert subject.holds(young)
        with pytest.raises(AlreadyResponded, match="timed out"):
            subject.release(old)

    def test_a_touch_renews_it_up_to_nsqds_limit(self) -> None:
        subject = session(msg_timeout=10_000, max_msg_timeout=25_000)
        subject.set_rdy(1)
        (one,) = deliver(subject, 1, now=100.0)
        subject.touch(one, 108.0)
        assert one.expires_at == 118.0
        subject.touch(one, 117.0)
        assert one.expires_at == 125.0

    def test_what_is_answered_cannot_be_touched(self) -> None:
        subject = session()
        subject.set_rdy(1)
        (one,) = deliver(subject, 1)
        subject.release(one)
        with pytest.raises(AlreadyResponded):
            subject.touch(one, 1.0)


class TestExcess:
    def test_twice_the_highest_rdy_is_taken(self) -> None:
        subject = session()
        subject.set_rdy(3)
        subject.set_rdy(1)
        deliver(subject, *range(6))
        assert subject.in_flight == 6

    def test_more_is_not(self) -> None:
        subject = session()
        subject.set_rdy(3)
        with pytest.raises(WireError, match="7 messages in flight, though RDY was never above 3"):
            deliver(subject, *range(7))

    def test_nothing_is_taken_before_any_rdy(self) -> None:
        with pytest.raises(WireError):
            deliver(session(), 1)

    def test_what_has_expired_does_not_count(self) -> None:
        subject = session(msg_timeout=10_000)
        subject.set_rdy(1)
        deliver(subject, 1, 2, now=0.0)
        deliver(subject, 3, 4, now=10.0)
        assert subject.in_flight == 2
        assert subject.timed_out == 2


class TestTheEnd:
    def test_drained_when_nothing_comes_any_more_and_nothing_is_left(self) -> None:
        subject = session()
        subject.set_rdy(1)
        (one,) = deliver(subject, 1)
        subject.closing = True
        assert not subject.drained
        subject.close_wait = True
        assert not subject.drained
        subject.release(one)
        assert subject.drained

    def test_not_before_every_answer_has_its_place_on_the_wire(self) -> None:
        subject = session()
        subject.close_wait = True
        subject.unsent = 2
        assert subject.answered(7)
        assert not subject.drained
        assert subject.answered(8)
        assert subject.drained
