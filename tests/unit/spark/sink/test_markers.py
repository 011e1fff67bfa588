from __future__ import annotations

import random
from pathlib import Path

import pytest

from nsq.spark.sink.markers import Content, Markers

pytest.importorskip("pyarrow")

CONTENT = Content().plus([b"one", b"two"])


def test_what_was_written_is_read(tmp_path: Path) -> None:
    markers = Markers.of(str(tmp_path), "query")
    assert markers.read(7, 0) is None

    markers.write(7, 0, CONTENT)

    assert markers.read(7, 0) == CONTENT
    assert Markers.of(str(tmp_path), "query").read(7, 0) == CONTENT
    assert markers.read(7, 1) is None
    assert markers.read(8, 0) is None


@pytest.mark.parametrize("prefix", ["file:", "file://"])
def test_a_place_may_be_given_as_hadoop_spells_it(tmp_path: Path, prefix: str) -> None:
    Markers.of(str(tmp_path), "query").write(1, 1, CONTENT)

    assert Markers.of(f"{prefix}{tmp_path}", "query").read(1, 1) == CONTENT


def test_another_query_at_the_same_place_has_marked_nothing(tmp_path: Path) -> None:
    """A checkpoint that was deleted and begun anew counts its batches from 0 again."""
    Markers.of(str(tmp_path), "before").write(0, 0, CONTENT)

    assert Markers.of(str(tmp_path), "anew").read(0, 0) is None


@pytest.mark.parametrize("left", [b"", b'{"rows": 2', b"[]", b'{"lines": 2}'])
def test_a_marker_that_was_cut_off_is_none(tmp_path: Path, left: bytes) -> None:
    markers = Markers.of(str(tmp_path), "query")
    markers.write(7, 0, CONTENT)
    (path,) = tmp_path.rglob("*.json")
    path.write_bytes(left)

    assert markers.read(7, 0) is None


def test_earlier_batches_are_forgotten_and_this_one_is_not(tmp_path: Path) -> None:
    markers = Markers.of(str(tmp_path), "query")
    markers.forget_before(3)  # when there is nothing yet
    for batch in (1, 2, 10):
        markers.write(batch, 0, CONTENT)

    markers.forget_before(10)

    assert [markers.read(batch, 0) for batch in (1, 2, 10)] == [None, None, CONTENT]


def test_content_is_the_same_in_another_order_and_in_other_portions() -> None:
    bodies = [b"%d" % number for number in range(100)]
    mixed = random.Random(7).sample(bodies, len(bodies))

    assert Content().plus(bodies) == Content().plus(mixed[:30]).plus(mixed[30:])


def test_other_content_of_the_same_size_is_another() -> None:
    assert Content().plus([b"one", b"two"]) != Content().plus([b"one", b"owt"])
