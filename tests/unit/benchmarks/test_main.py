from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks.comparison import Comparison, Figure


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [([], [3.0, 3.0]), (["client"], [3.0, 7.0]), (["-k", "load"], [7.0, 7.0]), (["--quick"], [7.0, 7.0])],
)
def test_only_whole_suites_under_their_full_load_replace_earlier_results(
    arguments: list[str], kept: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contenders = {"nsq": lambda _: [3.0]}
    comparison = Comparison(
        name="load", figures=[Figure("", "msg/s")], contenders=contenders, pictured="Load"
    )
    suites = {"client": lambda: [comparison], "daemon": lambda: [comparison]}
    monkeypatch.setattr(program, "SUITES", suites)
    results = tmp_path / "results.json"
    monkeypatch.setattr(program, "RESULTS", results)
    monkeypatch.setattr(program, "PICTURES", {"client": tmp_path / "results.svg"})
    figures = {"comparisons": [{"figures": [{"columns": {"nsq": {"median": 7.0}}}]}]}
    results.write_text(json.dumps(dict.fromkeys(suites, figures)))

    assert program.main(arguments) == 0

    shown = json.loads(results.read_text())
    medians = [shown[suite]["comparisons"][0]["figures"][0]["columns"]["nsq"]["median"] for suite in suites]
    assert medians == kept
