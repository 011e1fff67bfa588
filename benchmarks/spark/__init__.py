"""From nsqd to Spark: throughput, latency and memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from benchmarks.comparison import Comparison
from benchmarks.spark import endurance, processing, receiving
from nsq.findings import FAILURE
from nsq.spark import doctor

__all__ = ["comparisons"]


def comparisons() -> Sequence[Comparison]:
    if reason := _missing():
        return [Comparison(name="spark", figures=(), contenders={}, absent={"Spark": reason})]
    return [*receiving.comparisons(), *processing.comparisons(), *endurance.comparisons()]


def _missing() -> str:
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        return "pip install 'nsq[spark]'"
    found = doctor.check_java()
    return f"{found.found}; {found.remedy}" if found.level == FAILURE else ""
