"""Metrics of real clients, scraped over HTTP and read by Prometheus' own parser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

import nsq
from nsq import aio
from nsq.contrib.prometheus import Metrics
from nsq.testing import Nsqd, PartitionedCluster

from .conftest import PATIENCE, ROOT, until

DASHBOARD = ROOT / "examples/grafana/client.json"


def of(*labels: str) -> frozenset[str]:
    return frozenset(labels)


def scrape(registry: CollectorRegistry) -> dict[str, dict[frozenset[str], float]]:
    """Return values by name and by the values of the labels."""
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        address = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(address, timeout=PATIENCE) as reply:
            text = reply.read().decode()
    finally:
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()
    found: dict[str, dict[frozenset[str], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.values())] = sample.value
    return found


def test_publishes_and_messages_are_counted_and_states_are_read(nsqd: Nsqd) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    assert nsqd.post("/channel/create?topic=orders&channel=billing").status in (200, 404)
    consumer = nsq.Consumer(
        "orders",
        "billing",
        nsqd=nsqd.tcp_address,
        default_requeue_delay=0.0,
        max_backoff_duration=0.0,
        **metrics.of_consumer("orders", "billing"),
    )

    @consumer.handler
    def handle(message: nsq.Message) -> bool:
        return message.attempts > 1

    with nsq.Producer(nsqd.tcp_address, **metrics.of_producer()) as producer, consumer:
        metrics.watch(producer, consumer)
        producer.publish("orders", b"12345")
        producer.multi_publish("orders", [b"6", b"7"])
        until(lambda: consumer.stats().finished == 3 and consumer.stats().in_flight == 0)
        consumed = "nsq_client_consumed_messages_total"
        until(lambda: scrape(registry)[consumed][of("orders", "billing", "finished")] == 3)
        found = scrape(registry)
    at, nsqd_at = of("orders", "billing"), of("orders", "billing", nsqd.tcp_address)
    rdy = found["nsq_client_rdy"].pop(nsqd_at)
    assert rdy >= 1
    expected = {
        "nsq_client_published_messages_total": {of("orders", nsqd.tcp_address): 3},
        "nsq_client_published_bytes_total": {of("orders"): 7},
        "nsq_client_publish_seconds_count": {of("orders"): 2},
        consumed: {
            at | {"finished"}: 3,
            at | {"requeued"}: 3,
            at | {"timed_out"}: 0,
            at | {"given_up"}: 0,
        },
        "nsq_client_handler_seconds_count": {at: 6},
        "nsq_client_connections_opened_total": {nsqd_at: 1},
        "nsq_client_publishes_pending": {of(nsqd.tcp_address): 0},
        "nsq_client_in_flight": {nsqd_at: 0},
        "nsq_client_waiting": {at: 0},
        "nsq_client_backoff_level": {at: 0},
        "nsq_client_consumers_ok": {at: 1},
    }
    assert {name: found[name] for name in expected} == expected


def test_partitions_that_are_stuck_and_that_have_no_leader_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    with PartitionedCluster(nodes=2) as cluster:
        cluster.create_topic("orders", partitions=2, replicas=1, ordered=True, channels=["billing"])
        lookups = cluster.lookup_addresses
        consumer = nsq.Consumer(
            "orders", "billing", nsqlookupd=lookups, ordered=True, on_stuck=lambda _: 100.0
        )
        metrics.watch(consumer)

        def troubles() -> list[float | None]:
            at = {"topic": "orders", "channel": "billing"}
            names = ("nsq_client_partitions_stuck", "nsq_client_partitions_missing")
            return [registry.get_sample_value(name, at) for name in names]

        with consumer.add_handler(lambda message: False), nsq.Producer(nsqlookupd=lookups) as producer:
            assert troubles() == [0, 0]
            producer.publish("orders", b"body", partition=0)
            until(lambda: troubles() == [1, 0])
            leader = cluster.leader("orders", 1)
            assert leader is not None
            leader.kill()
            until(lambda: troubles() == [1, 1])


def test_a_failed_publish_is_counted_by_its_error() -> None:
    registry = CollectorRegistry()
    with nsq.Producer("127.0.0.1:1", **Metrics(registry).of_producer()) as producer:
        with pytest.raises(nsq.PublishFailed):
            producer.publish("orders", b"body", timeout=0.1)
        assert producer.flush().clean
        for topic, body in (("orders", b""), ("no topic", b"body")):
            with pytest.raises(nsq.UsageError):
                producer.publish(topic, body)
    with pytest.raises(nsq.Closed):
        producer.publish_async("orders", b"body")
    assert scrape(registry)["nsq_client_publish_failures_total"] == {
        of("orders", "PublishFailed"): 1,
        of("orders", "InvalidMessage"): 1,
        of("", "InvalidName"): 1,
        of("orders", "Closed"): 1,
    }


def test_a_publish_on_a_loop_that_finds_no_room_is_counted_once() -> None:
    registry = CollectorRegistry()

    async def main() -> None:
        options = Metrics(registry).of_producer()
        async with aio.Producer("127.0.0.1:1", max_pending=1, publish_timeout=0.5, **options) as producer:
            stuck = asyncio.create_task(producer.publish("orders", b"stuck"))
            await asyncio.sleep(0)
            with pytest.raises(nsq.QueueFull):
                await producer.publish("orders", b"no room", timeout=0.1)
            with pytest.raises(nsq.PublishFailed):
                await stuck
            await producer.flush()

    asyncio.run(main())
    assert scrape(registry)["nsq_client_publish_failures_total"] == {
        of("orders", "PublishFailed"): 1,
        of("orders", "QueueFull"): 1,
    }


def test_in_the_multiprocess_mode_gauges_are_set_and_added_up(tmp_path: Path) -> None:
    program = """
import nsq
from nsq import aio
from nsq.contrib.prometheus import Metrics
consumer = nsq.Consumer("orders", "billing", nsqd="127.0.0.1:1")
Metrics().update(consumer)
input()
"""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    collect = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        until(lambda: len(list(tmp_path.glob("gauge_livesum_*.db"))) == 2)

        def collected() -> str:
            return subprocess.run(
                [sys.executable, "-c", collect], env=environment, capture_output=True, text=True, check=True
            ).stdout

        until(lambda: 'nsq_client_consumers_ok{channel="billing",topic="orders"} 0.0' in collected())
    finally:
        for process in processes:
            process.communicate(b"\n", timeout=PATIENCE)


def test_a_gauge_that_is_set_falls_to_zero_when_its_nsqd_is_gone(nsqd: Nsqd) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    rdy = {"topic": "orders", "channel": "billing", "nsqd": nsqd.tcp_address}
    consumer = nsq.Consumer("orders", "billing", nsqd=nsqd.tcp_address, max_in_flight=3)
    with consumer.add_handler(lambda message: None):
        until(lambda: metrics.update(consumer) or registry.get_sample_value("nsq_client_rdy", rdy) == 3)
    metrics.update(consumer)
    assert registry.get_sample_value("nsq_client_rdy", rdy) == 0


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.watch(nsq.Consumer("orders", "billing", nsqd="127.0.0.1:1"))
    kinds = {"counter": ["_total"], "histogram": ["_bucket"], "gauge": [""]}
    known = {family.name + ending for family in registry.collect() for ending in kinds[family.type]}
    text = DASHBOARD.read_text()
    assert set(re.findall(r"\bnsq_client_\w+", text)) == known
    panels = json.loads(text)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
