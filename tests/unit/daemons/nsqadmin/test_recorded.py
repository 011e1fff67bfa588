"""nsqadmin over the recorded answers of a real partitioned cluster."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from nsq.daemons.nsqadmin import overview
from nsq.daemons.nsqadmin.cluster import Cluster
from nsq.http.message import HttpReply, HttpRequest
from tests.fakes.recorded_cluster import RecordedCluster

from .upstreams import Upstreams

_NAMES = ("lookup1", "lookup2", "nsqd1", "nsqd2", "nsqd3")


class Recorded(Upstreams):
    def __init__(self, *names: str) -> None:
        ports = {f"{name}:http": 1 + place for place, name in enumerate(_NAMES)}
        self.cluster = RecordedCluster({**ports, "nsqd1:tcp": 11, "nsqd2:tcp": 12, "nsqd3:tcp": 13})
        self._names = {port: name for name, port in zip(_NAMES, ports.values(), strict=True)}
        of_lookupds = names[0].startswith("lookup")
        option = "lookupd_http_addresses" if of_lookupds else "nsqd_http_addresses"
        addresses = tuple(self.cluster.address(name) for name in names)
        super().__init__(**{"lookupd_http_addresses": (), option: addresses})

    async def send(
        self,
        request: HttpRequest,
        *,
        connect_timeout: float,
        request_timeout: float,
        tls: ssl.SSLContext | None,
    ) -> HttpReply:
        url = request.url
        status, text = self.cluster.answer(self._names[url.port], request.method, url.target)
        return HttpReply(status, {"content-type": "application/json; charset=utf-8"}, text.encode())

    def overview(self) -> Any:
        async def look() -> Any:
            made = overview.Overview(Cluster(self.options, send=self.send))
            try:
                return await made.look()
            finally:
                await made.close()

        return asyncio.run(look())


@pytest.fixture(params=[("lookup1", "lookup2"), ("nsqd1", "nsqd2", "nsqd3")])
def admin(request: pytest.FixtureRequest) -> Recorded:
    return Recorded(*request.param)


def test_the_overview_counts_partitions_that_lead(admin: Recorded) -> None:
    shown = admin.overview()
    topics = {each["name"]: each for each in shown["topics"]}
    plain, ordered = topics["rec_plain"], topics["rec_ordered"]
    assert (plain["depth"], plain["stored_bytes"], plain["messages"]) == (0, 1223 + 31, 38 + 1)
    assert [(each["name"], each["depth"]) for each in plain["channels"]] == [("c2", 27)]
    assert ordered["stored_bytes"] == 192
    assert {each["name"]: each["depth"] for each in shown["nodes"]} == {
        admin.cluster.address("nsqd1"): 27,
        admin.cluster.address("nsqd2"): 0,
        admin.cluster.address("nsqd3"): 3 + 1,
    }


def test_a_topic_has_a_row_for_each_nsqd_with_the_partitions_that_it_leads(admin: Recorded) -> None:
    status, topic = admin.ask("GET", "/api/topics/rec_plain")
    assert (status, topic["depth"], topic["stored_bytes"], topic["message"]) == (200, 0, 1254, "")
    assert [(each["node"], each["partitions"], each["stored_bytes"]) for each in topic["nodes"]] == [
        (admin.cluster.address("nsqd1"), ["0", "3"], 1254),
        (admin.cluster.address("nsqd3"), ["2"], 0),
    ]
    status, channel = admin.ask("GET", "/api/topics/rec_ordered/c")
    assert (status, channel["depth"], channel["client_count"]) == (200, 3, 0)
    for target in ("/api/topics", "/api/nodes", "/api/counter", "/api/peek/rec_plain/c2"):
        status, answer = admin.ask("GET", target)
        assert (status, answer["message"]) == (200, "")


@pytest.mark.parametrize("action", ["pause", "unpause", "empty", "delete", "create"])
def test_an_action_on_a_channel_goes_to_the_leader_of_each_partition(admin: Recorded, action: str) -> None:
    if action == "delete":
        answered = admin.ask("DELETE", "/api/topics/rec_ordered/c")
    elif action == "create":
        answered = admin.ask("POST", "/api/topics", {"topic": "rec_ordered", "channel": "c"})
    else:
        answered = admin.ask("POST", "/api/topics/rec_ordered/c", {"action": action})
    assert (answered[0], answered[1]["message"]) == (200, "")
    target = f"/channel/{action}?topic=rec_ordered&channel=c&partition="
    led = {f"nsqd1{target}1", f"nsqd3{target}0", f"nsqd3{target}3"}
    assert led <= set(admin.cluster.posted) <= led | {f"nsqd2{target}2"}  # nsqd2's was not recorded


def test_the_leading_nsqlookupd_deletes_a_topic() -> None:
    admin = Recorded("lookup1", "lookup2")
    status, answer = admin.ask("DELETE", "/api/topics/rec_plain")
    assert (status, answer["message"]) == (200, "")
    target = "/topic/delete?topic=rec_plain&partition=%2A%2A"
    assert sorted(admin.cluster.posted) == [f"lookup1{target}", f"lookup2{target}"]


@pytest.mark.parametrize("action", ["pause", "unpause", "empty"])
def test_a_partitioned_topic_is_neither_paused_nor_emptied(admin: Recorded, action: str) -> None:
    status, answer = admin.ask("POST", "/api/topics/rec_plain", {"action": action})
    assert (status, answer["message"]) == (
        400,
        f"A_PARTITIONED_NSQ_CANNOT_{action.upper()}_TOPICS_BUT_CHANNELS",
    )
    assert admin.cluster.posted == []
