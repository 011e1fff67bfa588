"""The HTTP APIs of nsqd and nsqlookupd against their recordings: sessions in order; each exchange is a test.

Go's nsqlookupd keeps topics and producers in maps and answers in any order: there, order is not compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from nsq.testing import Nsqd, Nsqlookupd, V1Client, V2Client
from nsq.testing.plugin import factory
from nsq.wire import commands
from tests.golden import recordings, web
from tests.golden.deviations import without_added

VM = {
    "hostname": "vm",
    "broadcast_address": "127.0.0.1",
    "tcp_port": 14150,
    "http_port": 14151,
    "version": "1.3.0",
}
G1 = {
    "hostname": "g1",
    "broadcast_address": "g1.example",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "9.9.9",
}


@contextmanager
def nsqd() -> Iterator[Nsqd]:
    with factory(Nsqd) as make:
        yield make(lookupd_tcp_addresses=("127.0.0.1:4160",))


@contextmanager
def nsqd_with_a_consumer() -> Iterator[Nsqd]:
    """An nsqd whose consumer holds a message."""
    with factory(Nsqd) as make:
        nsqd = make(flags=[f"--e2e-processing-latency-percentile={each}" for each in (0.5, 0.99)])
        for request in (
            "/channel/create?topic=clicks&channel=archive",
            "/channel/create?topic=orders&channel=archive",
        ):
            nsqd.post("/topic/create?" + request.split("?")[1])
            assert nsqd.post(request).status == 200
        assert nsqd.post("/pub?topic=golden_tls", b"x").status == 200
        with V2Client(nsqd.tcp_address) as consumer:
            consumer.identify(client_id="golden", hostname="golden.host", user_agent="golden/1")
            consumer.send(commands.sub("orders", "archive") + commands.rdy(5))
            consumer.expect_ok()
            assert nsqd.post("/pub?topic=orders", b"8 bytes!").status == 200
            consumer.expect_message()
            yield nsqd


@contextmanager
def nsqlookupd() -> Iterator[Nsqlookupd]:
    """An nsqlookupd with the two nsqds of the recording."""
    with factory(Nsqlookupd) as make:
        nsqlookupd = make(tombstone_lifetime=3600.0)  # however long the exchanges take
        with V1Client(nsqlookupd.tcp_address) as vm, V1Client(nsqlookupd.tcp_address) as g1:
            vm.identify(**VM)
            for topic, channel in (("golden_tls", ""), ("orders", "archive"), ("clicks", "archive")):
                vm.register(topic)
                if channel:
                    vm.register(topic, channel)
            g1.identify(**G1)
            g1.register("orders")
            yield nsqlookupd


def _in_order(answer: Any) -> Any:
    """The answer with what came out of a map sorted."""
    ordered = copy.deepcopy(answer)
    for peers in (ordered.get("producers", []), *(value for key, value in ordered.items() if ":" in key)):
        peers.sort(key=lambda peer: (peer["broadcast_address"], peer["http_port"]))
    for producer in ordered.get("producers", []):
        if "tombstones" in producer:  # parallel to the topics
            pairs = sorted(zip(producer["topics"], producer["tombstones"], strict=True))
            producer["topics"], producer["tombstones"] = [list(column) for column in zip(*pairs, strict=True)]
    if "topics" in ordered:
        ordered["topics"].sort()
    return ordered


#: By recording: the daemon, what differs from run to run, and what is compared of an answer.
DAEMONS: dict[str, tuple[Callable[[], Any], set[str], Callable[[Any], Any]]] = {
    "nsqd_http": (nsqd, {"hostname", "http_port", "tcp_port", "start_time", *web.MEMORY}, without_added),
    "nsqd_stats_client": (
        nsqd_with_a_consumer,
        {"start_time", "connect_ts", "remote_address"},
        lambda answer: answer,
    ),
    "nsqlookupd_http": (nsqlookupd, {"remote_address", "id", "last_update"}, _in_order),
}
EXCHANGES = {name: recordings.exchanges(f"{name}.json") for name in DAEMONS}


@pytest.fixture(scope="module")
def answers() -> Iterator[Mapping[str, web.Answers]]:
    with ExitStack() as stack:
        yield {
            name: web.ask_all(stack.enter_context(start()), EXCHANGES[name])
            for name, (start, _, _) in DAEMONS.items()
        }


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, exchanges in EXCHANGES.items() for number in range(len(exchanges))],
    ids=[
        f"{name} {number:02d} {web.request_name(each)}"
        for name, exchanges in EXCHANGES.items()
        for number, each in enumerate(exchanges)
    ],
)
def test_http_requests_are_answered_as_by_gos_daemons(
    name: str, number: int, answers: Mapping[str, web.Answers]
) -> None:
    _, volatile, compared = DAEMONS[name]
    web.check(answers[name][number], EXCHANGES[name][number], volatile, compared)
