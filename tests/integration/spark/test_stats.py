"""Format nsq_stats, read as Spark reads it, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsq.errors import ApiError, ConfigError
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory

from ..authority import Authority
from ..patience import eventually

pytest.importorskip("pyspark")

ABSENT = "127.0.0.1:1"


def read(*columns: str, **options: str) -> list[tuple[Any, ...]]:
    from pyspark.sql.types import StringType, StructField, StructType

    from nsq.spark.stats import StatsReader

    schema = StructType([StructField(name, StringType()) for name in columns])
    reader = StatsReader(options, schema)
    return sorted(row for partition in reader.partitions() for row in reader.read(partition))


def addresses(nsqd: Nsqd) -> dict[str, str]:
    return {"nsqd": nsqd.tcp_address, "nsqdHttp": nsqd.http_address}


def fill(nsqd: Nsqd, topic: str, *channels: str, messages: int = 3) -> None:
    assert nsqd.post(f"/topic/create?topic={topic}").status == 200
    for channel in channels:
        assert nsqd.post(f"/channel/create?topic={topic}&channel={channel}").status == 200
    for _ in range(messages):
        assert nsqd.post(f"/pub?topic={topic}", b"message").status == 200


def test_tls_options_verify_an_nsqd_over_https(nsqd_factory: Factory[Nsqd], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    nsqd = nsqd_factory(**authority.server_options)
    fill(nsqd, "orders", "billing")

    wanted = {"nsqd": nsqd.tcp_address, "nsqdHttp": f"https://{nsqd.https_address}"}
    trusting = {"tls": "true", "tlsCaFile": str(authority.certificate)}
    assert read("topic", "depth", **wanted, **trusting) == [("orders", 3)]
    with pytest.raises(ApiError):
        read("topic", **wanted, failFast="true")


def test_topics_and_channels_may_be_chosen(nsqd: Nsqd) -> None:
    fill(nsqd, "orders", "billing", "archive")
    fill(nsqd, "visits", "billing")

    wanted = {**addresses(nsqd), "topic": "orders"}
    assert read("topic", "channel", **wanted) == [("orders", "archive"), ("orders", "billing")]
    assert read("topic", "channel", **wanted, channel="billing") == [("orders", "billing")]


def test_stats_come_from_all_nsqds_that_an_nsqlookupd_lists(
    nsqd_factory: Factory[Nsqd], nsqlookupd: Nsqlookupd
) -> None:
    nsqds = [nsqd_factory(lookupd=[nsqlookupd], broadcast_address="127.0.0.1") for _ in range(2)]
    for nsqd in nsqds:
        fill(nsqd, "orders", "billing")
    lookupds = f"{ABSENT},{nsqlookupd.http_address}"  # one that is away hides nothing

    rows = eventually(lambda: read("nsqd", "depth", lookupd=lookupds), lambda found: len(found) == 2)

    assert rows == sorted((nsqd.tcp_address, 3) for nsqd in nsqds)


def test_an_nsqlookupd_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(ApiError, match=ABSENT):
        read("nsqd", lookupd=ABSENT)


def test_stats_are_empty_without_an_nsqd(nsqlookupd: Nsqlookupd) -> None:
    assert read("nsqd", lookupd=nsqlookupd.http_address) == []


def test_an_unknown_column_is_an_error(nsqd: Nsqd) -> None:
    with pytest.raises(ConfigError, match="no column 'lag'; there are nsqd, topic"):
        read("lag", **addresses(nsqd))
