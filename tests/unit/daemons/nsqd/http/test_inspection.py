from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.nsqd.core.deferred import DueRange
from nsq.daemons.nsqd.options import TOPOLOGY_AWARE
from nsq.daemons.nsqd.stats import due_within
from nsq.daemons.serve.routes import HttpError, Reply, Request
from nsq.wire import commands
from nsq.wire.frames import RawMessage
from tests.unit.daemons.nsqd.http.api import Api

QUIET = "&include_mem=false"


def stats(api: Api, args: str = "") -> Any:
    return api.json(f"/stats?format=json{args}{QUIET}")


def test_info_has_version_and_addresses() -> None:
    api = Api(broadcast_address="here", topology_zone="z", topology_region="r", max_heartbeat_interval=1.5)
    assert api.json("/info") == {
        "version": COMPATIBLE_VERSION,
        "broadcast_address": "here",
        "hostname": socket.gethostname(),
        "http_port": 4151,
        "tcp_port": 4150,
        "start_time": 1_700_000_000,
        "max_heartbeat_interval": 1_500_000_000,
        "max_output_buffer_size": 65536,
        "max_output_buffer_timeout": 30_000_000_000,
        "max_deflate_level": 6,
        "topology_zone": "z",
        "topology_region": "r",
    }


# /stats


def test_latencies_of_a_topic_are_those_of_its_channels_together() -> None:
    api = Api(e2e_processing_latency_percentiles=(0.5, 1.0), e2e_processing_latency_window_time=60.0)
    for channel, seconds in ("a", 1.0), ("b", 3.0):
        client = api.client()
        client.send(commands.sub("t", channel), commands.rdy(1))
        api.world.broker.publish("t", [b"x"])
        client.run_due()
        (held,) = (frame for frame in client.frames() if isinstance(frame, RawMessage))
        api.world.clock.advance(seconds)
        client.send(commands.fin(held.id))
    (topic,) = stats(api)["topics"]
    one, other = (channel["e2e_processing_latency"] for channel in topic["channels"])
    assert topic["e2e_processing_latency"] == {
        "count": 2,
        "percentiles": [
            {"quantile": 1, "value": pytest.approx(3e9, rel=0.005)},
            {"quantile": 0.5, "value": pytest.approx(1e9, rel=0.005)},
        ],
    }
    assert (one["count"], other["count"]) == (1, 1)
    assert '"quantile":1,' in api.ask("GET", "/stats?format=json").body.decode()
    assert "e2e%: 3.0s, 1.0s\n" in api.text("/stats")


def test_messages_are_counted_by_how_near_their_consumers_are() -> None:
    api = Api(topology_zone="z", topology_region="r", experiments=(TOPOLOGY_AWARE,))
    for zone, region in ("z", "r"), ("y", "r"), ("y", "q"):
        client = api.client()
        client.identify(topology_zone=zone, topology_region=region)
        client.send(commands.sub("t", "c"), commands.rdy(1))
    api.world.broker.publish("t", [b"x"] * 3)
    client.run_due()
    (channel,) = stats(api)["topics"][0]["channels"]
    counts = ["zone_local_msg_count", "region_local_msg_count", "global_msg_count"]
    assert [key for key in channel if key.endswith("msg_count")] == counts
    assert [channel[key] for key in counts] == [1, 1, 1]


def test_stats_show_layers_and_negotiated_values_of_a_client() -> None:
    api = Api(tls=True)
    client = api.client()
    client.upgrade(["tls_v1", "snappy"])
    client.send(commands.sub("t", "c"))
    client.run_due()
    (shown,) = stats(api)["topics"][0]["channels"][0]["clients"]
    assert (shown["tls"], shown["snappy"], shown["deflate"]) == (True, True, False)
    assert shown["tls_version"].startswith("TLS1.")
    assert shown["tls_cipher_suite"].startswith("TLS_")


def test_topics_and_channels_are_sorted_and_can_be_chosen() -> None:
    api = Api()
    for topic in "bac":
        for channel in "yx":
            api.world.broker.topic(topic).channel(channel)
    del api.world.broker.topics["c"].channels["x"]

    def shown(args: str) -> Any:
        topics = stats(api, args)["topics"]
        return topics and {t["topic_name"]: [c["channel_name"] for c in t["channels"]] for t in topics}

    assert list(shown("").items()) == [("a", ["x", "y"]), ("b", ["x", "y"]), ("c", ["y"])]
    assert shown("&topic=b") == {"b": ["x", "y"]}
    assert shown("&topic=b&channel=x") == {"b": ["x"]}
    assert shown("&channel=x") == {"a": ["x"], "b": ["x"]}
    assert shown("&topic=nope") is None
    assert shown("&topic=c&channel=x") == []


