"""The pipelines on streams of files with the columns of the source: results, and repeated or failed
batches.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsq.errors import UsageError
from nsq.spark import dedup, rows
from nsq.spark.pipelines import archive as archiving
from nsq.spark.pipelines.archive import ArchiveResult, store_rows
from nsq.spark.pipelines.files import Batch, HadoopFiles, LocalFiles, Written, open_files, publish
from nsq.spark.pipelines.metrics import Window, archive_chart, collect_windows, measured
from nsq.spark.pipelines.replay import Mark, _counted, entries, remaining, replay, selected
from nsq.spark.pipelines.streaming import Progress, Running
from tests.spark.running import PATIENCE, drain, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime.datetime(2026, 3, 1, 6, 59, 50, tzinfo=datetime.UTC)
NANOS = int(START.timestamp()) * 1_000_000_000


class Crash(Exception):
    pass


def put(folder: Path, name: str, bodies: Sequence[bytes], *, first: int = 0, attempts: int = 1) -> None:
    """Messages a second apart, the first ``first`` seconds after START."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    seconds = [first + number for number in range(len(bodies))]
    table = pa.table(
        {
            "topic": ["orders"] * len(bodies),
            "nsqd": ["10.0.0.2:4150"] * len(bodies),
            "id": [f"{number:016x}" for number in seconds],
            "timestamp": pa.array(
                [START + datetime.timedelta(seconds=s) for s in seconds], pa.timestamp("us", "UTC")
            ),
            "timestamp_ns": [NANOS + number * 1_000_000_000 + 7 for number in seconds],
            "attempts": pa.array([attempts] * len(bodies), pa.int32()),
            "body": pa.array(bodies, pa.binary()),
        }
    )
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(table, folder / "in" / name)


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """A batch for each file."""
    return spark.readStream.schema(rows.SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))


def running(folder: Path, **options: Any) -> Running:
    return Running(checkpoint=str(folder / "checkpoint"), **options)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%04d" % number for number in range(start, start + count)]


def archived(
    spark: SparkSession, folder: Path, body: str = "binary", schema: str | None = None, **options: Any
) -> ArchiveResult:
    found = partial(archiving.schema_of_files, spark, str(folder / "out"))
    agreed = archiving.agreed_schema(open_files(folder / "out", spark), body, schema, found)
    kept = archiving.archived(stream(spark, folder), body, agreed)
    return store_rows(kept, str(folder / "out"), running(folder, **options))


def stored(spark: SparkSession, folder: Path) -> list[bytes]:
    return sorted(bytes(row.body) for row in spark.read.parquet(str(folder / "out")).collect())


# dedup


def test_a_message_that_comes_again_is_one_row_after_dedup(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "1", numbered(20))
    put(tmp_path, "2", numbered(10, 15), first=15, attempts=2)
    drain(dedup(stream(spark, tmp_path), "1 hour"), tmp_path)
    assert sorted(written(tmp_path)) == numbered(25)


# archive


def test_an_archive_is_divided_by_the_hour_of_the_message_and_continued(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path, "1", numbered(20))
    heard: list[Progress] = []
    result = archived(spark, tmp_path, progress=heard.append)
    assert (result.rows, result.bytes, result.batches, result.files) == (20, 80, 1, 2)
    assert (heard[-1].rows, heard[-1].bytes) == (20, 80)

    put(tmp_path, "2", numbered(5, 20), first=20)
    again = archived(spark, tmp_path)
    assert (again.rows, again.files) == (5, 1)
    assert stored(spark, tmp_path) == numbered(25)

    frame = spark.read.parquet(str(tmp_path / "out"))
    assert frame.columns == [*rows.TYPES, "date", "hour"]
    # By the number of the hour, whatever the time zone of the session that writes.
    assert {
        (str(row.date), row.hour, row["count"]) for row in frame.groupBy("date", "hour").count().collect()
    } == {
        ("2026-03-01", 6, 10),
        ("2026-03-01", 7, 15),
    }


