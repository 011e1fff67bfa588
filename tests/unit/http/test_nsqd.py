from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from nsq.errors import ApiError, InvalidMessage, InvalidName
from nsq.http.calls import Call
from nsq.http.message import HttpReply, HttpRequest, Url
from nsq.http.nsqd import NsqdApi
from nsq.wire.commands import Limits, unpack_bodies


class Calls(NsqdApi):
    """Gives the call itself, not its answer."""

    def _ask(self, method: str, url: Url, parse: Any, body: bytes = b"") -> Any:
        return Call(HttpRequest(url, method, self._headers, body), parse)


calls: Any = Calls("nsqd.example")

CHANNEL = {
    "channel_name": "archive",
    "depth": 1,
    "backend_depth": 0,
    "in_flight_count": 0,
    "deferred_count": 0,
    "message_count": 1,
    "requeue_count": 0,
    "timeout_count": 0,
    "paused": False,
    "clients": None,
}
TOPIC = {
    "topic_name": "orders",
    "channels": [CHANNEL],
    "depth": 0,
    "backend_depth": 0,
    "message_count": 1,
    "paused": False,
}
STATS = {"version": "1.3.0", "health": "OK", "topics": [TOPIC], "producers": None}


def sent(call: Call[Any]) -> tuple[str, str]:
    return call.request.method, call.request.url.target


def answer(call: Call[Any], value: object, content_type: str = "application/json; charset=utf-8") -> Any:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return call.answer(HttpReply(200, {"content-type": content_type}, body))


@pytest.mark.parametrize(
    ("call", "request_line"),
    [
        (calls.stats(), ("GET", "/stats?format=json&include_clients=true&include_mem=false")),
        (
            calls.stats("t", "c", include_clients=False, include_mem=True),
            ("GET", "/stats?format=json&topic=t&channel=c&include_clients=false&include_mem=true"),
        ),
        (calls.peek("t"), ("GET", "/topic/peek?topic=t&n=10")),
        (calls.peek("t", "c", n=3), ("GET", "/channel/peek?topic=t&channel=c&n=3")),
        (calls.publish("t", b"x"), ("POST", "/pub?topic=t")),
        (calls.publish("t", b"x", defer=1.5), ("POST", "/pub?topic=t&defer=1500")),
        (calls.publish("t", b"x", defer=0.0016), ("POST", "/pub?topic=t&defer=2")),
        (calls.create_topic("t#ephemeral"), ("POST", "/topic/create?topic=t%23ephemeral")),
        (calls.get_config("a/b?c"), ("GET", "/config/a%2Fb%3Fc")),
    ],
)
def test_arguments_go_into_the_request_line(call: Call[Any], request_line: tuple[str, str]) -> None:
    assert sent(call) == request_line
    assert call.request.headers["Accept"] == "application/vnd.nsq; version=1.0"


class TestPublishing:
    def test_bodies_of_an_mpub_are_packed(self) -> None:
        packed = calls.multi_publish("t", iter([b"a\nb", b"\0"])).request.body
        assert unpack_bodies(packed, Limits(max_msg_size=100, max_body_size=1000)) == [b"a\nb", b"\0"]

    @pytest.mark.parametrize("defer", [-1.0, math.inf, math.nan])
    def test_an_impossible_delay_is_refused(self, defer: float) -> None:
        with pytest.raises(InvalidMessage, match="deferred"):
            calls.publish("t", b"x", defer=defer)

    @pytest.mark.parametrize("body", [b"", "text", bytearray(b"x"), None])
    def test_an_invalid_message_is_refused(self, body: Any) -> None:
        with pytest.raises(InvalidMessage):
            calls.publish("t", body)
        with pytest.raises(InvalidMessage):
            calls.multi_publish("t", [b"x", body])

    def test_an_mpub_without_messages_is_refused(self) -> None:
        with pytest.raises(InvalidMessage, match="no message"):
            calls.multi_publish("t", [])

    @pytest.mark.parametrize(
        "make",
        [
            lambda: calls.publish("b@d", b"x"),
            lambda: calls.multi_publish("b@d", [b"x"]),
            lambda: calls.create_topic("b@d"),
            lambda: calls.create_channel("t", "b@d"),
        ],
    )
    def test_names_that_nsqd_would_refuse(self, make: Callable[[], object]) -> None:
        with pytest.raises(InvalidName):
            make()

    def test_a_topic_with_an_invalid_name_can_be_deleted(self) -> None:
        assert sent(calls.delete_topic("b@d")) == ("POST", "/topic/delete?topic=b%40d")


class TestInfo:
    TOLD: ClassVar = {
        "version": "1.3.0",
        "broadcast_address": "b",
        "hostname": "h",
        "http_port": 4151,
        "tcp_port": 4150,
    }

    def test_times_are_seconds(self) -> None:
        given = self.TOLD | {
            "max_heartbeat_interval": 60_000_000_000,
            "max_output_buffer_timeout": 25_000_000,
        }
        info = answer(calls.info(), given)
        assert (info.max_heartbeat_interval, info.max_output_buffer_timeout) == (60.0, 0.025)
        assert (info.version, info.broadcast_address, info.tcp_port) == ("1.3.0", "b", 4150)


class TestStats:
    def test_null_lists_are_empty(self) -> None:
        stats = answer(calls.stats(), STATS)
        assert stats["producers"] == []
        assert stats["topics"][0]["channels"][0]["clients"] == []
        assert answer(calls.stats(), STATS | {"topics": None})["topics"] == []


class TestSettings:
    def test_a_setting_may_be_text_or_json(self) -> None:
        call = calls.get_config("x")
        assert answer(call, b"5", "text/plain; charset=utf-8") == "5"
        assert answer(call, b"5") == 5
        assert answer(call, ["a:1"]) == ["a:1"]
        with pytest.raises(ApiError, match="not text"):
            answer(call, b"\xff", "text/plain")


PEEKED = {
    "id": "0123456789abcdef",
    "timestamp": 1_700_000_000_000_000_000,
    "age_ms": 1500,
    "attempts": 1,
    "size": 6,
    "truncated": False,
    "encoding": "utf-8",
    "body": "zwölf",
}


def test_messages_that_wait_are_decoded() -> None:
    given = {"messages": [PEEKED, {**PEEKED, "encoding": "base64", "body": "/wA=", "truncated": True}]}
    text, binary = answer(calls.peek("t"), given)
    assert (text.body, text.age, text.id, text.truncated) == ("zwölf".encode(), 1.5, PEEKED["id"], False)
    assert (binary.body, binary.size, binary.attempts, binary.truncated) == (b"\xff\x00", 6, 1, True)
    (half,) = answer(calls.peek("t"), {"messages": [{**PEEKED, "body": "\ud800"}]})
    assert half.body == b"?"
    wrong = [{"messages": [{**PEEKED, **odd}]} for odd in ({"encoding": "base64"}, {"size": "6"})]
    for given in ({}, *wrong):
        with pytest.raises(ApiError):
            answer(calls.peek("t"), given)
