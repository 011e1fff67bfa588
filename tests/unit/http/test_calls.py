from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NotRequired, Required, TypedDict

import pytest

from nsq.errors import ApiError, ApiRefused
from nsq.http.calls import Call, Misshapen, conform, endpoint, json_value, ok
from nsq.http.message import HttpReply, HttpRequest, parse_url, tls_port


def reply(status: int, body: object = b"", headers: Mapping[str, str] | None = None) -> HttpReply:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpReply(status, headers or {}, raw)


def a_call(
    address: str = "http://nsq.example:4151/?access_token=hunter2", parse: Any = json_value
) -> Call[Any]:
    url = endpoint(parse_url(address), "/x", {})
    return Call(HttpRequest(url, headers={"Accept": "*/*"}), parse)


def refusal(answered: HttpReply) -> ApiRefused:
    with pytest.raises(ApiRefused) as caught:
        a_call().answer(answered)
    return caught.value


class Topic(str, Enum):  # noqa: UP042 - a StrEnum has another str()
    ORDERS = "orders"


class TestEndpoint:
    @pytest.mark.parametrize(
        ("base", "path", "args", "target"),
        [
            ("h", "/stats", {}, "/stats"),
            ("h", "/stats", {"topic": "a#b c&d"}, "/stats?topic=a%23b%20c%26d"),
            ("http://h/nsq/", "/stats", {"a": "1", "b": "2"}, "/nsq/stats?a=1&b=2"),
            ("http://h/?k=v", "/stats", {"a": "1"}, "/stats?k=v&a=1"),
            ("http://h/own/path/", "", {"a": "1"}, "/own/path/?a=1"),
            ("unix:/run/x.sock", "/stats", {"a": "1"}, "/stats?a=1"),
            ("h", "/stats", {"topic": Topic.ORDERS}, "/stats?topic=orders"),
        ],
    )
    def test_an_endpoint_joins_base_path_and_arguments(
        self, base: str, path: str, args: dict[str, str], target: str
    ) -> None:
        url = parse_url(base)
        made = endpoint(url, path, args)
        assert made.target == target
        assert (made.host, made.port, made.socket_path) == (url.host, url.port, url.socket_path)


class TestAnswer:
    def test_an_answer_is_the_result_of_parse(self) -> None:
        assert a_call().answer(reply(200, [1])) == [1]

    @pytest.mark.parametrize(
        ("answered", "status", "code", "text"),
        [
            (reply(404, {"message": "TOPIC_NOT_FOUND"}), 404, "TOPIC_NOT_FOUND", "404 TOPIC_NOT_FOUND"),
            (
                reply(500, {"status_code": 500, "status_txt": "MISSING_ARG_TOPIC", "data": None}),
                500,
                "MISSING_ARG_TOPIC",
                "500 MISSING_ARG_TOPIC",
            ),
            (reply(500, b"NOK - disk full\n"), 500, "", "500 'NOK - disk full'"),
            (reply(502), 502, "", "502 an empty body"),
            (reply(400, ["x"]), 400, "", """400 '["x"]'"""),
            (reply(400, {"message": 3}), 400, "", """400 '{"message": 3}'"""),
            (
                reply(301, b"", {"location": "http://x/?secret"}),
                301,
                "",
                "301: a redirect, which is not followed",
            ),
        ],
    )
    def test_an_error_status_is_a_refusal(
        self, answered: HttpReply, status: int, code: str, text: str
    ) -> None:
        refused = refusal(answered)
        assert (refused.status, refused.code) == (status, code)
        assert str(refused) == f"http://nsq.example:4151/x answered {text}"

    @pytest.mark.parametrize(
        ("path", "hint"),
        [
            ("/nodes", "only an nsqlookupd has /nodes: its HTTP port is usually 4161"),
            ("/stats", "only an nsqd has /stats: its HTTP port is usually 4151"),
        ],
    )
    def test_the_address_of_the_other_daemon_is_recognized(self, path: str, hint: str) -> None:
        call = Call(HttpRequest(endpoint(parse_url("h:4151"), path, {"topic": "t"})), json_value)
        with pytest.raises(ApiRefused) as caught:
            call.answer(reply(404, {"message": "NOT_FOUND"}))
        assert str(caught.value) == f"http://h:4151{path} answered 404 NOT_FOUND ({hint})"
        assert caught.value.code == "NOT_FOUND"

    def test_an_error_page_that_repeats_the_query_is_not_shown(self) -> None:
        page = reply(404, b"<p>no /x?access_token=hunter2</p>", {"content-type": "text/html; charset=utf-8"})
        assert str(refusal(page)).endswith("404 a body of type text/html")

    def test_a_long_body_is_cut(self) -> None:
        assert len(str(refusal(reply(500, b"x" * 10_000)))) < 300

    def test_an_unreadable_reply_names_the_server(self) -> None:
        with pytest.raises(ApiError) as caught:
            a_call().answer(reply(200, b"hello"))
        assert str(caught.value) == (
            "http://nsq.example:4151/x sent a reply that this request cannot have: 'hello' is not JSON"
        )
        assert not isinstance(caught.value, ApiRefused)


