"""The shapes of Go's nsqadmin: topics, channels, clients and latencies of one nsqd and of several, and nodes.
Pure.

``read_topics`` parses and checks one nsqd's /stats; the other functions merge its results.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nsq.http.calls import Misshapen
from nsq.http.cluster import Node, an_object, rows, value, version_number
from nsq.http.nsqd import plain_stats

Json = dict[str, Any]

ALL_NODES = "*"

_CHANNEL_COUNTS = (
    "depth",
    "memory_depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "dropped_count",
    "message_count",
    "delivery_msg_count",
    "zone_local_msg_count",
    "region_local_msg_count",
    "global_msg_count",
    "client_count",
)
_DELIVERIES = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
#: Counts that are left out when they are 0, as nsqd does.
_SPARSE = {"delivery_msg_count", "dropped_count", *_DELIVERIES}
_TOPIC_COUNTS = ("depth", "memory_depth", "backend_depth", "message_count", "delivery_msg_count")

_CLIENT_KEYS: tuple[tuple[str, type], ...] = (
    ("in_flight_count", int),
    ("ready_count", int),
    ("finish_count", int),
    ("requeue_count", int),
    ("message_count", int),
    ("sample_rate", int),
    ("deflate", bool),
    ("snappy", bool),
    ("authed", bool),
    ("auth_identity", str),
    ("auth_identity_url", str),
    ("tls", bool),
    ("tls_cipher_suite", str),
    ("tls_version", str),
    ("tls_negotiated_protocol", str),
    ("tls_negotiated_protocol_is_mutual", bool),
)


# One nsqd


def read_topics(stats: Any, node: str, hostname: str, now: float) -> list[Json]:
    """Return the topics of one nsqd's /stats. Raises Misshapen if they are invalid."""
    topics: dict[str, list[Json]] = {}
    for each in rows(an_object(plain_stats(stats)), "topics"):
        topic = _topic(each, node, hostname, now)
        topics.setdefault(topic["topic_name"], []).append(topic)
    return [parts[0] if len(parts) == 1 else _of_partitions(parts) for parts in topics.values()]


def _of_partitions(parts: list[Json]) -> Json:
    """Merge the partitions of a topic on one nsqd."""
    here = {"node": parts[0]["node"], "hostname": parts[0]["hostname"], "nodes": None}
    merged = merge_topics(parts[0]["topic_name"], parts)
    return {**merged, **here, "channels": [{**each, **here} for each in merged["channels"] or ()]}


def _topic(given: Any, node: str, hostname: str, now: float) -> Json:
    given = an_object(given)
    name = value(given, "topic_name", str)
    depth, backend = value(given, "depth", int), value(given, "backend_depth", int)
    return {
        "node": node,
        "hostname": hostname,
        "topic_name": name,
        "depth": depth,
        "memory_depth": depth - backend,
        "backend_depth": backend,
        "message_count": value(given, "message_count", int),
        "delivery_msg_count": 0,
        "nodes": None,
        "channels": [_channel(each, name, node, hostname, now) for each in rows(given, "channels")],
        "paused": value(given, "paused", bool),
        "e2e_processing_latency": _latency(given),
        **_partition(given),
    }


def _partition(given: Json) -> Json:
    """Return what only a topic of a partitioned nsqd has."""
    if "topic_partition" not in given:
        return {}
    stored = value(given, "stored_bytes", int)
    return {"partitions": [value(given, "topic_partition", str)], "stored_bytes": stored}


def _channel(given: Any, topic: str, node: str, hostname: str, now: float) -> Json:
    given = an_object(given)
    depth, backend = value(given, "depth", int), value(given, "backend_depth", int)
    delivered = {name: value(given, name, int) for name in _DELIVERIES}
    clients = given.get("clients")
    listed = None if clients is None else [_client(each, node, now) for each in rows(given, "clients")]
    counts = {name: value(given, name, int) for name in _CHANNEL_COUNTS}
    counts |= {"memory_depth": depth - backend, "delivery_msg_count": sum(delivered.values())}
    if "client_count" not in given:  # an nsqd from before 1.2.1
        counts["client_count"] = len(listed or ())
    return {
        "node": node,
        "hostname": hostname,
        "topic_name": topic,
        "channel_name": value(given, "channel_name", str),
        **_shown(counts),
        "nodes": None,
        "clients": listed,
        "paused": value(given, "paused", bool),
        "e2e_processing_latency": _latency(given),
        **_due(given),
    }


def _due(given: Json) -> Json:
    """Return how many deferred messages are due within which time, if the nsqd says so: Go's does not."""
    if "deferred_due" not in given:
        return {}
    due = []
    for each in map(an_object, rows(given, "deferred_due")):
        within = None if each.get("within") is None else _number(each, "within")  # None: later
        due.append({"within": within, "count": value(each, "count", int)})
    return {"deferred_due": due}


def _client(given: Any, node: str, now: float) -> Json:
    given = an_object(given)
    since = value(given, "connect_ts", int)
    shown = {
        "node": node,
        "remote_address": value(given, "remote_address", str),
        "version": value(given, "version", str),
        "client_id": value(given, "client_id", str),
        "hostname": value(given, "hostname", str),
        "user_agent": value(given, "user_agent", str),
        "connect_ts": since,
        "connected": max(0, int(now) - since) * 1_000_000_000,
    }
    shown |= {name: value(given, name, kind) for name, kind in _CLIENT_KEYS}
    zone, region = value(given, "topology_zone", str), value(given, "topology_region", str)
    return shown | ({"topology_zone": zone, "topology_region": region} if zone or region else {})


