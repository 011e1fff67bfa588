"""Shows messages that wait in a topic or channel, or are in flight, from every nsqd that can show them."""

from __future__ import annotations

import base64
import functools
import time
from collections.abc import Sequence

from nsq.daemons.nsqadmin.aggregate import Json
from nsq.daemons.nsqadmin.cluster import Cluster, Found, get
from nsq.daemons.nsqadmin.guard import reply_with
from nsq.daemons.serve.routes import HttpError, Reply, Request
from nsq.errors import ApiRefused
from nsq.http.calls import json_value
from nsq.http.cluster import Node, rows, value
from nsq.wire.envelope import dead_letter_in

_MAX_PEEKED = 100
#: How many channels of each nsqd are asked, the deepest first, when the topic's own queue is empty.
_MOST_CHANNELS = 10

_KINDS = {"id": str, "timestamp": int, "age_ms": int, "attempts": int, "size": int, "truncated": bool}
_KINDS |= {"encoding": str, "body": str}
#: The headers of a dead letter that are shown.
_REASON = ("source", "time", "reason", "error", "place", "attempts", "published")


async def peek(cluster: Cluster, request: Request) -> Reply:
    """Return the first waiting messages, or with ?in_flight=true those longest in flight. If the topic's own
    queue is empty, return what waits in its channels; each message then names its channels.
    """
    topic, channel = request.params["topic"], request.params.get("channel", "")
    n = request.args.get("n", "10")
    if not (n.isascii() and n.isdigit() and 0 < int(n[:9]) <= _MAX_PEEKED):
        raise HttpError(400, "INVALID_ARG_N")
    in_flight = bool(channel) and request.args.get("in_flight") == "true"
    nodes = await cluster.holders(topic)
    refused: dict[str, str] = {}
    ask = functools.partial(_ask, cluster, topic, n, in_flight, refused)
    found = await cluster.gather("nsqd", [(node, channel) for node in nodes.value], ask)
    messages = [message for shown in found.value.values() for message in shown]
    failures = nodes.failures + found.failures
    if not channel and not messages:
        places = await _deepest_channels(cluster, nodes.value, topic)
        failures += places.failures
        if places.value:
            inside = await cluster.gather("nsqd", places.value, ask)
            messages = _distinct(inside.value)
            failures += inside.failures
    messages.sort(key=lambda each: -each["in_flight_ms"] if in_flight else each["timestamp"])
    return reply_with({"messages": messages, "refused": refused}, failures)


async def _ask(
    cluster: Cluster, topic: str, n: str, in_flight: bool, refused: dict[str, str], place: tuple[Node, str]
) -> list[Json]:
    node, channel = place
    args = {"topic": topic, "n": n} | ({"channel": channel} if channel else {})
    args |= {"in_flight": "true"} if in_flight else {}
    path = "/channel/peek" if channel else "/topic/peek"
    try:
        reply = await cluster.ask(get(node.url, path, args, json_value))
    except ApiRefused as error:
        if error.code in ("NOT_FOUND", "PEEK_FROM_THIS_MACHINE_ONLY"):
            refused[node.name] = error.code
            return []
        if error.code in ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"):
            return []
        raise
    return [{"node": node.name, **_message(each, in_flight)} for each in rows(reply, "messages")]


async def _deepest_channels(
    cluster: Cluster, nodes: Sequence[Node], topic: str
) -> Found[list[tuple[Node, str]]]:
    """Return the channels with waiting messages, for each nsqd."""
    stats = await cluster.stats(nodes, time.time(), topic=topic)
    by_name = {node.name: node for node in nodes}
    places = []
    for topic_stats in stats.value:
        waiting = [
            each for each in topic_stats["channels"] if each["depth"] and topic_stats["topic_name"] == topic
        ]
        waiting.sort(key=lambda each: -each["depth"])
        places += [(by_name[topic_stats["node"]], each["channel_name"]) for each in waiting[:_MOST_CHANNELS]]
    return Found(places, stats.failures)


def _distinct(found: dict[tuple[Node, str], list[Json]]) -> list[Json]:
    """Merge the copies of a message that wait in several channels of an nsqd."""
    messages: dict[tuple[str, str], Json] = {}
    for (node, channel), shown in found.items():
        for message in shown:
            known = messages.setdefault((node.name, message["id"]), {**message, "channels": []})
            known["channels"].append(channel)
    return list(messages.values())


def _message(given: object, in_flight: bool) -> Json:
    """Check a waiting or in-flight message from an nsqd, and copy its fields."""
    shown: Json = {name: value(given, name, kind) for name, kind in _KINDS.items()}
    shown |= _opened(shown)
    if in_flight:
        client = value(given, "client", dict)
        names = ("client_id", "hostname", "remote_address")
        shown["client"] = {name: value(client, name, str) for name in names}
        shown["in_flight_ms"] = value(given, "in_flight_ms", int)
    return shown


def _opened(shown: Json) -> Json:
    """Return the fields that differ if the message is a dead letter with a reason."""
    if shown["encoding"] != "utf-8":
        return {}
    return opened_letter(shown["body"].encode("utf-8", "replace"))


def opened_letter(body: bytes) -> Json:
    """Return what to show of a dead letter with a reason; nothing for another message."""
    letter = dead_letter_in(body)
    if letter is None:
        return {}
    reason = {name: letter.attributes[name] for name in _REASON if name in letter.attributes}
    return {"dead_letter": reason, **text_or_base64(letter.body)}


def text_or_base64(body: bytes) -> Json:
    try:
        return {"encoding": "utf-8", "body": body.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "body": base64.b64encode(body).decode()}
