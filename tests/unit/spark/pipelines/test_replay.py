from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import UsageError
from nsq.spark.pipelines import replay
from nsq.spark.pipelines.replay import (
    ArchivedMessage,
    ArchivePosition,
    Mark,
    ReplayResult,
    load_mark,
    remaining,
    save_mark,
    send,
)


class Stop(threading.Event):
    """An event with a clock: time passes during waits, and it is set at the wait of that number."""

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.now = 100.0
        self._left = at

    def wait(self, seconds: float | None = None) -> bool:
        self.now += seconds or 0.0
        self._left -= 1
        return self._left == 0


def entry(number: int, body: bytes = b"x") -> ArchivedMessage:
    return ArchivedMessage(ArchivePosition(number, "n", "id"), body)


@pytest.mark.parametrize(("rate", "seconds"), [(50.0, 95 / 50), (None, 0.0)])
def test_a_rate_is_kept_on_average_from_the_first_message_on(
    monkeypatch: pytest.MonkeyPatch, rate: float | None, seconds: float
) -> None:
    stop, noted = Stop(), list[int]()
    monkeypatch.setattr(replay, "time", SimpleNamespace(monotonic=lambda: stop.now))
    send(
        [entry(number) for number in range(100)],
        Mark(),
        publish=lambda bodies: None,
        save=lambda place: noted.append(place.rows),
        stop=stop,
        rate=rate,
        chunk=5,
    )
    assert noted == list(range(5, 101, 5))
    assert stop.now == pytest.approx(100 + seconds)


def test_a_place_is_noted_only_when_it_is_published() -> None:
    events: list[object] = []
    done = send(
        [entry(1, b"a"), entry(2, b"b"), entry(3, b"c")],
        Mark(rows=5),
        publish=events.append,
        save=lambda place: events.append(place.rows),
        stop=Stop(),
        chunk=2,
    )
    assert events == [[b"a", b"b"], 7, [b"c"], 8]
    assert (done.rows, done.bytes, done.before, done.complete) == (3, 3, 5, True)


def test_a_stopped_replay_publishes_nothing_more() -> None:
    published: list[list[bytes]] = []
    done = send(
        [entry(number) for number in range(4)],
        Mark(),
        publish=published.append,
        save=lambda place: None,
        stop=Stop(at=2),
        chunk=2,
    )
    assert len(published) == 1
    assert (done.rows, done.complete) == (2, False)


def test_a_replay_without_messages_left_is_complete() -> None:
    done = send([], Mark(), publish=list.clear, save=lambda place: None, stop=Stop())
    assert dataclasses.replace(done, seconds=0.0) == ReplayResult(complete=True)


ORDERED = st.lists(st.integers(0, 6), max_size=30).map(sorted)


@given(ORDERED, st.integers(1, 5), st.data())
def test_a_replay_that_is_cut_off_repeats_at_most_one_publish_and_misses_nothing(
    positions: list[int], most: int, data: st.DataObject
) -> None:
    """Several messages may stand at the same position."""
    entries = [entry(position, b"%d" % number) for number, position in enumerate(positions)]
    kept: list[Mark] = [Mark()]
    sent: list[bytes] = []
    crash_at = data.draw(st.integers(0, len(entries)))

    class Crash(Exception):
        pass

    def save(place: Mark) -> None:
        if place.rows > crash_at:
            raise Crash
        kept.append(place)

    try:
        send(entries, Mark(), publish=sent.extend, save=save, stop=Stop(), chunk=most)
    except Crash:
        send(entries, kept[-1], publish=sent.extend, save=kept.append, stop=Stop(), chunk=most)
    assert sorted(set(sent), key=int) == [each.body for each in entries]
    assert len(sent) - len(set(sent)) <= most
    assert kept[-1].rows == len(entries)
    assert list(remaining(entries, kept[-1])) == []


JOB = {"topic": "again", "since": 5}


def test_a_saved_mark_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b.json"
    assert load_mark(file, JOB) == Mark()
    place = Mark(ArchivePosition(7, "n:4150", "00ff"), 2, 10, 100)
    save_mark(file, JOB, place)
    save_mark(file, JOB, place)
    assert load_mark(file, JOB) == place
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.json"]


def test_the_mark_of_another_replay_is_refused(tmp_path: Path) -> None:
    save_mark(tmp_path / "b.json", JOB, Mark())
    with pytest.raises(UsageError, match=r"another replay, .*'since': 5"):
        load_mark(tmp_path / "b.json", JOB | {"since": 6})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"job": {}}', '{"job": {}, "at": [1]}'])
def test_a_file_that_is_no_mark_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(UsageError, match=r"b\.json is not the state of a replay"):
        load_mark(tmp_path / "b.json", JOB)


def test_messages_at_one_position_are_counted() -> None:
    one, two = ArchivePosition(1, "n", "a"), ArchivePosition(1, "n", "b")
    place = Mark().after(one, 3).after(one, 3)
    assert place == Mark(one, 2, 2, 6)
    assert place.after(two, 4) == Mark(two, 1, 3, 10)
