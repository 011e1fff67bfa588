"""Deliberate differences between our daemons and the recorded ones, with the reasons.

No other difference is allowed, and none for other programs (NSQ_BIN_DIR).
docs/compatibility.md lists them for users, with those that no recording shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Case = dict[str, Any]


@dataclass(frozen=True)
class Deviation:
    """``ours`` turns a recorded case or exchange into the one that our daemon must follow."""

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


def _warned(recorded: Case) -> Case:
    """A success with a warning, whose words are ours. Refusals stay."""
    return {**recorded, "json": {"message": "WARNING: "}} if recorded["status"] == 200 else recorded


#: Keyed by file and by what identifies the recording in it: a case's name, or an exchange's request.
DEVIATIONS: dict[tuple[str, str], Deviation] = {
    ("nsqd_http.json", "POST /put?topic=h1"): Deviation(
        "the old name of /pub still works: libraries of that time use it, refusing them gains nothing",
        _text("OK", "text/plain; charset=utf-8"),
    ),
    ("nsqd_http.json", "POST /create_topic?topic=h2"): Deviation(
        "the old name of /topic/create still works, for the same reason", _text("")
    ),
    **{
        ("nsqadmin_api.json", f"POST /api/topics/{name}"): Deviation(
            "an action also reaches the nsqds that are tombstoned for the topic, and the recording has one, "
            "of an unknown host",
            _warned,
        )
        for name in ("orders", "orders/archive")
    },
}


#: What our nsqd adds to its answer to IDENTIFY.
_ADDED_TO_IDENTIFY = {"exiting_not_stored": True, "draining": False}


def with_added(case: Case) -> Case:
    """Return a conversation with nsqd in which the answers to IDENTIFY have what ours adds."""
    return {**case, "steps": [_with_added(step) for step in case["steps"]]}


def _with_added(step: Case) -> Case:
    received = step.get("recv")
    if not (isinstance(received, dict) and "max_rdy_count" in received.get("json", ())):
        return step
    added = len(json.dumps(_ADDED_TO_IDENTIFY, separators=(",", ":"))) - len("{}") + len(",")
    answer = received["json"] | _ADDED_TO_IDENTIFY
    return {**step, "recv": {**received, "json": answer, "size": received["size"] + added}}


#: Figures of deferred messages that our nsqd adds to a channel in /stats.
_ADDED_TO_CHANNELS = {"deferred_on_disk", "next_deferred_ms", "deferred_due"}


def without_added(answer: Any) -> Any:
    """Return an answer without what ours adds."""
    if isinstance(answer, dict):
        return {key: without_added(value) for key, value in answer.items() if key not in _ADDED_TO_CHANNELS}
    return [without_added(value) for value in answer] if isinstance(answer, list) else answer
