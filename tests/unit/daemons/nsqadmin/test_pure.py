"""The pure parts of nsqadmin: sums, health, access rights and formulas."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import sys
import zlib
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from nsq.daemons.nsqadmin import aggregate, health
from nsq.daemons.nsqadmin.graphite import Charts
from nsq.daemons.nsqadmin.guard import Guard, finished
from nsq.daemons.nsqadmin.health import BAD, FINE, NOTICE, ChannelState, Health
from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.nsqadmin.overview import History, NodePoll, describe
from nsq.daemons.serve.routes import HttpError, Reply, Request
from nsq.http.calls import Misshapen
from nsq.http.cluster import Node, summarize
from nsq.http.message import Url
from nsq.http.nsqlookupd import NsqdNode
from tests.fakes import big_cluster

from .upstreams import channel, stats, topic

ADDRESSES: dict[str, Any] = {"lookupd_http_addresses": ("a:4161",)}


def latency(count: int, value: int) -> dict[str, Any]:
    return {"count": count, "percentiles": [{"quantile": 0.99, "value": value}]}


def test_percentiles_weigh_by_messages_and_the_minimum_is_the_smallest() -> None:
    parts = [
        aggregate.read_topics(
            stats(topic(e2e_processing_latency=latency(count, value))), f"n{value}:1", host, now=0.0
        )[0]
        for count, value, host in ((1, 10, "b"), (3, 30, "a"), (0, 99, "c"))
    ]
    merged = aggregate.merge_topics("orders", parts)
    assert merged["e2e_processing_latency"]["percentiles"] == [
        {"average": 25, "count": 4, "max": 30, "min": 10, "quantile": 0.99}
    ]
    assert [part["hostname"] for part in merged["nodes"]] == ["a", "b", "c"]


def test_a_channel_of_two_nsqds_is_added_up_and_each_keeps_its_own_figures() -> None:
    parts = [
        aggregate.read_topics(stats(topic("orders", channel(depth=depth, client_count=1))), name, name, 0.0)[
            0
        ]
        for name, depth in (("n1:1", 2), ("n2:1", 3))
    ]
    merged = aggregate.merge_topics("orders", parts)
    (total,) = merged["channels"]
    assert (total["node"], total["depth"], total["client_count"]) == ("*", 5, 2)
    assert [part["channels"][0]["depth"] for part in merged["nodes"]] == [2, 3]


def test_each_nsqd_of_a_channel_keeps_when_its_deferred_messages_are_due() -> None:
    due = [{"within": 60, "count": 2}, {"within": None, "count": 1}]
    (ours,) = aggregate.read_topics(stats(topic("orders", channel(deferred_due=due))), "n1:1", "n1", 0.0)
    (gos,) = aggregate.read_topics(stats(topic("orders", channel())), "n2:1", "n2", 0.0)
    merged = aggregate.merge_channels("orders", "billing", ours["channels"] + gos["channels"])
    assert [part.get("deferred_due") for part in merged["nodes"]] == [due, None]
    for wrong in ("60", math.nan, []):  # NaN would make a reply that cannot be written as JSON
        due = [{"within": wrong, "count": 2}]
        with pytest.raises(Misshapen):
            aggregate.read_topics(stats(topic("orders", channel(deferred_due=due))), "n:1", "n", 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {"topics": {}},
        stats({"topic_name": None, "depth": "9"}),
        stats(topic("orders", channel(depth=1.5))),
        stats(topic("orders", channel(depth=10**30))),
        stats(topic("orders", message_count=10**400)),
        stats(topic("orders", channel(depth="<b>"))),
        stats(topic("orders", channel(paused="yes"))),
        stats(topic("orders", "billing")),  # type: ignore[arg-type]
    ],
)
def test_misshapen_statistics_are_refused_by_both_readers(wrong: Any) -> None:
    with pytest.raises(Misshapen):
        aggregate.read_topics(wrong, "n:1", "n", 0.0)
    with pytest.raises(Misshapen):
        summarize(wrong, 0.0)


@pytest.mark.parametrize(
    ("state", "judged"),
    [
        ({"clients": 1}, Health(FINE, "fine")),
        ({}, Health(NOTICE, "no consumers")),
        ({"depth": 1}, Health(BAD, "no consumers: 1 message waits")),
        ({"depth": 1200, "paused": True}, Health(BAD, "paused: 1,200 messages wait")),
        ({"paused": True, "clients": 1}, Health(NOTICE, "paused")),
        (
            {"depth": 5, "clients": 2},
            Health(BAD, "consumers take nothing: backing off, or not ready: 5 messages wait"),
        ),
        ({"depth": 5, "clients": 2, "in_flight": 1}, Health(FINE, "fine")),
        (
            {"depth": 5000, "clients": 2, "in_flight": 1, "growth": 10.0, "finished": 50.0, "room": 108_000},
            Health(BAD, "depth grows by 10/s: memory is full in 3 h, then it goes to disk"),
        ),
        (
            {"depth": 5000, "clients": 2, "in_flight": 1, "growth": 10.0, "room": 0},
            Health(BAD, "depth grows by 10/s, on disk already"),
        ),
        ({"depth": 10**6, "clients": 2, "in_flight": 1, "growth": 2.0}, Health(FINE, "fine")),
        (
            {"clients": 1, "in_flight": 9, "timed_out": 0.5},
            Health(BAD, "a client times out: 30/min messages are sent again"),
        ),
        ({"clients": 1, "finished": 10.0, "requeued": 4.0}, Health(NOTICE, "clients requeue 4/s")),
        (
            {"clients": 1, "in_flight": 9, "dropped": 20.0},
            Health(BAD, "drops messages: 20/s, as too many wait (--max-channel-depth)"),
        ),
    ],
)
def test_the_health_of_a_channel_is_described(state: dict[str, Any], judged: Health) -> None:
    assert health.of_channel(ChannelState(**state)) == judged


def test_rates_are_what_came_since_some_seconds_before() -> None:
    poll = node_poll("n")
    poll.track.memory_size = None

    def at(second: float, messages: int, depth: int, started: int = 1) -> dict[str, Any]:
        counts = channel(depth=depth, message_count=messages, client_count=1, in_flight_count=1)
        seen = stats(topic("orders", counts, message_count=messages), start_time=started)
        poll.value, poll.answered = poll.track.add(summarize(seen, second)), second
        (shown,) = describe([poll], ["old"], second)["topics"][1:]
        return {"topic": shown["rate"], **shown["channels"][0]}

    assert at(0.0, 100, 10)["rate"] == 0
    second = at(2.0, 140, 20)
    assert (second["topic"], second["rate"], second["finished"]) == (20.0, 20.0, 15.0)
    assert second["health"] == (BAD, "depth grows by 5/s")
    for moment in (4.0, 6.0, 8.0, 10.0, 12.0):
        last = at(moment, 140, 20)
    assert last["rate"] == 0
    assert at(14.0, 3, 3, started=2)["rate"] == 0  # it was restarted and counts from zero


def node_poll(name: str) -> NodePoll:
    info = NsqdNode(broadcast_address=name, tcp_port=1, http_port=2, version="1.3.0")
    poll = NodePoll(Node(info, Url("http", name, 2, "/")), 0.0)
    poll.track.memory_size = 100
    return poll


def test_channels_are_added_up_whether_or_not_every_nsqd_has_them() -> None:
    polls = [node_poll(name) for name in ("a", "b", "c")]
    have = [("billing", "audit"), ("billing", "audit"), ("audit", "lost")]
    for second in (0, 5):
        for number, (poll, names) in enumerate(zip(polls, have, strict=True), 1):
            counts = {"depth": 10 * number + second, "message_count": 100 + second * number}
            channels = [channel(name, **counts, client_count=1, in_flight_count=1) for name in names]
            poll.value = poll.track.add(summarize(stats(topic("orders", *channels)), float(second)))
            poll.answered = float(second)
    (shown,) = describe(polls, [], 5.0)["topics"]
    found = [(each["name"], each["depth"], each["rate"], each["health"]) for each in shown["channels"]]
    assert found == [
        ("audit", 75, 6.0, (BAD, "depth grows by 3/s: memory is full in 1 min, then it goes to disk")),
        ("billing", 40, 3.0, (BAD, "depth grows by 2/s: memory is full in 1 min, then it goes to disk")),
        ("lost", 35, 3.0, (BAD, "depth grows by 1/s: memory is full in 1 min, then it goes to disk")),
    ]


def test_a_channel_that_comes_or_goes_leaves_the_others_their_rates() -> None:
    poll = node_poll("n")

    def rates(second: float, *names: str) -> dict[str, float]:
        counts = {"message_count": int(100 + 20 * second), "client_count": 1}
        seen = stats(topic("orders", *(channel(name, **counts) for name in names)))
        poll.value, poll.answered = poll.track.add(summarize(seen, second)), second
        (shown,) = describe([poll], [], second)["topics"]
        return {each["name"]: each["rate"] for each in shown["channels"]}

    rates(0.0, "billing")
    assert rates(2.0, "audit", "billing") == {"audit": 0.0, "billing": 20.0}
    assert rates(4.0, "billing") == {"billing": 20.0}


def test_an_nsqd_of_an_old_version_says_less_of_its_channels() -> None:
    counts = channel(depth=3, clients=[{}, {}])
    del counts["client_count"], counts["paused"]
    poll = node_poll("a")
    poll.value, poll.answered = poll.track.add(summarize(stats(topic("orders", counts)), 0.0)), 0.0
    (shown,) = describe([poll], [], 0.0)["topics"]
    assert [shown["channels"][0][name] for name in ("depth", "clients", "paused")] == [3, 2, False]


def calls_of(work: Callable[[], object]) -> int:
    """The number of functions that a call runs: the same on a busy machine, unlike its time."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def test_a_large_cluster_is_put_together_by_few_calls_for_each_channel() -> None:
    polls = [node_poll(str(number)) for number in range(big_cluster.NODES)]
    raw = json.dumps(big_cluster.stats(1)).encode()
    earlier = big_cluster.stats(0)
    for poll in polls:
        poll.track.add(summarize(earlier, 0.0))

    def look() -> None:
        for poll in polls:
            poll.value = poll.track.add(summarize(json.loads(raw), 5.0))
            poll.answered = 5.0
        assert len(describe(polls, [], 5.0)["topics"]) == big_cluster.TOPICS

    channels = big_cluster.NODES * big_cluster.TOPICS * big_cluster.CHANNELS
    assert calls_of(look) < 20 * channels


