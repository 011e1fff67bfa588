"""Messages that a task of the sink publishes, as nsqd gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from nsq.errors import NsqError, PublishFailed
from nsq.spark.options import SinkOptions
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory

from ..consuming import numbered
from .receivers import depth, take_all

pytest.importorskip("pyspark")

from nsq.spark.sink import Columns, TaskReport, publish_rows

pa: Any = pytest.importorskip("pyarrow")

QUICK = {"reconnectInitial": "10ms", "reconnectMax": "100ms"}


def batch(values: Sequence[bytes]) -> Any:
    return pa.record_batch([pa.array(values, pa.binary())], names=["column0"])


def run(batches: Iterable[Any], **options: str) -> TaskReport:
    columns = Columns(body=0, topic=None, defer=None)
    return publish_rows(SinkOptions.of({"topic": "orders", **QUICK, **options}), columns, batches)


def test_no_rows_need_no_nsqd() -> None:
    assert run([], nsqd="127.0.0.1:1") == TaskReport(0, 0)


def test_nsqds_are_found_and_another_one_takes_over(
    nsqd_factory: Factory[Nsqd], nsqlookupd: Nsqlookupd
) -> None:
    gone, there = nsqd_factory(lookupd=[nsqlookupd]), nsqd_factory()
    addresses = f"{gone.tcp_address},{there.tcp_address}"
    gone.stop()

    assert run([batch(numbered(700))], nsqd=addresses).messages == 700

    assert take_all(there, "orders") == Counter(numbered(700))


def test_nsqds_are_found_through_nsqlookupd(nsqd_factory: Factory[Nsqd], nsqlookupd: Nsqlookupd) -> None:
    nsqd = nsqd_factory(lookupd=[nsqlookupd], broadcast_address="127.0.0.1")

    run([batch(numbered(10))], lookupd=nsqlookupd.http_address)

    assert depth(nsqd, "orders") == 10


def test_an_nsqd_that_restarts_meanwhile_loses_nothing(nsqd: Nsqd) -> None:
    def rows() -> Iterator[Any]:
        yield batch(numbered(1000, "before"))
        nsqd.restart()
        yield batch(numbered(1000, "after"))

    outcome = run(rows(), nsqd=nsqd.tcp_address, mpubMessages="50", retries="10")

    assert outcome.messages == 2000
    found = take_all(nsqd, "orders")
    assert set(found) == {*numbered(1000, "before"), *numbered(1000, "after")}


def test_an_nsqd_that_cannot_be_reached_is_an_error_after_the_timeout() -> None:
    with pytest.raises(PublishFailed, match=r"127\.0\.0\.1:1"):
        run([batch(numbered(1))], nsqd="127.0.0.1:1", timeout="500ms", retries="1")


def test_a_row_beyond_nsqds_own_limit_fails(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(max_msg_size=1000)

    with pytest.raises(NsqError, match="E_BAD_MESSAGE"):
        run([batch([b"x" * 1001])], nsqd=nsqd.tcp_address)
