"""Messages wait for their segment to be named; meanwhile they are touched."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import pytest

from nsq.errors import AlreadyResponded
from nsq.message import Message
from nsq.spark.receiver import shared_intake
from nsq.spark.receiver.receiving import PauseGate
from nsq.spark.receiver.shared_intake import SharedIntake, touch_expiring
from nsq.spark.wal import records, shared_log
from nsq.spark.wal.shared import SharedWal
from nsq.spark.wal.shared_log import SharedLog
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
def log(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedLog]:
    monkeypatch.setattr(shared_log, "FIRST_PAUSE", 0.01)
    wal = SharedWal(store, "memory://log")
    wal.prepare()
    made = wal.log("one")
    yield made
    store.running.set()
    made.close(timeout=60.0)


def intake_of(log: SharedLog, gate: PauseGate | None = None) -> SharedIntake:
    return SharedIntake(
        log,
        lambda listed: records.stored_messages("t", listed),
        gate or PauseGate(10, lambda window: None),
        changed=lambda: None,
        clock=time.monotonic,
    )


def test_messages_are_finished_once_their_segment_is_named(store: FaultyStore, log: SharedLog) -> None:
    nsqd, intake = Nsqd(), intake_of(log)
    store.running.clear()
    intake.take(messages(nsqd, b"1", b"2"))
    intake.take(messages(nsqd, b"3"))
    assert nsqd.finished == []
    store.running.set()
    eventually(lambda: sorted(nsqd.finished), lambda found: found == [b"1", b"2", b"3"], 60.0)
    intake.close()
    assert intake.counts.received == 3
    assert nsqd.requeued == []


def test_messages_that_the_log_cannot_name_go_back_to_nsqd(store: FaultyStore, log: SharedLog) -> None:
    nsqd, intake = Nsqd(), intake_of(log)
    other = SharedWal(store, "memory://log")
    other.receivers()
    known = other._known["one"]
    assert other._close(known, known.head)  # another process takes this receiver for dead
    intake.take(messages(nsqd, b"1"))
    eventually(lambda: log.broken, bool, 60.0)
    intake.take(messages(nsqd, b"2"))
    intake.close()
    assert sorted(nsqd.requeued) == [b"1", b"2"]
    assert all(note[2] for note in nsqd.notes), (
        "nsqd would deliver them again to this same receiver, at once and over and over"
    )
    assert nsqd.finished == []
    assert "new name" in intake.trouble


def test_messages_that_have_timed_out_are_not_stored(log: SharedLog) -> None:
    nsqd, intake = Nsqd(), intake_of(log)
    intake.take(messages(nsqd, b"late", left=-1.0) + messages(nsqd, b"in time"))
    intake.take(messages(nsqd, b"late too", left=-1.0))
    intake.close()
    assert nsqd.finished == [b"in time"]


def test_an_error_of_the_store_is_reported_while_it_lasts(store: FaultyStore, log: SharedLog) -> None:
    nsqd, intake = Nsqd(), intake_of(log)
    store.errors = 1.0
    intake.take(messages(nsqd, b"1"))
    eventually(lambda: intake.trouble, lambda text: "cannot write the log: memory://log/" in text, 60.0)
    store.errors = 0.0
    eventually(lambda: intake.trouble, lambda text: not text, 60.0)
    intake.close()
    assert nsqd.finished == [b"1"]


def test_receiving_pauses_while_the_store_fails_for_long(
    store: FaultyStore, log: SharedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the pause nsqd would send the messages again and again, after their longest timeout."""
    monkeypatch.setattr(shared_intake, "_TOUCH_EVERY", 0.001)
    monkeypatch.setattr(shared_intake, "PAUSE_AFTER", 0.01)
    windows: list[int] = []
    gate = PauseGate(10, windows.append)
    nsqd, intake = Nsqd(), intake_of(log, gate)
    store.errors = 1.0
    intake.take(messages(nsqd, b"1"))
    eventually(lambda: gate.window, lambda window: window == 0, 60.0)
    assert "the log cannot be written" in gate.why
    store.errors = 0.0
    eventually(lambda: gate.window, lambda window: window == 10, 60.0)
    intake.close()
    assert nsqd.finished == [b"1"]


@pytest.mark.parametrize(("left", "touched"), [(40.0, []), (29.0, [b"a"]), (-1.0, [])])
def test_messages_are_touched_past_half_of_their_time(left: float, touched: list[bytes]) -> None:
    nsqd = Nsqd()
    touch_expiring(messages(nsqd, b"gone", b"a", left=left), 60.0, time.monotonic())
    assert nsqd.touched == touched


def test_a_stalled_store_has_messages_touched(store: FaultyStore, log: SharedLog) -> None:
    nsqd, intake = Nsqd(), intake_of(log)
    store.running.clear()
    intake.take(messages(nsqd, b"1", left=50.0, timeout=60.0))
    intake._timeout = 200.0
    eventually(lambda: nsqd.touched, lambda found: found[:1] == [b"1"], 60.0)
    store.running.set()
    intake.close()
    assert nsqd.finished == [b"1"]


def test_large_bodies_are_divided_among_segments(log: SharedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_intake, "LARGEST_SEGMENT", 200)
    nsqd, intake = Nsqd(), intake_of(log)
    intake.take(messages(nsqd, *(b"%02d" % number + b"." * 48 for number in range(10))))
    intake.close()
    assert len(nsqd.finished) == 10
    assert max(file.segment.bytes for file in log.files()) <= 200
    assert log.named >= 3


def test_a_stop_while_the_store_is_away_gives_messages_back(
    store: FaultyStore, log: SharedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_intake, "_LAST_PUTS", 0.05)
    monkeypatch.setattr(log, "close", functools.partial(log.close, timeout=0.05))
    nsqd, intake = Nsqd(), intake_of(log)
    store.errors = 1.0
    intake.take(messages(nsqd, b"1"))
    intake.take(messages(nsqd, b"2"))
    intake.close()
    assert sorted(nsqd.requeued) == [b"1", b"2"]
    assert nsqd.finished == []


def test_messages_that_cannot_be_stored_go_back_and_others_go_on(log: SharedLog) -> None:
    nsqd = Nsqd()

    def store(listed: list[Message]) -> object:
        if listed[0].body == b"wrong":
            raise ValueError("no such thing")
        return records.stored_messages("t", listed)

    gate = PauseGate(10, lambda window: None)
    intake = SharedIntake(log, store, gate, changed=lambda: None, clock=time.monotonic)  # type: ignore[arg-type]
    intake.take(messages(nsqd, b"wrong"))
    eventually(lambda: nsqd.requeued, lambda found: found == [b"wrong"], 60.0)
    intake.take(messages(nsqd, b"right"))
    intake.close()
    assert nsqd.finished == [b"right"]
