from __future__ import annotations

import platform
from dataclasses import replace
from typing import Any

import pytest

from nsq.daemons.nsqd.stats import Json, Snapshot, Topics, as_text

START = 1_795_159_175
EMPTY = Snapshot("1.3.0", "OK", START, topics=[], memory=None, producers=())

CLIENT: dict[str, Any] = {
    "version": "V2",
    "hostname": "golden.host",
    "remote_address": "127.0.0.1:50360",
    "user_agent": "golden/1",
    "state": 3,
    "in_flight_count": 1,
    "ready_count": 5,
    "finish_count": 0,
    "requeue_count": 0,
    "message_count": 1,
    "connect_ts": START + 31,
}
CHANNEL: dict[str, Any] = {
    "channel_name": "archive",
    "depth": 0,
    "backend_depth": 0,
    "in_flight_count": 1,
    "deferred_count": 0,
    "requeue_count": 0,
    "timeout_count": 0,
    "message_count": 1,
    "paused": False,
    "e2e_processing_latency": {"count": 0, "percentiles": None},
}
TOPIC: dict[str, Any] = {
    "topic_name": "orders",
    "depth": 0,
    "backend_depth": 0,
    "message_count": 1,
    "paused": False,
    "e2e_processing_latency": {"count": 0, "percentiles": None},
}


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def tree(topic: Json = TOPIC, channel: Json = CHANNEL, clients: list[Json] | None = None) -> Topics:
    return [(topic, [(channel, clients)])]


def lines(snapshot: Snapshot, now: float = START + 33.02631381) -> list[str]:
    text = b"".join(as_text(snapshot, now)).decode()
    assert text.endswith("\n")
    return text[:-1].split("\n")


def test_stats_of_an_nsqd_without_topics_are_written() -> None:
    built = f"{platform.python_implementation()} {platform.python_version()}"
    assert lines(EMPTY, START + 1.5) == [
        f"nsqd v1.3.0 (built w/{built})",
        "start_time 2026-11-20T07:19:35Z",
        "uptime 1.5s",
        "",
        "Health: OK",
        "",
        "Topics: None",
        "",
        "Producers: None",
    ]
    assert lines(replace(EMPTY, topics=None), START + 1.5) == lines(EMPTY, START + 1.5)


def test_stats_of_a_topic_with_a_consumer_are_written() -> None:
    assert lines(replace(EMPTY, topics=tree(clients=[CLIENT])))[6:10] == [
        "Topics:",
        "   [orders         ] depth: 0     be-depth: 0     msgs: 1        e2e%: ",
        "      [archive                  ] depth: 0     be-depth: 0     inflt: 1    def: 0    re-q: 0     "
        "timeout: 0     msgs: 1        e2e%: ",
        "        [V2 golden.host:50360 golden/1] state: 3 inflt: 1    rdy: 5    fin: 0        re-q: 0        "
        "msgs: 1        connected: 2s",
    ]


def test_a_paused_topic_is_marked_without_moving_the_columns() -> None:
    paused = {"paused": True}
    shown = lines(replace(EMPTY, topics=tree({**TOPIC, **paused}, {**CHANNEL, **paused})))
    assert shown[7].startswith("*P [orders ")
    assert shown[8].startswith("   *P [archive ")


def test_latencies_are_rounded_to_a_readable_unit() -> None:
    values = (0, 999, 1000, 1001, 1_500_000, 61_000_000_000)
    latency = {"count": 9, "percentiles": [{"quantile": 0.5, "value": value} for value in values]}
    (line,) = lines(replace(EMPTY, topics=tree({**TOPIC, "e2e_processing_latency": latency})))[7:8]
    assert line.endswith("e2e%: 0.0ns, 999.0ns, 1000.0ns, 1.0us, 1.5ms, 61.0s")


def test_topics_are_set_apart() -> None:
    shown = lines(replace(EMPTY, topics=[(TOPIC, ())] * 2))
    assert shown[6:10] == ["Topics:", shown[7], "", shown[7]]


def test_memory_and_producers_are_written() -> None:
    producer = {**CLIENT, "pub_counts": [{"topic": "a", "count": 2}, {"topic": "b", "count": 3}]}
    shown = lines(replace(EMPTY, memory={"heap_objects": 4361}, producers=[producer]))
    assert shown[6:8] == ["Memory:", "   heap_objects             \t4361"]
    assert shown[-2:] == [
        "Producers:",
        "   [V2 golden.host:50360 golden/1] msgs: 5        topics: a=2,b=3 connected: 2s",
    ]


def test_a_clock_set_back_shows_no_negative_times() -> None:
    shown = lines(replace(EMPTY, topics=tree(clients=[CLIENT])), START - 100.0)
    assert shown[2] == "uptime 0s"
    assert shown[9].endswith("connected: 0s")
