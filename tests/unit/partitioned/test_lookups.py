"""The recorded answers of nsqlookupds, read by our code."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsq.config import Config
from nsq.errors import ApiError, ApiRefused
from nsq.http.calls import Call
from nsq.http.message import HttpReply, HttpRequest, parse_url
from nsq.http.nsqlookupd import parse_list
from nsq.partitioned.lookups import Lookups, key_of, parse_partitions
from nsq.partitioned.table import ClusterAnswer, TopicAnswer
from nsq.partitioned.wire import Meta
from tests.fakes.clock import Clock

EXCHANGES = {
    each["name"]: each["response"]
    for each in json.loads(
        (Path(__file__).parents[2] / "golden/partitioned/http_lookupd.json").read_text("utf-8")
    )
}
REQUEST = HttpRequest(parse_url("127.0.0.1:4161"), "GET", {}, b"")


def read(name: str, parse: Callable[[HttpReply], Any]) -> Any:
    """Return what the parser makes of a recorded answer."""
    recorded = EXCHANGES[name]
    return given(recorded["body_text"], parse, recorded["http_status"])


def given(body: str, parse: Callable[[HttpReply], Any], status: int = 200) -> Any:
    return Call(REQUEST, parse).answer(HttpReply(status, {}, body.encode()))


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_both_envelopes_of_an_answer_say_the_same(version: str) -> None:
    assert read(f"listlookup_{version}", parse_list) == (
        "127.0.0.1:24171",
        ("127.0.0.1:24171", "127.0.0.1:24172"),
    )
    assert read(f"listlookup_standalone_{version}", parse_list) is None
    plain = read(f"lookup_w_meta_plain_{version}", parse_partitions)
    assert plain == TopicAnswer({0: "127.0.0.1:24202", 1: "127.0.0.1:24201"}, Meta(2, 1))
    assert not read(f"lookup_missing_r_{version}", parse_partitions).known
    assert not read(f"lookup_standalone_missing_{version}", parse_partitions).known
    with pytest.raises(ApiRefused) as caught:
        read(f"lookup_missing_w_{version}", parse_partitions)
    assert caught.value.code == "Key not found"


def test_the_settings_of_a_topic_are_read() -> None:
    assert read("lookup_w_meta_ordered", parse_partitions).meta == Meta(3, 1, ordered=True)
    assert read("lookup_w_meta_ext", parse_partitions).meta == Meta(1, 1, extended=True)
    assert read("lookup_w_meta_extordered", parse_partitions).meta == Meta(2, 1, ordered=True, extended=True)
    assert read("lookup_r_nometa", parse_partitions).meta is None


def test_a_topic_without_a_writable_node_is_known() -> None:
    for name in ("lookup_w_write_disabled", "lookup_w_write_disabled_ordered_plain"):
        answer = read(name, parse_partitions)
        assert answer.known or answer.meta is None, name


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        *(
            (parse_list, body)
            for body in (
                *("[1]", "{", '{"lookupdnodes": 1}', '{"lookupdnodes": [1]}', '{"lookupdleader": null}'),
                '{"lookupdnodes": [{"NodeIP": "10.0.0.7", "HttpPort": "x"}]}',
                '{"lookupdnodes": [{"HttpPort": "4161"}]}',
            )
        ),
        *(
            (parse_partitions, body)
            for body in (
                *("[1]", '{"partitions": [1]}', '{"partitions": {"0": 7}}'),
                '{"partitions": {"0": {"tcp_port": 4150}}}',
                '{"meta": {"partition_num": "2"}, "partitions": {}}',
                '{"meta": {"partition_num": 1000000}, "partitions": {}}',
            )
        ),
    ],
)
def test_a_garbled_answer_decides_nothing(parse: Callable[[HttpReply], Any], body: str) -> None:
    with pytest.raises(ApiError):
        given(body, parse)


def test_impossible_partitions_and_addresses_are_left_out() -> None:
    node = {"broadcast_address": "10.0.0.1", "tcp_port": 4150}
    partitions = {"0": node, "-1": node, "1024": node, "x": node, "1": {**node, "tcp_port": 70_000}}
    assert given(json.dumps({"partitions": partitions}), parse_partitions).leaders == {0: "10.0.0.1:4150"}
    assert given('{"partitions": null, "producers": null}', parse_partitions).leaders == {}


def test_an_nsqlookupd_is_known_by_its_host_and_port() -> None:
    assert key_of("http://10.0.0.7:4161/lookup?token=x") == key_of("10.0.0.7") == "10.0.0.7:4161"
    assert key_of("unix:/run/nsqlookupd.sock") == "/run/nsqlookupd.sock"


def test_a_topic_that_an_nsqlookupd_fails_on_does_not_hide_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Api:
        def list_lookupds(self) -> None: ...

        def partitions(self, topic: str, access: str) -> TopicAnswer:
            if topic == "bad":
                raise ApiRefused("it is broken", 500, "INTERNAL_ERROR")
            return TopicAnswer({0: "10.0.0.1:4150"}, Meta(1))

    lookups: Any = Lookups(Config(), "w")
    lookups._api = lambda lookupd, deadline: Api()
    lookups.learn("bad")
    with pytest.raises(ApiRefused):
        lookups.ask("10.0.0.7:4161")
    lookups.learn("good")
    for _ in range(2):
        assert lookups.ask("10.0.0.7:4161") == {"10.0.0.1:4150"}
    assert lookups.cluster.table("good").known
    assert lookups.cluster.table("bad").known is None
    assert caplog.text.count("has no answer about the topic 'bad': it is broken") == 1


def test_the_leaders_of_a_topic_that_an_nsqlookupd_fails_on_are_not_taken_for_nodes_that_are_gone() -> None:
    leaders: dict[str, str] = {"orders": "10.0.0.1:4150", "clicks": "10.0.0.2:4150"}

    class Api:
        def list_lookupds(self) -> None: ...

        def partitions(self, topic: str, access: str) -> TopicAnswer:
            if topic not in leaders:
                raise ApiRefused("it is broken", 500, "INTERNAL_ERROR")
            return TopicAnswer({0: leaders[topic]}, Meta(1))

    lookups: Any = Lookups(Config(), "w")
    lookups._api = lambda lookupd, deadline: Api()
    for topic in leaders:
        lookups.learn(topic)
    named = lookups.ask("10.0.0.7:4161")
    del leaders["orders"]
    assert lookups.ask("10.0.0.7:4161") == named == {"10.0.0.1:4150", "10.0.0.2:4150"}


def test_an_nsqlookupd_that_cannot_list_its_cluster_still_names_leaders(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As while etcd is away: /listlookup is a 500, /lookup answers."""
    listed: list[tuple[str, tuple[str, ...]]] = []

    class Api:
        def list_lookupds(self) -> tuple[str, tuple[str, ...]]:
            if not listed:
                raise ApiRefused("etcd is away", 500, "etcd is away")
            return listed[0]

        def partitions(self, topic: str, access: str) -> TopicAnswer:
            return TopicAnswer({0: "10.0.0.2:4150" if not listed else "10.0.0.1:4150"}, Meta(1))

    lookups: Any = Lookups(Config(), "w")
    lookups._api = lambda lookupd, deadline: Api()
    lookups.learn("orders")
    with pytest.raises(ApiRefused):
        lookups.ask("10.0.0.7:4161")
    assert lookups.cluster.kind is None, "it may be the original"
    listed.append(("10.0.0.7:4161", ("10.0.0.7:4161", "10.0.0.8:4161")))
    assert lookups.ask("10.0.0.7:4161") == {"10.0.0.1:4150"}
    listed.clear()
    for _ in range(2):
        assert lookups.ask("10.0.0.7:4161") == {"10.0.0.2:4150"}
        assert lookups.cluster.lookupds() == {"10.0.0.7:4161", "10.0.0.8:4161"}
    assert caplog.text.count("nsqlookupd 10.0.0.7:4161 does not list its cluster: etcd is away") == 1


