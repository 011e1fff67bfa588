"""nsqadmin's API against nsqadmin_api.json, over our daemons, or those in NSQ_BIN_DIR.

Two nsqlookupds; one nsqd that both know, with a consumer that holds a message; and one of an unknown host
that only the first knows, tombstoned for a topic. What an error says behind its first words is ours.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from nsq.testing import Nsqadmin, Nsqd, Nsqlookupd, Reply, V1Client, V2Client
from nsq.testing.plugin import factory
from nsq.wire import commands
from tests.golden import recordings, web
from tests.golden.deviations import without_added
from tests.integration.consuming import until

NODE, LOOKUPDS = "127.0.0.1:14151", ("127.0.0.1:14161", "127.0.0.1:14261")
VOLATILE = {"remote_address", "connect_ts", "connected", "hostname", "tcp_port", "http_port"}
OURS = ("UPSTREAM_ERROR: failed to query any nsqlookupd: ", "WARNING: ")
EXCHANGES = [each for each in recordings.exchanges("nsqadmin_api.json") if each["request"] != "GET /topics"]
G1 = {"hostname": "g1", "broadcast_address": "g1.invalid", "tcp_port": 4150, "http_port": 4151}


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
        consumer = stack.enter_context(V2Client(nsqd.tcp_address))
        consumer.identify(client_id="golden", hostname="golden.host", user_agent="golden/1")
        consumer.send(commands.sub("orders", "archive") + commands.rdy(5))
        consumer.expect_ok()
        nsqd.post("/pub?topic=orders", b"x")
        consumer.expect_message()
        g1 = stack.enter_context(V1Client(lookupds[0].tcp_address))
        g1.identify(**G1, version="9.9.9")
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
def exchanges(cluster: tuple[Nsqadmin, dict[str, str]]) -> list[tuple[Any, Reply]]:
    admin, places = cluster
    text = json.dumps(EXCHANGES)
    for recorded, real in places.items():
        text = text.replace(recorded, real)
    placed = json.loads(text)
    answers = web.ask_all(admin, placed)
    return [(each, answers[number]) for number, each in enumerate(placed)]


@pytest.mark.parametrize(
    "number",
    range(len(EXCHANGES)),
    ids=[f"{i:02d} {web.request_name(each)}" for i, each in enumerate(EXCHANGES)],
)
def test_nsqadmin_answers_http_requests_as_gos_did(number: int, exchanges: list[tuple[Any, Reply]]) -> None:
    exchange, reply = exchanges[number]
    web.check(reply, exchange, VOLATILE, lambda answer: _comparable(without_added(answer)))


def _comparable(answer: Any) -> Any:
    """The answer with what comes in any order sorted, and without what an error says in our words."""
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
