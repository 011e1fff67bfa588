"""Messages that a task of the sink publishes, as nsqd gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from nsq.errors import InvalidMessage, NsqError, PublishFailed
from nsq.spark.options import SinkOptions
from nsq.testing import Nsqd, Nsqlookupd, V2Client
from nsq.testing.plugin import Factory
from nsq.wire import commands
from tests.integration.patience import eventually

pytest.importorskip("pyspark")

from nsq.spark.sink import Columns, TaskReport, publish_rows

pa: Any = pytest.importorskip("pyarrow")

BODY = Columns(body=0, topic=None, defer=None)
QUICK = {"reconnectInitial": "10ms", "reconnectMax": "100ms"}


def bodies(count: int, prefix: str = "message") -> list[bytes]:
    return [f"{prefix} {number}".encode() for number in range(count)]


def batch(values: Sequence[bytes | None], *others: Any) -> Any:
    arrays = [pa.array(values, pa.binary()), *others]
    return pa.record_batch(arrays, names=[f"column{place}" for place in range(len(arrays))])


def run(batches: Iterable[Any], columns: Columns = BODY, **options: str) -> TaskReport:
    return publish_rows(SinkOptions.of({"topic": "orders", **QUICK, **options}), columns, batches)


def depth(nsqd: Nsqd, topic: str = "orders") -> int:
    topics = nsqd.get(f"/stats?format=json&topic={topic}").json()["topics"] or []
    return sum(each["depth"] for each in topics)


def drain(nsqd: Nsqd, topic: str = "orders") -> Counter[bytes]:
    """Return all messages of the topic, which must have no channel yet."""
    count = depth(nsqd, topic)
    with V2Client(nsqd.tcp_address) as client:
        client.identify(output_buffer_timeout=25)
        client.send(commands.sub(topic, "drain"))
        client.expect_ok()
        client.send(commands.rdy(2500))
        found: Counter[bytes] = Counter()
        for _ in range(count):
            message = client.expect_message()
            client.send(commands.fin(message.id))
            found[message.body] += 1
    return found


def test_every_row_is_a_message(nsqd: Nsqd) -> None:
    published = bodies(1234)

    outcome = run(
        [batch(published[:1000]), batch([]), batch(published[1000:])],
        nsqd=nsqd.tcp_address,
        mpubMessages="100",
    )

    assert outcome == TaskReport(1234, sum(map(len, published)))
    assert drain(nsqd) == Counter(published)


def test_no_rows_need_no_nsqd() -> None:
    assert run([], nsqd="127.0.0.1:1") == TaskReport(0, 0)


def test_rows_go_to_the_topics_they_name(nsqd: Nsqd) -> None:
    rows = batch(bodies(90), pa.array(["a", "b", "c"] * 30))

    run([rows], Columns(body=0, topic=1, defer=None), nsqd=nsqd.tcp_address, topic="")

    assert [depth(nsqd, topic) for topic in "abc"] == [30, 30, 30]
    assert drain(nsqd, "b") == Counter(bodies(90)[1::3])


def test_a_row_with_a_delay_is_deferred_and_the_others_are_not(nsqd: Nsqd) -> None:
    assert nsqd.post("/topic/create?topic=orders").status == 200
    assert nsqd.post("/channel/create?topic=orders&channel=billing").status == 200
    rows = batch(bodies(4), pa.array([None, 3_600_000, 0, 600_000]))

    outcome = run([rows], Columns(body=0, topic=None, defer=1), nsqd=nsqd.tcp_address)

    assert outcome.messages == 4

    def waiting() -> tuple[int, int]:
        (topic,) = nsqd.get("/stats?format=json&topic=orders").json()["topics"]
        (channel,) = topic["channels"]
        return channel["depth"], channel["deferred_count"]

    eventually(waiting, lambda seen: seen == (2, 2))


def test_nsqds_are_found_and_another_one_takes_over(
    nsqd_factory: Factory[Nsqd], nsqlookupd: Nsqlookupd
) -> None:
    gone, there = nsqd_factory(lookupd=[nsqlookupd]), nsqd_factory()
    addresses = f"{gone.tcp_address},{there.tcp_address}"
    gone.stop()

    assert run([batch(bodies(700))], nsqd=addresses).messages == 700

    assert drain(there) == Counter(bodies(700))


def test_nsqds_are_found_through_nsqlookupd(nsqd_factory: Factory[Nsqd], nsqlookupd: Nsqlookupd) -> None:
    nsqd = nsqd_factory(lookupd=[nsqlookupd], broadcast_address="127.0.0.1")

    run([batch(bodies(10))], lookupd=nsqlookupd.http_address)

    assert depth(nsqd) == 10


def test_an_nsqd_that_restarts_meanwhile_loses_nothing(nsqd: Nsqd) -> None:
    def rows() -> Iterator[Any]:
        yield batch(bodies(1000, "before"))
        nsqd.restart()
        yield batch(bodies(1000, "after"))

    outcome = run(rows(), nsqd=nsqd.tcp_address, mpubMessages="50", retries="10")

    assert outcome.messages == 2000
    found = drain(nsqd)
    assert set(found) == {*bodies(1000, "before"), *bodies(1000, "after")}


def test_an_nsqd_that_cannot_be_reached_is_an_error_after_the_timeout() -> None:
    with pytest.raises(PublishFailed, match=r"127\.0\.0\.1:1"):
        run([batch(bodies(1))], nsqd="127.0.0.1:1", timeout="500ms", retries="1")


def test_a_row_that_is_too_large_fails_before_its_batch_is_published(nsqd: Nsqd) -> None:
    rows = batch([*bodies(999), b"x" * 2001])

    with pytest.raises(InvalidMessage, match="'orders' has a body of 2001 bytes, must have 1 to 2000"):
        run([rows], nsqd=nsqd.tcp_address, maxMsgSize="2000")

    assert depth(nsqd) == 0


def test_a_row_beyond_nsqds_own_limit_fails(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(max_msg_size=1000)

    with pytest.raises(NsqError, match="E_BAD_MESSAGE"):
        run([batch([b"x" * 1001])], nsqd=nsqd.tcp_address)
