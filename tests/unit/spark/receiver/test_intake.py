"""Messages are finished when they are in the log; while it cannot be written, they wait or are requeued."""

from __future__ import annotations

from typing import Any

import pytest

from nsq.consumer.decisions import Requeue
from nsq.errors import WalError
from nsq.message import Message
from nsq.spark.receiver import receiving
from nsq.spark.receiver.receiving import FIRST_PAUSE, LONGEST_PAUSE, Intake, PauseGate
from nsq.spark.wal.names import Segment
from tests.fakes.clock import Clock
from tests.fakes.messages import Delegate

FULL = 100


def disk_full() -> WalError:
    return WalError("000001.open cannot be written: No space left on device")


def raise_next(errors: list[Exception | None]) -> None:
    if errors and (error := errors.pop(0)) is not None:
        raise error


class ScriptedLog:
    """Batches are lists of bodies. ``errors`` are raised by the next appends, None for one that works;
    ``roll_errors`` likewise.
    """

    def __init__(self) -> None:
        self.open: list[bytes] = []
        self.segments: list[list[bytes]] = []
        self.errors: list[Exception | None] = []
        self.roll_errors: list[Exception | None] = []
        self.attempts = 0

    open_rows = property(lambda self: len(self.open))
    open_bytes = property(lambda self: sum(map(len, self.open)))
    written = property(lambda self: sum(len(body) for each in [*self.segments, self.open] for body in each))

    def append(self, batch: Any) -> None:
        self.attempts += 1
        raise_next(self.errors)
        self.open += batch

    def roll(self) -> Segment | None:
        raise_next(self.roll_errors)
        if not self.open:
            return None
        sealed = Segment("receiver-1", len(self.segments) + 1, self.open_rows, self.open_bytes)
        self.segments.append(self.open)
        self.open = []
        return sealed

    close = roll


class Time(Clock):
    """``wait`` lets it pass, and says whether ``stopping``."""

    def __init__(self) -> None:
        super().__init__(100.0)
        self.stopping = False
        self.waits: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        if not self.stopping:
            self.now += seconds
        return self.stopping


class Nsqd(Delegate):
    """The delegate of its messages."""

    def __init__(self, now: float = 100.0, msg_timeout: float = 60.0) -> None:
        super().__init__()
        self._now = now
        self._msg_timeout = msg_timeout

    def message(self, body: bytes, received_at: float | None = None) -> Message:
        at = self._now if received_at is None else received_at
        return Message(self, at, at + self._msg_timeout, 7, 1, b"0123456789abcdef", body)

    def messages(self, *bodies: bytes) -> list[Message]:
        return [self.message(body) for body in bodies]


class Bench:
    """An intake with everything around it."""

    def __init__(self, segment_bytes: int = 1 << 30) -> None:
        self.log = ScriptedLog()
        self.time = Time()
        self.windows: list[int] = []
        self.changes = 0
        self.gate = PauseGate(FULL, self.windows.append)
        self.intake = Intake(
            self.log,
            _bodies,
            self.gate,
            segment_bytes,
            changed=self._changed,
            wait=self.time.wait,
            clock=self.time,
        )

    def _changed(self) -> None:
        self.changes += 1


def _bodies(messages: list[Message]) -> Any:
    return [message.body for message in messages]


def test_messages_are_in_the_log_when_take_returns() -> None:
    bench = Bench()
    bench.intake.take(Nsqd().messages(b"one", b"two"))
    assert bench.log.open == [b"one", b"two"]
    assert bench.intake.counts == (2, 6, 2, 6, 0)
    assert bench.changes == 1
    assert bench.windows == []


def test_a_full_segment_is_sealed() -> None:
    bench = Bench(segment_bytes=5)
    bench.intake.take(Nsqd().messages(b"1234"))
    assert bench.log.segments == []
    bench.intake.take(Nsqd().messages(b"5678"))
    assert bench.log.segments == [[b"1234", b"5678"]]
    assert bench.intake.counts == (2, 8, 0, 0, 1)


