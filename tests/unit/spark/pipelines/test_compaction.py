from __future__ import annotations

import datetime
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from nsq.errors import ConfigError, UsageError
from nsq.spark.pipelines.compaction import (
    CompactResult,
    compact,
    compact_hours,
    end_of,
    grouped,
    next_generation,
    recover,
)
from nsq.spark.pipelines.files import FileEntry
from nsq.spark.pipelines.streaming import Progress

NOW = datetime.datetime(2026, 3, 1, 9, 30, tzinfo=datetime.UTC)
HOUR = "date=2026-03-01/hour=07"
STEPS = ["prepare", "decide", "exchange", "carry over", "clean"]
SCHEMA = pa.schema([("n", pa.int64()), ("body", pa.binary())], metadata={"kept": "yes"})


class Crash(Exception):
    pass


def put(root: Path, name: str, numbers: range, hour: str = HOUR, schema: pa.Schema = SCHEMA) -> Path:
    place = root / hour / name
    place.parent.mkdir(parents=True, exist_ok=True)
    rows = [{field.name: number if field.name == "n" else b"x" for field in schema} for number in numbers]
    pq.write_table(pa.Table.from_pylist(rows, schema), place)
    return place


def filled(root: Path) -> Path:
    for number in range(5):
        put(root, f"part-{number}.parquet", range(number * 10, number * 10 + 10))
    return root


def numbers(root: Path) -> list[int]:
    """As any reader sees them."""
    found = ds.dataset(root, format="parquet", partitioning="hive").to_table(columns=["n"])
    return sorted(found["n"].to_pylist())


def files(root: Path, hour: str = HOUR) -> list[str]:
    return sorted(path.name for path in (root / hour).glob("[!.]*"))


def run(
    root: Path, step: Callable[[str], None] = lambda _: None, stop: threading.Event | None = None
) -> CompactResult:
    return compact_hours(
        root,
        NOW - datetime.timedelta(hours=1),
        target_bytes=1 << 20,
        linger=0,
        stop=stop or threading.Event(),
        progress=lambda _: None,
        step=step,
    )


def test_small_files_become_one_with_the_same_rows(tmp_path: Path) -> None:
    filled(tmp_path)
    heard: list[Progress] = []

    result = compact(tmp_path, now=NOW, linger=0, progress=heard.append)

    assert (result.hours, result.files_before, result.files_after, result.rows) == (1, 5, 1, 50)
    assert result.bytes_after < result.bytes_before
    assert files(tmp_path) == ["merged-000001-00000-000.zstd.parquet"]
    assert numbers(tmp_path) == list(range(50))
    assert pq.read_schema(tmp_path / HOUR / files(tmp_path)[0]).metadata == {b"kept": b"yes"}
    assert [path.name for path in (tmp_path / "_compaction").iterdir()] == ["lock"]
    assert [(report.rows, report.batches) for report in heard] == [(50, 1)]