class TestReading:
    def test_only_ok_is_ok(self) -> None:
        ok(reply(200, b"OK"))
        with pytest.raises(ApiError, match="instead of OK"):
            ok(reply(200, b"hello"))

    def test_the_envelope_of_old_versions_is_taken_off(self) -> None:
        enveloped = {"status_code": 200, "status_txt": "OK", "data": {"channels": []}}
        assert json_value(reply(200, enveloped)) == {"channels": []}

    def test_an_error_in_an_old_envelope_is_a_refusal(self) -> None:
        with pytest.raises(ApiRefused) as caught:
            json_value(reply(200, {"status_code": 500, "status_txt": "INVALID_ARG_TOPIC", "data": None}))
        assert (caught.value.status, caught.value.code) == (500, "INVALID_ARG_TOPIC")

    @pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, {"status_code": "x", "data": 1}])
    def test_a_body_that_is_not_json_is_an_error(self, body: object) -> None:
        with pytest.raises(ApiError):
            json_value(reply(200, body))


class TestTlsPort:
    def test_a_refusal_that_requires_tls_names_the_https_port(self) -> None:
        assert tls_port(reply(403, {"message": "TLS_REQUIRED", "https_port": 4152})) == 4152

    @pytest.mark.parametrize(
        "answered",
        [
            reply(200, {"message": "TLS_REQUIRED", "https_port": 4152}),
            reply(403, {"message": "FORBIDDEN", "https_port": 4152}),
            reply(403, {"message": "TLS_REQUIRED"}),
            reply(403, {"message": "TLS_REQUIRED", "https_port": 0}),
            reply(403, {"message": "TLS_REQUIRED", "https_port": 65536}),
            reply(403, {"message": "TLS_REQUIRED", "https_port": "4152"}),
            reply(403, b"TLS_REQUIRED"),
            reply(403, ["TLS_REQUIRED"]),
        ],
    )
    def test_other_refusals_name_no_https_port(self, answered: HttpReply) -> None:
        assert tls_port(answered) is None


class Inner(TypedDict):
    name: str
    size: float


class Outer(TypedDict, total=False):
    inner: list[Inner]
    count: int
    by_name: dict[str, Inner]
    maybe: int | None
    anything: Any


@dataclass(frozen=True)
class Made:
    names: tuple[str, ...]
    size: float = 0.5


class Mixed(TypedDict, total=False):
    must: Required[int]
    made: Made


class Optional(TypedDict):
    must: int
    may: NotRequired[int]


@pytest.mark.parametrize(
    ("value", "shape", "made"),
    [
        ({"inner": [{"name": "a", "size": 1.5}], "by_name": {"x": {"name": "x", "size": 0}}}, Outer, None),
        ({"count": 1, "newer": [None]}, Outer, None),  # an unknown key stays
        ({"maybe": None, "anything": {"x": [1]}}, Outer, None),
        ({"inner": None}, Outer, {"inner": []}),  # a list that is null is empty
        (None, list[int], []),
        # A dataclass is made of its keys alone.
        ({"must": 1, "made": {"names": None, "newer": 1}}, Mixed, {"must": 1, "made": Made(())}),
        ({"names": ["a"], "size": 2}, Made, Made(("a",), 2)),
    ],
)
def test_a_value_of_the_right_shape_is_returned(value: object, shape: Any, made: object) -> None:
    assert conform(value, shape) == (value if made is None else made)


@pytest.mark.parametrize(
    ("value", "shape", "text"),
    [
        ({}, Mixed, "must is missing"),
        ({"must": 1, "made": {}}, Mixed, "made.names is missing"),
        ({"must": 1, "made": {"names": [1]}}, Mixed, "made.names[0] is int, not str"),
        ({"may": 1}, Optional, "must is missing"),
        ({"must": 1, "may": None}, Optional, "may is null, not int"),
        ({"inner": [{"name": "a", "size": 1}, {"name": "b"}]}, Outer, "inner[1].size is missing"),
        ({"inner": [{"name": None, "size": 1}]}, Outer, "inner[0].name is null, not str"),
        ({"inner": {}}, Outer, "inner is dict, not list"),
        ({"count": True}, Outer, "count is bool, not int"),
        ({"count": 1.0}, Outer, "count is float, not int"),
        ({"count": "1"}, Outer, "count is str, not int"),
        ({"inner": [{"name": "a", "size": True}]}, Outer, "inner[0].size is bool, not float"),
        ({"by_name": {"x": {"name": 1, "size": 1}}}, Outer, "by_name.x.name is int, not str"),
        ({"maybe": "x"}, Outer, "maybe is str, not int"),
        ([], Outer, "the answer is list, not dict"),
        (None, Outer, "the answer is null, not dict"),
    ],
)
def test_the_first_place_that_differs_is_named(value: object, shape: Any, text: str) -> None:
    with pytest.raises(Misshapen) as caught:
        conform(value, shape)
    assert isinstance(caught.value, ApiError)
    assert str(caught.value) == text
