from __future__ import annotations

import pytest

from nsq.daemons.serve.routes import (
    HttpError,
    Reply,
    Request,
    Route,
    Router,
    go_json,
    parse_query,
)


def answer(name: str) -> Route:
    method, path = name.split(" ")
    return Route(method, path, lambda request: Reply.text(name))


ROUTER = Router(
    [
        answer(name)
        for name in ("GET /ping", "POST /pub", "GET /config/:opt", "PUT /config/:opt", "GET /static/")
    ]
)


def found(method: str, path: str) -> tuple[str | None, dict[str, str]]:
    route, params = ROUTER.find(method, path)
    return None if route is None else f"{route.method} {route.path}", dict(params)


def test_routes_are_found_by_method_and_path() -> None:
    assert found("GET", "/ping") == ("GET /ping", {})
    assert found("PUT", "/config/log_level") == ("PUT /config/:opt", {"opt": "log_level"})
    for method, path in [("POST", "/ping"), ("GET", "/config/"), ("GET", "/config/a/b"), ("GET", "/pingx")]:
        assert found(method, path) == (None, {})


def without(method: str, target: str) -> tuple[int, dict[str, str], bytes]:
    reply = ROUTER.without(Request(method, target))
    return reply.status, dict(reply.headers), reply.body


def test_a_wrong_method_gets_the_allowed_ones() -> None:
    body = b'{"message":"METHOD_NOT_ALLOWED"}'
    assert without("GET", "/pub") == (405, {"Allow": "OPTIONS, POST"}, body)
    assert without("HEAD", "/ping") == (405, {"Allow": "GET, OPTIONS"}, body)
    assert without("POST", "/config/x") == (405, {"Allow": "GET, OPTIONS, PUT"}, body)


def test_options_lists_the_allowed_methods_and_an_unknown_path_gets_404() -> None:
    assert without("OPTIONS", "/pub") == (200, {"Allow": "OPTIONS, POST"}, b"")
    for method, path in (("OPTIONS", "/nope"), ("GET", "/nope"), ("GET", "/")):
        assert without(method, path) == (404, {}, b'{"message":"NOT_FOUND"}')


@pytest.mark.parametrize(
    ("method", "target", "status", "location"),
    [
        ("GET", "/ping/", 301, "/ping"),
        ("GET", "/ping/?a=1&b=%20", 301, "/ping?a=1&b=%20"),
        ("POST", "/pub/?topic=t", 308, "/pub?topic=t"),
        ("GET", "/static", 301, "/static/"),
        ("GET", "/config/a%0d%0ab/", 301, "/config/a%0D%0Ab"),
        ("POST", "//pub?topic=t", 308, "/pub?topic=t"),
        ("GET", "//config//a", 301, "/config/a"),
        ("GET", "/a/../ping", 301, "/ping"),
        ("GET", "/../ping/.", 301, "/ping"),
        ("GET", "/Ping", 301, "/ping"),
        ("PUT", "//CONFIG/Log_Level/", 308, "/config/Log_Level"),
    ],
)
def test_a_path_that_is_nearly_right_is_redirected(
    method: str, target: str, status: int, location: str
) -> None:
    assert without(method, target) == (status, {"Location": location}, b"")


def test_a_slash_too_many_is_no_way_to_another_method_or_server() -> None:
    assert without("GET", "/pub/")[0] == 404
    router = Router([answer("GET /:a/:b/:c")])
    for target in ("//x/evil.example/c", "/%2fx/evil.example/c/", "///x/../x/evil.example//c"):
        assert dict(router.without(Request("GET", target)).headers) == {"Location": "/x/evil.example/c"}
    assert router.without(Request("GET", "/%2f/evil.example/c")).status == 404


def test_two_routes_for_one_request_are_refused() -> None:
    with pytest.raises(ValueError, match="two routes for GET /a"):
        Router([answer("GET /a"), answer("GET /a")])


def test_a_request_takes_its_target_apart() -> None:
    request = Request("GET", "/config/a%2Fb%20c?topic=t&topic=u&x")
    assert (request.path, request.query) == ("/config/a/b c", "topic=t&topic=u&x")
    assert request.args == {"topic": "t", "x": ""}
    assert Request("GET", "http://127.0.0.1:4151/ping?a").path == "/ping"
    assert Request("GET", "/ping?next=http://b/c").path == "/ping"
    assert Request("OPTIONS", "*").path == "*"


@pytest.mark.parametrize(
    ("query", "args"),
    [
        ("", {}),
        ("&&a=1&", {"a": "1"}),
        ("a=1=2", {"a": "1=2"}),
        ("a+b=c+d&e=%2B", {"a b": "c d", "e": "+"}),
        ("a=%ff", {"a": "\ufffd"}),
    ],
)
def test_queries_are_read_as_go_reads_them(query: str, args: dict[str, str]) -> None:
    assert parse_query(query) == args


@pytest.mark.parametrize("query", ["a=%", "a=%4", "%zz=1", "a=1;b=2", "a=1&b;c", "a&" * 1000])
def test_a_query_that_go_refuses_is_refused(query: str) -> None:
    with pytest.raises(HttpError) as caught:
        parse_query(query)
    assert (caught.value.status, caught.value.code) == (400, "INVALID_REQUEST")


def test_json_is_written_as_go_writes_it() -> None:
    value = {"z": "<a&b>", "a": [1, 0.5, None, True], "é": "\u2028\ud800"}
    expected = '{"z":"\\u003ca\\u0026b\\u003e","a":[1,0.5,null,true],"é":"\\u2028?"}'
    assert go_json(value) == expected.encode()
