"""Replays recorded HTTP exchanges in their order, and compares status, headers and body, also the order of
keys.

Random values (ports, times, memory) are masked on both sides by the names of their fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

from nsq.testing import Reply
from nsq.testing.daemons import Daemon

from .deviations import Case

HEADERS = ("Content-Type", "X-NSQ-Content-Type", "Allow")
TOO_BIG = 1024 * 1024 + 1  # the recording keeps only the beginning of such a body
#: A message that was deferred by a second was so at the next exchanges; here it is however long those take.
_A_SECOND, _AN_HOUR = re.compile(r"\bdefer=1000\b"), "defer=3600000"
MEMORY = (
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
    "gc_total_runs",
)

#: Go's JSON escapes these, as the & in the address that an error of nsqadmin names.
_ESCAPES_OF_GO = {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}

_TEXT_MASKS = [
    (re.compile(r"\(built w/[^)\n]+\)"), "(built w/*)"),
    (
        re.compile(r"^start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)$", re.MULTILINE),
        "start_time *",
    ),
    (re.compile(r"^uptime (\d+h)?(\d+m)?\d+(\.\d+)?(s|ms|µs)$", re.MULTILINE), "uptime *"),
    (re.compile(rf"^   ({'|'.join(MEMORY)})( +\t)\d+$", re.MULTILINE), r"   \1\2*"),
    (re.compile(r"(\[V2 [^ :]+:)\d+ "), r"\1* "),
    (re.compile(r"connected: (\d+h)?(\d+m)?\d+s$", re.MULTILINE), "connected: *"),
]

Answers = dict[int, Reply]
Normal = Callable[[Any], Any]


def request_name(exchange: Case) -> str:
    """A readable test id: the request, and its body when it is short."""
    body = exchange.get("request_body", "")
    return f"{exchange['request']} {body!r}" if 0 < len(body) < 40 else str(exchange["request"])


def ask_all(daemon: Daemon, exchanges: Iterable[Case]) -> Answers:
    """Send every request in order, because state carries over; deviations come last."""
    numbered = sorted(enumerate(exchanges), key=lambda pair: ("deviation" in pair[1], pair[0]))
    return {number: _ask(daemon, exchange) for number, exchange in numbered}


def _ask(daemon: Daemon, exchange: Case) -> Reply:
    method, target = _A_SECOND.sub(_AN_HOUR, exchange["request"]).split(" ", 1)
    body = exchange["request_body"].encode("latin-1") if "request_body" in exchange else None
    if body is not None and exchange.get("json") == {"message": "MSG_TOO_BIG"}:
        body = body[:1] * TOO_BIG
    return daemon.request(method, target, body, exchange.get("request_headers"))


def check(
    reply: Reply, exchange: Case, volatile: Collection[str], normal: Normal = lambda answer: answer
) -> None:
    """Compare one answer with its recording; ``normal`` sorts what the recorded daemon gives in any order."""
    recorded = {name.lower(): value for name, value in exchange["headers"].items()}
    assert reply.status == exchange["status"], reply.text
    for name in HEADERS:
        assert (name, reply.headers.get(name)) == (name, recorded.get(name.lower()))
    if "json" in exchange:
        answer = json.loads(reply.body)
        assert reply.text == _compact(answer), "not the compact JSON the Go daemons write"
        assert _compact(_masked(normal(answer), volatile)) == _compact(
            _masked(normal(exchange["json"]), volatile)
        )
    else:
        assert _masked_text(reply.text) == _masked_text(exchange["text"])


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_ESCAPES_OF_GO)


def _masked(value: Any, volatile: Collection[str]) -> Any:
    """Volatile fields keep their place and type and lose their value."""
    if isinstance(value, dict):
        return {
            key: f"<{type(inner).__name__}>" if key in volatile else _masked(inner, volatile)
            for key, inner in value.items()
        }
    return [_masked(inner, volatile) for inner in value] if isinstance(value, list) else value


def _masked_text(text: str) -> str:
    for pattern, replacement in _TEXT_MASKS:
        text = pattern.sub(replacement, text)
    return text
