"""The screen that nsq top makes of statistics."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nsq.http.nsqd import NsqdStats
from nsq.tools.top import _HEADER, Model, Row, fitted_table, short_age, spark

NAME = "orders.of_the_shops_that_take_long/billing"


def topic(name: str, messages: int, depth: int = 0, **channels: tuple[int, int]) -> dict[str, Any]:
    """Channels are given as their messages and depth."""
    return {
        "topic_name": name,
        "message_count": messages,
        "depth": depth,
        "backend_depth": 0,
        "paused": False,
        "channels": [
            {
                "backend_depth": 0,
                "channel_name": channel,
                "message_count": count,
                "depth": waiting,
                "in_flight_count": 1,
                "deferred_count": 2,
                "requeue_count": count // 10,
                "timeout_count": 0,
                "client_count": 3,
                "clients": [],
                "paused": True,
            }
            for channel, (count, waiting) in channels.items()
        ],
    }


def stats(*topics: dict[str, Any]) -> NsqdStats:
    return cast("NsqdStats", {"topics": list(topics)})


def test_rates_are_added_up_over_the_nsqds() -> None:
    model = Model()
    model.add({"a:1": stats(topic("t", 100, c=(100, 50))), "b:1": stats(topic("t", 10, c=(10, 0)))}, 10.0)
    assert [row.in_rate for row in model.rows("name")] == [0.0, 0.0]
    model.add({"a:1": stats(topic("t", 140, c=(140, 70))), "b:1": stats(topic("t", 20, c=(20, 0)))}, 12.0)
    total, channel = model.rows("name")
    assert (total.in_rate, channel.in_rate, channel.out_rate, channel.requeue_rate) == (25.0, 25.0, 15.0, 2.5)
    assert (channel.depth, channel.in_flight, channel.deferred, channel.clients) == (70, 2, 4, 6)
    assert (channel.paused, channel.history) == (True, [50, 70])


def test_an_nsqd_that_was_started_again_counts_as_0() -> None:
    model = Model()
    model.add({"a:1": stats(topic("t", 100))}, 10.0)
    model.add({"a:1": stats(topic("t", 5))}, 11.0)
    assert model.rows("name")[0].in_rate == 0.0


@pytest.mark.parametrize(
    ("sort", "reverse", "pattern", "names"),
    [
        ("name", False, "", ["a", "b", "b/c"]),
        ("name", True, "", ["b/c", "b", "a"]),
        ("depth", False, "", ["b/c", "a", "b"]),
        ("name", False, "B/", ["b/c"]),
    ],
)
def test_rows_are_sorted_and_filtered(sort: str, reverse: bool, pattern: str, names: list[str]) -> None:
    model = Model()
    model.add({"a:1": stats(topic("b", 1, c=(9, 9)), topic("a", 1, depth=1))}, 1.0)
    assert [row.name for row in model.rows(sort, reverse, pattern)] == names


@pytest.mark.parametrize(
    ("age", "shown"),
    [(None, "-"), (0.4, "0s"), (59.0, "59s"), (90.0, "2m"), (7200.0, "2h"), (200_000.0, "2d")],
)
def test_an_age_is_short(age: float | None, shown: str) -> None:
    assert short_age(age) == shown


def test_a_spark_line_ends_with_the_last_value() -> None:
    assert spark([0, 1, 8, 4]).lstrip() == "▁█▄"
    assert len(spark([])) == len(spark([0] * 30)) == 30


@pytest.mark.parametrize(
    ("width", "bars", "name", "left_out"),
    [
        (200, 30, NAME, []),
        (130, 11, NAME, []),
        (118, 0, NAME, []),
        (100, 0, "orders.of_th…long/billing", []),
        (90, 0, "orders.of_th…ong/billing", ["T-O/S", "REQ/S"]),
        (80, 0, "orders.of_th…ong/billing", ["T-O/S", "REQ/S", "DEFER"]),
        (60, 0, "orders.of_th…ong/billing", ["T-O/S", "REQ/S", "DEFER", "OLDEST", "INFLT", "CLIENTS"]),
    ],
)
def test_a_table_that_is_too_wide_loses_bars_then_names_then_columns(
    width: int, bars: int, name: str, left_out: list[str]
) -> None:
    topic, _, channel = NAME.partition("/")
    row = Row(topic, channel, paused=True, depth=1234567, history=[1] * 40)
    header, line = fitted_table([row], width).splitlines()
    assert (line.count("█"), line.split()[0]) == (bars, name)
    assert {each for each in _HEADER if each not in header} == set(left_out)
    assert max(len(header), len(line)) <= width
