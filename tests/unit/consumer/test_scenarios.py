"""A consumer and its nsqds, scene by scene; after each, all that was on the wire has been accounted for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from nsq.consumer.consumer import Consumer
from nsq.consumer.handlers import Requeue
from nsq.consumer.reports import ConsumerHooks, StopReport
from nsq.errors import AlreadyResponded, ServerError, UsageError
from nsq.message import Message
from nsq.transport import MemoryTransport
from nsq.wire.frames import encode_error, encode_response
from tests.fakes.nsqd import (
    CHANNEL,
    CLS,
    NOP,
    TOPIC,
    A,
    B,
    C,
    Nsqd,
    accept,
    accept_all,
    accept_publisher,
    fin,
    id_of,
    rdy,
    req,
)
from tests.fakes.threads import leave_handlers_no_time

PATIENCE = 20.0
SOON = 0.05  # seconds that a test waits in full
#: Backs off for longer than any scene lasts, unless ``end_wait`` is called; is as patient with a slow test.
BRISK = {
    "backoff_multiplier": 60.0,
    "max_backoff_duration": 3600.0,
    "handshake_timeout": 3 * PATIENCE,
    "write_timeout": 3 * PATIENCE,
    "reconnect_initial": 0.001,
    "reconnect_max": 0.01,
}

GOOD, BAD, LATER = b"good", b"bad", b"later"


def handle(message: Message) -> None:
    """What becomes of a message is written in it."""
    if message.body == BAD:
        raise Requeue(0.0)
    if message.body == LATER:
        raise Requeue(0.0, backoff=False)


class Levels(ConsumerHooks):
    """Notes how far the consumer backs off."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.seen: list[int] = []

    def backing_off(self, level: int) -> None:
        with self._changed:
            self.seen.append(level)
            self._changed.notify_all()

    def expect(self, *levels: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen) >= len(levels), PATIENCE)
            assert self.seen == list(levels)


class Stage:
    """Consumers and their nsqds; at the end of a scene they leave as they should."""

    def __init__(self, ends: ExitStack) -> None:
        self._ends = ends
        self.transport = MemoryTransport()

    def consumer(
        self, handler: Callable[[Message], Any] = handle, *, threads: int = 1, **options: Any
    ) -> Consumer:
        options = {"nsqd": A, "max_in_flight": 5, "transport": self.transport, **BRISK, **options}
        consumer = Consumer(TOPIC, CHANNEL, **options)
        consumer.add_handler(handler, threads=threads)
        self._ends.callback(consumer.stop, 0.0)
        return consumer.start()

    def nsqd(self, **granted: Any) -> Nsqd:
        return accept(self.transport, **granted)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with ExitStack() as ends:
        yield Stage(ends)


class Stopping:
    """A stop on a thread of its own."""

    def __init__(self, consumer: Consumer, timeout: float = PATIENCE) -> None:
        self._reports: list[StopReport] = []
        self._thread = threading.Thread(target=lambda: self._reports.append(consumer.stop(timeout)))
        self._thread.start()

    @property
    def report(self) -> StopReport:
        self._thread.join(2 * PATIENCE)
        return self._reports[0]


def leave(consumer: Consumer, *nsqds: Nsqd) -> None:
    """The consumer stops with nothing in flight."""
    stopping = Stopping(consumer)
    for nsqd in nsqds:
        nsqd.see_off()
    assert stopping.report == StopReport(clean=True)


def end_wait(consumer: Consumer) -> None:
    """The consumer has backed off for as long as it is to."""
    engine = consumer._engine
    assert engine.windows.backoff.waiting
    engine.windows.backoff.until = 0.0
    engine.request_decision()


