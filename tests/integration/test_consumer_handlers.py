"""Handlers' effects on messages, seen from nsqd: finish, requeue, touch, expire."""

from __future__ import annotations

import threading
import time

import pytest

from nsq.consumer.handlers import Requeue
from nsq.consumer.reports import ConsumerHooks
from nsq.errors import AlreadyResponded, Closed, ConfigError
from nsq.message import Message
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory

from .consuming import (
    PATIENCE,
    Gate,
    Recorder,
    channel_of,
    create,
    expect_drained,
    log_of,
    make_consumer,
    numbered,
    publish,
    running,
    until,
)

# One message.


def test_returning_finishes(loaded: Nsqd) -> None:
    seen = Recorder()
    with running(make_consumer(loaded).add_handler(seen)):
        (message,) = seen.wait_for(1)
        expect_drained(loaded)
    assert (message.body, message.attempts, len(message.id)) == (b"hello", 1, 16)
    assert message.nsqd_address == loaded.tcp_address
    assert abs(time.time() - message.timestamp / 1e9) < 60


@pytest.mark.parametrize("result", [None, True, 0, "", [], "anything"])
def test_whatever_is_returned_finishes_except_false(loaded: Nsqd, result: object) -> None:
    seen = Recorder(lambda message: result)
    with running(make_consumer(loaded).add_handler(seen)):
        seen.wait_for(1)
        expect_drained(loaded)


def test_false_requeues(loaded: Nsqd) -> None:
    seen = Recorder(lambda message: message.attempts > 2)
    with running(make_consumer(loaded).add_handler(seen)):
        seen.wait_for(3)
        expect_drained(loaded, requeues=2)
    assert seen.attempts == [1, 2, 3]


class Broken(Exception):
    pass


@pytest.mark.parametrize("fault", [Broken("no"), SystemExit(3), KeyboardInterrupt()])
def test_raising_requeues_and_the_thread_lives_on(loaded: Nsqd, fault: BaseException) -> None:
    def fail_once(message: Message) -> None:
        if message.attempts == 1:
            raise fault

    seen = Recorder(fail_once)
    with log_of() as log, running(make_consumer(loaded).add_handler(seen)):
        seen.wait_for(2)
        expect_drained(loaded, requeues=1)
    log.wait_for("ERROR", "handler failed", "attempt 1", "again in 0 s")


def test_raising_requeue_chooses_the_delay_and_logs_nothing(loaded: Nsqd) -> None:
    times = []

    def later(message: Message) -> None:
        times.append(time.monotonic())
        if message.attempts == 1:
            raise Requeue(delay=0.3)

    seen = Recorder(later)
    with log_of() as log, running(make_consumer(loaded, default_requeue_delay=60.0).add_handler(seen)):
        seen.wait_for(2)
        expect_drained(loaded, requeues=1)
    assert times[1] - times[0] >= 0.25  # nsqd's clock is not ours
    assert not [line for line in log.lines if "ERROR" in line]


def test_the_delay_grows_with_the_attempts(loaded: Nsqd) -> None:
    times = []

    def fail_twice(message: Message) -> bool:
        times.append(time.monotonic())
        return message.attempts > 2

    seen = Recorder(fail_twice)
    consumer = make_consumer(loaded, default_requeue_delay=0.2, max_requeue_delay=0.3)
    with running(consumer.add_handler(seen)):
        seen.wait_for(3)
    assert times[1] - times[0] >= 0.15
    assert times[2] - times[1] >= 0.25


def test_a_message_answered_by_the_handler_is_not_answered_again(loaded: Nsqd) -> None:
    def answer(message: Message) -> None:
        message.finish()
        assert message.responded
        with pytest.raises(AlreadyResponded, match=message.id.decode()):
            message.requeue()
        raise Broken("after the answer")

    seen = Recorder(answer)
    with running(make_consumer(loaded).add_handler(seen)) as consumer:
        seen.wait_for(1)
        expect_drained(loaded)
        until("counted", lambda: consumer.stats().finished == 1)
        assert consumer.stats().requeued == 0


def test_a_message_may_be_answered_later_by_another_thread(loaded: Nsqd) -> None:
    seen = Recorder(Message.disable_auto_response)
    with running(make_consumer(loaded).add_handler(seen)) as consumer:
        (message,) = seen.wait_for(1)
        until("in flight", lambda: channel_of(loaded)["in_flight_count"] == 1)
        assert consumer.stats().in_flight == 1
        assert not message.responded
        message.finish()
        expect_drained(loaded)


