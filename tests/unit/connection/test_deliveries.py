from __future__ import annotations

import pytest

from nsq.connection.deliveries import Deliveries
from nsq.errors import WireError
from nsq.message import Message
from nsq.wire.identify import IdentifyReply
from tests.fakes.messages import Delegate
from tests.fakes.nsqd import id_of


def deliveries(*, rdy: int = 0, **reply: int) -> Deliveries:
    made = Deliveries(IdentifyReply(**reply))
    made.set_rdy(rdy)
    return made


def deliver(subject: Deliveries, *numbers: int, now: float = 0.0) -> list[Message]:
    """As a connection takes them in."""
    messages = [
        Message(Delegate(), now, now + subject.msg_timeout, 0, 1, id_of(number), b"body")
        for number in numbers
    ]
    subject.admit(messages, now)
    return messages


def test_an_nsqd_that_does_not_say_its_limits_has_the_usual_ones() -> None:
    subject = deliveries()
    assert (subject.msg_timeout, subject.max_msg_timeout, subject.max_rdy) == (60.0, 900.0, 2500)


@pytest.mark.parametrize(
    ("reply", "limits"),
    [
        ({"msg_timeout": 1}, (0.1, 900.0, 2500)),
        ({"msg_timeout": 90_000, "max_msg_timeout": 1}, (90.0, 90.0, 2500)),
        ({"max_rdy_count": 0}, (60.0, 900.0, 2500)),
    ],
)
def test_limits_too_low_to_work_with_are_raised(
    reply: dict[str, int], limits: tuple[float, float, int]
) -> None:
    subject = deliveries(**reply)
    assert (subject.msg_timeout, subject.max_msg_timeout, subject.max_rdy) == limits


class TestInFlight:
    def test_a_redelivery_overtakes_the_delivery_that_is_still_here(self) -> None:
        subject = deliveries(rdy=1)
        (first,) = deliver(subject, 1)
        (second,) = deliver(subject, 1)
        assert subject.in_flight == 1
        assert first.expired
        assert not subject.take(first)
        assert subject.holds(second)
        assert subject.expire(0.0) == [first]
        assert subject.timed_out == 1
        assert subject.expire(0.0) == []


class TestTime:
    def test_expiry_lets_go_of_messages_whose_time_is_up(self) -> None:
        subject = deliveries(rdy=2, msg_timeout=10_000)
        (old,) = deliver(subject, 1, now=0.0)
        (young,) = deliver(subject, 2, now=5.0)
        assert subject.expire(9.999) == []
        assert subject.expire(10.0) == [old]
        assert subject.timed_out == 1
        assert subject.holds(young)
        assert not subject.take(old)

    def test_a_touch_renews_it_up_to_nsqds_limit(self) -> None:
        subject = deliveries(rdy=1, msg_timeout=10_000, max_msg_timeout=25_000)
        (one,) = deliver(subject, 1, now=100.0)
        assert subject.touch(one, 108.0)
        assert one.expires_at == 118.0
        subject.touch(one, 117.0)
        assert one.expires_at == 125.0


class TestExcess:
    def test_twice_the_highest_rdy_is_accepted(self) -> None:
        subject = deliveries(rdy=3)
        subject.set_rdy(1)
        deliver(subject, *range(6))
        assert (subject.in_flight, subject.rdy) == (6, 1)

    @pytest.mark.parametrize(("rdy", "count"), [(3, 7), (0, 1)])
    def test_more_than_twice_the_highest_rdy_is_refused(self, rdy: int, count: int) -> None:
        with pytest.raises(WireError, match=f"{count} messages in flight, though RDY was never above {rdy}"):
            deliver(deliveries(rdy=rdy), *range(count))

    def test_a_message_that_is_repeated_long_before_its_time_is_up_counts_each_time(self) -> None:
        subject = deliveries(rdy=3, msg_timeout=10_000)
        deliver(subject, *[1] * 6, now=1.0)
        assert subject.expire(2.0)  # which forgets them
        deliver(subject, *[1] * 3, now=2.0)
        with pytest.raises(WireError, match="7 messages in flight, though RDY was never above 3"):
            deliver(subject, *[1] * 3, now=2.0)

    def test_a_message_that_is_repeated_when_its_time_is_about_up_does_not_count(self) -> None:
        subject = deliveries(rdy=3, msg_timeout=10_000)
        for time in range(20):
            deliver(subject, 1, 2, 3, now=time * 9.0)
        assert subject.in_flight == 3

    def test_expired_and_answered_messages_do_not_count(self) -> None:
        subject = deliveries(rdy=1, msg_timeout=10_000)
        (answered, _) = deliver(subject, 1, 2, now=0.0)
        assert subject.take(answered)
        deliver(subject, 3, now=0.0)
        deliver(subject, 4, 5, now=10.0)
        subject.expire(10.0)
        assert subject.in_flight == 2
        assert subject.timed_out == 2


class TestTheEnd:
    def test_it_is_not_drained_before_every_answer_is_written(self) -> None:
        subject = deliveries(rdy=2)
        one, two = deliver(subject, 1, 2)
        subject.close_wait = True
        assert subject.take(one)
        assert subject.take(two)
        assert not subject.drained
        subject.written([one])
        assert not subject.drained
        subject.written([two])
        assert subject.drained