class TestBackoff:
    def test_enter_and_exit_at_one_level(self, stage: Stage) -> None:
        levels = Levels()
        consumer = stage.consumer(hooks=levels)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        for number in (1, 2):
            nsqd.deliver(number, body=GOOD)
            nsqd.expect(fin(number))
        nsqd.deliver(3, body=BAD)
        nsqd.expect(rdy(0), req(3, 0))
        end_wait(consumer)
        nsqd.expect(rdy(1))
        nsqd.deliver(3, body=GOOD, attempts=2)
        nsqd.expect(rdy(5), fin(3))
        levels.expect(1, 0)
        leave(consumer, nsqd)

    def test_three_levels_up_and_down(self, stage: Stage) -> None:
        """RDY 0, and after every wait RDY 1 for one message; the last success brings everything back."""
        levels = Levels()
        consumer = stage.consumer(hooks=levels)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0), req(1, 0))
        for number in (2, 3):
            end_wait(consumer)
            nsqd.expect(rdy(1))
            nsqd.deliver(number, body=BAD)
            nsqd.expect(rdy(0), req(number, 0))
        for number in (4, 5):
            end_wait(consumer)
            nsqd.expect(rdy(1))
            nsqd.deliver(number, body=GOOD)
            nsqd.expect(rdy(0), fin(number))
        end_wait(consumer)
        nsqd.expect(rdy(1))
        nsqd.deliver(6, body=GOOD)
        nsqd.expect(rdy(5), fin(6))
        levels.expect(1, 2, 3, 2, 1, 0)
        leave(consumer, nsqd)

    def test_many_failures_at_once_are_one_step(self, stage: Stage) -> None:
        levels = Levels()
        consumer = stage.consumer(hooks=levels)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, 2, 3, body=BAD)
        nsqd.expect(rdy(0), req(1, 0), req(2, 0), req(3, 0))
        levels.expect(1)
        leave(consumer, nsqd)

    def test_the_log_says_how_long_it_is_paused(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        consumer = stage.consumer()
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0), req(1, 0))
        leave(consumer, nsqd)
        (record,) = [record for record in caplog.records if "paused" in record.message]
        assert record.levelname == "WARNING"
        assert record.message.endswith(": paused for 120 s, then one message to try (backing off, step 1)")

    def test_what_is_in_flight_already_does_not_end_it(self, stage: Stage) -> None:
        consumer = stage.consumer()
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0), req(1, 0))
        nsqd.deliver(2, body=GOOD)
        nsqd.expect(fin(2))
        assert consumer.health().backoff_level == 1
        leave(consumer, nsqd)

    def test_a_requeue_without_backoff_changes_nothing(self, stage: Stage) -> None:
        levels = Levels()
        consumer = stage.consumer(hooks=levels)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=LATER)
        nsqd.expect(req(1, 0))
        nsqd.deliver(1, body=GOOD, attempts=2)
        nsqd.expect(fin(1))
        leave(consumer, nsqd)
        levels.expect()

    def test_a_requeue_without_backoff_as_the_test_repeats_it(self, stage: Stage) -> None:
        levels = Levels()
        consumer = stage.consumer(hooks=levels)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0), req(1, 0))
        end_wait(consumer)
        nsqd.expect(rdy(1))
        nsqd.deliver(1, body=LATER, attempts=2)
        nsqd.expect(rdy(0), req(1, 0))
        end_wait(consumer)
        nsqd.expect(rdy(1))
        nsqd.deliver(1, body=GOOD, attempts=3)
        nsqd.expect(rdy(5), fin(1))
        levels.expect(1, 1, 0)
        leave(consumer, nsqd)

    def test_exceptions_may_be_exempt(self, stage: Stage) -> None:
        def fail(message: Message) -> None:
            raise KeyError("x")

        consumer = Consumer(
            TOPIC, CHANNEL, nsqd=A, transport=stage.transport, max_in_flight=5, default_requeue_delay=2.0
        )
        consumer.add_handler(fail, no_backoff=(LookupError,)).start()
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, attempts=2)
        nsqd.expect(req(1, 4000))
        leave(consumer, nsqd)

    def test_it_ends_by_itself(self, stage: Stage) -> None:
        consumer = stage.consumer(backoff_multiplier=0.01)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0))
        nsqd.expect_in_any_order(req(1, 0), rdy(1))  # the wait may be over before the answer is sent
        nsqd.deliver(1, body=GOOD, attempts=2)
        nsqd.expect(rdy(5), fin(1))
        leave(consumer, nsqd)

    def test_it_can_be_switched_off(self, stage: Stage) -> None:
        consumer = stage.consumer(max_backoff_duration=0.0)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        for number in range(5):
            nsqd.deliver(number, body=BAD)
            nsqd.expect(req(number, 0))
        leave(consumer, nsqd)

    def test_across_a_reconnect(self, stage: Stage) -> None:
        """A connection that is new does not know of the failure, the consumer does."""
        levels = Levels()
        consumer = stage.consumer(hooks=levels)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0), req(1, 0))
        nsqd.peer.end()
        nsqd.peer.wait_closed()
        second = stage.nsqd()
        end_wait(consumer)
        second.expect(rdy(1))
        second.deliver(1, body=GOOD, attempts=2)
        second.expect(rdy(5), fin(1))
        levels.expect(1, 0)
        leave(consumer, second)

    def test_a_reconnect_does_not_end_the_wait(self, stage: Stage) -> None:
        consumer = stage.consumer()
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0), req(1, 0))
        nsqd.peer.end()
        nsqd.peer.wait_closed()
        second = stage.nsqd()
        second.heartbeat()
        second.expect(NOP)
        leave(consumer, second)

    def test_the_connection_that_tests_the_waters_may_be_lost(self, stage: Stage) -> None:
        consumer = stage.consumer()
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0), req(1, 0))
        end_wait(consumer)
        nsqd.expect(rdy(1))
        nsqd.peer.end()
        second = stage.nsqd()
        second.expect(rdy(1))
        second.deliver(1, body=GOOD, attempts=2)
        second.expect(rdy(5), fin(1))
        leave(consumer, second)

    def test_one_of_two_connections_tests_the_waters(self, stage: Stage) -> None:
        consumer = stage.consumer(nsqd=[A, B], max_in_flight=6)
        nsqds = accept_all(stage.transport, 2)
        a, b = nsqds[A], nsqds[B]
        a.expect(rdy(3))
        b.expect(rdy(3))
        a.deliver(1, body=BAD)
        a.expect(rdy(0), req(1, 0))
        b.expect(rdy(0))
        end_wait(consumer)
        a.expect(rdy(1))
        a.deliver(2, body=GOOD)
        a.expect(rdy(3), fin(2))
        b.expect(rdy(3))
        leave(consumer, a, b)

    def test_full_jitter_may_mean_no_wait_at_all(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("random.random", lambda: 0.0)
        consumer = stage.consumer(backoff_strategy="full_jitter", backoff_multiplier=3600.0)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0))
        nsqd.expect_in_any_order(req(1, 0), rdy(1))
        nsqd.deliver(1, body=GOOD)
        nsqd.expect(rdy(5), fin(1))
        leave(consumer, nsqd)

    def test_a_strategy_of_ones_own(self, stage: Stage) -> None:
        steps: list[int] = []

        def strategy(step: int) -> float:
            steps.append(step)
            return 0.001

        consumer = stage.consumer(backoff_strategy=strategy)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0))
        nsqd.expect_in_any_order(req(1, 0), rdy(1))
        nsqd.deliver(2, body=BAD)
        nsqd.expect(rdy(0))
        nsqd.expect_in_any_order(req(2, 0), rdy(1))
        assert (steps[0], steps[-1]) == (1, 2)
        leave(consumer, nsqd)

    def test_a_strategy_that_fails_costs_no_message_and_no_thread(
        self, stage: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        def strategy(step: int) -> float:
            raise ZeroDivisionError("oh")

        consumer = stage.consumer(backoff_strategy=strategy)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0), req(1, 0))
        end_wait(consumer)
        nsqd.expect(rdy(1))
        nsqd.deliver(1, body=GOOD)
        nsqd.expect(rdy(5), fin(1))
        assert "exponential this time" in caplog.text
        leave(consumer, nsqd)