def test_an_hour_is_left_alone_until_it_has_settled(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        put(tmp_path, name, range(3), "date=2026-03-01/hour=08")
    assert compact(tmp_path, now=NOW, settle=3600, linger=0).hours == 0
    assert compact(tmp_path, now=NOW, settle=1800, linger=0).hours == 1


def test_what_comes_late_is_merged_the_next_time_under_another_name(tmp_path: Path) -> None:
    filled(tmp_path)
    run(tmp_path)
    put(tmp_path, "part-late.parquet", range(50, 60))
    run(tmp_path)
    assert files(tmp_path) == ["merged-000002-00000-000.zstd.parquet"]
    assert numbers(tmp_path) == list(range(60))
    assert run(tmp_path).hours == 0


def test_large_files_keep_their_names(tmp_path: Path) -> None:
    filled(tmp_path)
    size = put(tmp_path, "large.parquet", range(50, 5000)).stat().st_size
    compact(tmp_path, now=NOW, linger=0, target_bytes=size)
    assert files(tmp_path) == ["large.parquet", "merged-000001-00000-000.zstd.parquet"]
    assert numbers(tmp_path) == list(range(5000))


def test_files_of_another_schema_stay_apart(tmp_path: Path) -> None:
    filled(tmp_path)
    other = pa.schema([("n", pa.int64())])
    put(tmp_path, "x.parquet", range(50, 55), schema=other)
    put(tmp_path, "y.parquet", range(55, 60), schema=other)
    assert run(tmp_path).files_after == 2
    assert numbers(tmp_path) == list(range(60))


@pytest.mark.parametrize("at", STEPS)
def test_wherever_it_crashes_every_row_is_there_once(tmp_path: Path, at: str) -> None:
    filled(tmp_path)

    def step(name: str) -> None:
        if name == at:
            raise Crash

    with pytest.raises(Crash):
        run(tmp_path, step)
    assert numbers(tmp_path) == list(range(50))

    recover(tmp_path)
    assert numbers(tmp_path) == list(range(50))
    assert [path.name for path in (tmp_path / "_compaction").iterdir()] == ["lock"]
    run(tmp_path)
    assert files(tmp_path) == ["merged-000001-00000-000.zstd.parquet"]
    assert numbers(tmp_path) == list(range(50))


@pytest.mark.parametrize("at", STEPS)
def test_a_killed_process_leaves_every_row_once(tmp_path: Path, at: str) -> None:
    filled(tmp_path)
    program = f"""
import datetime, os, signal, threading
from pathlib import Path
from nsq.spark.pipelines.compaction import compact_hours

def step(name):
    if name == {at!r}:
        os.kill(os.getpid(), signal.SIGKILL)

compact_hours(Path({str(tmp_path)!r}), datetime.datetime({NOW.year}, 3, 1, 9, tzinfo=datetime.UTC),
              target_bytes=1 << 20, linger=0, stop=threading.Event(), progress=print, step=step)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=200, check=False, cwd=Path(__file__).parents[4]
    )
    assert done.returncode < 0
    assert numbers(tmp_path) == list(range(50))
    run(tmp_path)
    assert numbers(tmp_path) == list(range(50))
    assert files(tmp_path) == ["merged-000001-00000-000.zstd.parquet"]


@pytest.mark.parametrize("at", STEPS)
def test_what_is_put_there_meanwhile_is_kept(tmp_path: Path, at: str) -> None:
    filled(tmp_path)

    def step(name: str) -> None:
        if name == at:
            put(tmp_path, "part-late.parquet", range(50, 60))

    run(tmp_path, step)
    assert numbers(tmp_path) == list(range(60))


@pytest.mark.parametrize("crash", STEPS[3:])
def test_what_was_put_there_meanwhile_is_kept_across_a_crash(tmp_path: Path, crash: str) -> None:
    filled(tmp_path)

    def step(name: str) -> None:
        if name == "exchange":
            put(tmp_path, "part-late.parquet", range(50, 60))
        if name == crash:
            raise Crash

    with pytest.raises(Crash):
        run(tmp_path, step)
    recover(tmp_path)
    assert numbers(tmp_path) == list(range(60))


class Reader(threading.Event):
    """Looks again and again. As the ``stop`` of a compaction, which lingers by waiting for it, it has old
    files stay for as long as a look that has begun lasts.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.seen = 0
        self.wrong: list[list[int]] = []
        self._root = root
        self._begun = self._ended = 0
        self._over = False
        self._thread = threading.Thread(target=self._read, name="reader")
        self._thread.start()

    def _read(self) -> None:
        while not self._over:
            self._begun += 1
            try:
                found = numbers(self._root)
                self.seen += 1
                if found[:50] != list(range(50)) or len(set(found)) != len(found):
                    self.wrong.append(found)
            except OSError:
                pass  # cannot open what it has listed
            finally:
                self._ended += 1

    def wait(self, timeout: float | None = None) -> bool:
        begun = self._begun
        self.wait_for(lambda: self._ended >= begun)
        return False

    def wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition() and self._thread.is_alive():
            self._thread.join(0.001)

    def end(self) -> None:
        self._over = True
        self._thread.join(200)


def test_a_reader_always_finds_every_row_once(tmp_path: Path) -> None:
    """It lists and opens while hours are exchanged; it may fail to open what it has listed, and no more."""
    filled(tmp_path)
    reader = Reader(tmp_path)
    try:
        for round_ in range(20):
            put(tmp_path.parent, "new", range(50 + round_, 51 + round_), "outside")
            (tmp_path.parent / "outside" / "new").replace(tmp_path / HOUR / f"part-{round_ + 9}.parquet")
            before = reader.seen
            run(tmp_path, stop=reader)
            reader.wait_for(lambda before=before: reader.seen > before)  # type: ignore[misc]
    finally:
        reader.end()
    assert reader.wrong == []
    assert reader.seen >= 20
    assert numbers(tmp_path) == list(range(70))


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    run(tmp_path)
    with (tmp_path / "_compaction" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="by another process"):
            run(tmp_path)
        recover(tmp_path)


def test_it_stops_after_the_hour_at_hand(tmp_path: Path) -> None:
    filled(tmp_path)
    for name in ("a.parquet", "b.parquet"):
        put(tmp_path, name, range(50, 52), "date=2026-03-01/hour=06")
    stop = threading.Event()
    assert compact(tmp_path, now=NOW, stop=stop, progress=lambda _: stop.set()).hours == 1
    assert compact(tmp_path, now=NOW, linger=0).hours == 1


def test_places_that_cannot_be_compacted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="s3a://bucket/orders is not on this machine"):
        compact("s3a://bucket/orders")
    with pytest.raises(UsageError, match="there is no archive at"):
        compact(tmp_path / "absent")
    with pytest.raises(UsageError, match="settle is -1"):
        compact(tmp_path, settle=-1)
    recover("s3a://bucket/orders")
    recover(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("folder", "end"),
    [
        ("date=2026-03-01/hour=07", datetime.datetime(2026, 3, 1, 8, tzinfo=datetime.UTC)),
        ("date=2026-12-31/hour=23", datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)),
        ("date=2026-13-01/hour=07", None),
        ("date=__HIVE_DEFAULT_PARTITION__/hour=07", None),
    ],
)
def test_when_an_hour_ends(folder: str, end: datetime.datetime | None) -> None:
    assert end_of(folder) == end


def test_groups_fill_up_to_the_target_in_order() -> None:
    sizes = {"a": 40, "b": 40, "c": 30, "d": 60, "e": 10, "f": 5}
    entries = [FileEntry(name, size) for name, size in sizes.items()]
    assert grouped(entries, 100) == [["a", "b"], ["c", "e", "f"]]
    assert grouped(entries[:1], 100) == []
    assert grouped([], 100) == []


def test_generations_count_on() -> None:
    assert next_generation([]) == 1
    assert next_generation(["part-1.parquet", "merged-000007-00001-000.zstd.parquet"]) == 8