def test_clients_can_be_left_out() -> None:
    api = Api()
    client = api.client()
    client.send(commands.sub("t", "c"), commands.pub("t", b"x"))
    (channel,) = stats(api, "&include_clients=false")["topics"][0]["channels"]
    assert (channel["clients"], channel["client_count"]) == (None, 1)
    assert stats(api, "&include_clients=0")["producers"] is None
    assert len(stats(api, "&include_clients=true")["producers"]) == 1


def test_producers_are_those_who_published_to_the_topic_asked_for() -> None:
    api = Api()
    both, one, _silent = api.client(), api.client(), api.client()
    both.send(commands.pub("t", b"x"), commands.mpub("u", [b"x", b"y"]))
    one.send(commands.pub("u", b"x"))

    def counts(args: str) -> Any:
        producers = stats(api, args)["producers"]
        return producers and [{c["topic"]: c["count"] for c in p["pub_counts"]} for p in producers]

    assert counts("") == [{"t": 1, "u": 2}, {"u": 1}]
    assert counts("&topic=u") == [{"u": 2}, {"u": 1}]
    assert counts("&topic=t") == [{"t": 1}]
    assert counts("&topic=v") is None


@pytest.mark.parametrize("args", ["include_clients=maybe", "include_mem=2", "topic=%zz", "a;b"])
def test_arguments_that_cannot_be_understood(args: str) -> None:
    assert Api().refused("GET", f"/stats?{args}") == (400, "INVALID_REQUEST")


def test_strange_names_of_clients_do_no_harm() -> None:
    api = Api()
    client = api.client()
    client.send(
        commands.identify(b'{"client_id":"<\\ud800>","hostname":"\\u0000\\n"}'), commands.sub("t", "c")
    )
    client.run_due()
    (shown,) = stats(api)["topics"][0]["channels"][0]["clients"]
    assert shown["client_id"] == "<?>"
    assert "state: 3" in api.text("/stats")


# /config


def test_a_setting_can_be_read_and_changed() -> None:
    api = Api(broadcast_address="here", lookupd_tcp_addresses=("elsewhere:1",))
    assert api.json("/config/max_rdy_count") == 2500
    assert api.json("/config/snappy") is True
    assert api.json("/config/msg_timeout") == 60_000_000_000
    assert api.json("/config/id") == api.world.options.node_id
    assert api.json("/config/nsqlookupd_tcp_addresses") == ["lookup.example:4160"]
    assert api.json("/config/log_level") == 1
    assert api.text("/config/broadcast_address") == "here"
    assert api.text("/config/tls_cert") == ""
    assert api.json("/config/broadcast_tcp_port") == 4150
    assert api.json("/config/broadcast_http_port") == 4151
    assert api.text("/config/statsd_prefix") == "nsq.here_4151."
    assert api.json("/config/tls_required") == 0
    assert api.json("/config/tls_min_version") == 769
    assert api.refused("GET", "/config/nope") == (400, "INVALID_OPTION")
    assert api.refused("GET", "/config/__class__") == (400, "INVALID_OPTION")


@pytest.mark.parametrize(
    ("options", "required", "version"),
    [
        ({"tls_required": "tcp-https", "tls_min_version": "tls1.2"}, 1, 771),
        ({"tls_required": "true", "tls_min_version": "tls1.3"}, 2, 772),
        ({"tls_client_auth_policy": "require"}, 2, 769),
    ],
)
def test_tls_settings_are_shown_as_gos_numbers(options: dict[str, str], required: int, version: int) -> None:
    api = Api(tls_cert="c", tls_key="k", **options)
    assert api.json("/config/tls_required") == required
    assert api.json("/config/tls_min_version") == version


def test_the_nsqlookupds_can_be_changed() -> None:
    api = Api()
    wanted = ["a:1", "b:2"]
    reply = api.ask("PUT", "/config/nsqlookupd_tcp_addresses", json.dumps(wanted).encode())
    assert json.loads(reply.body) == wanted
    assert api.json("/config/nsqlookupd_tcp_addresses") == wanted