class TestPause:
    def test_pause_and_resume(self, stage: Stage) -> None:
        consumer = stage.consumer()
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=GOOD)
        nsqd.expect(fin(1))
        consumer.pause()
        nsqd.expect(rdy(0))
        assert consumer.health().summary == "no nsqd may send: paused"
        nsqd.deliver(2, body=GOOD)
        nsqd.expect(fin(2))
        consumer.resume()
        nsqd.expect(rdy(5))
        nsqd.deliver(3, body=GOOD)
        nsqd.expect(fin(3))
        leave(consumer, nsqd)

    def test_what_is_said_twice_is_sent_once(self, stage: Stage) -> None:
        consumer = stage.consumer()
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        for _ in range(2):
            consumer.pause()
        nsqd.expect(rdy(0))
        for _ in range(2):
            consumer.resume()
        nsqd.expect(rdy(5))
        leave(consumer, nsqd)

    def test_a_change_of_max_in_flight_is_a_change_of_rdy(self, stage: Stage) -> None:
        consumer = stage.consumer()
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        for count in (2, 0, 7):
            consumer.set_max_in_flight(count)
            nsqd.expect(rdy(count))
        leave(consumer, nsqd)

    def test_a_pause_during_backoff_outlasts_it(self, stage: Stage) -> None:
        levels = Levels()
        consumer = stage.consumer(hooks=levels)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0), req(1, 0))
        consumer.pause()
        consumer.resume()
        end_wait(consumer)
        nsqd.expect(rdy(1))
        nsqd.deliver(1, body=GOOD)
        nsqd.expect(rdy(5), fin(1))
        leave(consumer, nsqd)


class TestShares:
    def test_each_nsqd_gets_its_part_at_once(self, stage: Stage) -> None:
        consumer = stage.consumer(nsqd=[A, B], max_in_flight=6)
        nsqds = accept_all(stage.transport, 2)
        for nsqd in nsqds.values():
            nsqd.expect(rdy(3))
        leave(consumer, *nsqds.values())

    def test_who_stays_takes_over_from_who_goes(self, stage: Stage) -> None:
        consumer = stage.consumer(
            nsqd=[A, B], max_in_flight=6, reconnect_initial=3600.0, reconnect_max=3600.0
        )
        nsqds = accept_all(stage.transport, 2)
        for nsqd in nsqds.values():
            nsqd.expect(rdy(3))
        nsqds[B].peer.end()
        nsqds[A].expect(rdy(6))
        leave(consumer, nsqds[A])

    def test_a_removed_nsqd_is_seen_off(self, stage: Stage) -> None:
        consumer = stage.consumer(nsqd=[A, B], max_in_flight=6)
        nsqds = accept_all(stage.transport, 2)
        for nsqd in nsqds.values():
            nsqd.expect(rdy(3))
        consumer.remove_nsqd(B)
        nsqds[B].see_off()
        nsqds[A].expect(rdy(6))
        leave(consumer, nsqds[A])

    def test_nsqds_own_limit(self, stage: Stage) -> None:
        consumer = stage.consumer()
        nsqd = stage.nsqd(max_rdy_count=2)
        nsqd.expect(rdy(2))
        leave(consumer, nsqd)

    def test_without_a_handler_nothing_is_asked_for(self, stage: Stage) -> None:
        consumer = Consumer(TOPIC, CHANNEL, nsqd=A, transport=stage.transport).start()
        nsqd = stage.nsqd()
        nsqd.heartbeat()
        nsqd.expect(NOP)
        leave(consumer, nsqd)

    def test_by_default_handlers_have_one_message_and_the_next(self, stage: Stage) -> None:
        consumer = stage.consumer(threads=3, max_in_flight=None)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(6))
        leave(consumer, nsqd)


