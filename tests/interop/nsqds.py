"""nsqd's statistics of a topic and its clients, and waiting for them.

Nothing here asks a client: the point is that both sides agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from nsq.testing import Nsqd, Nsqlookupd
from tests.integration import patience

# A command about a message that is not in flight, or a bug in nsqd.
_TROUBLE = re.compile(r"E_\w+_FAILED|Traceback| dropped")


def eventually(look: Callable[[], Any], wanted: Any, within: float = patience.PATIENCE) -> None:
    """Wait until ``look()`` returns the wanted value: nsqd does not answer a FIN."""
    patience.eventually(look, lambda seen: seen == wanted, within)


def trouble(log: str) -> list[str]:
    return [line for line in log.splitlines() if _TROUBLE.search(line)]


def topic_stats(nsqd: Nsqd, topic: str) -> dict[str, Any]:
    topics = nsqd.get(f"/stats?format=json&topic={topic}").json()["topics"]
    return topics[0] if topics else {"channels": [], "message_count": 0}


def consumers(nsqd: Nsqd, topic: str) -> list[dict[str, Any]]:
    return [client for channel in topic_stats(nsqd, topic)["channels"] for client in channel["clients"] or []]


def producers(nsqd: Nsqd, topic: str) -> list[dict[str, Any]]:
    """Clients that have published to the topic and are still there."""
    clients = nsqd.get(f"/stats?format=json&topic={topic}").json()["producers"] or []
    return [client for client in clients if any(each["topic"] == topic for each in client["pub_counts"])]


def expect_drained(nsqd: Nsqd, topic: str, count: int, *, requeues: int = 0, timeouts: int = 0) -> None:
    """Expect that the only channel has delivered all messages and has none left."""

    def look() -> dict[str, Any]:
        stats = topic_stats(nsqd, topic)
        (channel,) = stats["channels"]
        counts = ("message_count", "depth", "in_flight_count", "deferred_count", "requeue_count")
        return {"published": stats["message_count"]} | {
            name: channel[name] for name in (*counts, "timeout_count")
        }

    left = dict.fromkeys(("depth", "in_flight_count", "deferred_count"), 0)
    sums = {"published": count, "message_count": count, "requeue_count": requeues, "timeout_count": timeouts}
    eventually(look, sums | left)


def expect_listed(lookupd: Nsqlookupd, topic: str, count: int = 1) -> None:
    """Expect that this many nsqds have registered the topic."""

    def look() -> int:
        reply = lookupd.get(f"/lookup?topic={topic}")
        return len(reply.json()["producers"]) if reply.status == 200 else 0

    eventually(look, count)
