"""The HTTP APIs of the daemons against their recordings: sessions in order; each exchange is a test.

Go's nsqlookupd keeps topics and producers in maps and answers in any order: there, order is not compared.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from nsq.testing import Nsqadmin, Nsqd, Nsqlookupd, Reply, V1Client, V2Client
from nsq.testing.plugin import factory
from nsq.wire import commands
from tests.golden import recordings, web
from tests.golden.deviations import without_added
from tests.integration.consuming import until

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
def holding(nsqd: Nsqd, body: bytes) -> Iterator[None]:
    """Have a consumer hold a message of the topic orders."""
    with V2Client(nsqd.tcp_address) as consumer:
        consumer.identify(client_id="golden", hostname="golden.host", user_agent="golden/1")
        consumer.send(commands.sub("orders", "archive") + commands.rdy(5))
        consumer.expect_ok()
        assert nsqd.post("/pub?topic=orders", body).status == 200
        consumer.expect_message()
        yield


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
        with holding(nsqd, b"8 bytes!"):
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


# nsqadmin, over our daemons or others: two nsqlookupds; one nsqd that both know, with a consumer
# that holds a message; and one of an unknown host that only the first knows, tombstoned for a topic. What an
# error says behind its first words is ours.

NODE, LOOKUPDS = "127.0.0.1:14151", ("127.0.0.1:14161", "127.0.0.1:14261")
ADMIN_VOLATILE = {"remote_address", "connect_ts", "connected", "hostname", "tcp_port", "http_port"}
OURS = ("UPSTREAM_ERROR: failed to query any nsqlookupd: ", "WARNING: ")
ADMIN_EXCHANGES = [
    each for each in recordings.exchanges("nsqadmin_api.json") if each["request"] != "GET /topics"
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Nsqadmin, dict[str, str]]]:
    """The daemons, and what the recording has in place of their addresses."""
    with ExitStack() as stack:
        make_lookupd = stack.enter_context(factory(Nsqlookupd))
        lookupds = [make_lookupd(tombstone_lifetime=3600.0) for _ in LOOKUPDS]
        percentiles = (0.99, 0.5)
        nsqd = stack.enter_context(factory(Nsqd))(
            lookupd=lookupds, e2e_processing_latency_percentiles=percentiles
        )
        for path in ("topic/create?topic=clicks", "channel/create?topic=clicks&channel=archive"):
            nsqd.post(f"/{path}")
        nsqd.post("/pub?topic=golden_tls", b"x")
        stack.enter_context(holding(nsqd, b"x"))
        g1 = stack.enter_context(V1Client(lookupds[0].tcp_address))
        g1.identify(**{**G1, "broadcast_address": "g1.invalid"})
        g1.register("orders")
        lookupds[0].post("/topic/tombstone?topic=orders&node=g1.invalid:4151")
        admin = stack.enter_context(factory(Nsqadmin))(lookupd=lookupds)
        until("both know the topics", lambda: _registered(lookupds))
        places = dict(zip(LOOKUPDS, (each.http_address for each in lookupds), strict=True))
        yield admin, places | {NODE: nsqd.http_address, "g1.example": "g1.invalid"}


def _registered(lookupds: list[Nsqlookupd]) -> bool:
    return all("archive" in each.get("/channels?topic=orders").text for each in lookupds) and all(
        set(each.get("/topics").json()["topics"]) == {"clicks", "golden_tls", "orders"} for each in lookupds
    )


@pytest.fixture(scope="module")
def admin_exchanges(cluster: tuple[Nsqadmin, dict[str, str]]) -> list[tuple[Any, Reply]]:
    admin, places = cluster
    text = json.dumps(ADMIN_EXCHANGES)
    for recorded, real in places.items():
        text = text.replace(recorded, real)
    placed = json.loads(text)
    answers = web.ask_all(admin, placed)
    return [(each, answers[number]) for number, each in enumerate(placed)]


@pytest.mark.parametrize(
    "number",
    range(len(ADMIN_EXCHANGES)),
    ids=[f"{i:02d} {web.request_name(each)}" for i, each in enumerate(ADMIN_EXCHANGES)],
)
def test_nsqadmin_answers_http_requests_as_gos_did(
    number: int, admin_exchanges: list[tuple[Any, Reply]]
) -> None:
    exchange, reply = admin_exchanges[number]
    web.check(reply, exchange, ADMIN_VOLATILE, lambda answer: _comparable(without_added(answer)))


def _comparable(answer: Any) -> Any:
    """Sort the lists whose order is free, and drop error texts that are our own."""
    made = copy.deepcopy(answer)
    if not isinstance(made, dict):
        return made
    for begin in OURS:
        if made.get("message", "").startswith(begin):
            made["message"] = begin
    for node in made.get("nodes") or ():
        if "remote_addresses" in node:
            node["remote_addresses"] = sorted(each.partition("/")[0] for each in node["remote_addresses"])
    if "remote_addresses" in (made.get("nodes") or [{}])[0]:
        made["nodes"].sort(key=lambda node: node["broadcast_address"])
    return made