def test_a_roll_seals_what_is_open() -> None:
    bench = Bench()
    assert bench.intake.roll() == ""
    bench.intake.take(Nsqd().messages(b"one"))
    assert bench.intake.roll() == ""
    assert bench.log.segments == [[b"one"]]
    assert bench.intake.counts == (1, 3, 0, 0, 1)


def test_a_message_whose_time_is_up_is_neither_kept_nor_answered() -> None:
    bench, nsqd = Bench(), Nsqd()
    late = nsqd.message(b"late", received_at=40.0)
    good = nsqd.message(b"good")
    bench.intake.take([late, good])
    assert bench.log.open == [b"good"]
    assert not late.auto_response
    assert good.auto_response


def test_a_batch_that_has_expired_altogether_is_not_appended() -> None:
    bench, nsqd = Bench(), Nsqd()
    late = nsqd.message(b"late", received_at=40.0)
    bench.intake.take([late])
    assert bench.log.attempts == 0
    assert not late.auto_response


def test_a_failed_append_is_tried_again_with_the_window_shut() -> None:
    bench = Bench()
    bench.log.errors = [disk_full(), OSError(28, "No space left on device"), None]
    seen = []

    def wait(seconds: float) -> bool:
        seen.append((bench.gate.window, bench.gate.why, bench.intake.trouble != ""))
        return bench.time.wait(seconds)

    bench.intake._wait = wait
    bench.intake.take(Nsqd().messages(b"one"))
    assert bench.log.open == [b"one"]
    assert seen == [(0, "the log cannot be written", True)] * 2
    assert bench.time.waits == [FIRST_PAUSE, 2 * FIRST_PAUSE]
    assert bench.windows == [0, FULL]
    assert (bench.gate.why, bench.intake.trouble) == ("", "")
    assert bench.intake.counts.received == 1


def test_pauses_grow_to_a_limit() -> None:
    bench = Bench()
    bench.log.errors = [disk_full()] * 9
    bench.intake.take(Nsqd().messages(b"one"))
    assert bench.time.waits[-2:] == [LONGEST_PAUSE, LONGEST_PAUSE]
    assert bench.log.open == [b"one"]


def test_a_batch_is_requeued_before_its_timeout_and_one_message_tests_the_log() -> None:
    bench = Bench()
    bench.log.errors = [disk_full()] * 1000
    with pytest.raises(Requeue) as raised:
        bench.intake.take(Nsqd(msg_timeout=60.0).messages(b"one", b"two"))
    assert (raised.value.delay, raised.value.backoff) == (0.0, False)
    assert bench.time.now == pytest.approx(100.0 + 54.0)
    assert bench.log.written == 0
    assert bench.windows == [0, 1]
    assert "No space left" in bench.intake.trouble

    # The test fails as well: shut again, for as long as that one message lasts.
    bench.log.errors = [disk_full()] * 1000
    with pytest.raises(Requeue):
        bench.intake.take(Nsqd(now=bench.time.now).messages(b"one"))
    assert bench.windows == [0, 1, 0, 1]

    bench.log.errors = []
    bench.intake.take(Nsqd(now=bench.time.now).messages(b"one"))
    assert bench.windows == [0, 1, 0, 1, FULL]
    assert bench.intake.trouble == ""


def test_a_stop_ends_the_waiting() -> None:
    bench = Bench()
    bench.log.errors = [disk_full()] * 1000
    bench.time.stopping = True
    with pytest.raises(Requeue):
        bench.intake.take(Nsqd().messages(b"one"))
    assert bench.log.attempts == 1


def test_an_append_that_hangs_until_the_messages_have_expired_leaves_the_flow_open() -> None:
    bench = Bench()

    class Hanging(ScriptedLog):
        def append(self, batch: Any) -> None:
            bench.time.now += 1000.0
            raise disk_full()

    bench.intake._log = Hanging()
    message = Nsqd().message(b"one")
    with pytest.raises(Requeue):
        bench.intake.take([message])
    assert bench.windows == [0, 1]


