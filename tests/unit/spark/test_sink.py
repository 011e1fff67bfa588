"""The sink: columns, rows, publishes, and what its writers say; tests/spark/test_sink.py has Spark write."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from nsq.errors import (
    BadTopic,
    ConfigError,
    InvalidMessage,
    InvalidName,
    NsqError,
    PublishFailed,
    PublishUncertain,
    UsageError,
)
from nsq.spark import sink
from nsq.spark.options import SinkOptions
from nsq.spark.rows import TYPES
from nsq.spark.sink import BatchWriter, Columns, Pipeline, Rows, Single, StreamWriter, TaskReport

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def schema() -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField("body", StringType())])


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="nsq.spark")
    return caplog


def test_a_commit_says_what_was_published(logged: pytest.LogCaptureFixture) -> None:
    writer = StreamWriter({"nsqd": "a:4150", "topic": "orders"}, schema(), False)
    writer.commit([TaskReport(100, 2000), TaskReport(0, 0)], 7)
    assert "batch 7: 100 messages, 2000 bytes published by 2 tasks" in logged.text


def test_an_abort_says_what_stays_published(logged: pytest.LogCaptureFixture) -> None:
    options = {"nsqd": "a:4150", "topic": "orders"}

    StreamWriter(options, schema(), False).abort([TaskReport(100, 2000), None, TaskReport(100, 2000)], 7)
    BatchWriter(options, schema(), False).abort([None])
    assert "batch 7 failed: 2 of its 3 tasks have reported their 200 messages as published" in logged.text
    assert "the write failed: 0 of its 1 tasks" in logged.text


@pytest.mark.parametrize(
    ("writer", "nsqd", "overwrite", "words"),
    [
        (StreamWriter, "a:4150", True, r'\.outputMode\("append"\)'),
        (StreamWriter, "", False, "option nsqd or lookupd is missing"),
        (BatchWriter, "a:4150", True, r'\.mode\("append"\)'),
    ],
)
def test_a_write_that_cannot_be_is_refused_in_one_line(
    writer: type[StreamWriter | BatchWriter], nsqd: str, overwrite: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        writer({"nsqd": nsqd, "topic": "orders"}, schema(), overwrite)
    assert "\n" not in str(caught.value)


OF_SOURCE = [(name, kind.partition("<")[0]) for name, kind in TYPES.items()]


@pytest.mark.parametrize(
    ("fields", "topic", "found"),
    [
        (
            [("deferMs", "long"), ("body", "binary"), ("topic", "string")],
            "",
            Columns(1, topic=2, defer=0),
        ),
        # The option comes before the column.
        ([("topic", "string"), ("body", "string")], "orders", Columns(1, None, None)),
        # Rows of the source can be published as they are.
        (OF_SOURCE, "", Columns(body=8, topic=0, defer=None, key=6, headers=7)),
        *(
            ([("Body", "string"), (name, "integer")], "orders", Columns(0, None, 1))
            for name in ("deferms", "DEFERMS", "defer_ms")
        ),
    ],
)
def test_columns_are_found_at_any_place_and_in_any_spelling(
    fields: list[tuple[str, str]], topic: str, found: Columns
) -> None:
    assert Columns.of(fields, topic) == found


@pytest.mark.parametrize(
    ("fields", "topic", "words"),
    [
        ([("value", "string")], "orders", r"no column body.*there are: value"),
        ([], "orders", "no column body"),
        ([("body", "struct")], "orders", "column body is of type struct, must be binary or string"),
        ([("body", "string")], "", "no column topic and no option topic"),
        ([("body", "string"), ("topic", "integer")], "", "column topic is of type integer, must be string"),
        ([("body", "string"), ("deferMs", "double")], "orders", "column deferMs is of type double"),
        ([("body", "string"), ("defer", "long")], "orders", "column defer is not known; did you mean"),
        ([("body", "string"), ("defer", "long"), ("BODY", "string")], "orders", "2 columns body"),
        ([("body", "string"), ("key", "long")], "orders", "column key is of type long, must be binary or"),
        ([("body", "string"), ("headers", "array")], "orders", "headers is of type array, must be map<"),
    ],
)
def test_columns_that_cannot_be_published_are_an_error_in_one_line(
    fields: list[tuple[str, str]], topic: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        Columns.of(fields, topic)
    assert "\n" not in str(raised.value)


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

    assert read(batch(values, kind=kind)) == [Rows("orders", [b"one", "zwölf".encode(), b"3"], [])]


def test_a_part_of_a_batch_is_that_part() -> None:
    part = batch([b"%d" % number for number in range(10)]).slice(3, 4)

    assert read(part)[0].bodies == [b"3", b"4", b"5", b"6"]


def test_a_batch_without_rows_has_no_messages() -> None:
    assert read(batch([])) == []


def test_rows_go_where_their_topic_says() -> None:
    topics = pa.array(["a", "b", "a", "c"])

    found = read(batch([b"1", b"2", b"3", b"4"], topics), BODY_TOPIC, topic="")

    assert found == [Rows("a", [b"1", b"3"], []), Rows("b", [b"2"], []), Rows("c", [b"4"], [])]


def test_delays_are_seconds_and_null_is_now() -> None:
    assert read(batch([b"1", b"2", b"3"], pa.array([1500, None, 0])), BODY_DEFER) == [
        Rows("orders", [b"2", b"3"], [Single(b"1", 1.5, {})])
    ]


@pytest.mark.parametrize("values", [[None, None], [0, None]])
def test_a_column_of_zero_delays_means_no_delay(values: list[int | None]) -> None:
    assert read(batch([b"1", b"2"], pa.array(values, pa.int64())), BODY_DEFER) == [
        Rows("orders", [b"1", b"2"], [])
    ]


def test_delays_stay_with_their_topic() -> None:
    columns = Columns(body=0, topic=1, defer=2)
    rows = batch([b"1", b"2", b"3"], pa.array(["a", "b", "a"]), pa.array([1000, 2000, 3000]))

    assert read(rows, columns, topic="") == [
        Rows("a", [], [Single(b"1", 1.0, {}), Single(b"3", 3.0, {})]),
        Rows("b", [], [Single(b"2", 2.0, {})]),
    ]


MAP = pa.map_(pa.string(), pa.string())


def test_rows_with_a_key_or_headers_are_published_by_themselves() -> None:
    columns = Columns(body=0, topic=None, defer=None, key=1, headers=2)
    keys = pa.array([b"a", None, None, b"b"], pa.binary())
    headers = pa.array([None, None, [], [("source", "web"), ("none", None)]], MAP)

    assert read(batch([b"1", b"2", b"3", b"4"], keys, headers), columns) == [
        Rows(
            "orders",
            [b"2"],
            [
                Single(b"1", 0.0, {"key": b"a", "headers": None}),
                Single(b"3", 0.0, {"key": None, "headers": {}}),
                Single(b"4", 0.0, {"key": b"b", "headers": {"source": "web", "none": None}}),
            ],
        )
    ]


def test_keys_and_headers_that_are_null_change_nothing() -> None:
    columns = Columns(body=0, topic=None, defer=None, key=1, headers=2)
    nulls = [pa.nulls(2, kind) for kind in (pa.binary(), MAP)]

    assert read(batch([b"1", b"2"], *nulls), columns) == [Rows("orders", [b"1", b"2"], [])]


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


Sent = tuple[str, tuple[bytes, ...], float | None]


class Nsqd:
    """Remembers what it is sent, and answers in the order of ``answers``; then with OK."""

    def __init__(self, *answers: NsqError | None, patient: bool = False) -> None:
        self.sent: list[Sent] = []
        self.futures: list[Future[None]] = []
        self._answers = list(answers)
        self._patient = patient

    def publish_async(
        self,
        topic: str,
        body: bytes,
        *,
        defer: float | None = None,
        timeout: float | None = None,
        **options: object,
    ) -> Future[None]:
        return self._take((topic, (body,), defer))

    def multi_publish_async(
        self, topic: str, bodies: Iterable[bytes], *, timeout: float | None = None
    ) -> Future[None]:
        return self._take((topic, tuple(bodies), None))

    def _take(self, sent: Sent) -> Future[None]:
        self.sent.append(sent)
        future: Future[None] = Future()
        self.futures.append(future)
        answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            future.set_exception(answer)
        elif not self._patient:
            future.set_result(None)
        return future


def pipeline(nsqd: Nsqd, *, room: int = 10, retries: int = 2) -> Pipeline:
    return Pipeline(nsqd, room=room, retries=retries, timeout=1.0)


def test_messages_are_counted_when_nsqd_has_stored_them() -> None:
    nsqd = Nsqd()
    line = pipeline(nsqd)

    line.publish("orders", [b"one", b"two"])
    line.publish("later", [b"three"], Single(b"three", 1.5, {}))
    assert (line.messages, line.bytes) == (0, 0)
    line.drain()

    assert nsqd.sent == [("orders", (b"one", b"two"), None), ("later", (b"three",), 1.5)]
    assert (line.messages, line.bytes) == (3, 11)


def test_publishes_in_flight_are_limited() -> None:
    """The third waits for the first: so that is answered when it is asked for."""
    nsqd = Nsqd(patient=True)
    line = pipeline(nsqd, room=4)
    line.publish("orders", [b"1", b"2"])
    line.publish("orders", [b"3", b"4"])
    assert line.messages == 0

    nsqd.futures[0].set_result(None)
    line.publish("orders", [b"5"])

    assert (line.messages, len(nsqd.sent)) == (2, 3)
    nsqd.futures[1].set_result(None)
    nsqd.futures[2].set_result(None)
    line.drain()
    assert line.messages == 5


def test_a_publish_larger_than_the_limit_goes_alone() -> None:
    nsqd = Nsqd()
    line = pipeline(nsqd, room=1)

    line.publish("orders", [b"1", b"2", b"3"])
    line.publish("orders", [b"4", b"5"])
    assert line.messages == 3
    line.drain()

    assert line.messages == 5


@pytest.mark.parametrize("error", [PublishFailed("no nsqd"), PublishUncertain("no answer")])
def test_a_publish_that_may_succeed_later_is_repeated(error: NsqError) -> None:
    nsqd = Nsqd(error, error)
    line = pipeline(nsqd, retries=2)

    line.publish("orders", [b"one"])
    line.drain()

    assert nsqd.sent == [("orders", (b"one",), None)] * 3
    assert line.messages == 1


def test_a_publish_is_repeated_a_limited_number_of_times() -> None:
    nsqd = Nsqd(*[PublishFailed("no nsqd is there")] * 5)
    line = pipeline(nsqd, retries=1)

    line.publish("orders", [b"one"])
    with pytest.raises(PublishFailed, match="no nsqd is there"):
        line.drain()

    assert (len(nsqd.sent), line.messages) == (2, 0)


def test_a_publish_that_cannot_succeed_is_not_repeated() -> None:
    nsqd = Nsqd(BadTopic("E_BAD_TOPIC"))
    line = pipeline(nsqd)

    line.publish("orders", [b"one"])
    with pytest.raises(BadTopic):
        line.drain()

    assert len(nsqd.sent) == 1


def test_a_key_that_nsq_does_not_take_is_named_with_its_column_and_what_to_do() -> None:
    line = pipeline(Nsqd(UsageError("key= needs a partitioned NSQ")))

    line.publish("orders", [b"one"], Single(b"one", 0.0, {"key": b"a", "headers": None}))
    with pytest.raises(InvalidMessage) as raised:
        line.drain()

    assert str(raised.value) == (
        "a row for topic 'orders' has b'a' in column key: key= needs a partitioned NSQ. "
        "To publish without: .drop('key')"
    )


def test_a_retry_takes_its_room_until_it_is_answered() -> None:
    nsqd = Nsqd(PublishFailed("not now"))
    line = pipeline(nsqd, room=2)
    line.publish("orders", [b"1", b"2"])

    line.publish("orders", [b"3"])

    assert [sent[1] for sent in nsqd.sent] == [(b"1", b"2"), (b"1", b"2"), (b"3",)]
    assert line.messages == 2
    line.drain()
    assert line.messages == 3