class TestGivingUp:
    def test_a_message_that_failed_too_often_is_finished_unhandled(self, stage: Stage) -> None:
        given_up: list[Message] = []
        handled: list[int] = []

        def note(message: Message) -> None:
            handled.append(message.attempts)

        consumer = stage.consumer(note, max_attempts=2, give_up=given_up.append)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, attempts=2)
        nsqd.expect(fin(1))
        nsqd.deliver(2, attempts=3)
        nsqd.expect(fin(2))
        leave(consumer, nsqd)
        assert handled == [2]
        assert [message.id for message in given_up] == [id_of(2)]
        assert consumer.stats().given_up == 1

    def test_never_if_attempts_are_not_limited(self, stage: Stage) -> None:
        given_up: list[Message] = []
        consumer = stage.consumer(max_attempts=0, give_up=given_up.append)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, attempts=65535, body=LATER)
        nsqd.expect(req(1, 0))
        leave(consumer, nsqd)
        assert given_up == []

    def test_what_cannot_be_kept_is_requeued(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        def fail(message: Message) -> None:
            raise OSError("disk full")

        consumer = stage.consumer(max_attempts=1, give_up=fail, default_requeue_delay=1.0)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, attempts=2)
        nsqd.expect(req(1, 2000))
        assert "giving up on" in caplog.text
        leave(consumer, nsqd)
        assert consumer.stats().given_up == 0

    def test_without_dead_letters_the_log_says_that_it_is_lost_and_how_to_keep_such_messages(
        self, stage: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = stage.consumer(max_attempts=2)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, attempts=3, body=b"a body that is too long for one line in the log of a program")
        nsqd.expect(fin(1))
        leave(consumer, nsqd)
        (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert record.message == (
            "gave up on <Message 0000000000000001 of orders, attempt 3, 60 bytes: "
            f"b'a body that is too long for one line in '…> from {A} (max_attempts is 2): it is lost. "
            "Consumer(…, dead_letters='orders.dead') would keep it in that topic"
        )


def heard(nsqd: Nsqd, line: bytes) -> None:
    """Wait for a command, among any others."""
    nsqd.peer.wait_until(lambda received: line + b"\n" in received)


class TestDeadLetters:
    BODY = b"\xff\x00"

    def given_up(self, stage: Stage, **options: Any) -> tuple[Consumer, Nsqd]:
        """A consumer that has just got a message with too many attempts."""
        consumer = stage.consumer(max_attempts=2, dead_letters="orders.dead", **options)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, attempts=3, body=self.BODY)
        return consumer, nsqd

    def test_the_message_is_finished_after_the_ok(
        self, stage: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer, nsqd = self.given_up(stage, max_msg_size=1)
        publisher = accept_publisher(stage.transport)
        publisher.expect(self.BODY, "orders.dead")
        nsqd.expect_no_more()
        publisher.ok()
        nsqd.expect(fin(1))
        nsqd.deliver(2, attempts=3, body=b"second")
        publisher.expect(b"second", "orders.dead")  # over the same connection
        publisher.ok()
        nsqd.expect(fin(2))
        leave(consumer, nsqd)
        publisher.peer.wait_closed()
        assert consumer.stats().given_up == 2
        assert "(max_attempts is 2): topic orders.dead has it" in caplog.text

    def test_every_nsqd_that_the_consumer_knows_may_get_it(self, stage: Stage) -> None:
        consumer = stage.consumer(max_attempts=2, dead_letters="orders.dead")
        first = stage.nsqd()
        consumer.add_nsqd(B)
        second = stage.nsqd()
        stage.transport.refuse(A)
        first.deliver(1, attempts=3, body=self.BODY)
        publisher = accept_publisher(stage.transport)
        assert publisher.address == B
        publisher.expect(self.BODY, "orders.dead")
        publisher.ok()
        heard(first, fin(1))
        consumer.add_nsqd(C)
        third = stage.nsqd()
        stage.transport.refuse(B)
        publisher.hang_up()
        second.deliver(2, attempts=3, body=self.BODY)
        publisher = accept_publisher(stage.transport)
        assert publisher.address == C
        publisher.expect(self.BODY, "orders.dead")
        publisher.ok()
        heard(second, fin(2))
        assert consumer.wait_until_connected(PATIENCE, connections=3)
        stopping = Stopping(consumer)
        for nsqd in (first, second, third):
            heard(nsqd, CLS)
            nsqd.close_wait()
        assert stopping.report == StopReport(clean=True)

    def test_what_no_nsqd_stores_is_requeued(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        consumer, nsqd = self.given_up(stage, publish_timeout=SOON, default_requeue_delay=1.0)
        stage.transport.accept()  # and no answer
        nsqd.expect(req(1, 3000))
        leave(consumer, nsqd)
        assert "nsqd delivers it again" in caplog.text
        assert consumer.stats().given_up == 0

    def test_a_stop_ends_a_publish_under_way_and_leaves_the_message_to_nsqd(self, stage: Stage) -> None:
        consumer, nsqd = self.given_up(stage, publish_timeout=10 * PATIENCE, msg_timeout=10 * PATIENCE)
        accept_publisher(stage.transport).expect(self.BODY, "orders.dead")
        report = consumer.stop(0.0)
        assert (report.in_flight, report.cut_off) == (1, [A])
        assert consumer._engine.pool.stop(time.monotonic() + PATIENCE) == []
        assert fin(1) not in nsqd.commands
        assert consumer.stats().given_up == 0

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"dead_letters": TOPIC}, "the topic of this consumer"),
            ({"dead_letters": "no good"}, "contains ' '"),
            ({"dead_letters": "dead", "give_up": print}, "exclude each other"),
            ({"dead_letters": "dead", "max_attempts": 0}, "max_attempts above 0"),
        ],
    )
    def test_a_mistake_is_refused_at_once(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            Consumer(TOPIC, CHANNEL, nsqd=A, **options)


class Gate:
    """A handler that holds its messages until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, message: Message) -> None:
        self.entered.release()
        assert self.open.wait(2 * PATIENCE)


class TestBusyHandlers:
    def test_heartbeats_are_answered(self, stage: Stage) -> None:
        gate = Gate()
        consumer = stage.consumer(gate, threads=2)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, 2, 3, 4, 5)
        assert gate.entered.acquire(timeout=PATIENCE)
        assert gate.entered.acquire(timeout=PATIENCE)
        for _ in range(3):
            nsqd.heartbeat()
            nsqd.expect(NOP)
        assert consumer.is_starved
        gate.open.set()
        nsqd.expect_in_any_order(*map(fin, range(1, 6)))
        leave(consumer, nsqd)

    def test_a_message_whose_time_ran_out_in_the_inbox_is_not_handled(self, stage: Stage) -> None:
        gate = Gate()
        handled: list[bytes] = []
        timed_out = threading.Semaphore(0)

        class Hooks(ConsumerHooks):
            def timed_out(self, message: Message) -> None:
                timed_out.release()

        def handle(message: Message) -> None:
            handled.append(message.id)
            gate(message)

        consumer = stage.consumer(handle, hooks=Hooks(), rdy_redistribute_interval=0.005)
        nsqd = stage.nsqd(msg_timeout=250)  # the limit grows again when as much has gone by
        nsqd.expect(rdy(5))
        nsqd.deliver(1, 2)
        for _ in range(2):
            assert timed_out.acquire(timeout=PATIENCE)
        gate.open.set()
        nsqd.expect(rdy(2))  # the handler does not manage more in time
        leave(consumer, nsqd)
        assert id_of(2) not in handled
        assert consumer.stats().timed_out == 2

    def test_a_handler_may_answer_by_itself(self, stage: Stage) -> None:
        def answer(message: Message) -> None:
            message.requeue(1.0, backoff=False)

        consumer = stage.consumer(answer)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1)
        nsqd.expect(req(1, 1000))
        nsqd.heartbeat()
        nsqd.expect(NOP)
        leave(consumer, nsqd)

    def test_or_leave_it_to_somebody_else(self, stage: Stage) -> None:
        taken: list[Message] = []
        entered = threading.Event()

        def take(message: Message) -> None:
            message.disable_auto_response()
            taken.append(message)
            entered.set()

        consumer = stage.consumer(take)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1)
        assert entered.wait(PATIENCE)
        nsqd.heartbeat()
        nsqd.expect(NOP)
        taken[0].finish()
        nsqd.expect(fin(1))
        leave(consumer, nsqd)


def _has_its_turn(consumer: Consumer, nsqd: Nsqd) -> bool:
    return any(each.rdy for each in consumer.health().connections if each.nsqd_address == nsqd.address)


def expect_at_most_cls(nsqd: Nsqd) -> None:
    """And not even that, if the time was up before it was sent."""
    if nsqd.peer.received.endswith(CLS + b"\n"):
        nsqd.expect(CLS)
    nsqd.expect_no_more()


class TestStop:
    def test_the_steps_of_it(self, stage: Stage) -> None:
        """CLS, CLOSE_WAIT, the answers of what is in flight, the end: nothing else, and no RDY any more."""
        gate = Gate()
        consumer = stage.consumer(gate)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, 2)
        assert gate.entered.acquire(timeout=PATIENCE)
        stopping = Stopping(consumer)
        nsqd.expect(CLS)
        nsqd.heartbeat()
        nsqd.expect(NOP)
        nsqd.close_wait()
        gate.open.set()
        nsqd.expect(fin(1), fin(2))
        nsqd.peer.wait_closed()
        assert stopping.report == StopReport(clean=True)
        nsqd.expect_no_more()
        assert repr(consumer) == "<Consumer orders/billing stopped>"

    def test_two_nsqds_hear_cls_and_nothing_of_each_others_share(self, stage: Stage) -> None:
        consumer = stage.consumer(nsqd=[A, B], max_in_flight=6)
        nsqds = accept_all(stage.transport, 2)
        for nsqd in nsqds.values():
            nsqd.expect(rdy(3))
        leave(consumer, *nsqds.values())

    def test_nor_of_each_others_turn(self, stage: Stage) -> None:
        consumer = stage.consumer(nsqd=[A, B], max_in_flight=1)
        first, second = accept_all(stage.transport, 2).values()
        assert consumer.wait_until_connected(PATIENCE, connections=2)
        (chosen,) = [nsqd for nsqd in (first, second) if _has_its_turn(consumer, nsqd)]
        chosen.expect(rdy(1))
        leave(consumer, first, second)

    def test_failures_at_the_end_are_requeued_without_a_word_of_rdy(self, stage: Stage) -> None:
        gate = Gate()

        def fail(message: Message) -> None:
            gate(message)
            raise Requeue(0.0)

        consumer = stage.consumer(fail)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1)
        assert gate.entered.acquire(timeout=PATIENCE)
        stopping = Stopping(consumer)
        nsqd.expect(CLS)
        nsqd.close_wait()
        gate.open.set()
        nsqd.expect(req(1, 0))
        nsqd.peer.wait_closed()
        assert stopping.report
        nsqd.expect_no_more()

    def test_what_is_in_flight_at_the_deadline_is_reported(
        self, stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leave_handlers_no_time(monkeypatch)
        gate = Gate()
        consumer = stage.consumer(gate, hooks=ConsumerHooks())
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1, 2, 3)
        assert gate.entered.acquire(timeout=PATIENCE)
        report = consumer.stop(timeout=SOON)
        assert not report
        assert report.in_flight == 3
        assert report.unfinished_threads == ["nsq-orders/billing-handler-0"]
        nsqd.peer.wait_closed()
        expect_at_most_cls(nsqd)
        assert "did not stop cleanly" in caplog.text
        gate.open.set()

    def test_an_nsqd_that_does_not_see_it_off_is_reported(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether the last FIN has arrived nobody knows."""
        monkeypatch.setattr("nsq.consumer.engine._LEAST_TO_STOP", PATIENCE)  # for all threads to end
        consumer = stage.consumer()
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(1)
        nsqd.expect(fin(1))
        assert consumer.stop(timeout=SOON) == StopReport(clean=False, cut_off=[A])
        nsqd.peer.wait_closed()
        expect_at_most_cls(nsqd)

    @pytest.mark.parametrize("number", [0, 1])
    def test_a_stop_without_time_warns_only_if_a_message_is_in_flight(
        self, stage: Stage, number: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nsq.consumer.engine._LEAST_TO_STOP", PATIENCE)  # for all threads to end
        held = threading.Semaphore(0)

        def hold(message: Message) -> None:
            message.disable_auto_response()
            held.release()

        consumer = stage.consumer(hold)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        nsqd.deliver(*range(number))
        assert not number or held.acquire(timeout=PATIENCE)
        report = consumer.stop(0.0)
        assert report == StopReport(clean=False, in_flight=number, cut_off=[A])
        nsqd.peer.wait_closed()
        expect_at_most_cls(nsqd)
        warnings = [each for each in caplog.records if each.levelname == "WARNING"]
        assert len(warnings) == number

    def test_an_nsqd_that_hangs_up_at_cls_is_let_go(self, stage: Stage) -> None:
        consumer = stage.consumer()
        nsqd = stage.nsqd()
        nsqd.expect(rdy(5))
        stopping = Stopping(consumer)
        nsqd.expect(CLS)
        nsqd.peer.end()
        assert stopping.report == StopReport(clean=True)
        assert len(stage.transport.dials) == 1


class TestLateAnswers:
    """The message's own clock decides, whenever the timer looks."""

    def hold(self, stage: Stage, **options: Any) -> tuple[Consumer, Nsqd, list[Message]]:
        """A consumer that backs off, and a message that tests the waters and is kept."""
        taken: list[Message] = []
        entered = threading.Semaphore(0)

        def take(message: Message) -> None:
            if message.body == BAD:
                raise Requeue(0.0)
            message.disable_auto_response()
            taken.append(message)
            entered.release()

        consumer = stage.consumer(take, **options)
        nsqd = stage.nsqd(msg_timeout=60_000)
        nsqd.expect(rdy(5))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0), req(1, 0))
        end_wait(consumer)
        nsqd.expect(rdy(1))
        nsqd.deliver(2)
        assert entered.acquire(timeout=PATIENCE)
        return consumer, nsqd, taken

    @pytest.mark.parametrize(
        "answer",
        [
            lambda message: message.finish(),
            lambda message: message.requeue(),
            lambda message: message.touch(),
        ],
    )
    def test_stay_here_and_are_no_success(self, stage: Stage, answer: Callable[[Message], None]) -> None:
        consumer, nsqd, (message,) = self.hold(stage)
        message.expires_at = time.monotonic()
        with pytest.raises(AlreadyResponded, match="timed out before it was answered"):
            answer(message)
        assert message.responded
        nsqd.heartbeat()
        nsqd.expect(NOP)
        stats = consumer.stats()
        assert (stats.timed_out, stats.finished, stats.in_flight) == (1, 0, 0)
        assert consumer.health().backoff_level == 1
        leave(consumer, nsqd)

    def test_a_batch_is_finished_without_those_that_are_late(self, stage: Stage) -> None:
        def handle(messages: list[Message]) -> None:
            messages[0].expires_at = time.monotonic()

        consumer = Consumer(TOPIC, CHANNEL, nsqd=A, transport=stage.transport)
        consumer.add_batch_handler(handle, size=3, wait=PATIENCE).start()
        nsqd = stage.nsqd()
        nsqd.expect(rdy(6))
        nsqd.deliver(1, 2, 3)
        nsqd.expect_in_any_order(fin(2), fin(3), rdy(3))  # half of what may be here was late
        assert consumer.stats().timed_out == 1
        leave(consumer, nsqd)