def _latency(given: Json) -> Json:
    latency = an_object(given.get("e2e_processing_latency") or {})
    count = value(latency, "count", int)
    percentiles = []
    for each in rows(latency, "percentiles"):
        each = an_object(each)
        share, time = _number(each, "quantile"), _number(each, "value")
        both = {"average": time, "count": count, "max": time, "min": time}
        percentiles.append({**both, "quantile": share, "value": time})
    return {"count": count, "percentiles": percentiles or None, "topic": "", "channel": "", "host": ""}


# Several nsqds


def merge_topics(name: str, parts: Iterable[Json]) -> Json:
    """Merge a topic's statistics of all nsqds."""
    nodes = sorted(parts, key=_by_host)
    channels: dict[str, list[Json]] = {}
    for part in nodes:
        for channel in part["channels"]:
            channels.setdefault(channel["channel_name"], []).append(channel)
    return {
        "node": ALL_NODES if nodes else "",
        "hostname": "",
        "topic_name": name,
        **_sums(_TOPIC_COUNTS, nodes),
        "nodes": nodes or None,
        "channels": [_joined(name, each) for each in channels.values()] or None,
        "paused": any(part["paused"] for part in nodes),
        "e2e_processing_latency": _merge_latencies(nodes, name, "") if nodes else None,
        **_merge_partitions(nodes),
    }


def _merge_partitions(parts: list[Json]) -> Json:
    led = [part for part in parts if "partitions" in part]
    if not led:
        return {}
    names = sorted((name for part in led for name in part["partitions"]), key=lambda name: (len(name), name))
    return {"partitions": names, "stored_bytes": sum(part["stored_bytes"] for part in led)}


def _joined(topic: str, parts: list[Json]) -> Json:
    """Merge a channel in a topic's list; if only one nsqd has it, return it unchanged."""
    return parts[0] if len(parts) == 1 else merge_channels(topic, parts[0]["channel_name"], parts)


def merge_channels(topic: str, name: str, parts: Iterable[Json]) -> Json:
    """Merge a channel's statistics and clients of all nsqds."""
    nodes = sorted(parts, key=_by_host)
    clients = [client for part in nodes for client in part["clients"] or ()]
    return {
        "node": ALL_NODES,
        "hostname": "",
        "topic_name": topic,
        "channel_name": name,
        **_shown(_sums(_CHANNEL_COUNTS, nodes)),
        "nodes": nodes,
        "clients": sorted(clients, key=lambda client: (client["hostname"], client["node"])) or None,
        "paused": any(part["paused"] for part in nodes),
        "e2e_processing_latency": _merge_latencies(nodes, topic, name),
    }


def node_shown(node: Node, newest: tuple[int, ...]) -> Json:
    """Return the node as /api/nodes lists it; ``newest`` is the newest version of all."""
    info = node.info
    return {
        "remote_addresses": None if node.registrations is None else list(node.registrations),
        "remote_address": info.remote_address,
        "hostname": info.hostname,
        "broadcast_address": info.broadcast_address,
        "tcp_port": info.tcp_port,
        "http_port": info.http_port,
        "version": info.version,
        "topics": [{"topic": name, "tombstoned": node.topics[name]} for name in sorted(node.topics)],
        "out_of_date": version_number(info.version) < newest,
    }


def counters(topics: Iterable[Json]) -> Json:
    """Return the message counts of each channel of each nsqd."""
    found: Json = {}
    for topic in topics:
        for channel in topic["channels"]:
            key = f"{topic['topic_name']}:{channel['channel_name']}:{topic['node']}"
            found[key] = {
                "node": topic["node"],
                "topic_name": topic["topic_name"],
                "channel_name": channel["channel_name"],
                "message_count": channel["message_count"],
            }
    return dict(sorted(found.items()))


def _merge_latencies(parts: Iterable[Json], topic: str, channel: str) -> Json:
    """Merge latencies; averages are weighted by messages. Unlike in Go's merge, ``min`` is the smallest."""
    count = 0
    merged: dict[float, Json] = {}
    for part in parts:
        latency = part["e2e_processing_latency"]
        count += latency["count"]
        for each in latency["percentiles"] or ():
            share = each["quantile"]
            have = merged.setdefault(share, {"average": 0, "count": 0, "max": 0, "min": 0, "quantile": share})
            if each["count"] == 0:
                continue
            have["min"] = min(have["min"], each["min"]) if have["count"] else each["min"]
            have["max"] = max(have["max"], each["max"])
            have["count"] += each["count"]
            have["average"] += (each["average"] - have["average"]) * each["count"] / have["count"]
    for each in merged.values():
        each["average"] = _plain(each["average"])
    ordered = [merged[share] for share in sorted(merged, reverse=True)]
    return {
        "count": count,
        "percentiles": ordered or None,
        "topic": topic,
        "channel": channel,
        "host": ALL_NODES,
    }


def _sums(names: Iterable[str], parts: list[Json]) -> Json:
    return {name: sum(part.get(name, 0) for part in parts) for name in names}


def _shown(counts: Json) -> Json:
    return {name: counts[name] for name in _CHANNEL_COUNTS if counts[name] or name not in _SPARSE}


def _by_host(part: Json) -> tuple[str, str]:
    return part["hostname"], part["node"]


def _plain(number: float) -> float:
    """Convert a whole float to an int, which JSON writes without a point, as Go does."""
    return int(number) if number == int(number) else number


def _number(given: Json, name: str) -> float:
    found = given.get(name, 0)
    if type(found) not in (int, float) or not abs(found) < 1e300:
        raise Misshapen(f"{name} is not a number")
    return _plain(found)