def test_a_message_is_a_context_manager(loaded: Nsqd) -> None:
    def fail_first(message: Message) -> None:
        message.disable_auto_response()
        with message:
            if message.attempts == 1:
                raise Broken

    seen = Recorder(fail_first)
    with running(make_consumer(loaded).add_handler(seen)):
        seen.wait_for(2)
        expect_drained(loaded, requeues=1)


@pytest.mark.parametrize("body", [b"\0\xff" * 3, b"x", bytes(1_000_000)], ids=["binary", "one", "large"])
def test_bodies_arrive_as_they_were_sent(nsqd: Nsqd, body: bytes) -> None:
    create(nsqd)
    assert nsqd.post("/pub?topic=orders", body).status == 200
    seen = Recorder()
    with running(make_consumer(nsqd).add_handler(seen)):
        assert seen.wait_for(1)[0].body == body


# Time.


def test_touch_keeps_a_message_beyond_its_timeout(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(msg_timeout=4.0)
    create(nsqd)
    publish(nsqd, [b"slow"])

    def work_long(message: Message) -> None:
        began, idle = time.monotonic(), threading.Event()
        while time.monotonic() < began + 5.0:
            idle.wait(0.1)
            left = message.time_left
            message.touch()
            assert left < message.time_left <= 4.0

    seen = Recorder(work_long)
    with running(make_consumer(nsqd).add_handler(seen)):
        seen.wait_for(1)
        expect_drained(nsqd)
    assert seen.attempts == [1]


def test_auto_touch_keeps_a_message_while_its_handler_runs(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(msg_timeout=4.0)
    create(nsqd)
    publish(nsqd, numbered(3))
    gate = Gate()
    with running(make_consumer(nsqd, auto_touch=True, threads=3).add_handler(gate)):
        gate.wait_until_held(3)
        # What is measured is time itself: more than the timeout.
        threading.Event().wait(5.0)
        assert channel_of(nsqd)["in_flight_count"] == 3
        gate.let_go()
        expect_drained(nsqd)
    assert gate.passed == 3


def test_auto_touch_ends_where_nsqd_ends_it(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(msg_timeout=1.5, max_msg_timeout=2.5)
    create(nsqd)
    publish(nsqd, [b"too slow"])
    release = threading.Event()
    seen = Recorder(lambda message: message.attempts > 1 or release.wait(PATIENCE))
    with running(
        make_consumer(nsqd, auto_touch=True, threads=2, rdy_redistribute_interval=0.1).add_handler(seen)
    ):
        seen.wait_for(2)
        assert seen.messages[0].responded  # it is nsqd's again
        release.set()
        expect_drained(nsqd, timeouts=None)
    assert seen.attempts[:2] == [1, 2]


def test_a_message_that_expires_in_the_inbox_is_dropped_there(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(msg_timeout=0.5)
    create(nsqd)
    publish(nsqd, [b"first", b"second"])
    release = threading.Event()
    seen = Recorder(lambda message: message.attempts > 1 or release.wait(PATIENCE))
    expired: list[Message] = []

    class Hooks(ConsumerHooks):
        def timed_out(self, message: Message) -> None:
            expired.append(message)

    consumer = make_consumer(nsqd, threads=1, max_in_flight=2, hooks=Hooks(), rdy_redistribute_interval=0.1)
    with log_of() as log, running(consumer.add_handler(seen)):
        seen.wait_for(1)
        # Both time out here, one in its handler's hands and one still waiting; nsqd sends both again.
        until("both expired", lambda: consumer.stats().timed_out >= 2)
        release.set()
        seen.wait_for(3)
        expect_drained(nsqd, timeouts=None)
    log.wait_for("WARNING", "timed out here")
    until("the hook", lambda: len(expired) >= 2)
    # Once as it waited too long, which nobody saw; from then on each delivery of each message once.
    deliveries = [(message.body, message.attempts) for message in seen.messages]
    assert len(set(deliveries)) == len(deliveries)
    assert (b"second", 1) not in deliveries


def test_messages_sent_again_do_not_pile_up_behind_a_stuck_handler(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(msg_timeout=0.2)
    create(nsqd)
    publish(nsqd, numbered(4))
    release = threading.Event()
    seen = Recorder(lambda message: release.wait(PATIENCE))
    consumer = make_consumer(nsqd, threads=1, max_in_flight=4, max_attempts=0, rdy_redistribute_interval=0.05)
    with running(consumer.add_handler(seen)):
        until("sent five times", lambda: channel_of(nsqd)["timeout_count"] >= 16)
        until("received", lambda: consumer.stats().received >= 16)
        until("only the last of each", lambda: consumer.stats().in_flight <= 4)
        until("thrown away", lambda: consumer.stats().waiting <= 4)
        release.set()
        expect_drained(nsqd, timeouts=None)


def test_the_answer_to_an_expired_message_stays_here(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(msg_timeout=1.5)
    create(nsqd)
    publish(nsqd, [b"late"])
    raised = threading.Event()

    def answer_late(message: Message) -> None:
        if message.attempts == 1:
            until("expired", lambda: message.expired and message.responded)
            with pytest.raises(AlreadyResponded):
                message.finish()
            raised.set()

    errors: list[object] = []

    class Hooks(ConsumerHooks):
        def server_error(self, nsqd_address: str, error: object) -> None:
            errors.append(error)

    seen = Recorder(answer_late)
    consumer = make_consumer(nsqd, threads=2, hooks=Hooks(), rdy_redistribute_interval=0.1)
    with running(consumer.add_handler(seen)):
        assert raised.wait(PATIENCE)
        seen.wait_for(2)
        expect_drained(nsqd, timeouts=None)
    assert errors == []  # nsqd never saw a FIN it had to refuse


# Several handlers, threads.


def test_several_handlers_share_the_messages(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(2))
    together = threading.Barrier(2)
    first, second = (Recorder(lambda message: together.wait(PATIENCE)) for _ in range(2))
    with running(make_consumer(nsqd).add_handler(first).add_handler(second)):
        first.wait_for(1)
        second.wait_for(1)
        expect_drained(nsqd)
    assert sorted(first.bodies + second.bodies) == numbered(2)


def test_eight_messages_are_handled_at_a_time_on_eight_threads(nsqd: Nsqd) -> None:
    create(nsqd)
    together = threading.Barrier(8)
    seen = Recorder(lambda message: together.wait(PATIENCE))  # passes only when all eight are at work
    with running(make_consumer(nsqd, threads=8).add_handler(seen)) as consumer:
        publish(nsqd, numbered(8))
        until("all are done", lambda: consumer.stats().finished == 8)
    assert len({message.id for message in seen.messages}) == 8


def test_handlers_get_every_message_once(nsqd: Nsqd) -> None:
    create(nsqd)
    bodies = numbered(5000)
    publish(nsqd, bodies)
    seen = Recorder()
    with running(make_consumer(nsqd, threads=4, max_in_flight=500).add_handler(seen)) as consumer:
        seen.wait_for(5000)
        expect_drained(nsqd)
        stats = consumer.stats()
    assert sorted(seen.bodies) == sorted(bodies)
    assert (stats.received, stats.finished, stats.requeued, stats.timed_out) == (5000, 5000, 0, 0)


# Mistakes.


def test_what_is_no_handler_is_refused_at_once() -> None:
    consumer = make_consumer("127.0.0.1:4150")

    async def coroutine(message: Message) -> None:
        """Nobody awaits it."""

    with pytest.raises(ConfigError, match="not callable"):
        consumer.add_handler("handler")
    with pytest.raises(ConfigError, match="async def"):
        consumer.add_handler(coroutine)
    with pytest.raises(ConfigError, match="threads is 0"):
        consumer.add_handler(print, threads=0)
    with pytest.raises(ConfigError, match="size is 0"):
        consumer.add_batch_handler(print, size=0)


def test_handlers_come_before_the_start(nsqd: Nsqd) -> None:
    create(nsqd)
    with running(make_consumer(nsqd).add_handler(Recorder())) as consumer:
        with pytest.raises(Closed, match=r"add_handler comes before start.*running"):
            consumer.add_handler(Recorder())
        with pytest.raises(Closed, match=r"add_batch_handler comes before start"):
            consumer.add_batch_handler(Recorder(), size=2)
