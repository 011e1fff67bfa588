from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from nsq.spark.pipelines.files import Batch, LocalFiles, Move, Written, below, local_path, publish

HOUR = "date=2026-03-01/hour=07"
BATCH = Batch("0a1b2c3d-4e5f-6789-abcd-ef0123456789", 4)


def writing(*names: str) -> Callable[[str], Written]:
    """Write files as Spark does: under other names each time, beside files that hold no data."""

    def write(uri: str) -> Written:
        folder = Path(uri.removeprefix("file://"))
        for name in names:
            place = folder / HOUR / f"{name}.zstd.parquet"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "_SUCCESS").touch()
        return Written(rows=len(names), bytes=10)

    return write


def visible(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): path.read_text() for path in root.glob("date=*/hour=*/*.parquet")
    }


class Crash(Exception):
    pass


class Crashing(LocalFiles):
    """Gives up at the nth thing that it is asked to do, one move counting as one thing."""

    def __init__(self, root: str, at: int) -> None:
        super().__init__(root)
        self.left = at

    def _pass(self) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1

    def write(self, path: str, text: str) -> None:
        self._pass()
        super().write(path, text)

    def persist(self, paths: Iterable[str]) -> None:
        self._pass()
        super().persist(paths)

    def move(self, moves: Iterable[Move]) -> None:
        for move in moves:
            self._pass()
            super().move([move])

    def delete(self, path: str) -> None:
        self._pass()
        super().delete(path)


def test_files_go_where_they_were_put_below_the_root_under_names_of_their_own(tmp_path: Path) -> None:
    published = publish(LocalFiles(str(tmp_path)), BATCH, writing("a", "b"))

    assert published == Written(rows=2, bytes=10, files=2)
    assert visible(tmp_path) == {
        f"{HOUR}/part-0a1b2c3d-4e5f-000000004-00000.zstd.parquet": "a",
        f"{HOUR}/part-0a1b2c3d-4e5f-000000004-00001.zstd.parquet": "b",
    }
    assert list((tmp_path / "_staging").rglob("*.parquet")) == []


def test_a_batch_that_is_run_again_after_its_files_were_merged_leaves_them_alone(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    publish(files, BATCH, writing("a", "b"))
    for path in tmp_path.glob(f"{HOUR}/*"):
        path.unlink()

    publish(files, BATCH, lambda uri: pytest.fail("written again"))
    assert visible(tmp_path) == {}


@pytest.mark.parametrize("at", range(8))
def test_a_batch_is_stored_once_wherever_the_run_before_crashed(tmp_path: Path, at: int) -> None:
    """The second run cuts the batch into other files, as another number of cores would."""
    publish(LocalFiles(str(tmp_path)), BATCH._replace(number=3), writing("before"))
    with pytest.raises(Crash):
        publish(Crashing(str(tmp_path), at), BATCH, writing("a", "b", "c"))
    seen = sorted(visible(tmp_path).values())

    publish(LocalFiles(str(tmp_path)), BATCH, writing("ab", "c"))

    after = sorted(visible(tmp_path).values())
    assert after in (["a", "b", "before", "c"], ["ab", "before", "c"])
    assert len(seen) == 1 or set(seen) <= set(after)  # what readers have seen stays
    assert list((tmp_path / "_staging").rglob("*.parquet")) == []


def test_there_are_no_more_places_to_crash_at_than_tested(tmp_path: Path) -> None:
    publish(LocalFiles(str(tmp_path)), BATCH._replace(number=3), writing("before"))
    files = Crashing(str(tmp_path), 100)
    publish(files, BATCH, writing("a", "b", "c"))
    assert 100 - files.left == 8


def test_only_the_last_decision_is_kept(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    for number in range(3):
        publish(files, BATCH._replace(number=number), writing("a"))
    assert files.walk("_batches") == [f"_batches/{BATCH.query}/000000002.json"]
    assert len(visible(tmp_path)) == 3


def test_batches_of_another_checkpoint_get_other_names(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    publish(files, BATCH, writing("a"))
    publish(files, Batch("ffffffff-0000-6789-abcd-ef0123456789", 4), writing("b"))
    assert sorted(visible(tmp_path).values()) == ["a", "b"]


def test_an_empty_batch_is_decided_too(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    assert publish(files, BATCH, writing()) == Written(0, 10, 0)
    assert publish(files, BATCH, writing("a")) == Written(0, 10, 0)


def test_files_without_a_folder_are_published_without_one(tmp_path: Path) -> None:
    def write(uri: str) -> Written:
        folder = Path(uri.removeprefix("file://"))
        folder.mkdir(parents=True)
        (folder / "x.parquet").touch()
        return Written(1, 1)

    publish(LocalFiles(str(tmp_path)), BATCH, write)
    assert [path.name for path in tmp_path.glob("*.parquet")] == [
        "part-0a1b2c3d-4e5f-000000004-00000.parquet"
    ]


def test_a_folder_that_does_not_exist_has_no_files(tmp_path: Path) -> None:
    assert LocalFiles(str(tmp_path)).walk("absent") == []


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/orders", "/data/orders"),
        ("/data/orders/", "/data/orders"),
        ("file:///data/or%20ders", "/data/or%20ders"),
        ("file:/data", "/data"),
        ("s3a://bucket/orders", None),
        ("hdfs://name:8020/orders", None),
    ],
)
def test_local_locations_are_recognized(location: str, path: str | None) -> None:
    assert local_path(location) == path


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("orders") == str(tmp_path / "orders")


def test_names_below_a_location() -> None:
    assert below("/data/", "_wal") == "/data/_wal"
    assert below(Path("/data"), "a", "b") == "/data/a/b"
    assert below("s3a://bucket/orders/", "_checkpoint") == "s3a://bucket/orders/_checkpoint"
    assert below("s3a://bucket/orders") == "s3a://bucket/orders"


def test_deleting_is_thorough_and_forgiving(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    files.write("a/b/c", "1")
    files.delete("a")
    files.delete("a")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_moved_before_is_skipped(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    files.write("a", "1")
    moves: list[Move] = [("a", "x/y/b"), ("gone", "x/c")]
    files.move(moves)
    files.move(moves)
    assert files.walk("") == ["x/y/b"]
