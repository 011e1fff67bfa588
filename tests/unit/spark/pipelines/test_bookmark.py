from __future__ import annotations

from pathlib import Path

import pytest

from nsq.errors import UsageError
from nsq.spark.pipelines.replay import ArchivePosition, Mark, load_mark, save_mark

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
