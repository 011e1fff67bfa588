"""Messages wait for their segment to be named; meanwhile they are touched."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nsq.errors import AlreadyResponded
from nsq.message import Message
from nsq.spark.receiver import intake as intakes
from nsq.spark.receiver.intake import Intake, PauseGate, portions, touch_expiring
from nsq.spark.wal import receiver_log, records
from nsq.spark.wal.log import Wal
from nsq.spark.wal.receiver_log import ReceiverLog
from tests.fakes.messages import Delegate
from tests.fakes.objects import FaultyStore
from tests.integration.patience import eventually


class Nsqd(Delegate):
    """The delegate of messages, one of which may be gone."""

    def touch(self, message: Message) -> None:
        if message.body == b"gone":
            raise AlreadyResponded("gone")
        super().touch(message)

    def _bodies(self, verb: str) -> list[bytes]:
        return [note[1].body for note in self.notes if note[0] == verb]  # type: ignore[attr-defined]

    finished = property(lambda self: self._bodies("finish"))
    requeued = property(lambda self: self._bodies("requeue"))
    touched = property(lambda self: self._bodies("touch"))


def messages(nsqd: Nsqd, *bodies: bytes, left: float = 60.0, timeout: float = 60.0) -> list[Message]:
    now = time.monotonic()
    return [
        Message(nsqd, now + left - timeout, now + left, 10**18, 1, b"%016x" % number, body)
        for number, body in enumerate(bodies)
    ]


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def log(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReceiverLog]:
    monkeypatch.setattr(receiver_log, "FIRST_PAUSE", 0.01)
    wal = Wal(store, "memory://log")
    wal.prepare()
    made = wal.log("one")
    yield made
    store.running.set()
    made.close(timeout=60.0)


def intake_of(log: ReceiverLog, gate: PauseGate | None = None, **more: Any) -> Intake:
    given: dict[str, Any] = {"largest": 64 << 20, "interval": 0.0, "store": records.stored_messages} | more
    return Intake(
        log,
        gate=gate or PauseGate(lambda shut: None),
        changed=lambda: None,
        clock=time.monotonic,
        **given,
    )


def gate_of(windows: list[bool]) -> PauseGate:
    """A gate that notes whether it is shut, when that changes."""
    return PauseGate(windows.append)


def test_messages_are_finished_once_their_segment_is_named(store: FaultyStore, log: ReceiverLog) -> None:
    nsqd, intake = Nsqd(), intake_of(log)
    store.running.clear()
    intake.take("t", messages(nsqd, b"1", b"2"))
    intake.take("another", messages(nsqd, b"3"))
    assert nsqd.finished == []
    store.running.set()
    eventually(lambda: sorted(nsqd.finished), lambda found: found == [b"1", b"2", b"3"], 60.0)
    intake.close()
    assert intake.received == 3
    assert nsqd.requeued == []


def test_messages_that_the_log_cannot_name_go_back_to_nsqd(store: FaultyStore, log: ReceiverLog) -> None:
    nsqd, intake = Nsqd(), intake_of(log)
    other = Wal(store, "memory://log")
    other.receivers()
    known = other._known["one"]
    assert other._close(known, known.head)  # another process takes this receiver for dead
    intake.take("t", messages(nsqd, b"1"))
    eventually(lambda: log.broken, bool, 60.0)
    intake.take("t", messages(nsqd, b"2"))
    intake.close()
    assert sorted(nsqd.requeued) == [b"1", b"2"]
    assert all(note[2] for note in nsqd.notes), (
        "nsqd would deliver them again to this same receiver, at once and over and over"
    )
    assert nsqd.finished == []
    assert "new name" in intake.trouble


def test_messages_that_have_timed_out_are_not_stored(log: ReceiverLog) -> None:
    nsqd, intake = Nsqd(), intake_of(log)
    intake.take("t", messages(nsqd, b"late", left=-1.0) + messages(nsqd, b"in time"))
    intake.take("t", messages(nsqd, b"late too", left=-1.0))
    intake.close()
    assert nsqd.finished == [b"in time"]


def test_an_error_of_the_store_is_reported_while_it_lasts(store: FaultyStore, log: ReceiverLog) -> None:
    nsqd, intake = Nsqd(), intake_of(log)
    store.errors = 1.0
    intake.take("t", messages(nsqd, b"1"))
    eventually(lambda: intake.trouble, lambda text: "cannot write the log: memory://log/" in text, 60.0)
    store.errors = 0.0
    eventually(lambda: intake.trouble, lambda text: not text, 60.0)
    intake.close()
    assert nsqd.finished == [b"1"]


def test_receiving_pauses_while_the_store_fails_for_long(
    store: FaultyStore, log: ReceiverLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the pause nsqd would send the messages again and again, after their longest timeout."""
    monkeypatch.setattr(intakes, "_TOUCH_EVERY", 0.001)
    monkeypatch.setattr(intakes, "PAUSE_AFTER", 0.01)
    gate = gate_of([])
    nsqd, intake = Nsqd(), intake_of(log, gate)
    store.errors = 1.0
    intake.take("t", messages(nsqd, b"1"))
    eventually(lambda: gate.is_shut, bool, 60.0)
    assert "the log cannot be written" in gate.why
    store.errors = 0.0
    eventually(lambda: gate.is_shut, lambda shut: not shut, 60.0)
    intake.close()
    assert nsqd.finished == [b"1"]