class TestServersThatCountRdyDown:
    """As the guides describe them: they send so many messages, and then nothing until the next RDY."""

    @pytest.mark.parametrize(("max_in_flight", "deliveries"), [(1, 5), (2, 6), (40, 200)])
    def test_get_it_again_in_time(self, stage: Stage, max_in_flight: int, deliveries: int) -> None:
        consumer = stage.consumer(max_in_flight=max_in_flight)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(max_in_flight))
        line = rdy(max_in_flight) + b"\n"
        rdys, left = 1, max_in_flight
        for number in range(deliveries):
            if not left:
                nsqd.peer.wait_until(lambda got, rdys=rdys: got.count(line) > rdys)  # type: ignore[misc]
                rdys = nsqd.peer.received.count(line)
                left = max_in_flight
            left -= 1
            nsqd.deliver(number)
            nsqd.expect(fin(number))
        if max_in_flight > 2:  # seldom: not with every message of a large window
            assert nsqd.peer.received.count(line) <= 1 + deliveries / (0.7 * max_in_flight)
        leave(consumer, nsqd)

    def test_but_not_while_what_they_sent_is_here(self, stage: Stage) -> None:
        go_on = threading.Semaphore(0)
        consumer = stage.consumer(lambda message: go_on.acquire(timeout=PATIENCE) and None, max_in_flight=10)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(10))
        nsqd.deliver(*range(10))
        for number in range(10):
            go_on.release()
            nsqd.expect(fin(number))
            if number < 4:
                assert nsqd.peer.received.count(b"RDY 10\n") == 1
        nsqd.peer.wait_until(lambda got: got.count(b"RDY 10\n") == 2)
        leave(consumer, nsqd)

    def test_but_not_during_backoff(self, stage: Stage) -> None:
        consumer = stage.consumer(max_in_flight=1)
        nsqd = stage.nsqd()
        nsqd.expect(rdy(1))
        nsqd.deliver(1, body=BAD)
        nsqd.expect(rdy(0), req(1, 0))
        leave(consumer, nsqd)
        assert nsqd.peer.received.count(b"RDY 1\n") == 1