@pytest.mark.parametrize(
    ("name", "body", "refusal"),
    [
        ("log_level", b"", (413, "INVALID_VALUE")),
        ("log_level", b"x" * (1024 * 1024 + 1), (413, "INVALID_VALUE")),
        ("log_level", b"loud", (400, "INVALID_VALUE")),
        ("log_level", b"\xff", (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b"nope", (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b"\xff\xfe\xff", (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b"[" * 100_000, (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b'{"a:1":2}', (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b"[1]", (400, "INVALID_VALUE")),
        ("nsqlookupd_tcp_addresses", b'["no port"]', (400, "INVALID_VALUE")),
        ("max_rdy_count", b"5", (400, "INVALID_OPTION")),
        ("nope", b"5", (400, "INVALID_OPTION")),
    ],
)
def test_settings_that_cannot_be_made(name: str, body: bytes, refusal: tuple[int, str]) -> None:
    api = Api()
    assert api.refused("PUT", f"/config/{name}", body) == refusal
    assert api.json("/config/log_level") == 1


# Messages that wait


def waiting(api: Api, target: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = api.json(target)["messages"]
    return messages


def test_a_look_at_waiting_messages_changes_nothing() -> None:
    api = Api()
    api.world.broker.publish("t", [b"one", b"\xff\x00", "zwölf".encode()])
    before = stats(api)
    shown = waiting(api, "/topic/peek?topic=t")
    assert [(each["encoding"], each["body"], each["size"]) for each in shown] == [
        ("utf-8", "one", 3),
        ("base64", "/wA=", 2),
        ("utf-8", "zwölf", 6),
    ]
    assert [each["attempts"] for each in shown] == [0, 0, 0]
    assert [each["truncated"] for each in shown] == [False, False, False]
    assert shown[0]["timestamp"] == 1_700_000_000_000_000_000
    assert shown[0]["age_ms"] > 0
    assert stats(api) == before
    api.world.broker.topics["t"].channel("c")
    assert waiting(api, "/topic/peek?topic=t") == []
    client = api.client()
    client.send(commands.sub("t", "c"), commands.rdy(3))
    client.run_due()
    assert [message.id.decode() for message in client.frames()[1:] if isinstance(message, RawMessage)] == [
        each["id"] for each in shown
    ]
    client.drop()
    assert [each["attempts"] for each in waiting(api, "/channel/peek?topic=t&channel=c&n=2")] == [1, 1]


def test_messages_in_flight_are_shown_with_client_and_time() -> None:
    api = Api()
    api.world.broker.topic("t").channel("c")
    for name in ("slow", "quick"):
        client = api.client()
        client.identify(client_id=name, hostname=f"{name}.example")
        client.send(commands.sub("t", "c"), commands.rdy(2))
        client.run_due()
        api.world.broker.publish("t", [f"{name} 1".encode(), f"{name} 2".encode()])
        client.run_due()
        api.world.clock.advance(1.5)
    assert waiting(api, "/channel/peek?topic=t&channel=c") == []
    assert waiting(api, "/channel/peek?topic=t&channel=c&in_flight=false") == []
    shown = waiting(api, "/channel/peek?topic=t&channel=c&in_flight=true&n=3")
    assert [(each["client"]["client_id"], each["body"], each["in_flight_ms"]) for each in shown] == [
        ("slow", "slow 1", 3000),
        ("slow", "slow 2", 3000),
        ("quick", "quick 1", 1500),
    ]
    assert [each["attempts"] for each in shown] == [1, 1, 1]
    assert set(shown[0]["client"]) == {"client_id", "hostname", "remote_address"}
    assert len(waiting(api, "/channel/peek?topic=t&channel=c&in_flight=true")) == 4
    api.clients[0].drop()  # no client gets what it had: the other one is full
    assert len(waiting(api, "/channel/peek?topic=t&channel=c&in_flight=true")) == 2
    assert len(waiting(api, "/channel/peek?topic=t&channel=c")) == 2


def test_shown_messages_are_limited_and_cut_between_characters() -> None:
    api = Api(max_msg_size=3_000_000, max_body_size=9_000_000)
    api.world.broker.publish("t", [b"x" + "ö".encode() * 1_000_000, b"two"] + [b"more"] * 200)
    first, second, *rest = waiting(api, "/topic/peek?topic=t&n=100")
    assert (first["truncated"], first["size"]) == (True, 2_000_001)
    assert first["encoding"] == "utf-8"
    assert 1024 * 1024 - 1 <= len(first["body"].encode()) <= 1024 * 1024
    assert (second["truncated"], second["size"], second["body"]) == (True, 3, "")
    assert len(rest) == 98


@pytest.mark.parametrize(
    ("args", "refusal"),
    [
        ("", (400, "MISSING_ARG_TOPIC")),
        ("topic=nope&channel=c", (404, "TOPIC_NOT_FOUND")),
        ("topic=t&channel=nope", (404, "CHANNEL_NOT_FOUND")),
        ("topic=t&channel=c&n=0", (400, "INVALID_ARG_N")),
        ("topic=t&channel=c&n=101", (400, "INVALID_ARG_N")),
        ("topic=t&channel=c&n=-1", (400, "INVALID_ARG_N")),
        ("topic=t&channel=c&in_flight=perhaps", (400, "INVALID_REQUEST")),
    ],
)
def test_looks_that_are_refused(args: str, refusal: tuple[int, str]) -> None:
    api = Api()
    api.world.broker.topic("t").channel("c")
    assert api.refused("GET", f"/channel/peek?{args}") == refusal


@pytest.mark.parametrize(
    ("peek", "remote", "status"),
    [
        ("loopback", "127.0.0.1:5", 200), ("loopback", "[::1]:5", 200), ("loopback", "@", 200),
        ("loopback", "10.0.0.9:5", 403), ("all", "10.0.0.9:5", 200),
    ],
)  # fmt: skip
def test_peek_is_answered_only_for_allowed_callers(
    peek: str, remote: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(peek=peek)
    api.world.broker.topic("t")
    monkeypatch.setattr(Request, "remote", remote)
    try:
        found = api.ask("GET", "/topic/peek?topic=t").status
    except HttpError as refusal:
        found = refusal.status
    assert found == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:4151"}, 200),
        ({"Host": "127.0.0.1:4151", "Origin": "http://127.0.0.1:4151"}, 200),
        ({"Host": "[::1]:4151"}, 200),
        ({"Host": "nsqd1.shop.example:4151"}, 200),
        ({"Host": "rebound.example:4151"}, 403),
        ({"Host": "rebound.example:4151", "Origin": "http://rebound.example:4151"}, 403),
        ({"Host": "127.0.0.1:4151", "Origin": "http://other.example"}, 403),
        ({"Host": "127.0.0.1:4151", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_a_web_page_of_another_site_sees_no_message(headers: dict[str, str], status: int) -> None:
    """With DNS rebinding the host name of such a page leads to this machine."""
    api = Api(broadcast_address="nsqd1.shop.example")
    api.world.broker.topic("t").channel("c")
    for target in ("/topic/peek?topic=t", "/channel/peek?topic=t&channel=c"):
        try:
            found = api.ask("GET", target, headers=headers).status
        except HttpError as refusal:
            found = refusal.status
        assert found == status


def test_looking_can_be_switched_off() -> None:
    assert Api(peek="off").router.find("GET", "/topic/peek") == (None, {})


@pytest.mark.parametrize("legacy", [False, True])
def test_old_names_change_something_by_get_only_if_that_was_asked_for(legacy: bool) -> None:
    api = Api(legacy_get=legacy)
    names = [
        f"/{verb}_{noun}" for verb in ("create", "delete", "empty", "pause") for noun in ("topic", "channel")
    ]
    assert {api.router.find("GET", name)[0] is not None for name in names} == {legacy}
    assert {api.router.find("POST", name)[0] is not None for name in names} == {True}
    if not legacy:
        assert api.router.without(Request("GET", "/delete_topic?topic=t")).status == 405


def test_thousands_of_topics_are_shown_in_slices() -> None:
    api = Api()
    for number in range(5000):
        api.world.broker.topic(f"topic{number}").channel("c")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def both(target: str) -> Reply:
        beside = asyncio.create_task(others())
        await asyncio.sleep(0)
        route, _ = api.router.find("GET", target.partition("?")[0])
        assert route is not None
        answer = route.handler(Request("GET", target))
        assert not isinstance(answer, Reply)
        reply = await answer
        beside.cancel()
        return reply

    for target in ("/stats?format=json", "/stats", "/metrics"):
        turns = 0
        reply = asyncio.run(both(target))
        assert turns > 5, target
        assert reply.rest, target


def test_deferred_messages_are_shown_by_stats_and_peek() -> None:
    api = Api()
    client = api.client()
    client.send(
        commands.sub("t", "c"), commands.dpub("t", 90_000, b"second"), commands.dpub("t", 5000, b"first")
    )
    client.run_due()
    [topic] = api.json("/stats?format=json&topic=t&channel=c")["topics"]
    [channel] = topic["channels"]
    assert (channel["deferred_count"], channel["deferred_on_disk"], channel["next_deferred_ms"]) == (
        2,
        0,
        5000,
    )
    assert [each["count"] for each in channel["deferred_due"]] == [1, 1, 0, 0, 0, 0, 0, 0]
    found = api.json("/channel/peek?topic=t&channel=c&deferred=true")["messages"]
    assert [(each["body"], each["due_in_ms"]) for each in found] == [("first", 5000), ("second", 90_000)]


def test_deferred_messages_on_disk_count_as_spread_over_the_time_of_their_file() -> None:
    ranges = [DueRange(10.0, 10.0, 2), DueRange(0.0, 120.0, 100), DueRange(90_000.0, 90_010.0, 7)]
    counts = [each["count"] for each in due_within(ranges, 0.0)]
    assert counts == [52, 50, 0, 0, 0, 7, 0, 0]
