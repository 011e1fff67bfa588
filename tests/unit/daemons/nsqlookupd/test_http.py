from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest

from nsq.daemons.nsqlookupd.http import routes
from nsq.daemons.nsqlookupd.registry import Peer, Registry
from nsq.daemons.serve.routes import HttpError, Reply, Request, Router
from nsq.daemons.serve.slices import Slices
from nsq.wire.lookup import PeerInfo


class Api:
    """The routes over a registry in which one nsqd registered two topics and a channel."""

    def __init__(self, *, legacy_get: bool = False) -> None:
        self.now = 100.0
        self.registry = Registry(inactive_after=300.0, tombstone_lifetime=45.0)
        info = PeerInfo(
            broadcast_address="g1.example",
            hostname="g1",
            tcp_port=4150,
            http_port=4151,
            version="9.9.9",
            topology_zone="z1",
            topology_region="r1",
        )
        self.nsqd = Peer(info, "10.0.0.7:5000", 50.0)
        self.registry.connect(self.nsqd)
        self.registry.register_channel(self.nsqd, "orders", "archive")
        self.registry.register_topic(self.nsqd, "clicks")
        self.router = Router(
            routes(self.registry, Slices(), lambda: self.now, epoch=1_000_000.0, legacy_get=legacy_get)
        )

    def ask(self, method: str, target: str) -> Reply:
        request = Request(method, target)
        route, _ = self.router.find(method, request.path)
        assert route is not None
        reply = route.handler(request)
        return reply if isinstance(reply, Reply) else asyncio.run(_awaited(reply))

    def get(self, target: str) -> Any:
        reply = self.ask("GET", target)
        return json.loads(b"".join([reply.body, *reply.rest]))

    def post(self, target: str) -> None:
        reply = self.ask("POST", target)
        assert (reply.status, reply.body, reply.content_type) == (200, b"", None)

    def refused(self, method: str, target: str) -> str:
        with pytest.raises(HttpError) as caught:
            self.ask(method, target)
        return str(caught.value)


async def _awaited(reply: Awaitable[Reply]) -> Reply:
    return await reply


@pytest.fixture
def api() -> Api:
    return Api()


def test_debug_shows_everything_under_sorted_keys(api: Api) -> None:
    api.post("/topic/create?topic=empty")
    api.post("/topic/tombstone?topic=orders&node=g1.example:4151")
    shown = api.get("/debug")
    assert list(shown) == ["channel:orders:archive", "client::", "topic:clicks:", "topic:orders:"]
    assert shown["topic:clicks:"] == [
        {
            "broadcast_address": "g1.example",
            "hostname": "g1",
            "http_port": 4151,
            "id": "10.0.0.7:5000",
            "last_update": 1_000_050_000_000_000,
            "tcp_port": 4150,
            "tombstoned": False,
            "tombstoned_at": -6795364578871345152,
            "topology_region": "r1",
            "topology_zone": "z1",
            "version": "9.9.9",
        }
    ]
    (orders,) = shown["topic:orders:"]
    assert (orders["tombstoned"], orders["tombstoned_at"]) == (True, 1_000_100_000_000_000)
    assert list(orders) == sorted(orders)
    api.registry.disconnect(api.nsqd)  # hidden, though nothing is forgotten yet
    assert api.get("/debug") == {}


def test_nsqlookupds_long_replies_are_made_of_pieces(api: Api) -> None:
    topics = [f"topic-{number:05}" for number in range(5000)]
    for topic in topics:
        api.registry.register_topic(api.nsqd, topic)
    known = ["orders", "clicks", *topics]
    assert len(api.ask("GET", "/debug").rest) > 10
    assert set(api.get("/debug")) == {"client::", "channel:orders:archive", *(f"topic:{t}:" for t in known)}
    assert api.get("/topics") == {"topics": known}
    (node,) = api.get("/nodes")["producers"]
    assert (node["topics"], node["tombstones"]) == (known, [False] * len(known))


def test_debug_is_for_callers_on_the_same_machine(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "remote", "10.0.0.1:5")
    assert {api.ask("GET", path).status for path in ("/debug", "/debug/threads")} == {403}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_former_names_do_the_same_and_by_get_if_that_was_asked_for(method: str) -> None:
    if method == "GET":
        assert Api().router.find("GET", "/delete_topic") == (None, {})
    api = Api(legacy_get=method == "GET")
    api.ask(method, "/create_topic?topic=t")
    api.ask(method, "/create_channel?topic=u&channel=c")
    assert api.get("/topics")["topics"] == ["orders", "clicks", "t", "u"]
    api.ask(method, "/tombstone_topic_producer?topic=orders&node=g1.example:4151")
    assert api.get("/lookup?topic=orders") == {"channels": ["archive"], "producers": []}
    api.ask(method, "/delete_topic?topic=t")
    api.ask(method, "/delete_channel?topic=u&channel=c")
    assert api.get("/channels?topic=u") == {"channels": []}
    assert api.get("/topics")["topics"] == ["orders", "clicks", "u"]


@pytest.mark.parametrize(
    ("request_line", "refusal"),
    [
        ("GET /lookup?topic=%zz", "400 INVALID_REQUEST"),
        ("GET /lookup?topic=", "404 TOPIC_NOT_FOUND"),
        ("GET /lookup?topic=*", "404 TOPIC_NOT_FOUND"),
        ("POST /topic/create?topic=", "400 INVALID_ARG_TOPIC"),
        ("POST /topic/delete", "400 MISSING_ARG_TOPIC"),
        ("POST /topic/tombstone", "400 MISSING_ARG_TOPIC"),
        ("POST /channel/create", "400 MISSING_ARG_TOPIC"),
        ("POST /channel/create?topic=b@d", "400 INVALID_ARG_TOPIC"),
        ("POST /channel/create?topic=t&channel=c@d", "400 INVALID_ARG_CHANNEL"),
        ("POST /channel/delete?topic=t", "400 MISSING_ARG_CHANNEL"),
    ],
)
def test_nsqlookupd_refuses_invalid_requests(api: Api, request_line: str, refusal: str) -> None:
    method, target = request_line.split(" ")
    assert api.refused(method, target) == refusal
