"""Requests of nsqadmin to nsqds and nsqlookupds, their order, and its replies when some of them fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nsq.daemons.nsqadmin import overview
from nsq.daemons.nsqadmin.cluster import Cluster

from .upstreams import DOWN, LOOKUPD, NSQD1, NSQD2, Upstreams, channel, node, stats, topic

PAUSE = {"action": "pause"}


@pytest.mark.parametrize(
    ("method", "target", "body", "posted"),
    [
        ("POST", "/api/topics", {"topic": "new"}, [f"{LOOKUPD}/topic/create?topic=new"]),
        (
            "POST",
            "/api/topics",
            {"topic": "orders", "channel": "c"},
            [
                f"{LOOKUPD}/topic/create?topic=orders",
                f"{LOOKUPD}/channel/create?topic=orders&channel=c",
                f"{NSQD1}/channel/create?topic=orders&channel=c",
                f"{NSQD2}/channel/create?topic=orders&channel=c",
            ],
        ),
        (
            "DELETE",
            "/api/topics/orders",
            None,
            [f"{each}/topic/delete?topic=orders" for each in (LOOKUPD, NSQD1, NSQD2)],
        ),
        (
            "DELETE",
            "/api/topics/orders/a%23ephemeral",
            None,
            [f"{each}/channel/delete?topic=orders&channel=a%23ephemeral" for each in (LOOKUPD, NSQD1, NSQD2)],
        ),
        ("POST", "/api/topics/orders", PAUSE, [f"{n}/topic/pause?topic=orders" for n in (NSQD1, NSQD2)]),
        (
            "POST",
            "/api/topics/orders/billing",
            {"action": "empty"},
            [f"{each}/channel/empty?topic=orders&channel=billing" for each in (NSQD1, NSQD2)],
        ),
        (
            "DELETE",
            f"/api/nodes/{NSQD2}",
            {"topic": "orders"},
            [
                f"{LOOKUPD}/topic/tombstone?topic=orders&node=nsqd2%3A4151",
                f"{NSQD2}/topic/delete?topic=orders",
            ],
        ),
    ],
)
def test_an_action_reaches_nsqlookupds_first_and_then_the_nsqds(
    method: str, target: str, body: Any, posted: list[str]
) -> None:
    upstreams = Upstreams()
    assert upstreams.ask(method, target, body) == (200, {"message": ""})
    assert upstreams.posted() == posted


def test_capitals_in_the_keys_of_a_body_do_not_matter() -> None:
    upstreams = Upstreams()
    assert upstreams.ask("POST", "/api/topics", {"Topic": "new"}) == (200, {"message": ""})
    assert upstreams.posted() == [f"{LOOKUPD}/topic/create?topic=new"]


def test_tombstoning_an_nsqd_that_is_unknown_or_does_not_answer_fails() -> None:
    upstreams = Upstreams()
    upstreams.answers[f"{NSQD2}/topic/delete"] = DOWN
    for name in (NSQD2, "nsqd9:4151"):
        status, answer = upstreams.ask("DELETE", f"/api/nodes/{name}", {"topic": "orders"})
        assert (status, answer["message"].partition(":")[0]) == (502, "UPSTREAM_ERROR")
    assert sum("/topic/tombstone" in each for each in upstreams.posted()) == 2


def test_tombstoning_an_nsqd_without_the_topic_is_a_warning() -> None:
    upstreams = Upstreams()
    upstreams.answers[f"{NSQD2}/topic/delete"] = 404
    status, answer = upstreams.ask("DELETE", f"/api/nodes/{NSQD2}", {"topic": "orders"})
    assert (status, answer["message"].partition(":")[0]) == (200, "WARNING")


def test_an_action_reaches_an_nsqd_that_is_tombstoned() -> None:
    upstreams = Upstreams()
    upstreams.answers[f"{LOOKUPD}/lookup"] = {"channels": [], "producers": [node(NSQD1)]}
    upstreams.answers[f"{LOOKUPD}/nodes"] = {"producers": [node(NSQD1), node(NSQD2, hidden=True)]}
    upstreams.ask("POST", "/api/topics/orders", PAUSE)
    assert upstreams.posted() == [f"{each}/topic/pause?topic=orders" for each in (NSQD1, NSQD2)]


def test_nsqds_are_asked_for_everything_without_nsqlookupds() -> None:
    upstreams = Upstreams(lookupd_http_addresses=(), nsqd_http_addresses=(NSQD1,))
    upstreams.answers[f"{NSQD1}/info"] = node(NSQD1)
    assert upstreams.ask("GET", "/api/topics") == (200, {"topics": ["orders"], "message": ""})
    assert upstreams.ask("GET", "/api/topics/orders/billing")[1]["depth"] == 2
    assert [each["name"] for each in upstreams.ask("GET", "/api/overview")[1]["topics"]] == ["orders"]
    assert upstreams.posted() == []
    upstreams.ask("POST", "/api/topics", {"topic": "new"})
    assert upstreams.posted() == [f"{NSQD1}/topic/create?topic=new"]


def test_a_part_that_fails_is_named_and_the_others_are_done() -> None:
    upstreams = Upstreams()
    upstreams.answers[f"{NSQD1}/topic/pause"] = 404
    message = f"WARNING: http://{NSQD1}/topic/pause answered 404 TOPIC_NOT_FOUND"
    assert upstreams.ask("POST", "/api/topics/orders", PAUSE) == (200, {"message": message})
    assert len(upstreams.posted()) == 2


@pytest.mark.parametrize("target", ["/api/topics/orders", "/api/topics/orders/billing", "/api/counter"])
def test_an_nsqd_that_fails_is_a_warning_beside_the_others_answers(target: str) -> None:
    upstreams = Upstreams()
    upstreams.answers[f"{NSQD2}/stats"] = DOWN
    status, answer = upstreams.ask("GET", target)
    assert (status, answer["message"]) == (200, f"WARNING: {DOWN}")
    assert NSQD1 in str(answer)


@pytest.mark.parametrize("answer", [DOWN, {"topics": 5}, {"topics": [{"topic_name": 5}]}, [], "x", 500])
def test_when_all_nsqds_fail_the_answer_is_502(answer: Any) -> None:
    upstreams = Upstreams()
    upstreams.answers |= {f"{NSQD1}/stats": answer, f"{NSQD2}/stats": answer}
    status, body = upstreams.ask("GET", "/api/topics/orders")
    assert status == 502
    assert body["message"].startswith("UPSTREAM_ERROR: failed to query any nsqd: http://nsqd")


def test_a_topic_without_a_producer_is_502_as_in_go_and_shown_in_the_overview() -> None:
    upstreams = Upstreams()
    upstreams.answers[f"{LOOKUPD}/lookup"] = {"channels": [], "producers": []}
    upstreams.answers[f"{LOOKUPD}/nodes"] = {"producers": []}
    answer = {"message": "UPSTREAM_ERROR: failed to query any nsqd: "}
    assert upstreams.ask("GET", "/api/topics/orders") == (502, answer)
    _, overview = upstreams.ask("GET", "/api/overview")
    assert overview["topics"][0]["health"] == [1, "no nsqd has it now; nsqlookupd remembers it"]


def test_inactive_topics_are_those_that_no_nsqd_offers() -> None:
    upstreams = Upstreams()
    upstreams.answers[f"{LOOKUPD}/topics"] = {"topics": ["orders", "old"]}
    upstreams.answers[f"{LOOKUPD}/channels"] = {"channels": ["archive"]}
    answer = {"topics": {"old": ["archive"]}, "message": ""}
    assert upstreams.ask("GET", "/api/topics?inactive=true") == (200, answer)


def test_an_nsqd_that_insists_on_tls_is_asked_again_with_tls() -> None:
    upstreams = Upstreams()
    upstreams.answers[f"{NSQD1}/stats"] = {"unused": True}
    refused: list[bool] = []
    plain = upstreams.send

    async def send(request: Any, **timeouts: Any) -> Any:
        reply = await plain(request, **timeouts)
        if request.url.host == "nsqd1" and request.url.scheme == "http":
            refused.append(True)
            return type(reply)(403, {}, b'{"message":"TLS_REQUIRED","https_port":4152}')
        return reply

    upstreams.send = send  # type: ignore[method-assign]
    upstreams.answers["nsqd1:4152/stats"] = stats(topic("orders", channel(depth=7)))
    _, answer = upstreams.ask("GET", "/api/topics/orders")
    assert refused
    assert [each["channels"][0]["depth"] for each in answer["nodes"]] == [7, 3]


def test_an_upstream_that_hangs_holds_up_no_other() -> None:
    upstreams = Upstreams()
    plain, hanging = upstreams.send, asyncio.Event()

    async def send(request: Any, **timeouts: Any) -> Any:
        if request.url.host == "nsqd1":
            await hanging.wait()
        return await plain(request, **timeouts)

    async def asked() -> tuple[int, int]:
        cluster = Cluster(upstreams.options, send=send)
        nodes = (await cluster.nodes()).value
        one, other = sorted(nodes, key=lambda each: each.name)
        stuck = [asyncio.ensure_future(cluster.stats([one], 0.0)) for _ in range(100)]
        await asyncio.sleep(0)
        answered = await cluster.stats([other], 0.0)
        hanging.set()
        return len(answered.value), sum([len((await each).value) for each in stuck])

    assert asyncio.run(asked()) == (1, 100)


CHANGES = [
    ("POST", "/api/topics", {"topic": "new"}),
    ("POST", "/api/topics/orders", PAUSE),
    ("POST", "/api/topics/orders/billing", PAUSE),
    ("DELETE", "/api/topics/orders", None),
    ("DELETE", "/api/topics/orders/billing", None),
    ("DELETE", f"/api/nodes/{NSQD1}", {"topic": "orders"}),
]
PEEKS = [("GET", "/api/peek/orders", None), ("GET", "/api/peek/orders/billing", None)]
TAILS = [("POST", "/api/tail/orders"), ("GET", "/api/tail/orders/x"), ("DELETE", "/api/tail/orders/x")]


@pytest.mark.parametrize(("method", "target", "body"), CHANGES + PEEKS)
def test_only_admins_change_things_and_read_messages(method: str, target: str, body: Any) -> None:
    upstreams = Upstreams(admin_users=("ann",), acl_http_header="X-User")
    assert upstreams.ask(method, target, body, {"X-User": "bob"}) == (403, {"message": "FORBIDDEN"})
    assert upstreams.asked == []
    assert upstreams.ask(method, target, body, {"X-User": "ann"})[0] == 200


@pytest.mark.parametrize(("method", "target"), TAILS)
def test_only_admins_follow_topics(method: str, target: str) -> None:
    upstreams = Upstreams(admin_users=("ann",))
    assert upstreams.ask(method, target, {}) == (403, {"message": "FORBIDDEN"})


def test_a_topic_without_a_channel_is_not_followed() -> None:
    # The tail's channel would be the first one, and take with it what waits in the topic.
    upstreams = Upstreams()
    upstreams.answers |= {f"{each}/stats": stats(topic("orders", depth=5)) for each in (NSQD1, NSQD2)}
    assert upstreams.ask("POST", "/api/tail/orders", {}) == (409, {"message": "NO_CHANNEL"})


@pytest.mark.parametrize("to", ["orders", "unheard_of", ""])
def test_dead_letters_go_to_another_topic_that_is_there(to: str) -> None:
    upstreams = Upstreams()
    body = {"action": "redrive", "to": to}
    answer = (400, {"message": "INVALID_TOPIC"})
    assert upstreams.ask("POST", "/api/topics/orders/billing", body) == answer


@pytest.mark.parametrize(("method", "target", "body"), CHANGES)
@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://admin:4171", "Host": "admin:4171"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Origin": "http://admin:4171", "Host": "admin:4171"}, True),
        ({"Origin": "https://a.internal", "Host": "10.0.0.1:4171", "X-Forwarded-Host": "a.internal"}, True),
        ({"Origin": "http://evil.example", "Host": "admin:4171"}, False),
        ({"Origin": "http://admin:4171.evil.example", "Host": "admin:4171"}, False),
        ({"Origin": "null", "Host": "admin:4171"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://["}, False),
    ],
)
def test_a_page_of_another_site_changes_nothing(
    method: str, target: str, body: Any, headers: dict[str, str], allowed: bool
) -> None:
    upstreams = Upstreams()
    status, answer = upstreams.ask(method, target, body, headers)
    assert (status, answer["message"]) == ((200, "") if allowed else (403, "CROSS_SITE_REQUEST"))
    assert bool(upstreams.posted()) == allowed


# A page of rebound.example, whose name now leads to nsqadmin's address, sends what nsqadmin's page would.
STRANGE = {"Host": "rebound.example:4171"}
KNOWN_NAMES = (
    "127.0.0.1:4171",
    "[::1]:4171",
    "localhost:4171",
    "nsqadmin",
    "nsqadmin.prod.svc.cluster.local",
)


@pytest.mark.parametrize(
    ("method", "target", "headers", "status"),
    [
        ("POST", "/api/topics/orders", STRANGE | {"Origin": "http://rebound.example:4171"}, 403),
        ("POST", "/api/topics/orders", STRANGE | {"Sec-Fetch-Site": "same-origin"}, 403),
        (
            "POST",
            "/api/topics/orders",
            {"Origin": "http://rebound.example", "Host": "nsqadmin", "X-Forwarded-Host": "rebound.example"},
            403,
        ),
        ("POST", "/api/topics/orders", STRANGE | {"Sec-Fetch-Site": "same-origin", "Origin": "null"}, 403),
        ("GET", "/api/peek/orders", STRANGE, 403),
        ("GET", "/api/peek/orders", {"Host": "a", "X-Forwarded-Host": "b.internal, rebound.example"}, 403),
        ("GET", "/api/peek/orders", STRANGE | {"X-Forwarded-Host": "localhost"}, 403),
        ("GET", "/api/tail/orders/x", STRANGE, 403),
        ("GET", "/config/log_level", STRANGE, 403),
        # A program knows where it wants to go. And figures are for everyone, as in Go's nsqadmin.
        ("POST", "/api/topics/orders", STRANGE, 200),
        ("GET", "/api/topics/orders", STRANGE, 200),
        *(("GET", "/api/peek/orders", {"Host": host}, 200) for host in KNOWN_NAMES),
    ],
)
def test_a_page_whose_name_was_bound_to_this_address_changes_and_reads_nothing(
    method: str, target: str, headers: dict[str, str], status: int
) -> None:
    upstreams = Upstreams()
    found, answer = upstreams.ask(method, target, PAUSE if method == "POST" else None, headers)
    assert found == status
    if status == 403:
        hint = "UNKNOWN_HOST: start nsqadmin with --allow-host=rebound.example"
        assert answer == {"message": hint}
        assert upstreams.asked == []


@pytest.mark.parametrize(
    ("host", "status"),
    [("nsq.example.com", 200), ("NSQ.example.com.:443", 200), ("10.0.0.1:4171", 200), ("a.example", 403)],
)
def test_allow_host_refuses_requests_under_other_names(host: str, status: int) -> None:
    upstreams = Upstreams(allow_hosts=("nsq.example.com",))
    origin = {"Host": host, "Origin": f"https://{host}"}
    for target in ("/topics", "/api/topics", "/api/overview", "/static/nsqadmin.js", "/api/peek/orders"):
        assert upstreams.ask("GET", target, None, {"Host": host})[0] == status, target
    assert upstreams.ask("POST", "/api/topics/orders", PAUSE, origin)[0] == status
    assert upstreams.ask("GET", "/ping", None, {"Host": host})[0] == 200


def test_nothing_is_changed_by_get() -> None:
    upstreams = Upstreams()
    for target in ("/api/topics/orders?action=empty", "/api/nodes", "/api/topics", "/api/counter"):
        upstreams.ask("GET", target)
    assert upstreams.posted() == []


@pytest.mark.parametrize(
    ("method", "target", "body", "code"),
    [
        ("POST", "/api/topics", b"", "EOF"),
        ("POST", "/api/topics", b"[]", "the body is a JSON list, not an object"),
        ("POST", "/api/topics", {"topic": 5}, "topic is not a text but int"),
        ("POST", "/api/topics", {"topic": "a b"}, "INVALID_TOPIC"),
        ("POST", "/api/topics", {"topic": "a", "channel": "b/"}, "INVALID_CHANNEL"),
        ("POST", "/api/topics/orders", {"action": "delete"}, "INVALID_ACTION"),
        ("DELETE", f"/api/nodes/{NSQD1}", b"{", "INVALID_BODY"),
        ("DELETE", f"/api/nodes/{NSQD1}", {"topic": ""}, "INVALID_TOPIC"),
        ("GET", "/api/peek/orders?n=1000", None, "INVALID_ARG_N"),
        ("GET", "/api/graphite?metric=x&target=y", None, "INVALID_ARG_METRIC"),
        ("GET", "/api/graphite?metric=rate", None, "INVALID_ARG_TARGET"),
        ("GET", "/config/nope", None, "INVALID_OPTION"),
        ("GET", "/config/client_opts", None, "INVALID_OPTION"),
        ("PUT", "/config/http_address", b"x", "INVALID_OPTION"),
        ("PUT", "/config/log_level", b"loud", "INVALID_VALUE"),
        ("PUT", "/config/nsqlookupd_http_addresses", b"[]", "INVALID_VALUE"),
        ("PUT", "/config/nsqlookupd_http_addresses", b'["http://"]', "INVALID_VALUE"),
    ],
)
def test_invalid_requests_are_refused(method: str, target: str, body: Any, code: str) -> None:
    upstreams = Upstreams()
    assert upstreams.ask(method, target, body) == (400, {"message": code})
    assert upstreams.posted() == []


def test_settings_can_be_read_and_changed_from_allowed_networks() -> None:
    upstreams = Upstreams()
    assert upstreams.ask("GET", "/config/statsd_interval") == (200, 60_000_000_000)
    assert upstreams.ask("PUT", "/config/log_level", b"debug") == (200, 1)
    assert upstreams.ask("PUT", "/config/nsqlookupd_http_addresses", ["a:1", "b:2"]) == (200, ["a:1", "b:2"])


def test_a_peek_at_a_topic_whose_queue_is_empty_looks_in_its_channels() -> None:
    upstreams = Upstreams()

    def shown(*ids: str) -> dict[str, Any]:
        return {"messages": [{"id": each, "timestamp": int(each), "body": "x"} for each in ids]}

    channels = [channel("billing", depth=2), channel("audit", depth=1), channel("idle")]
    upstreams.answers |= {
        f"{NSQD1}/stats": stats(topic("orders", *channels)),
        f"{NSQD1}/topic/peek": shown(),
        f"{NSQD2}/topic/peek": shown(),
        f"{NSQD1}/channel/peek": shown("3", "1"),
        f"{NSQD2}/channel/peek": shown("2"),
    }
    _, answer = upstreams.ask("GET", "/api/peek/orders")
    assert [(each["node"], each["id"], each["channels"]) for each in answer["messages"]] == [
        (NSQD1, "1", ["billing", "audit"]),
        (NSQD2, "2", ["billing"]),
        (NSQD1, "3", ["billing", "audit"]),
    ]
    assert not any("channel=idle" in each for each in upstreams.asked)
    upstreams.answers[f"{NSQD2}/topic/peek"] = shown("9")
    _, answer = upstreams.ask("GET", "/api/peek/orders")
    assert [each["id"] for each in answer["messages"]] == ["9"]


def test_peek_gathers_what_waits_and_says_which_nsqd_cannot_show_it() -> None:
    upstreams = Upstreams()
    message = {"id": "0" * 16, "timestamp": 1, "age_ms": 2, "attempts": 0, "size": 1, "truncated": False}
    shown = {"messages": [{**message, "encoding": "utf-8", "body": "<script>"}]}
    upstreams.answers |= {f"{NSQD1}/channel/peek": shown, f"{NSQD2}/channel/peek": 404}
    _, answer = upstreams.ask("GET", "/api/peek/orders/billing?n=3")
    assert answer["messages"] == [{"node": NSQD1, **shown["messages"][0]}]
    assert f"GET {NSQD1}/channel/peek?topic=orders&n=3&channel=billing" in upstreams.asked


def test_messages_in_flight_are_listed_longest_first_with_their_clients() -> None:
    upstreams = Upstreams()
    message = {"id": "0" * 16, "timestamp": 1, "age_ms": 2, "attempts": 1, "size": 1, "truncated": False}
    message |= {"encoding": "utf-8", "body": "x", "client": {"client_id": "ann", "remote_address": "h:1"}}
    upstreams.answers |= {
        f"{NSQD1}/channel/peek": {"messages": [message | {"in_flight_ms": 5}]},
        f"{NSQD2}/channel/peek": {"messages": [message | {"in_flight_ms": 7}]},
    }
    _, answer = upstreams.ask("GET", "/api/peek/orders/billing?in_flight=true")
    assert [(each["node"], each["in_flight_ms"]) for each in answer["messages"]] == [(NSQD2, 7), (NSQD1, 5)]
    assert answer["messages"][0]["client"] == {"client_id": "ann", "hostname": "", "remote_address": "h:1"}
    query = "topic=orders&n=10&channel=billing&in_flight=true"
    assert f"GET {NSQD1}/channel/peek?{query}" in upstreams.asked


def test_an_action_is_posted_to_the_notification_endpoint() -> None:
    upstreams = Upstreams(notification_http_endpoint="http://hook:80/nsq")
    headers = {"Host": "admin:4171", "User-Agent": "curl/8", "Authorization": "Basic YW5uOnNlY3JldA=="}
    upstreams.ask("POST", "/api/topics/orders/billing", {"action": "empty"}, headers)
    (answer,) = upstreams.bodies
    assert answer.pop("timestamp") > 0
    assert answer.pop("via")
    assert answer == {
        "action": "empty_channel",
        "topic": "orders",
        "channel": "billing",
        "user": "ann",
        "remote_ip": "@",
        "user_agent": "curl/8",
        "url": "http://admin:4171/api/topics/orders/billing",
    }


def test_everything_lies_below_the_base_path() -> None:
    upstreams = Upstreams(base_path="nsq/")
    assert upstreams.ask("GET", "/nsq/ping") == (200, b"OK")
    assert [upstreams.ask("GET", path)[0] for path in ("/ping", "/api/topics", "/static/nsqadmin.js")] == [
        404
    ] * 3
    status, page = upstreams.ask("GET", "/nsq/topics/orders")
    assert status == 200
    assert b'src="/nsq/static/nsqadmin.js?' in page


def test_graphite_is_asked_for_the_last_whole_interval() -> None:
    upstreams = Upstreams(graphite_url="http://graphite/g/")
    upstreams.answers["graphite:80/g/render"] = [{"datapoints": [[120.0, 1]]}]
    assert upstreams.ask("GET", "/api/graphite?metric=rate&target=a.b") == (200, {"rate": "2.00"})
    query = "from=-120sec&until=-60sec&format=json&target=a.b"
    assert upstreams.asked == [f"GET graphite:80/g/render?{query}"]


def test_an_nsqd_that_needs_a_moment_is_waited_for_when_nothing_recent_is_known_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overview, "_PATIENCE", 0.0)
    monkeypatch.setattr(overview, "_FIRST_PATIENCE", 600.0)
    upstreams = Upstreams()
    times = [1000.0]
    held = asyncio.Event()

    async def send(request: Any, **timeouts: Any) -> Any:
        if request.url.host == "nsqd1" and request.url.target.startswith("/stats"):
            if held.is_set():
                await asyncio.Event().wait()
            for _ in range(100):  # turns of the loop: more than there is patience for
                await asyncio.sleep(0)
        return await upstreams.send(request, **timeouts)

    def found(answer: Any) -> tuple[int, list[Any]]:
        healths = {node["hostname"]: node["health"] for node in answer["nodes"]}
        return answer["topics"][0]["channels"][0]["depth"], healths["nsqd1"]

    async def looks() -> None:
        page = overview.Overview(Cluster(upstreams.options, send=send), lambda: times[0])
        assert found(await page.look()) == (5, (0, "fine"))
        times[0] += 3600  # with no page open meanwhile
        assert found(await page.look()) == (5, (0, "fine"))
        held.set()
        for _ in range(3):
            times[0] += 2
            answer = found(await page.look())
        assert answer == (5, (2, "slow: it does not answer in time"))
        times[0] += 30  # what it said is too old by now, and it has had its time
        assert found(await page.look()) == (3, (2, "slow: it does not answer in time"))
        await page.close()

    asyncio.run(looks())


def test_a_page_that_opens_gets_recent_figures_at_once_and_new_ones_next() -> None:
    upstreams = Upstreams()
    times = [1000.0]

    async def looks() -> list[int]:
        page = overview.Overview(Cluster(upstreams.options, send=upstreams.send), lambda: times[0])
        depths = []
        for seconds, within, depth in ((0, 10.0, 2), (8, 10.0, 20), (0, 0.9, 20), (11, 10.0, 40)):
            times[0] += seconds
            upstreams.answers[f"{NSQD1}/stats"] = stats(topic("orders", channel(depth=depth)))
            depths.append((await page.look(within))["topics"][0]["channels"][0]["depth"])
        await page.close()
        return depths

    assert asyncio.run(looks()) == [5, 5, 23, 43]
