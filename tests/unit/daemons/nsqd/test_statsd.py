from __future__ import annotations

import itertools
from typing import Any

import pytest

from nsq.daemons.nsqd.statsd import Report, full_prefix
from tests.fakes.session import drained

OFF = {"count": 0, "percentiles": None}
MEMORY = {
    "heap_objects": 1,
    "heap_idle_bytes": 2,
    "heap_in_use_bytes": 3,
    "heap_released_bytes": 4,
    "gc_pause_usec_100": 5,
    "gc_pause_usec_99": 6,
    "gc_pause_usec_95": 7,
    "next_gc_bytes": 8,
    "gc_total_runs": 9,
}


def channel(name: str = "c", count: int = 0, **values: Any) -> dict[str, Any]:
    return {
        "channel_name": name,
        "depth": 0,
        "backend_depth": 0,
        "in_flight_count": 0,
        "deferred_count": 0,
        "message_count": count,
        "requeue_count": 0,
        "timeout_count": 0,
        "client_count": 0,
        "e2e_processing_latency": OFF,
        **values,
    }


def topic(name: str = "t", count: int = 0, *channels: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {
        "topic_name": name,
        "depth": 0,
        "backend_depth": 0,
        "message_count": count,
        "message_bytes": 10 * count,
        "channels": list(channels),
        "e2e_processing_latency": OFF,
        **values,
    }


def packets(report: Report, *topics: dict[str, Any], memory: dict[str, int] | None = None) -> list[bytes]:
    tree = [(topic, [(channel, None) for channel in topic["channels"]]) for topic in topics]
    return drained(report.packets(tree, memory))


def lines(report: Report, *topics: dict[str, Any], memory: dict[str, int] | None = None) -> list[str]:
    return b"".join(packets(report, *topics, memory=memory)).decode().splitlines()


@pytest.mark.parametrize(
    ("template", "address", "port", "prefix"),
    [
        ("nsq.%s", "nsqd1.example.com", 4151, "nsq.nsqd1_example_com_4151."),
        ("nsq.%s", "10.0.0.1", 80, "nsq.10_0_0_1_80."),
        ("nsq.%s.", "host", 4151, "nsq.host_4151."),
        ("%s.%s", "a", 1, "a_1.a_1."),
        ("plain", "a", 1, "plain."),
        ("", "a", 1, ""),
        ("%s", "::1", 4151, "[__1]_4151."),
    ],
)
def test_the_prefix_is_gos(template: str, address: str, port: int, prefix: str) -> None:
    assert full_prefix(template, address, port) == prefix


def test_every_metric_of_a_topic_and_a_channel_is_pushed() -> None:
    latency = {"count": 3, "percentiles": [{"quantile": 0.99, "value": 7}, {"quantile": 0.5, "value": 5}]}
    answer = topic(
        "orders",
        5,
        channel(
            "billing",
            4,
            depth=1,
            backend_depth=2,
            in_flight_count=3,
            deferred_count=6,
            requeue_count=7,
            timeout_count=8,
            client_count=9,
            e2e_processing_latency=latency,
        ),
        depth=11,
        backend_depth=12,
        e2e_processing_latency=latency,
    )
    assert sorted(lines(Report("nsq.h_1.", 508), answer)) == sorted(
        [
            "nsq.h_1.topic.orders.message_count:5|c",
            "nsq.h_1.topic.orders.message_bytes:50|c",
            "nsq.h_1.topic.orders.depth:11|g",
            "nsq.h_1.topic.orders.backend_depth:12|g",
            "nsq.h_1.topic.orders.e2e_processing_latency_99:7|g",
            "nsq.h_1.topic.orders.e2e_processing_latency_50:5|g",
            "nsq.h_1.topic.orders.channel.billing.message_count:4|c",
            "nsq.h_1.topic.orders.channel.billing.requeue_count:7|c",
            "nsq.h_1.topic.orders.channel.billing.timeout_count:8|c",
            "nsq.h_1.topic.orders.channel.billing.depth:1|g",
            "nsq.h_1.topic.orders.channel.billing.backend_depth:2|g",
            "nsq.h_1.topic.orders.channel.billing.in_flight_count:3|g",
            "nsq.h_1.topic.orders.channel.billing.deferred_count:6|g",
            "nsq.h_1.topic.orders.channel.billing.clients:9|g",
            "nsq.h_1.topic.orders.channel.billing.e2e_processing_latency_99:7|g",
            "nsq.h_1.topic.orders.channel.billing.e2e_processing_latency_50:5|g",
        ]
    )


def test_drops_are_pushed_where_there_is_a_bound() -> None:
    answer = topic("t", 5, channel("c", 4, dropped_count=3), dropped_count=2)
    pushed = lines(Report("", 508), answer)
    assert "topic.t.dropped_count:2|c" in pushed
    assert "topic.t.channel.c.dropped_count:3|c" in pushed
    assert not any("dropped" in line for line in lines(Report("", 508), topic("t", 5, channel("c", 4))))


def test_memory_figures_are_pushed() -> None:
    report = Report("", 508)
    assert lines(report, memory=MEMORY) == [
        "mem.heap_objects:1|g",
        "mem.heap_idle_bytes:2|g",
        "mem.heap_in_use_bytes:3|g",
        "mem.heap_released_bytes:4|g",
        "mem.gc_pause_usec_100:5|g",
        "mem.gc_pause_usec_99:6|g",
        "mem.gc_pause_usec_95:7|g",
        "mem.next_gc_bytes:8|g",
        "mem.gc_runs:9|c",
    ]
    assert lines(report, memory=MEMORY)[-1] == "mem.gc_runs:0|c"


def test_counters_tell_how_much_they_have_grown() -> None:
    report = Report("", 508)
    counted = [
        [line for line in lines(report, topic("t", count)) if "message_" in line] for count in (5, 5, 8)
    ]
    assert counted == [
        ["topic.t.message_count:5|c", "topic.t.message_bytes:50|c"],
        ["topic.t.message_count:0|c", "topic.t.message_bytes:0|c"],
        ["topic.t.message_count:3|c", "topic.t.message_bytes:30|c"],
    ]


def test_a_topic_that_is_deleted_and_comes_again_counts_from_zero() -> None:
    report = Report("", 508)
    lines(report, topic("t", 100, channel("c", 100)))
    assert "topic.t.channel.c.message_count:3|c" in lines(report, topic("t", 3, channel("c", 3)))
    assert lines(report) == []
    assert "topic.t.message_count:4|c" in lines(report, topic("t", 4))


def test_ephemeral_ones_can_be_left_out() -> None:
    topics = topic("t", 1, channel("c#ephemeral"), channel("d")), topic("u#ephemeral")
    shown = lines(Report("", 508, exclude_ephemeral=True), *topics)
    assert not [line for line in shown if "ephemeral" in line]
    assert "topic.t.channel.d.depth:0|g" in shown
    everything = lines(Report("", 508), *topics)
    assert "topic.t.channel.c#ephemeral.depth:0|g" in everything
    assert "topic.u#ephemeral.depth:0|g" in everything


@pytest.mark.parametrize("size", [1, 40, 100, 508])
def test_packets_hold_whole_lines_and_no_more_than_they_may(size: int) -> None:
    topics = [topic(f"topic{number}", number, channel("c")) for number in range(20)]
    small = packets(Report("nsq.", size), *topics, memory=MEMORY)
    assert all(packet.endswith(b"\n") for packet in small)
    assert all(len(packet) <= size or packet.count(b"\n") == 1 for packet in small)
    assert b"".join(small) == b"".join(packets(Report("nsq.", 60_000), *topics, memory=MEMORY))
    assert not any(
        len(one) + len(other.splitlines(True)[0]) <= size for one, other in itertools.pairwise(small)
    )


def test_other_work_runs_between_two_lines() -> None:
    tree = [(topic(f"topic{number}"), [(channel(), None)]) for number in range(100)]
    assert sum(1 for _ in Report("nsq.", 508).packets(tree, None)) >= 100 * 12
