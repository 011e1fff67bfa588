"""The simulation counts the requests of a log in S3."""

from __future__ import annotations

import pytest

from nsq.spark.cli import main
from nsq.spark.simulate import PRICES, Scene, simulate


def test_two_puts_a_segment_and_one_get_for_each_reader_of_a_manifest_and_a_segment() -> None:
    found = simulate(Scene(receivers=10, rate=1000, size=100, interval=1.0, delay=0.05, seconds=20))
    assert (found.messages, found.bytes, found.in_flight) == (10_000, 1_000_000, 1800)
    assert 20 <= found.requests["put"] <= 23
    assert 20 <= found.requests["get"] <= 28
    assert found.planning == pytest.approx(0.1 + found.computing)  # a list, and ten gets at once
    cost = sum(found.requests[kind] * price for kind, price in PRICES.items()) * 86_400 / 1e6
    assert found.dollars_a_day == pytest.approx(cost)


def test_a_day_of_retention_keeps_manifests_small_and_planning_fast() -> None:
    found = simulate(Scene(receivers=2, retention=86_400.0, seconds=5))
    assert found.largest_head < 50_000
    assert found.planning <= 0.3


def test_the_command_prints_requests_and_max_in_flight(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--receivers", "2", "--rate", "100", "--size", "10", "--interval", "2s"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("200 messages/s, 2.0 KiB/s of bodies\nrequests/s: ")
    assert "maxInFlight per receiver: 330" in said
