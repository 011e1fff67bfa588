from __future__ import annotations

from pathlib import Path

import pytest

from nsq.errors import ConfigError, WalForeign
from nsq.spark.wal import readers
from nsq.spark.wal.folder import Folder
from nsq.spark.wal.log import Wal
from nsq.spark.wal.names import Position, Segment, SegmentFile
from nsq.spark.wal.readers import ReaderState, deletable

FILES = [
    SegmentFile(Segment("a", 1, 9, 9), 100, 10.0, 0, 0),
    SegmentFile(Segment("a", 2, 9, 9), 100, 20.0, 0, 0),
    SegmentFile(Segment("b", 1, 9, 9), 100, 30.0, 0, 0),
]
ALL = {"a": Position(2), "b": Position(1)}


@pytest.mark.parametrize(
    ("states", "retention", "retention_bytes", "deleted"),
    [
        ([], 0.0, 0, []),
        ([ReaderState(ALL)], 0.0, 10**9, ["a1", "a2", "b1"]),
        ([ReaderState(ALL), ReaderState()], 0.0, 0, []),
        ([ReaderState(ALL), ReaderState({"a": Position(1, 8)})], 0.0, 0, ["a1"]),
        ([ReaderState(ALL)], 1000.0, 10**9, []),
        ([ReaderState(ALL)], 75.0, 10**9, ["a1", "a2"]),
        ([ReaderState(ALL)], 1000.0, 250, ["a1"]),
        ([ReaderState(ALL)], 1000.0, 0, ["a1", "a2", "b1"]),
    ],
)
def test_segments_that_all_readers_committed_are_deleted_after_the_retention(
    states: list[ReaderState], retention: float, retention_bytes: int, deleted: list[str]
) -> None:
    wishes = [state._replace(retention=retention, retention_bytes=retention_bytes) for state in states]
    found = deletable(FILES, wishes, now=100.0, most=10**12)
    assert [f"{segment.receiver}{segment.number}" for segment in found] == deleted


def test_retention_keeps_a_limited_number_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MOST_SEGMENTS", 2)
    state = ReaderState(ALL, retention=1000.0, retention_bytes=10**9)
    assert [segment[:2] for segment in deletable(FILES, [state], now=100.0, most=10**12)] == [("a", 1)]


def test_a_receiver_is_deleted_from_its_front_whatever_its_clock_says() -> None:
    newest_first = [FILES[0]._replace(modified=99.0), FILES[1]]
    state = ReaderState(ALL, retention=50.0, retention_bytes=10**9)
    found = deletable(newest_first, [state], now=100.0, most=10**12)
    assert [segment.number for segment in found] == [1, 2]


def test_a_reader_that_keeps_nothing_deletes_nothing_that_another_keeps() -> None:
    keeps = ReaderState(ALL, retention=1000.0, retention_bytes=250)
    found = deletable(FILES, [keeps, ReaderState(ALL)], now=100.0, most=10**12)
    assert [segment.receiver for segment in found] == ["a"]
    assert len(deletable(FILES, [keeps], now=100.0, most=0)) == 3  # but never more than half of walMaxBytes


def test_a_state_survives(wal: Wal) -> None:
    state = ReaderState({"b": Position(3, 7), "a": Position(1)}, True, "latest", 12.5)
    wal.own("orders.hourly", "a test", 0.0)
    wal.save_reader("orders.hourly", state)
    assert wal.readers() == {"orders.hourly": state}
    wal.remove_reader("orders.hourly")
    assert wal.readers() == {}


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a b", "x" * 101])
def test_an_invalid_reader_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="the name of a reader has"):
        readers.check_reader(name)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"format": 3, "at": {}, "begun": 1}'])
def test_an_unreadable_position_is_refused_with_its_path(wal: Wal, text: bytes) -> None:
    Folder(Path(wal.location)).put_new("readers/one.json", text)
    with pytest.raises(WalForeign, match=r"readers/one\.json"):
        wal.readers()
