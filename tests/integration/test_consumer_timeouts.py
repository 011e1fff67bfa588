"""nsqd's clock, seen by a consumer: messages that are touched, that expire, and that arrive at once."""

from __future__ import annotations

import threading
import time

import pytest

from nsq import AlreadyResponded, ConsumerHooks, Message
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory

from .consuming import (
    PATIENCE,
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


@pytest.mark.parametrize("auto_touch", [False, True])
def test_touch_keeps_a_message_beyond_its_timeout(nsqd_factory: Factory[Nsqd], auto_touch: bool) -> None:
    nsqd = nsqd_factory(msg_timeout=4.0)
    create(nsqd)
    publish(nsqd, numbered(3))

    def work_long(message: Message) -> None:
        began, idle = time.monotonic(), threading.Event()
        while time.monotonic() < began + 5.0:  # the time itself is measured: more than the timeout
            idle.wait(0.1)
            if not auto_touch:
                left = message.time_left
                message.touch()
                assert left < message.time_left <= 4.0

    seen = Recorder(work_long)
    with running(make_consumer(nsqd, auto_touch=auto_touch, threads=3).add_handler(seen)):
        seen.wait_for(3)
        expect_drained(nsqd)
    assert seen.attempts == [1, 1, 1]


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
        seen.wait_for(2)  # the first one's handler has returned, which answers its other deliveries
        expect_drained(nsqd, timeouts=None)
    log.wait_for("WARNING", "timed out here")
    until("the hook", lambda: len(expired) >= 2)
    # Once as it waited too long, and no handler saw it; from then on each delivery of each message once.
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
        until("all timed out", lambda: channel_of(nsqd)["timeout_count"] >= 4)
        until("sent again", lambda: consumer.stats().received >= 5)
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
        expect_drained(nsqd, timeouts=None)
    assert errors == []  # nsqd never saw a FIN it had to refuse


@pytest.mark.parametrize("kind", ["one", "batch"])
def test_a_handler_that_takes_too_long_is_told_in_time_and_runs_once(
    nsqd_factory: Factory[Nsqd], kind: str
) -> None:
    """It takes three times as long as the message has; threads are free for the other deliveries."""
    nsqd = nsqd_factory()
    create(nsqd)
    publish(nsqd, [b"slow"])
    given_up = Recorder()
    warned_at: list[float] = []

    def work(message: object) -> None:
        until("told", lambda: any("its handler still runs" in line for line in log.lines))
        warned_at.append(time.monotonic())
        until("nsqd has sent it again", lambda: consumer.stats().received == 2)
        time.sleep(2.0)  # the second delivery would time out too

    consumer = make_consumer(nsqd, threads=4, msg_timeout=1.0, give_up=given_up, max_attempts=1)
    if kind == "one":
        consumer.add_handler(seen := Recorder(work))
    else:
        consumer.add_batch_handler(seen := Recorder(work), size=1, threads=4)  # type: ignore[arg-type]
    with log_of() as log, running(consumer):
        began = time.monotonic()
        expect_drained(nsqd, timeouts=1)
    assert len(seen.messages) == 1
    assert given_up.messages == []
    assert warned_at[0] < began + 1.0
    (line,) = [line for line in log.lines if "its handler still runs" in line]
    assert line.startswith("WARNING")
    assert "set auto_touch=True, or a longer msg_timeout" in line


def test_no_warning_of_a_handler_that_touches(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory()
    create(nsqd)
    publish(nsqd, [b"slow"])

    def work(message: Message) -> None:
        for _ in range(9):
            time.sleep(0.1)
            message.touch()

    with (
        log_of() as log,
        running(make_consumer(nsqd, msg_timeout=1.0).add_handler(work)),
    ):
        expect_drained(nsqd)
    assert not [line for line in log.lines if "still runs" in line]


@pytest.mark.parametrize("auto_touch", [False, True])
def test_nothing_is_given_up_that_no_handler_has_seen(nsqd_factory: Factory[Nsqd], auto_touch: bool) -> None:
    """A handler that is much slower than the window allows: messages time out here, again and again."""
    nsqd = nsqd_factory(max_msg_timeout="2s")
    create(nsqd)
    bodies = [b"%d" % number for number in range(30)]
    publish(nsqd, bodies)
    given_up = Recorder()
    seen = Recorder(lambda message: time.sleep(0.1))
    consumer = make_consumer(nsqd, max_in_flight=20, msg_timeout=1.0, auto_touch=auto_touch, give_up=given_up)
    with log_of() as log, running(consumer.add_handler(seen)):
        until("all are handled", lambda: set(seen.bodies) == set(bodies), 60.0)
        until("all are finished", lambda: consumer.stats().finished == len(bodies), 60.0)
        assert consumer.stats().timed_out > 0
        warnings = [line for line in log.lines if "time out before their handlers are done" in line]
    assert given_up.bodies == []
    assert [line.startswith("WARNING") for line in warnings] == [True] + [False] * (len(warnings) - 1)
