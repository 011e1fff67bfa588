"""A log in moto's S3, which loses replies."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from nsq.errors import ConfigError, WalError
from nsq.findings import OK
from nsq.spark import doctor
from nsq.spark.wal import open_wal
from nsq.spark.wal.objects import Bucket, Objects, create
from nsq.spark.wal.records import stored
from tests.fakes import s3 as fake
from tests.fakes.forks import in_child
from tests.fakes.s3 import S3
from tests.fakes.store_contract import StoreContract
from tests.integration.patience import eventually


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with fake.running() as server:
        Bucket(server.uri("first")).list_after("")  # obstore keeps the descriptors of its first use
        yield server


@pytest.fixture(autouse=True)
def well_again(s3: S3) -> Iterator[None]:
    yield
    s3.control(delay=0, errors=0, lost=0, conflicts=0, ignore=0)


class TestBucket(StoreContract):
    @pytest.fixture
    def store(self, s3: S3, request: pytest.FixtureRequest) -> Objects:
        return Bucket(s3.uri(request.node.name))


def test_a_conditional_put_has_one_winner(s3: S3) -> None:
    bucket = Bucket(s3.uri("races"))
    s3.control(conflicts=0.2)
    for number in range(5):
        won: list[int] = []

        def race(me: int, name: str = f"{number}", won: list[int] = won) -> None:
            try:
                create(bucket, name, b"%d" % me)
                won.append(me)
            except WalError:
                pass

        threads = [threading.Thread(target=race, args=(me,)) for me in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = bucket.get(f"{number}")
        assert found is not None
        assert won == [int(found.data)]


def test_named_segments_survive_errors_and_lost_replies(s3: S3) -> None:
    wal = open_wal(s3.uri("unreliable"))
    wal.prepare()
    log = wal.log("one")
    s3.control(errors=0.15, lost=0.15, conflicts=0.1)
    named: list[int] = []

    def put(first: int) -> None:
        for number in range(first, first + 10):
            batch = stored("t", [b"%016d" % number], [number], [1], ["h:4150"], [b"%d" % number])
            log.put(batch, lambda number=number: named.append(number))  # type: ignore[misc]

    threads = [threading.Thread(target=put, args=(10 * number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: len(named), lambda count: count == 30, 120.0)
    s3.control(errors=0, lost=0, conflicts=0)
    log.close()
    reader = open_wal(s3.uri("unreliable"))
    bodies = [body for segment in reader.segments() for body in reader.read(segment)["body"].to_pylist()]
    assert sorted(map(int, bodies)) == list(range(30)) == sorted(named)
    assert [each.alive for each in reader.receivers()] == [False]


def test_a_store_that_ignores_conditions_is_refused(s3: S3) -> None:
    assert doctor.check_wal(s3.uri("ignoring")).level == OK
    s3.control(ignore=1)
    assert "ignores If-None-Match" in doctor.check_wal(s3.uri("ignoring")).found
    with pytest.raises(WalError, match="ignores If-None-Match and If-Match"):
        open_wal(s3.uri("ignoring")).prepare()


def test_an_error_names_the_object_and_no_secret(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    bucket = Bucket("s3://nosuch/log?endpoint=" + s3.endpoint)
    with pytest.raises(WalError) as caught:
        bucket.put_new("a", b"")
    assert str(caught.value).startswith("s3://nosuch/log: the bucket does not exist")
    for call in (lambda: bucket.get("a"), lambda: bucket.list_after(""), lambda: bucket.delete_many(["a"])):
        with pytest.raises(WalError, match="the bucket does not exist"):
            call()
    with pytest.raises(ConfigError) as refused:
        Bucket("s3://key:hush-hush@bucket/log")
    assert "hush" not in str(refused.value)


def test_a_forked_child_is_refused_instead_of_hanging(s3: S3) -> None:
    bucket = Bucket(s3.uri("forked"))
    bucket.put_new("a", b"1")

    def child() -> None:
        with pytest.raises(WalError, match="was forked"):
            bucket.get("a")

    assert in_child(child) == 0
    assert bucket.get("a") is not None
