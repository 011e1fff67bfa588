from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nsq.daemons.nsqd.stats import METRICS
from nsq.wire import commands
from nsq.wire.frames import RawMessage
from tests.unit.daemons.nsqd.http.api import Api

DASHBOARD = Path(__file__).parents[4] / "examples/grafana/nsqd.json"


def samples(api: Api) -> dict[str, float]:
    """The samples by name and labels. Raises for lines that do not fit the format."""
    reply = api.ask("GET", "/metrics")
    assert reply.content_type == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, float] = {}
    declared = ""
    for line in reply.body.decode().splitlines():
        if line.startswith("# HELP "):
            declared = line.split()[2]
            assert not any(series.partition("{")[0] == declared for series in found), "told in two places"
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {declared} {METRICS[declared][0]}"
        else:
            series, _, value = line.rpartition(" ")
            label = r'[a-z]+="[^"\\\n]*"'
            assert re.fullmatch(rf"{declared}(\{{{label}(,{label})*\}})?", series), line
            assert series not in found
            found[series] = float(value)
    return found


def test_metrics_count_topics_channels_and_clients() -> None:
    api = Api(e2e_processing_latency_percentiles=(0.99,))
    client, producer = api.client(), api.client()
    client.send(commands.sub("orders", "billing"), commands.rdy(2))
    producer.send(commands.mpub("orders", [b"12345", b"678", b"9"]), commands.dpub("orders", 1000, b"later"))
    producer.send(commands.fin(b"0" * 16))
    client.run_due()
    held = [frame for frame in client.frames() if isinstance(frame, RawMessage)]
    api.world.clock.advance(0.5)
    client.send(commands.fin(held[0].id), commands.rdy(0), commands.req(held[1].id, 0))
    client.run_due()
    found = samples(api)
    of_channel = '{topic="orders",channel="billing"}'
    assert {series: value for series, value in found.items() if not series.startswith("process_")} == {
        'nsqd_info{version="1.3.0"}': 1,
        "nsqd_healthy": 1,
        "nsqd_connections": 2,
        "nsqd_producers": 1,
        "nsqd_pending_body_bytes": 0,
        'nsqd_errors_total{protocol="tcp",code="E_INVALID"}': 1,
        "nsqd_topics": 1,
        "nsqd_channels": 1,
        "nsqd_series_left_out": 0,
        'nsqd_topic_depth{topic="orders"}': 0,
        'nsqd_topic_backend_depth{topic="orders"}': 0,
        'nsqd_topic_messages_total{topic="orders"}': 4,
        'nsqd_topic_message_bytes_total{topic="orders"}': 14,
        'nsqd_topic_paused{topic="orders"}': 0,
        'nsqd_topic_e2e_latency_seconds{topic="orders",quantile="0.99"}': pytest.approx(0.5, rel=0.005),
        f"nsqd_channel_depth{of_channel}": 2,
        f"nsqd_channel_backend_depth{of_channel}": 0,
        f"nsqd_channel_in_flight{of_channel}": 0,
        f"nsqd_channel_deferred{of_channel}": 1,
        f"nsqd_channel_deferred_on_disk{of_channel}": 0,
        f"nsqd_channel_next_deferred_seconds{of_channel}": 0.5,
        f"nsqd_channel_messages_total{of_channel}": 4,
        f"nsqd_channel_requeued_total{of_channel}": 1,
        f"nsqd_channel_timed_out_total{of_channel}": 0,
        f"nsqd_channel_clients{of_channel}": 1,
        f"nsqd_channel_paused{of_channel}": 0,
        'nsqd_channel_e2e_latency_seconds{topic="orders",channel="billing",quantile="0.99"}': pytest.approx(
            0.5, rel=0.005
        ),
    }
    assert found["process_start_time_seconds"] == 1_700_000_000
    assert found["process_resident_memory_bytes"] > 1_000_000


def test_drops_are_counted_in_metrics_and_stats_where_there_is_a_bound() -> None:
    for bound, dropped in ((2, 3), (0, None)):
        api = Api(max_channel_depth=bound)
        producer = api.client()
        api.world.broker.topic("t").channel("c")
        for topic in ("t", "alone"):
            producer.send(commands.mpub(topic, [b"x"] * 5))
        producer.run_due()
        found = samples(api)
        assert found.get('nsqd_channel_dropped_total{topic="t",channel="c"}') == dropped
        assert found.get('nsqd_topic_dropped_total{topic="alone"}') == dropped
        alone, topic = api.json("/stats?format=json")["topics"]
        assert alone.get("dropped_count") == topic["channels"][0].get("dropped_count") == dropped


def test_series_are_bounded_and_the_rest_is_counted() -> None:
    api = Api(metrics_max_series=14)
    for name in ("a", "b", "c"):
        api.world.broker.topic(name).channel("c")
    found = samples(api)
    assert {series for series in found if "_depth" in series and "backend" not in series} == {
        'nsqd_topic_depth{topic="a"}',
        'nsqd_channel_depth{topic="a",channel="c"}',
    }
    assert (found["nsqd_topics"], found["nsqd_channels"], found["nsqd_series_left_out"]) == (3, 3, 28)


def test_metrics_can_be_switched_off() -> None:
    assert Api(metrics=False).router.find("GET", "/metrics") == (None, {})


def test_the_dashboard_asks_for_what_there_is_and_for_all_of_it() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    asked += [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    names = {name for text in asked for name in re.findall(r"\b(?:nsqd|process)_\w+", text)}
    assert names == set(METRICS)
    labels = {
        label
        for text in asked
        for each in re.findall(r"\{(.*?)\}", text)
        for label in re.findall(r"(\w+)=", each)
    }
    assert labels <= {"instance", "job", "topic", "channel"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