def test_the_history_has_the_figures_of_five_minutes_every_ten_seconds() -> None:
    history, poll = History(), node_poll("n")

    def see(second: float, *names: str) -> None:
        channels = [channel(name, depth=int(second)) for name in names]
        its_stats = stats(topic("orders", *channels, depth=1), memory={"heap_in_use_bytes": 7})
        poll.value = poll.track.add(summarize(its_stats, second))
        history.add(describe([poll], [], second))

    for second in range(0, 402, 2):
        see(
            float(second),
            "billing",
            *(["late"] if second >= 380 else []),
            *(["gone"] if second < 380 else []),
        )
    shown = history.shown()
    assert shown["times"] == [float(second) for second in range(100, 410, 10)]
    figures = shown["figures"]
    assert figures["channel orders billing"] == list(range(100, 410, 10))
    assert figures["channel orders late"] == [380, 390, 400]
    assert "channel orders gone" not in figures
    assert (figures["topic orders"][-1], figures["waiting"][-1], figures["depth n:2"][-1]) == (801, 801, 801)
    assert figures["memory n:2"][-1] == 7
    see(5.0, "billing")  # the clock was set back
    assert history.shown()["times"] == [5.0]


@pytest.mark.parametrize(
    ("options", "counts", "node", "formula"),
    [
        ({}, False, "", "sumSeries(stats.gauges.nsq.*.topic.t.depth)"),
        (
            {},
            True,
            "h.x:4151",
            "scale(sumSeries(stats.counters.nsq.h_x_4151.topic.t.depth.count),0.01666666667)",
        ),
        ({"use_statsd_prefixes": False}, False, "", "sumSeries(nsq.*.topic.t.depth)"),
        ({"use_statsd_prefix": False, "statsd_prefix": ""}, False, "", "sumSeries(topic.t.depth)"),
        ({"statsd_gauge_format": "g.%s.v"}, False, "", "sumSeries(g.nsq.*.topic.t.depth.v)"),
    ],
)
def test_graphite_formulas_are_as_gos(options: dict[str, Any], counts: bool, node: str, formula: str) -> None:
    charts = Charts(NsqadminOptions(**ADDRESSES, **options))
    assert charts.target("topic.t.depth", counts=counts, node=node) == formula


