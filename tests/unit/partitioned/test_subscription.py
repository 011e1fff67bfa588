"""What a consumer asks a partitioned NSQ for, and which topics it refuses to read."""

from __future__ import annotations

import datetime
import logging
from typing import Any

import pytest

from nsq.errors import ConfigError, InvalidMessage, OrderIsMust
from nsq.partitioned.messages import DetailedMessage, PartitionedMessage
from nsq.partitioned.subscription import PartitionSubscription, Reading, mismatch
from nsq.partitioned.table import TopicTable
from nsq.partitioned.wire import Meta
from tests.fakes.messages import Delegate, payload

NOON = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)


def subscription(extended: bool = False, **options: Any) -> PartitionSubscription:
    return PartitionSubscription("orders", "billing", 3, extended, Reading.checked(**options))


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({}, b"SUB orders billing 3\n"),
        ({"ordered": True}, b"SUB_ORDERED orders billing 3\n"),
        ({"ordered": True, "trace": True}, b"SUB_ORDERED orders billing 3\n"),
        ({"trace": True}, b"SUB_ADVANCED orders billing 3\n"),
        ({"start": "end"}, b"SUB_ADVANCED orders billing 3 special:-1\n"),
        ({"start": "offset:4096"}, b"SUB_ADVANCED orders billing 3 virtual_queue:4096\n"),
        ({"start": "count:10"}, b"SUB_ADVANCED orders billing 3 msgcount:10\n"),
        ({"start": NOON}, b"SUB_ADVANCED orders billing 3 timestamp:1795176000\n"),
    ],
)
def test_the_options_decide_how_to_subscribe(options: dict[str, Any], command: bytes) -> None:
    assert subscription(**options).command() == command


def test_a_position_is_given_once_else_a_reconnect_would_begin_there_again() -> None:
    first = subscription(start="end")
    assert first.command() == b"SUB_ADVANCED orders billing 3 special:-1\n"
    first.started.add(3)
    assert first.command() == b"SUB_ADVANCED orders billing 3\n"


@pytest.mark.parametrize(
    ("extended", "options", "fields"),
    [
        (False, {}, {}),
        (True, {}, {"extend_support": True}),
        (True, {"desired_tag": "green"}, {"extend_support": True, "desired_tag": "green"}),
        (
            True,
            {"header_filter": {"k": "yes"}},
            {
                "extend_support": True,
                "ext_filter": {
                    "type": 1,
                    "inverse": False,
                    "filter_ext_key": "k",
                    "filter_data": "yes",
                },
            },
        ),
    ],
)
def test_headers_are_asked_for_where_the_topic_has_them(
    extended: bool, options: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert subscription(extended, **options).identify == fields


@pytest.mark.parametrize(
    ("extended", "options", "detail", "kind"),
    [
        (False, {}, None, PartitionedMessage),
        (True, {}, None, DetailedMessage),
        (False, {"ordered": True}, (128, 64), DetailedMessage),
        (True, {"trace": True}, (128, 64), DetailedMessage),
    ],
)
def test_messages_are_read_as_the_subscription_brings_them(
    extended: bool, options: dict[str, Any], detail: tuple[int, int] | None, kind: type
) -> None:
    data = payload(b"body", header=b'{"k":"v"}' if extended else None, detail=detail)
    conn: Any = Delegate()
    message = subscription(extended, **options).reader(conn, 1.0, 61.0)(17, 1, bytes(16), data)
    assert type(message) is kind
    assert message.body == b"body"
    assert (message.offset, message.size) == (detail or (None, None))
    assert message.headers == ({"k": "v"} if extended else None)


def test_deliveries_are_traced_while_that_is_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsq.trace")
    switches = iter((False, True, False))
    subscribed = PartitionSubscription("orders", "billing", 3, traced=lambda: next(switches))
    conn: Any = Delegate()
    conn.local_ip = "10.0.0.9"
    for _ in range(3):
        subscribed.reader(conn, 1.0, 61.0)(17, 1, bytes(16), b"body")
    [record] = caplog.records
    assert (record.nsq_trace["channel"], record.nsq_trace["local_ip"]) == ("billing", "10.0.0.9")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ordered": 1}, "ordered is 1"),
        ({"trace": "yes"}, "trace is 'yes'"),
        ({"ordered": True, "start": "end"}, "start is given with ordered=True"),
        ({"partitions": []}, r"partitions is \[\]"),
        ({"partitions": "123"}, "partitions is '123'"),
        ({"partitions": 3}, "partitions is 3"),
        ({"partitions": [-1]}, "partition is -1"),
        ({"partitions": ["0"]}, "partition is '0'"),
        ({"partitions": [1024]}, "partition is 1024"),
        ({"start": "begin"}, "start is 'begin'"),
        ({"start": "offset:x"}, "start is 'offset:x'"),
        ({"start": "offset:-1"}, "start is 'offset:-1'"),
        ({"start": f"offset:{2**63}"}, "start is 'offset"),
        ({"start": NOON.replace(tzinfo=None)}, "aware datetime"),
        ({"start": 5}, "start is 5"),
        ({"desired_tag": ""}, "tag is ''"),
        ({"desired_tag": "x" * 101}, "tag is 'xxx"),
        ({"header_filter": {}}, "header_filter is {}"),
        ({"header_filter": {"a": "1", "b": "2"}}, "one header"),
        ({"header_filter": {"a": 1}}, "one header"),
        ({"header_filter": "a=1"}, "one header"),
    ],
)
def test_a_bad_option_is_refused_by_name(options: dict[str, Any], reason: str) -> None:
    with pytest.raises((ConfigError, InvalidMessage), match=reason):
        Reading.checked(**options)


