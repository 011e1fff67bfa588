"""Where our daemons answer otherwise than the recorded ones, on purpose, and why.

Nowhere else is a difference excused. Other programs (NSQ_BIN_DIR) are held to the recordings as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Case = dict[str, Any]


@dataclass(frozen=True)
class Deviation:
    """``ours`` makes of the recorded case or exchange what our daemon is to answer."""

    reason: str
    ours: Callable[[Case], Case]


def _text(body: str, content_type: str | None = None) -> Callable[[Case], Case]:
    """A success with this body instead of whatever was recorded."""
    headers = {"X-Nsq-Content-Type": "nsq; version=1.0"}
    if content_type is not None:
        headers["Content-Type"] = content_type

    def ours(recorded: Case) -> Case:
        request = {name: value for name, value in recorded.items() if name.startswith("request")}
        return {**request, "status": 200, "headers": headers, "text": body}

    return ours


def _without_percentiles(recorded: Case) -> Case:
    if "text" in recorded:
        return {**recorded, "text": recorded["text"].replace("e2e%: 0.0ns, 0.0ns", "e2e%: ")}
    return {**recorded, "json": _latency_off(recorded["json"])}


def _latency_off(value: Any) -> Any:
    """The recorded statistics as nsqd gives them while no percentile is asked for."""
    if isinstance(value, dict):
        off = {"count": 0, "percentiles": None}
        return {
            key: off if key == "e2e_processing_latency" else _latency_off(inner)
            for key, inner in value.items()
        }
    return [_latency_off(inner) for inner in value] if isinstance(value, list) else value


_NO_PERCENTILES = Deviation(
    "our nsqd has no --e2e-processing-latency-percentile and answers as if none had been asked for",
    _without_percentiles,
)

#: Keyed by file and by what identifies the recording in it: a case's name, or an exchange's request.
DEVIATIONS: dict[tuple[str, str], Deviation] = {
    ("nsqd_http.json", "POST /put?topic=h1"): Deviation(
        "the old name of /pub still works: libraries of that time use it, and refusing them helps nobody",
        _text("OK", "text/plain; charset=utf-8"),
    ),
    ("nsqd_http.json", "POST /create_topic?topic=h2"): Deviation(
        "the old name of /topic/create still works, for the same reason", _text("")
    ),
    **{
        ("nsqd_stats_client.json", request): _NO_PERCENTILES
        for request in (
            "GET /stats?format=json&topic=orders&include_mem=false",
            "GET /stats?topic=orders",
            "GET /stats?format=json&include_clients=false&include_mem=false",
        )
    },
}
