from __future__ import annotations

from typing import Any

import pytest

from nsq.errors import InvalidMessage, InvalidName
from nsq.spark.options import SinkOptions

pytest.importorskip("pyspark")

from nsq.spark import sink
from nsq.spark.sink import Columns, Rows

pa: Any = pytest.importorskip("pyarrow")

BODY = Columns(body=0, topic=None, defer=None)
BODY_TOPIC = Columns(body=0, topic=1, defer=None)
BODY_DEFER = Columns(body=0, topic=None, defer=1)


def batch(bodies: list[Any], *others: Any, kind: Any = None) -> Any:
    arrays = [pa.array(bodies, kind or pa.binary()), *others]
    return pa.record_batch(arrays, names=[f"column{place}" for place in range(len(arrays))])


def read(batch: Any, columns: Columns = BODY, topic: str = "orders") -> list[Rows]:
    options = SinkOptions.of({"nsqd": "a:4150", "topic": topic, "maxMsgSize": "100"})
    return list(sink.read(batch, columns, options))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_bodies_of_any_accepted_type_become_bytes(kind: Any) -> None:
    texts = ["one", "zwölf", "3"]
    values = texts if kind in (pa.string(), pa.large_string()) else [text.encode() for text in texts]

    assert read(batch(values, kind=kind)) == [Rows("orders", [b"one", "zwölf".encode(), b"3"], None)]


def test_a_part_of_a_batch_is_that_part() -> None:
    part = batch([b"%d" % number for number in range(10)]).slice(3, 4)

    assert read(part)[0].bodies == [b"3", b"4", b"5", b"6"]


def test_a_batch_without_rows_has_no_messages() -> None:
    assert read(batch([])) == []


def test_rows_go_where_their_topic_says() -> None:
    topics = pa.array(["a", "b", "a", "c"])

    found = read(batch([b"1", b"2", b"3", b"4"], topics), BODY_TOPIC, topic="")

    assert found == [Rows("a", [b"1", b"3"], None), Rows("b", [b"2"], None), Rows("c", [b"4"], None)]


def test_delays_are_seconds_and_null_is_now() -> None:
    (found,) = read(batch([b"1", b"2", b"3"], pa.array([1500, None, 0])), BODY_DEFER)

    assert found.delays == [1.5, 0.0, 0.0]


@pytest.mark.parametrize("values", [[None, None], [0, None]])
def test_a_column_of_zero_delays_means_no_delay(values: list[int | None]) -> None:
    (found,) = read(batch([b"1", b"2"], pa.array(values, pa.int64())), BODY_DEFER)

    assert found.delays is None


def test_delays_stay_with_their_topic() -> None:
    columns = Columns(body=0, topic=1, defer=2)
    rows = batch([b"1", b"2", b"3"], pa.array(["a", "b", "a"]), pa.array([1000, 2000, 3000]))

    assert read(rows, columns, topic="") == [
        Rows("a", [b"1", b"3"], [1.0, 3.0]),
        Rows("b", [b"2"], [2.0]),
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"x" * 101, "a row for topic 'b' has a body of 101 bytes, must have 1 to 100"),
        (b"", "a row for topic 'b' has a body of 0 bytes"),
        (None, "a row for topic 'b' has a body that is null"),
    ],
)
def test_an_invalid_body_is_an_error_before_anything_is_published(body: bytes | None, words: str) -> None:
    rows = batch([b"good", body, b"good"], pa.array(["a", "b", "a"]))

    with pytest.raises(InvalidMessage, match=words):
        read(rows, BODY_TOPIC, topic="")


def test_a_column_of_nulls_is_an_error() -> None:
    with pytest.raises(InvalidMessage, match="topic 'orders' has a body that is null"):
        read(batch([None]))


@pytest.mark.parametrize("delay", [-1, 3_600_001])
def test_a_delay_that_nsqd_refuses_is_an_error(delay: int) -> None:
    with pytest.raises(InvalidMessage, match=f"a row has {delay} in column deferMs"):
        read(batch([b"1", b"2"], pa.array([0, delay])), BODY_DEFER)


def test_a_topic_that_is_null_or_invalid_is_an_error() -> None:
    with pytest.raises(InvalidMessage, match="null in column topic"):
        read(batch([b"1", b"2"], pa.array(["a", None])), BODY_TOPIC, topic="")
    with pytest.raises(InvalidName, match="no topic"):
        read(batch([b"1", b"2"], pa.array(["a", "no topic"])), BODY_TOPIC, topic="")
