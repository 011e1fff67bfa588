from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import pytest

from nsq.errors import ConfigError, UsageError
from nsq.spark.pipelines.metrics import Window, metrics_chart

pytest.importorskip("matplotlib")

START = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)


def window(number: int) -> Window:
    start = START + datetime.timedelta(minutes=number)
    return Window(
        start=start,
        end=start + datetime.timedelta(minutes=1),
        messages=100 * (number + 1),
        bytes=1000,
        latency_avg=0.2,
        latency_p50=0.1,
        latency_p95=0.5,
        latency_p99=0.9,
        attempts_avg=1.0,
        attempts_max=2,
        redelivered=1,
    )


@pytest.fixture(scope="module", autouse=True)
def _fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """matplotlib keeps the fonts it has used open."""
    metrics_chart([window(0)], tmp_path_factory.mktemp("chart") / "warm.png", title="orders")


def test_windows_become_an_image(tmp_path: Path) -> None:
    path = metrics_chart([window(number) for number in range(5)], tmp_path / "chart.png")
    assert path == str(tmp_path / "chart.png")
    assert Path(path).read_bytes().startswith(b"\x89PNG")


def test_the_ending_decides_which_kind(tmp_path: Path) -> None:
    path = metrics_chart([window(0)], tmp_path / "chart.svg", title="orders", size=(5, 3))
    assert "<svg" in Path(path).read_text(encoding="utf-8")


def test_the_lines_have_gaps_where_windows_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    drawn: list[list[float]] = []
    plot = Axes.plot

    def plotting(axes: Axes, times: Any, values: list[float], **style: Any) -> Any:
        assert len(times) == len(values)
        assert list(times) == sorted(times)
        drawn.append(values)
        return plot(axes, times, values, **style)

    monkeypatch.setattr(Axes, "plot", plotting)
    metrics_chart([window(number) for number in (0, 1, 5, 6, 9)], tmp_path / "chart.png")
    assert [[value != value for value in values] for values in drawn] == 3 * [
        [False, False, True, False, False, True, False]
    ]


def test_a_chart_without_windows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to draw"):
        metrics_chart([], tmp_path / "chart.png")


def test_a_chart_without_matplotlib_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'nsq\[chart\]'"):
        metrics_chart([window(0)], tmp_path / "chart.png")
