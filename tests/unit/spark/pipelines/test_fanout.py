from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from nsq.errors import NsqError
from nsq.spark.pipelines.fanout import Marks, Patience, spread
from nsq.spark.pipelines.files import LocalFiles
from nsq.spark.pipelines.publishing import Batch

BATCH = Batch("q", 4)
FRAME = cast(Any, None)


class Failing:
    """Fails so many times, and counts how often it was tried."""

    def __init__(self, times: int = 0) -> None:
        self.times = times
        self.tried = 0

    def write(self, frame: object, batch: Batch) -> None:
        self.tried += 1
        if self.tried <= self.times:
            raise RuntimeError(f"no {self.tried}")


def patience(attempts: int = 3) -> Patience:
    return Patience(attempts, 0.0, threading.Event())


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(LocalFiles(str(tmp_path)))


def test_one_that_fails_is_tried_again_alone(marks: Marks) -> None:
    sinks = {"a": Failing(2), "b": Failing()}
    spread(FRAME, BATCH, sinks, marks, patience())
    assert {name: sink.tried for name, sink in sinks.items()} == {"a": 3, "b": 1}


def test_one_that_keeps_failing_ends_it_and_only_it_is_left(marks: Marks) -> None:
    sinks = {"a": Failing(), "b": Failing(4), "c": Failing()}
    with pytest.raises(NsqError, match=r"batch 4 is not through: b failed, b with no 3") as raised:
        spread(FRAME, BATCH, sinks, marks, patience())
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert [name for name in sinks if marks.has(BATCH, name)] == ["a", "c"]

    spread(FRAME, BATCH, sinks, marks, patience())
    assert {name: sink.tried for name, sink in sinks.items()} == {"a": 1, "b": 5, "c": 1}


def test_told_to_stop_it_does_not_try_again(marks: Marks) -> None:
    waiting = patience()
    waiting.stop.set()
    sink = Failing(1)
    with pytest.raises(NsqError):
        spread(FRAME, BATCH, {"a": sink}, marks, waiting)
    assert sink.tried == 1


def test_marks_are_those_of_one_batch_of_one_query(marks: Marks, tmp_path: Path) -> None:
    for batch in (BATCH, BATCH._replace(number=5), BATCH._replace(query="other")):
        assert not marks.has(batch, "a")
        marks.set(batch, "a")
        marks.set(batch, "b")
    marks.forget_before(BATCH._replace(number=5))
    kept = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("a"))
    assert kept == ["_done/other/000000004/a", "_done/q/000000005/a"]