@pytest.mark.parametrize(("left", "touched"), [(40.0, []), (29.0, [b"a"]), (-1.0, [])])
def test_messages_are_touched_past_half_of_their_time(left: float, touched: list[bytes]) -> None:
    nsqd = Nsqd()
    touch_expiring(messages(nsqd, b"gone", b"a", left=left), 60.0, time.monotonic())
    assert nsqd.touched == touched


def test_a_stalled_store_has_messages_touched(store: FaultyStore, log: ReceiverLog) -> None:
    nsqd, intake = Nsqd(), intake_of(log)
    store.running.clear()
    intake.take("t", messages(nsqd, b"1", left=29.0, timeout=60.0))
    eventually(lambda: nsqd.touched, lambda found: found[:1] == [b"1"], 60.0)
    store.running.set()
    intake.close()
    assert nsqd.finished == [b"1"]


def test_large_bodies_are_divided_among_segments(log: ReceiverLog) -> None:
    nsqd, intake = Nsqd(), intake_of(log, largest=200)
    intake.take("t", messages(nsqd, *(b"%02d" % number + b"." * 48 for number in range(10))))
    intake.close()
    assert len(nsqd.finished) == 10
    assert max(file.segment.bytes for file in log.files()) <= 200
    assert log.named >= 3


def test_a_stop_while_the_store_is_away_gives_messages_back(
    store: FaultyStore, log: ReceiverLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intakes, "_LAST_PUTS", 0.05)
    monkeypatch.setattr(log, "close", functools.partial(log.close, timeout=0.05))
    nsqd, intake = Nsqd(), intake_of(log)
    store.errors = 1.0
    intake.take("t", messages(nsqd, b"1"))
    intake.take("t", messages(nsqd, b"2"))
    intake.close()
    assert sorted(nsqd.requeued) == [b"1", b"2"]
    assert nsqd.finished == []


def test_messages_that_cannot_be_stored_go_back_and_others_go_on(log: ReceiverLog) -> None:
    nsqd = Nsqd()

    def store(parts: Any) -> object:
        if parts[0][1][0].body == b"wrong":
            raise ValueError("no such thing")
        return records.stored_messages(parts)

    intake = intake_of(log, store=store)
    intake.take("t", messages(nsqd, b"wrong"))
    eventually(lambda: nsqd.requeued, lambda found: found == [b"wrong"], 60.0)
    intake.take("t", messages(nsqd, b"right"))
    intake.close()
    assert nsqd.finished == [b"right"]


def test_many_topics_make_one_segment_an_interval(log: ReceiverLog) -> None:
    nsqd, intake = Nsqd(), intake_of(log, interval=3600.0)
    intake._put_at = time.monotonic()
    for number in range(20):
        batch = messages(nsqd, b"%d" % number, left=3600.0, timeout=7200.0)  # received an hour ago
        intake.take(f"t{number}", batch)
    intake.close()
    assert log.named == 1
    assert len(nsqd.finished) == 20


def test_a_batch_that_came_early_is_put_at_once(log: ReceiverLog) -> None:
    """The consumer's window is full: no more messages come until these are finished."""
    nsqd, intake = Nsqd(), intake_of(log, interval=3600.0)
    intake._put_at = time.monotonic()
    intake.take("t", messages(nsqd, b"1"))
    eventually(lambda: nsqd.finished, lambda found: found == [b"1"], 60.0)
    intake.close()


def test_receiving_pauses_while_many_bytes_wait(
    store: FaultyStore, log: ReceiverLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intakes, "MOST_BYTES", 100)
    changes: list[bool] = []
    gate = gate_of(changes)
    nsqd, intake = Nsqd(), intake_of(log, gate)
    store.running.clear()
    intake.take("t", messages(nsqd, b"1" * 60))
    assert not gate.is_shut
    intake.take("u", messages(nsqd, b"2" * 60))
    assert "messages wait for the log" in gate.why
    store.running.set()
    eventually(lambda: gate.is_shut, lambda shut: not shut, 60.0)
    intake.close()
    assert changes == [True, False]


def test_portions_keep_the_order_and_end_with_single_messages() -> None:
    listed = messages(Nsqd(), b"1234", b"5", b"67", b"89012345")
    cut = [([m.body for m in portion], size) for portion, size in portions(listed, 5)]
    assert cut == [([b"1234", b"5"], 5), ([b"67"], 2), ([b"89012345"], 8)]
    assert list(portions(listed, 100)) == [(listed, 15)]


def test_a_gate_opens_when_its_last_reason_is_gone() -> None:
    changes: list[bool] = []
    gate = gate_of(changes)
    gate.open("disk")
    gate.shut("disk", "full")
    gate.shut("disk", "the disk is full")
    gate.shut("limit", "there is a limit")
    assert gate.why == "the disk is full; there is a limit"
    gate.open("disk")
    assert (changes, gate.is_shut, gate.is_shut_for("limit")) == ([True], True, True)
    gate.open("limit")
    assert (changes, gate.why) == ([True, False], "")
    gate.apply(changes.append)
    assert changes == [True, False, False]
