from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, cast

import pytest

from nsq.daemons.debug.endpoints import Debugging
from nsq.daemons.routes import HttpError, Reply, Request, Router


class From(Request):
    """A request of a peer with this address."""

    __slots__ = ("_remote",)

    def __init__(self, remote: str, target: str) -> None:
        super().__init__("GET", target)
        self._remote = remote

    @property
    def remote(self) -> str:
        return self._remote


ROUTES = Debugging().routes()


def ask(request: Request) -> Reply:
    """For what waits for nothing."""
    route, _ = Router(ROUTES).find(request.method, request.path)
    assert route is not None
    answer = route.handler(request)
    if isinstance(answer, Reply):
        return answer
    try:
        cast(Coroutine[Any, Any, Reply], answer).send(None)
    except StopIteration as end:
        return cast(Reply, end.value)
    raise AssertionError("the handler waits for something")


@pytest.mark.parametrize("remote", ["@", "127.0.0.1:5", "127.9.9.9:5", "[::1]:5", "[::ffff:127.0.0.1]:5"])
def test_callers_on_this_machine_are_answered(remote: str) -> None:
    reply = ask(From(remote, "/debug/pprof/"))
    assert reply.status == 200
    for path in ("/debug/threads", "/debug/profile", "/debug/tracemalloc"):
        assert path.encode() in reply.body


@pytest.mark.parametrize("remote", ["10.0.0.1:5", "[fe80::1]:5", "[::ffff:10.0.0.1]:5", "0.0.0.0:5"])
def test_others_are_refused_whatever_they_ask(remote: str) -> None:
    looking = [route for route in ROUTES if route.method == "GET"]
    assert len(looking) == 10
    assert {ask(From(remote, route.path)).status for route in looking} == {403}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("seconds=0", "INVALID_ARG_SECONDS"),
        ("seconds=60.5", "INVALID_ARG_SECONDS"),
        ("seconds=nan", "INVALID_ARG_SECONDS"),
        ("seconds=soon", "INVALID_ARG_SECONDS"),
        ("limit=0", "INVALID_ARG_LIMIT"),
        ("limit=1001", "INVALID_ARG_LIMIT"),
        ("limit=-5", "INVALID_ARG_LIMIT"),
        ("limit=many", "INVALID_ARG_LIMIT"),
    ],
)
def test_arguments_that_make_no_sense(query: str, code: str) -> None:
    with pytest.raises(HttpError, match=f"400 {code}"):
        ask(Request("GET", f"/debug/tracemalloc?{query}"))


def test_a_form_of_profile_that_there_is_not() -> None:
    with pytest.raises(HttpError, match="400 INVALID_ARG_FORMAT"):
        ask(Request("GET", "/debug/profile?format=proto"))


@pytest.mark.parametrize(("rate", "status"), [("5", 404), ("-1", 404), ("", 400), ("x", 400), ("1.5", 400)])
def test_there_is_no_block_profile_to_be_switched_on(rate: str, status: int) -> None:
    assert ask(Request("PUT", f"/debug/setblockrate?rate={rate}")).status == status


def test_gos_names_lead_to_the_nearest() -> None:
    handlers = {route.path: route for route in ROUTES}
    for name in ("goroutine", "threadcreate", "heap", "allocs", "profile", "cmdline", ""):
        assert f"/debug/pprof/{name}" in handlers


def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["nsqd", "--verbose"])
    assert ask(Request("GET", "/debug/pprof/cmdline")).body == b"nsqd\0--verbose"


def test_everything_is_plain_text() -> None:
    assert all(route.plain for route in ROUTES)