def test_the_topics_that_an_nsqlookupd_has_no_answer_about_are_warned_about_once_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lookups: Any = Lookups(Config(), "w")
    seconds = itertools.count()

    def hear(*problems: str) -> int:
        caplog.clear()
        texts = {topic: f"no answer within {next(seconds)} s" for topic in problems}  # each is another
        lookups._heard("l1", "l1", ClusterAnswer("partitioned", problems=texts), 1.0)
        return len(caplog.records)

    many = [f"topic-{number}" for number in range(2000)]
    assert [hear(*many), hear(*many[1:]), hear(*many, "one more"), hear(), hear("topic-0")] == [1, 0, 1, 0, 1]


def test_topics_for_which_the_time_did_not_suffice_are_asked_for_first_the_next_time() -> None:
    clock = Clock()

    class Api:
        def list_lookupds(self) -> None: ...

        def partitions(self, topic: str, access: str) -> TopicAnswer:
            clock.now += 1.0
            return TopicAnswer({0: "10.0.0.1:4150"}, Meta(1))

    lookups: Any = Lookups(Config(lookupd_poll_timeout=4.0), "w", clock=clock)
    of = lookups._api
    lookups._api = lambda lookupd, deadline: of(lookupd, deadline) and Api()
    names = [f"topic-{number}" for number in range(10)]
    for name in names:
        lookups.learn(name)
    known = []
    for _ in range(3):
        lookups.ask("10.0.0.7:4161")
        known.append(sum(lookups.cluster.table(name).known is True for name in names))
    assert known == [4, 8, 10]
