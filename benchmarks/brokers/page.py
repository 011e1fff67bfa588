"""Writes the tables of docs/brokers.md from the results: ``python -m benchmarks.brokers.page``.

Run it on the machine that measured: it asks the brokers for their versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.brokers.servers import BROKERS, Broker

_ROOT = Path(__file__).parents[2]
PAGE = _ROOT / "docs" / "brokers.md"
RESULTS = _ROOT / "benchmarks" / "results.json"

#: The medians of a broker by the name of the load and of the figure.
Medians = Callable[[str, str], float | None]
_RATES = {
    "publish, 1 caller": "publish, 1 caller",
    "publish, 8 callers": "8 callers",
    "publish batches of 100": "batches of 100",
    "consume, prefetch 200": "consume, prefetch 200",
    "consume, prefetch 1": "prefetch 1",
}


def main() -> None:
    results = json.loads(RESULTS.read_text())
    loads = {
        each["name"]: each
        for suite in ("brokers", "brokers-kill")
        for each in results.get(suite, {"comparisons": []})["comparisons"]
    }
    page = PAGE.read_text("utf-8")
    for name, lines in _tables(loads).items():
        before, _, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        table = "\n".join(lines)
        page = f"{before}<!-- {name} -->\n{table}\n{end}{after}"
    PAGE.write_text(page, "utf-8")


def _tables(loads: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    def medians(broker: Broker) -> Medians:
        def median(load: str, figure: str) -> float | None:
            for each in loads.get(load, {"figures": []})["figures"]:
                if each["name"] == figure and broker.name in each["columns"]:
                    return float(each["columns"][broker.name]["median"])
            return None

        return median

    found = {each.name: medians(each) for each in BROKERS}
    early = [each for each in BROKERS if each.stored != "an fsync"]
    late = [each for each in BROKERS if each.stored == "an fsync"]
    return {
        "settings": _table(
            ("broker", "client", "a publish waits for", "an acknowledgement waits for", "version"),
            ((each.name, each.module, each.stored, each.acknowledged, each.version) for each in BROKERS),
        ),
        "early": _rates(early, found),
        "late": _rates(late, found),
        "cpu": _figures(
            found,
            {
                "publish, client": ("publish, 1 caller", "CPU of the client"),
                "publish, broker": ("publish, 1 caller", "CPU of the broker"),
                "consume, client": ("consume, prefetch 200", "CPU of the client"),
                "consume, broker": ("consume, prefetch 200", "CPU of the broker"),
            },
        ),
        "delay": _figures(
            found,
            {
                f"{each} at {rate} msg/s": (f"delay at {rate} msg/s", each)
                for rate in ("100", "1,000")
                for each in ("p50", "p99")
            },
        ),
        "rest": _figures(
            found,
            {
                "idle: CPU of the broker, %": ("idle, a consumer waits", "CPU of the broker"),
                "idle: CPU of the client, %": ("idle, a consumer waits", "CPU of the client"),
                "a million waiting: MB": ("1,000,000 messages wait", "memory of the broker"),
                "filled with, msg/s": ("1,000,000 messages wait", "filled"),
            },
        ),
        "kills": _figures(
            found,
            {
                "stored": ("20 kills", "stored"),
                "lost": ("20 kills", "lost"),
                "fsyncs a publish": ("20 kills", "fsyncs"),
            },
        ),
    }


def _rates(brokers: Sequence[Broker], found: Mapping[str, Medians]) -> Sequence[str]:
    """Return the rates, and behind each its ratio to that of the first broker, which is ours."""
    ours = found[brokers[0].name]

    def cell(broker: Broker, load: str) -> str:
        value, own = found[broker.name](load, ""), ours(load, "")
        if value is None:
            return ""
        return f"{_short(value)} ({value / own:.2g})" if own else _short(value)

    return _table(
        ("messages a second", *_RATES.values()),
        ((each.name, *(cell(each, load) for load in _RATES)) for each in brokers),
    )


def _figures(found: Mapping[str, Medians], columns: Mapping[str, tuple[str, str]]) -> Sequence[str]:
    rows = []
    for name, medians in found.items():
        values = [medians(load, figure) for load, figure in columns.values()]
        if any(value is not None for value in values):
            rows.append((name, *("" if value is None else _short(value) for value in values)))
    return _table(("", *columns), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Sequence[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _short(value: float) -> str:
    """Format with two or three digits: the rest is noise."""
    if value < 100:
        return f"{value:.2g}" if value < 10 else f"{value:.0f}"
    return f"{round(value, 3 - len(str(round(value)))):,.0f}"


if __name__ == "__main__":
    main()