REFUSAL = encode_response(b"{}") + encode_error(b"E_UNAUTHORIZED no")


class TestRefusals:
    """A subscription that is refused for good."""

    TEXTS = ("E_BAD_TOPIC no", "E_UNAUTHORIZED no", "E_SUB_ORDER_IS_MUST no")

    def refuse(self, stage: Stage, text: str) -> None:
        peer = stage.transport.accept()
        peer.send(encode_response(b"{}") + encode_error(text.encode()))

    @pytest.mark.parametrize("text", TEXTS)
    def test_end_run_at_once(self, stage: Stage, text: str) -> None:
        consumer = Consumer(TOPIC, CHANNEL, nsqd=A, transport=stage.transport).add_handler(handle)
        player = threading.Thread(target=self.refuse, args=(stage, text))
        player.start()
        with pytest.raises(ServerError, match="no") as caught:
            consumer.run()
        player.join(PATIENCE)
        assert caught.value.code == text.split()[0]
        assert repr(consumer) == "<Consumer orders/billing stopped>"

    def test_are_told_by_hook_and_health(self, stage: Stage) -> None:
        told: list[tuple[str, str]] = []
        heard = threading.Event()

        class Hooks(ConsumerHooks):
            def server_error(self, nsqd_address: str, error: ServerError) -> None:
                told.append((nsqd_address, error.code))
                heard.set()

        consumer = stage.consumer(hooks=Hooks())
        self.refuse(stage, "E_UNAUTHORIZED not for you")
        assert heard.wait(PATIENCE)
        assert told == [(A, "E_UNAUTHORIZED")]
        health = consumer.health()
        assert (health.ok, health.summary) == (
            False,
            "no connection to any nsqd; nsqd-a:4150: E_UNAUTHORIZED not for you",
        )
        nsqd = stage.nsqd()  # it lets us in after all
        nsqd.expect(rdy(5))
        assert consumer.health().ok
        leave(consumer, nsqd)

    def test_of_one_nsqd_leave_the_others(self, stage: Stage) -> None:
        consumer = stage.consumer(nsqd=[A, B], max_in_flight=2, reconnect_initial=60.0, reconnect_max=60.0)
        ended: list[object] = []
        running = threading.Thread(target=lambda: ended.append(consumer.run()))
        first = stage.nsqd()
        running.start()
        self.refuse(stage, "E_UNAUTHORIZED no")
        first.peer.wait_until(lambda got: rdy(2) in got)  # the other one's share is free again
        assert not ended
        stopping = Stopping(consumer)
        first.peer.wait_until(lambda got: CLS in got)
        first.close_wait()
        assert stopping.report
        running.join(PATIENCE)
        assert ended == [StopReport(clean=True)]

    def test_of_one_nsqd_do_not_end_run_when_another_one_restarts(self, stage: Stage) -> None:
        consumer = stage.consumer(nsqd=[A, B], max_in_flight=2)
        ended: list[object] = []
        running = threading.Thread(target=lambda: ended.append(consumer.run()))
        first = stage.nsqd()
        running.start()
        self.refuse(stage, "E_UNAUTHORIZED no")
        first.peer.end()
        restarts = 0
        while restarts < 3:
            peer = stage.transport.accept()
            if peer.address != first.address:
                peer.send(REFUSAL)
                continue
            restarts += 1
            if restarts < 3:
                peer.end()
        first = Nsqd(peer)
        first.peer.wait_until(lambda got: b"RDY" in got)
        assert not ended
        stopping = Stopping(consumer)
        first.peer.wait_until(lambda got: CLS in got)
        first.close_wait()
        assert stopping.report
        running.join(PATIENCE)
        assert ended == [StopReport(clean=True)]


