"""Figures that the listener takes from Spark's reports, given as JSON, and how it writes them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsq.spark.listener import Listener, exposition, figures


def report(**changes: Any) -> dict[str, Any]:
    offset = {
        "wal": "5f1c", "at": {"a": 3}, "lag": 50, "received": 1200, "walRows": 40, "walBytes": 8000,
        "nsqdDepth": 7, "nsqdInFlight": 3, "oldestSeconds": 1.5, "paused": None,
    }  # fmt: skip
    return {
        "id": "0c2e",
        "name": "orders",
        "numInputRows": 100,
        "inputRowsPerSecond": 50.0,
        "processedRowsPerSecond": 80.5,
        "durationMs": {"triggerExecution": 250},
        "sources": [{"description": "nsq", "latestOffset": offset}],
        **changes,
    }  # fmt: skip


def test_a_report_becomes_figures() -> None:
    assert figures(report()) == {
        "rows": 100, "batchSeconds": 0.25, "inputRowsPerSecond": 50.0, "processedRowsPerSecond": 80.5,
        "lag": 50, "nsqdDepth": 7, "nsqdInFlight": 3, "walRows": 40, "walBytes": 8000, "oldestSeconds": 1.5,
        "paused": 0, "received": 1200,
    }  # fmt: skip


def test_unknown_figures_are_left_out_and_a_first_report_has_no_rates() -> None:
    given = report(inputRowsPerSecond=float("nan"))
    given["sources"][0]["latestOffset"] |= {"nsqdDepth": None, "oldestSeconds": None}
    found = figures(given)
    assert {"nsqdDepth", "oldestSeconds"} & set(found) == set()
    assert (found["nsqdInFlight"], found["inputRowsPerSecond"]) == (3, 0.0)


def test_several_sources_add_up_and_the_oldest_counts() -> None:
    given = report()
    other = {
        **given["sources"][0]["latestOffset"],
        "walRows": 2,
        "oldestSeconds": 90.0,
        "paused": "the log is full",
    }
    given["sources"].append({"latestOffset": other})
    found = figures(given)
    assert (found["walRows"], found["oldestSeconds"], found["paused"]) == (42, 90.0, 1)


@pytest.mark.parametrize(
    "source", [{"latestOffset": None}, {"latestOffset": "no json"}, {"latestOffset": {"n": 5}}, {}]
)
def test_reports_of_other_sources_are_ignored(source: dict[str, Any]) -> None:
    assert figures(report(sources=[source])) == {}


def test_figures_are_written_for_prometheus() -> None:
    lines = exposition([('a "b"\n', figures(report()))]).splitlines()
    assert '# TYPE nsq_spark_received_total counter' in lines  # fmt: skip
    assert 'nsq_spark_received_total{query="a \\"b\\"\\n"} 1200' in lines
    assert 'nsq_spark_oldest_seconds{query="a \\"b\\"\\n"} 1.500' in lines
    assert exposition([]) == ""


def progress(**changes: Any) -> Any:
    given = report(**changes)
    found = SimpleNamespace(json=json.dumps(given), id=given["id"], name=given["name"])
    return SimpleNamespace(progress=found)


def test_a_line_in_the_log_and_a_file_per_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "nsq.prom"
    listener = Listener(prometheus=file)
    with caplog.at_level(logging.INFO, "nsq.spark"):
        listener.onQueryProgress(progress())
        listener.onQueryProgress(progress(id="other", name="clicks"))
        listener.onQueryProgress(progress(id="third", name=None))
    assert "orders rows=100 batchSeconds=0.250" in caplog.text
    assert 'nsq_spark_depth{query="orders"} 7' in file.read_text()
    assert 'nsq_spark_depth{query="clicks"} 7' in file.read_text()
    assert 'nsq_spark_depth{query="third"} 7' in file.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["nsq.prom"]

    listener.onQueryTerminated(SimpleNamespace(id="0c2e", exception=None))  # type: ignore[arg-type]
    assert "orders" not in file.read_text()


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener(prometheus=tmp_path / "absent" / "nsq.prom")
    listener.onQueryProgress(progress())
    assert "cannot be written" in caplog.text


def test_why_a_query_failed_is_its_first_line(caplog: pytest.LogCaptureFixture) -> None:
    event: Any = SimpleNamespace(id="0c2e", exception="SegmentLost: x.arrow\n\tat java.lang.Thread")
    Listener().onQueryTerminated(event)
    assert caplog.messages == ["0c2e failed: SegmentLost: x.arrow"]