def table(
    *nodes: str, partitions: int = 4, ordered: bool = False, extended: bool = False, meta: bool = True
) -> TopicTable:
    settings = Meta(partitions, 1, ordered=ordered, extended=extended)
    return TopicTable("orders", settings if meta else None, dict(enumerate(nodes)), known=True)


FOUR = ("a:1", "b:1", "c:1", "d:1")


@pytest.mark.parametrize(
    ("topic", "options", "kind", "reason"),
    [
        (table(*FOUR, ordered=True), {}, OrderIsMust, "give the consumer ordered=True"),
        (table(*FOUR), {"ordered": True}, ConfigError, "ordered=True is given, but topic orders is not"),
        (table(*FOUR), {"partitions": [3, 4]}, ConfigError, "partitions has 4, but .* 0 to 3"),
        (table(*FOUR), {"desired_tag": "green"}, ConfigError, "desired_tag is given, but"),
        (table(*FOUR), {"header_filter": {"k": "v"}}, ConfigError, "header_filter is given, but"),
        (table("a:1", "b:1", "a:1"), {"start": "end"}, ConfigError, "a:1 has several partitions"),
    ],
)
def test_a_topic_that_cannot_be_read_like_this_is_refused(
    topic: TopicTable, options: dict[str, Any], kind: type[Exception], reason: str
) -> None:
    problem = mismatch(topic, Reading.checked(**options))
    assert type(problem) is kind
    with pytest.raises(kind, match=reason):
        raise problem


@pytest.mark.parametrize(
    ("topic", "options"),
    [
        (table(*FOUR), {}),
        (table(*FOUR, ordered=True), {"ordered": True, "partitions": [0, 3]}),
        (table(*FOUR, extended=True), {"desired_tag": "green", "header_filter": {"k": "v"}}),
        (table(*FOUR), {"start": "end", "trace": True}),
        (table("a:1", meta=False), {"ordered": True}),  # its settings are not known
    ],
)
def test_a_topic_that_can_be_read_is_not_refused(topic: TopicTable, options: dict[str, Any]) -> None:
    assert mismatch(topic, Reading.checked(**options)) is None