@pytest.fixture(scope="module")
def archive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of twenty messages, for tests that only read it."""
    folder = tmp_path_factory.mktemp("archive")
    put(folder, "1", numbered(20))
    archived(spark, folder)
    return folder / "out"


def test_pyarrow_reads_it_too_and_exactly(archive: Path) -> None:
    import pyarrow.dataset as ds

    table = ds.dataset(archive, format="parquet", partitioning="hive").to_table()
    assert sorted(table["body"].to_pylist()) == numbered(20)
    assert str(table.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
    assert min(table["timestamp_ns"].to_pylist()) == NANOS + 7


def test_a_batch_that_failed_is_stored_once_however_it_is_cut_the_next_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/unit/spark/pipelines/test_publishing.py fails at every other place."""
    put(tmp_path, "1", numbered(20))
    whole = archiving.archived

    def fail(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(archiving, "archived", lambda *given: whole(*given).repartition(3))
        patch.setattr(LocalFiles, "move", fail)
        with pytest.raises(Crash):
            archived(spark, tmp_path)
    put(tmp_path, "2", numbered(5, 20), first=20)

    assert archived(spark, tmp_path).rows == 25
    assert stored(spark, tmp_path) == numbered(25)


@pytest.fixture(scope="session")
def deltalake(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Use deltalake once, because it starts threads that stay."""
    found = pytest.importorskip("deltalake")
    import pyarrow as pa

    place = str(tmp_path_factory.mktemp("delta") / "first")
    for number in range(2):
        mark = found.CommitProperties(app_transactions=[found.Transaction("warm", number)])
        rows = pa.table({"a": [1], "b": ["x"]})
        found.write_deltalake(place, rows, partition_by=["b"], mode="append", commit_properties=mark)
    assert found.DeltaTable(place).transaction_version("warm") == 1
    assert found.DeltaTable(place).to_pyarrow_table().num_rows == 2
    return found


def test_a_delta_table_has_every_row_once(
    spark: SparkSession, deltalake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = archiving.write_delta

    def failing(*given: Any) -> Written:
        raise Crash(whole(*given))

    def run_once() -> ArchiveResult:
        kept = archiving.archived(stream(spark, tmp_path), "binary")
        return store_rows(kept, str(tmp_path / "table"), running(tmp_path), table=True)

    put(tmp_path, "1", numbered(20))
    with monkeypatch.context() as patch:
        patch.setattr(archiving, "write_delta", failing)
        with pytest.raises(Crash):
            run_once()
    put(tmp_path, "2", numbered(5, 20), first=20)
    assert (run_once().rows, run_once().rows) == (5, 0)
    table = deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table()
    assert sorted(table["body"].to_pylist()) == numbered(25)


def test_an_archive_is_drawn(spark: SparkSession, fonts: None, archive: Path, tmp_path: Path) -> None:
    image = archive_chart(str(archive), tmp_path / "out.png", spark=spark)
    assert Path(image).read_bytes().startswith(b"\x89PNG")


def test_bodies_can_be_archived_as_text_and_as_json(spark: SparkSession, tmp_path: Path) -> None:
    bodies = [b'{"id": 1, "name": "a"}', b"\xff", b"  ", b'{"id": "no"}', b"[1]", b'{"id": 1}{"id": 2}']
    put(tmp_path, "1", bodies)
    archived(spark, tmp_path, "json", "id bigint, name string")
    frame = spark.read.parquet(str(tmp_path / "out")).orderBy("timestamp_ns")
    found = [(row.body.asDict() if row.body else None, row["_corrupt"]) for row in frame.collect()]
    assert found[0] == ({"id": 1, "name": "a"}, None)
    assert found[1:4] == [(None, "0xFF"), (None, "  "), (None, '{"id": "no"}')]
    assert found[5] == (None, '{"id": 1}{"id": 2}')

    (tmp_path / "text").mkdir()
    put(tmp_path / "text", "1", bodies[:2])
    archived(spark, tmp_path / "text", "string")
    assert sorted(row.body for row in spark.read.parquet(str(tmp_path / "text" / "out")).collect()) == [
        '{"id": 1, "name": "a"}',
        "�",
    ]


def test_the_file_systems_of_hadoop_publish_the_same(spark: SparkSession, tmp_path: Path) -> None:
    files = HadoopFiles(f"file://{tmp_path}/out", spark)
    batch = Batch("0a1b2c3d-4e5f-6789-abcd-ef0123456789", 0)

    def write(uri: str) -> Written:
        spark.range(10).selectExpr("id", "id % 2 as hour").write.partitionBy("hour").parquet(uri)
        return Written(10, 0)

    assert files.walk("_batches") == []
    assert files.read("_batches/none") is None
    assert publish(files, batch, write).files >= 2
    assert publish(files, batch, lambda uri: pytest.fail("written again")).rows == 10
    assert spark.read.parquet(f"{tmp_path}/out").count() == 10
    files.move([("gone", "hour=0/gone")])
    files.write("note", "ä")
    files.write("note", "ö")
    assert files.read("note") == "ö"
    assert files.walk("hour=0") == [
        path.relative_to(tmp_path / "out").as_posix()
        for path in sorted((tmp_path / "out/hour=0").glob("[!.]*"))
    ]
    files.delete("hour=0")
    assert not (tmp_path / "out/hour=0").exists()


# metrics


def test_windows_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "1", [b'{"k": "a"}', b'{"k": "b"}', b'{"k": "a"}', b"?"] * 5)
    put(tmp_path, "2", [b'{"k": "c"}'], first=15, attempts=3)
    seen: list[Window] = []
    heard: list[Progress] = []
    result = collect_windows(
        measured(stream(spark, tmp_path), "10 seconds", "1 minute", "$.k", 2),
        None,
        running(tmp_path, mode="update", progress=heard.append),
        seen.extend,
    )
    first, second = result.windows
    assert (first.start, first.end) == (START, START + datetime.timedelta(seconds=10))
    assert (first.messages, second.messages, result.rows, heard[-1].rows) == (10, 11, 21, 21)
    assert (second.attempts_max, second.redelivered, first.redelivered) == (3, 1, 0)
    assert first.top == (("a", 5), ("b", 3))
    assert 0 < first.latency_p50 <= first.latency_p95 <= first.latency_p99
    assert result.bytes == 15 * 10 + 5 + 10
    assert len(seen) == 3


def test_old_messages_after_new_ones_are_counted_and_kept(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "1", numbered(10), first=1000)
    put(tmp_path, "2", numbered(10), first=1000, attempts=2)  # delivered again
    put(tmp_path, "3", numbered(10))

    result = collect_windows(
        measured(stream(spark, tmp_path), "10 seconds", None, None, 10),
        None,
        running(tmp_path, mode="update"),
    )
    assert [window.messages for window in result.windows] == [10, 20]

    distinct = rows.dedup(stream(spark, tmp_path), "10 seconds").select("topic", "body", "timestamp_ns")
    query = distinct.writeStream.format("memory").queryName("distinct").trigger(availableNow=True)
    query.start().awaitTermination(PATIENCE)
    found = spark.table("distinct").collect()
    assert len(found) == len({row.timestamp_ns for row in found}) == 20


def test_closed_windows_are_written_once(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "1", numbered(10))
    put(tmp_path, "2", numbered(10), first=10)
    put(tmp_path, "3", numbered(5), first=40)

    def run() -> tuple[Window, ...]:
        # Batches of several files come in the order of their times.
        rows = measured(stream(spark, tmp_path), "10 seconds", "1 second", None, 10)
        return collect_windows(rows, str(tmp_path / "out"), running(tmp_path, mode="append")).windows

    assert [window.messages for window in run()] == [10, 10]
    put(tmp_path, "4", numbered(5), first=80)
    assert [window.messages for window in run()] == [5]
    written = spark.read.parquet(str(tmp_path / "out")).orderBy("start").collect()
    assert [row.messages for row in written] == [10, 10, 5]


# replay


def test_a_dry_run_counts_the_messages_that_would_be_published(spark: SparkSession, archive: Path) -> None:
    every = replay(archive, "again", dry_run=True, spark=spark)
    assert (every.rows, every.bytes, every.first) == (20, 80, START)
    some = replay(archive, "again", since="2026-03-01T07:00", until="2026-03-01T07:00:05",
                  where="body > X'30303132'", dry_run=True, spark=spark)  # fmt: skip
    assert (some.rows, some.bytes) == (2, 8)
    none = replay(archive, "again", since="2027-01-01", dry_run=True, spark=spark)
    assert (none.rows, none.first, none.complete) == (0, None, True)


def test_a_replay_follows_the_timestamps_from_any_place_on(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "1", numbered(20, 20), first=20)
    put(tmp_path, "2", numbered(20))
    put(tmp_path, "3", numbered(2, 9), first=9)  # delivered again
    archived(spark, tmp_path)
    frame = selected(spark, tmp_path / "out")
    every = list(entries(frame, Mark()))
    wanted = sorted(numbered(40) + numbered(2, 9))
    assert [entry.body for entry in every] == wanted
    place = Mark()
    for done, entry in enumerate(every[:15]):
        assert [each.body for each in remaining(every, place)] == wanted[done:]
        if place.at and entry.position == place.at:
            counted = _counted(frame, place)  # one of two is done
            assert (counted.rows, counted.bytes, counted.before) == (
                len(wanted) - done,
                4 * (len(wanted) - done),
                done,
            )
        place = place.after(entry.position, len(entry.body))
    assert [each.body for each in remaining(entries(frame, place), place)] == wanted[15:]


def test_an_archive_of_json_is_replayed_with_fields_that_its_schema_did_not_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    bodies = [b'{"id":1}', b'{"id": 2, "more": {"x": [1]}, "Id": 3}', b"no JSON", b'{"id": "none"}']
    put(tmp_path, "1", bodies)
    archived(spark, tmp_path, "json", "id bigint")
    replayed = entries(selected(spark, tmp_path / "out"), Mark())
    assert [entry.body for entry in replayed] == [
        bodies[0], b'{"more": {"x": [1]}, "Id": 3, "id": 2}', *bodies[2:]
    ]  # fmt: skip
    chosen = selected(spark, tmp_path / "out", body="to_json(body)")
    assert [entry.body for entry in entries(chosen, Mark())] == [b'{"id":1}', b'{"id":2}']


def test_an_archive_of_json_gets_more_fields_and_is_replayed_completely(
    spark: SparkSession, tmp_path: Path
) -> None:
    bodies = [b'{"id":1,"in":{"a":1}}', b'{"id":2,"in":{"a":2,"b":"x"},"name":"n"}']
    put(tmp_path, "1", bodies[:1])
    archived(spark, tmp_path, "json", "id bigint, in struct<a: int>")
    put(tmp_path, "2", bodies[1:], first=1)
    archived(spark, tmp_path, "json", "name string, in struct<b: string>")
    put(tmp_path, "3", [b'{"id":3}'], first=2)
    archived(spark, tmp_path, "json", "id bigint")  # an older program does not take fields away

    replayed = entries(selected(spark, tmp_path / "out"), Mark())
    assert [entry.body for entry in replayed] == [*bodies, b'{"id":3}']


def test_an_archive_refuses_what_would_make_it_unreadable(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "1", [b'{"id": 1}'])
    archived(spark, tmp_path, "json", "id bigint, in struct<a: int>, list array<int>")
    for body, schema, error in [
        ("json", "id string", r"body\.id is stored as bigint, not string"),
        ("json", "in struct<a: string>", r"body\.in\.a is stored as int, not string"),
        ("json", "list array<string>", r"body\.list is stored as int, not string"),
        ("json", "ID bigint", r"body\.ID is stored as id"),
        ("binary", None, "stores bodies as json, not binary"),
    ]:
        with pytest.raises(UsageError, match=error):
            archived(spark, tmp_path, body, schema)
        (tmp_path / "out" / "_schema.json").unlink(missing_ok=True)  # as before there was such a file


def test_replay_says_why_a_folder_cannot_be_replayed(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "1", [b'{"id": 1}'])
    archived(spark, tmp_path, "json", "id bigint")
    with pytest.raises(UsageError, match="body is bigint, not bytes or text"):
        replay(tmp_path / "out", "again", dry_run=True, spark=spark, body="body.id")
    assert replay(tmp_path / "out", "again", dry_run=True, spark=spark, body="to_json(body)").bytes == len(
        '{"id":1}'
    )
    with pytest.raises(UsageError, match="no column date"):
        replay(tmp_path / "in", "again", dry_run=True, spark=spark)
    (tmp_path / "empty").mkdir()
    for place, problem in (("empty", "empty holds no Parquet file"), ("absent", "there is no archive at")):
        with pytest.raises(UsageError, match=problem):
            replay(tmp_path / place, "again", dry_run=True, spark=spark)