def test_heartbeats_can_be_heard(stage: Stage) -> None:
    heard = threading.Semaphore(0)

    class Hooks(ConsumerHooks):
        def heartbeat(self, nsqd_address: str) -> None:
            assert nsqd_address == A
            heard.release()

    consumer = stage.consumer(hooks=Hooks())
    nsqd = stage.nsqd()
    nsqd.expect(rdy(5))
    nsqd.heartbeat()
    assert heard.acquire(timeout=PATIENCE)
    nsqd.expect(NOP)
    leave(consumer, nsqd)


def test_heartbeats_can_be_switched_off(stage: Stage) -> None:
    consumer = stage.consumer(heartbeat_interval=-1, output_buffer_timeout=-1)
    nsqd = stage.nsqd()
    assert (nsqd.identify["heartbeat_interval"], nsqd.identify["output_buffer_timeout"]) == (-1, -1)
    nsqd.expect(rdy(5))
    (conn,) = consumer._engine.conns.values()
    assert conn._stream.read_timeout is None  # no silence is too long
    leave(consumer, nsqd)


@pytest.mark.parametrize(("max_in_flight", "starved_at"), [(1, 1), (2, 2), (3, 3), (10, 9)])
def test_starved_is_a_connection_with_most_of_its_rdy_in_flight(
    stage: Stage, max_in_flight: int, starved_at: int
) -> None:
    gate = Gate()
    consumer = stage.consumer(gate, max_in_flight=max_in_flight)
    nsqd = stage.nsqd()
    nsqd.expect(rdy(max_in_flight))
    for number in range(1, starved_at + 1):
        assert not consumer.is_starved
        nsqd.deliver(number)
        nsqd.heartbeat()
        nsqd.expect(NOP)  # it has been read
    assert consumer.is_starved
    gate.open.set()
    nsqd.expect(*map(fin, range(1, starved_at + 1)))
    leave(consumer, nsqd)