def test_an_unexpected_error_of_the_log_is_raised() -> None:
    bench = Bench()
    bench.log.errors = [ZeroDivisionError()]
    with pytest.raises(ZeroDivisionError):
        bench.intake.take(Nsqd().messages(b"one"))
    assert bench.windows == []


def test_a_segment_that_cannot_be_sealed_stays_open_and_its_messages_are_finished() -> None:
    bench = Bench(segment_bytes=1)
    bench.log.roll_errors = [disk_full()]
    bench.intake.take(Nsqd().messages(b"one"))
    assert bench.log.open == [b"one"]
    assert "cannot seal" in bench.intake.trouble
    assert bench.windows == []
    bench.intake.take(Nsqd().messages(b"two"))
    assert bench.log.segments == [[b"one", b"two"]]
    assert bench.intake.trouble == ""


def test_a_roll_that_fails_says_why() -> None:
    bench = Bench()
    bench.intake.take(Nsqd().messages(b"one"))
    bench.log.roll_errors = [disk_full()]
    assert "No space left" in bench.intake.roll()


def test_a_batch_too_large_for_one_append_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, nsqd = Bench(), Nsqd()
    sizes: list[int] = []

    def store(messages: list[Message]) -> Any:
        sizes.append(len(messages))
        return _bodies(messages)

    monkeypatch.setattr(bench.intake, "_store", store)
    monkeypatch.setattr(receiving, "portions", _by_pairs)
    bench.log.errors = [None, disk_full()]
    bench.time.stopping = True
    with pytest.raises(Requeue):
        bench.intake.take(nsqd.messages(b"1", b"2", b"3", b"4"))
    assert sizes == [2, 2]
    finished = [(verb, message.body) for verb, message in nsqd.notes]  # type: ignore[attr-defined]
    assert finished == [("finish", b"1"), ("finish", b"2")]  # these are not to come again
    assert bench.log.open == [b"1", b"2"]


def _by_pairs(messages: list[Message]) -> list[list[Message]]:
    return [messages[:2], messages[2:]]


def test_portions_keep_the_order_and_end_with_single_messages() -> None:
    nsqd = Nsqd()
    messages = nsqd.messages(b"1234", b"5", b"67", b"89012345")
    cut = [[m.body for m in portion] for portion in receiving.portions(messages, largest=5)]
    assert cut == [[b"1234", b"5"], [b"67"], [b"89012345"]]
    assert list(receiving.portions(messages, largest=100)) == [messages]


def test_close_says_when_it_cannot_seal() -> None:
    bench = Bench()
    bench.intake.take(Nsqd().messages(b"one"))
    bench.log.roll_errors = [disk_full()]
    with pytest.raises(WalError):
        bench.intake.close()


# What shuts and opens the flow


def test_a_gate_opens_when_its_last_reason_is_gone() -> None:
    windows: list[int] = []
    gate = PauseGate(100, windows.append)
    gate.shut("disk", "the disk is full")
    gate.shut("limit", "there is a limit")
    assert gate.why == "the disk is full; there is a limit"
    gate.open("disk")
    assert (windows, gate.window) == ([0], 0)
    gate.open("limit")
    assert (windows, gate.why) == ([0, 100], "")


def test_a_reason_may_change_and_nothing_is_applied_twice() -> None:
    windows: list[int] = []
    gate = PauseGate(100, windows.append)
    gate.open("disk")
    gate.shut("disk", "full")
    gate.shut("disk", "still full")
    assert (windows, gate.why) == ([0], "still full")


def test_a_testing_gate_allows_one_message() -> None:
    windows: list[int] = []
    gate = PauseGate(100, windows.append)
    gate.shut("disk", "full")
    gate.test(True)
    gate.open("disk")
    gate.shut("limit", "much")
    gate.open("limit")
    gate.test(False)
    assert windows == [0, 1, 0, 1, 100]
