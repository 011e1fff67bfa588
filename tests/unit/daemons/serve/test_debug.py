from __future__ import annotations

import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any, cast

import pytest

from nsq.daemons.serve.debug import Debugging, Profile, sample, trace
from nsq.daemons.serve.routes import HttpError, Reply, Request, Router

# Who may ask for what


ROUTES = Debugging().routes()


def ask(request: Request) -> Reply:
    """Ask a handler that answers without waiting."""
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
def test_callers_on_this_machine_are_answered(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "remote", remote)
    reply = ask(Request("GET", "/debug/pprof/"))
    assert reply.status == 200
    for path in ("/debug/threads", "/debug/profile", "/debug/tracemalloc"):
        assert path.encode() in reply.body


@pytest.mark.parametrize("remote", ["10.0.0.1:5", "[fe80::1]:5", "[::ffff:10.0.0.1]:5", "0.0.0.0:5"])
def test_callers_on_other_machines_are_refused(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "remote", remote)
    looking = [route for route in ROUTES if route.method == "GET"]
    assert len(looking) == 10
    assert {ask(Request("GET", route.path)).status for route in looking} == {403}


def test_a_web_page_whose_name_leads_to_this_machine_is_refused() -> None:
    for host, status in (("rebound.example:4151", 403), ("localhost:4151", 200)):
        assert ask(Request("GET", "/debug/pprof/cmdline", headers={"Host": host})).status == status


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("format=proto", "INVALID_ARG_FORMAT"),
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
        ask(Request("GET", f"/debug/{'profile' if code.endswith('FORMAT') else 'tracemalloc'}?{query}"))


@pytest.mark.parametrize(("rate", "status"), [("5", 404), ("-1", 404), ("", 400), ("x", 400), ("1.5", 400)])
def test_a_block_profile_cannot_be_switched_on(rate: str, status: int) -> None:
    assert ask(Request("PUT", f"/debug/setblockrate?rate={rate}")).status == status


def test_gos_paths_below_debug_pprof_exist() -> None:
    handlers = {route.path: route for route in ROUTES}
    for name in ("goroutine", "threadcreate", "heap", "allocs", "profile", "cmdline", ""):
        assert f"/debug/pprof/{name}" in handlers


def test_the_command_line_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["nsqd", "--verbose"])
    assert ask(Request("GET", "/debug/pprof/cmdline")).body == b"nsqd\0--verbose"


def test_every_debug_route_answers_in_plain_text() -> None:
    assert all(route.plain for route in ROUTES)


# A profile

PROFILE = Profile(2.0, Counter({("m:run", "m:work"): 6, ("m:run", "m:work", "m:deep"): 3, ("m:run",): 1}))


class Looks(threading.Event):
    """Is enough after so many looks, and waits for nothing."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_profile_is_written_as_collapsed_stacks() -> None:
    assert PROFILE.collapsed() == "m:run 1\nm:run;m:work 6\nm:run;m:work;m:deep 3\n"


def test_a_profile_is_written_as_a_table_of_functions() -> None:
    assert PROFILE.table() == (
        "10 samples in 2.0s\n"
        "\n"
        "   own%  total%  function\n"
        "   60.0    90.0  m:work\n"
        "   30.0    30.0  m:deep\n"
        "   10.0   100.0  m:run\n"
    )


def test_recursion_counts_once() -> None:
    assert "  100.0   100.0  m:f\n" in Profile(1.0, Counter({("m:f", "m:f"): 5})).table()


def test_an_empty_profile_can_be_written() -> None:
    assert Profile().collapsed() == ""
    assert Profile().table() == "0 samples in 0.0s\n\n   own%  total%  function\n"


def test_a_thread_is_sampled_until_the_stop_is_set() -> None:
    profile = sample(threading.get_ident(), 1000.0, Looks(7))
    (names,) = profile.stacks
    assert profile.stacks[names] == 7
    here = "test_a_thread_is_sampled_until_the_stop_is_set"
    assert f"{__name__}:{here}" in names
    assert names[-1] == "nsq.daemons.serve.debug:_sample"


@pytest.fixture
def usual() -> Iterator[float]:
    """The interpreter's switch interval, whatever it is for the other tests."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield 0.005
    sys.setswitchinterval(before)


def test_threads_switch_faster_only_during_a_profile(usual: float) -> None:
    seen = []

    class Watching(Looks):
        def wait(self, timeout: float | None = None) -> bool:
            seen.append(sys.getswitchinterval())
            return super().wait(timeout)

    sample(threading.get_ident(), 1000.0, Watching(3))
    assert max(seen) < usual
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_sampling_ends_when_its_time_is_over() -> None:
    clock = iter(range(100))
    profile = sample(threading.get_ident(), 4.0, Looks(1000), now=lambda: float(next(clock)))
    assert (profile.seconds, profile.stacks.total()) == (4.0, 4)


def test_a_thread_that_is_gone_has_no_samples() -> None:
    assert sample(-1, 1000.0, Looks(1000)).stacks.total() == 0


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