@pytest.mark.parametrize(
    ("network", "remote", "allowed"),
    [
        ("127.0.0.1/8", "127.0.0.9:5", True),
        ("127.0.0.1/8", "[::ffff:127.0.0.1]:5", True),
        ("127.0.0.1/8", "@", True),
        ("127.0.0.1/8", "10.0.0.1:5", False),
        ("127.0.0.1/8", "[::1]:5", False),
        ("::1/128", "[::1]:5", True),
        ("10.0.0.0/8", "@", False),
        ("", "8.8.8.8:5", True),
    ],
)
def test_settings_are_for_one_network(
    network: str, remote: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Request, "remote", remote)
    request = Request("GET", "/config/log_level")
    guard = Guard(NsqadminOptions(**ADDRESSES, allow_config_from_cidr=network))
    handler = guard.config_only(lambda _: Reply.text("ok"))
    if allowed:
        assert handler(request) == Reply.text("ok")
    else:
        with pytest.raises(HttpError, match="403 FORBIDDEN"):
            handler(request)


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [("gzip, deflate", "gzip"), ("deflate", "deflate"), ("gzip;q=0, br", None), ("", None), ("br", None)],
)
def test_long_answers_are_compressed_as_the_client_wants(accepted: str, encoding: str | None) -> None:
    text = "x" * 5000
    request = Request("GET", "/", headers={"Accept-Encoding": accepted})
    reply: Any = asyncio.run(finished(lambda _: Reply.text(text))(request))  # type: ignore[arg-type]
    assert dict(reply.headers).get("Content-Encoding") == encoding
    decode: dict[str | None, Any] = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}
    assert decode[encoding](reply.body).decode() == text
