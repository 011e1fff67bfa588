from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from nsq.daemons.serve.debug import Debugging, trace
from nsq.daemons.serve.routes import HttpError, Reply, Request, Router

# Who may ask for what


ROUTES = Debugging().routes()


def ask(request: Request) -> Reply:
    route, _ = Router(ROUTES).find(request.method, request.path)
    assert route is not None
    return asyncio.run(cast(Coroutine[Any, Any, Reply], route.handler(request)))


@pytest.mark.parametrize("remote", ["@", "127.0.0.1:5", "127.9.9.9:5", "[::1]:5", "[::ffff:127.0.0.1]:5"])
def test_callers_on_this_machine_are_answered(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "remote", remote)
    assert ask(Request("GET", "/debug/threads")).status == 200


@pytest.mark.parametrize("remote", ["10.0.0.1:5", "[fe80::1]:5", "[::ffff:10.0.0.1]:5", "0.0.0.0:5"])
def test_callers_on_other_machines_are_refused(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "remote", remote)
    assert {ask(Request(route.method, route.path)).status for route in ROUTES} == {403}


def test_a_web_page_whose_name_leads_to_this_machine_is_refused() -> None:
    for host, status in (("rebound.example:4151", 403), ("localhost:4151", 200)):
        assert ask(Request("GET", "/debug/threads", headers={"Host": host})).status == status


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
def test_debug_arguments_out_of_range_are_refused(query: str, code: str) -> None:
    with pytest.raises(HttpError, match=f"400 {code}"):
        ask(Request("GET", f"/debug/tracemalloc?{query}"))


def test_every_debug_route_answers_in_plain_text() -> None:
    assert all(route.plain for route in ROUTES)


# Allocations


class Allocating(threading.Event):
    """Stands for the time that passes: allocates on three lines."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[object] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert tracemalloc.is_tracing()
        self.kept.append(bytearray(3_000_000))
        self.kept.append(bytearray(2_000_000))
        self.kept.append(bytearray(1_000_000))
        bytearray(9_000_000)
        return False


def test_allocations_are_listed_by_line_largest_first() -> None:
    first, second, header, *found = trace(1.5, 2, Allocating()).splitlines()
    assert first == "held now that was not held 1.5s ago"
    assert (second, header.split()) == ("", ["bytes", "blocks", "line"])
    sizes = [int(line.split()[0]) for line in found]
    assert [size // 1_000_000 for size in sizes] == [3, 2, 1]
    assert all(__file__ in line for line in found[:2])
    assert found[2].endswith("other lines")
    assert not tracemalloc.is_tracing()


def test_tracing_that_was_on_before_stays_on() -> None:
    tracemalloc.start()
    try:
        kept = bytearray(5_000_000)
        lines = trace(1.0, 1, Allocating()).splitlines()
        assert len(kept) == 5_000_000
        assert int(lines[3].split()[0]) // 1_000_000 == 3
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
