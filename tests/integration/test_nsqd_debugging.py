"""The debug pages of a running nsqd."""

from __future__ import annotations

import asyncio
import re
import threading
import time

from nsq.daemons.serve.worker_thread import in_thread
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.daemons.http import Reply
from nsq.testing.plugin import Factory
from tests.integration.judged import only_ours
from tests.integration.patience import eventually

pytestmark = only_ours("these endpoints are Python's")


def test_stacks_of_threads_and_tasks_are_shown(nsqd_factory: Factory[Nsqd], nsqlookupd: Nsqlookupd) -> None:
    nsqd = nsqd_factory(lookupd_tcp_addresses=nsqlookupd.tcp_address)
    reply = nsqd.get("/debug/threads")
    assert (reply.status, reply.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert re.search(r"^thread \d+ \"MainThread\"$", reply.text, re.MULTILINE)
    assert re.search(r"debug\.py:\d+ describe$", reply.text, re.MULTILINE)
    # Followed through what it awaits, innermost first.
    asleep = r"1 x nsqd-lookupd-\S+\n(  \S+:\d+ .*\n)+  \S+registration\.py:\d+ _Peer\._stay_registered\n"
    eventually(lambda: nsqd.get("/debug/threads").text, lambda text: re.search(asleep, text))


def test_only_one_trace_runs_at_a_time(nsqd: Nsqd) -> None:
    names = lambda: [thread.name for thread in threading.enumerate()]  # noqa: E731

    def second() -> Reply:
        """The reply to a request during another one, unless that has ended by then."""
        asking = threading.Thread(target=nsqd.get, args=("/debug/tracemalloc?seconds=0.5",))
        asking.start()
        eventually(lambda: "debug-tracemalloc" in names() or not asking.is_alive())
        reply = nsqd.get("/debug/tracemalloc?seconds=0.01")
        assert nsqd.get("/debug/threads").status == 200
        asking.join()
        return reply

    refused = eventually(second, lambda reply: reply.status == 409)
    assert refused.text == "BUSY"
    eventually(lambda: nsqd.get("/debug/tracemalloc?seconds=0.01").status, lambda status: status == 200)


def test_a_stop_does_not_wait_for_who_looks(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory()
    outcome: list[object] = []

    def ask() -> None:
        try:
            outcome.append(nsqd.get("/debug/tracemalloc?seconds=60", timeout=60).status)
        except OSError as error:
            outcome.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: any(thread.name == "debug-tracemalloc" for thread in threading.enumerate()))
    began = time.monotonic()
    nsqd.stop()
    assert time.monotonic() - began < 30
    asking.join()
    assert isinstance(outcome[0], OSError)
    eventually(lambda: all(thread.name != "debug-tracemalloc" for thread in threading.enumerate()))


class TestWorkerThread:
    def test_an_abandoned_worker_thread_delays_neither_the_loop_nor_its_end(self) -> None:
        go = threading.Event()

        async def ask() -> None:
            answer = in_thread(go.wait, "aside")  # if this were waited for, it would be for ever
            answer.cancel()

        asyncio.run(ask())
        assert [thread.name for thread in threading.enumerate()].count("aside") == 1  # it goes on
        go.set()
