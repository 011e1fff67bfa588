"""What /stats tells: gathered from the core as plain values, in the order of nsqd's JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.core.latency import MeasuredChannel, quantiles
from nsq.daemons.nsqd.core.subscriber import ANYWHERE, REGION_LOCAL, ZONE_LOCAL
from nsq.daemons.nsqd.core.topic import Topic
from nsq.daemons.nsqd.session.session import Session

Json = dict[str, Any]

_DELIVERED = (
    ("zone_local_msg_count", ZONE_LOCAL),
    ("region_local_msg_count", REGION_LOCAL),
    ("global_msg_count", ANYWHERE),
)


@dataclass(frozen=True)
class Filter:
    """What is asked for. Empty names mean all."""

    topic: str = ""
    channel: str = ""
    include_clients: bool = True


def topics(broker: Broker, wanted: Filter) -> list[Json] | None:
    """By name. None for a topic that is not there; topics without the channel asked for are left out."""
    if wanted.topic:
        topic = broker.topics.get(wanted.topic)
        if topic is None:
            return None
        chosen = [topic]
    else:
        chosen = sorted(broker.topics.values(), key=lambda topic: topic.name)
    return [
        _topic(topic, wanted) for topic in chosen if not wanted.channel or wanted.channel in topic.channels
    ]


def _topic(topic: Topic, wanted: Filter) -> Json:
    channels = sorted(topic.channels.values(), key=lambda channel: channel.name)
    if wanted.channel:
        channels = [topic.channels[wanted.channel]]
    return {
        "topic_name": topic.name,
        "channels": [_channel(channel, wanted.include_clients) for channel in channels],
        "depth": topic.depth,
        "backend_depth": topic.backlog.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _latency(topic.channels.values()),
    }


def _channel(channel: Channel, include_clients: bool) -> Json:
    clients = [subscriber.sink for subscriber in channel.subscribers]
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backlog.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        **{key: count for key, place in _DELIVERED if (count := channel.delivered[place])},
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(clients),
        "clients": [client(c) for c in clients if isinstance(c, Session)] if include_clients else None,
        "paused": channel.paused,
        "e2e_processing_latency": _latency([channel]),
    }


def _latency(channels: Iterable[Channel]) -> Json:
    """Of all channels together. Nothing is measured unless asked for: the key then has no values."""
    windows = [channel.latency for channel in channels if isinstance(channel, MeasuredChannel)]
    if not windows:
        return {"count": 0, "percentiles": None}
    wanted = windows[0].quantiles
    count, values = quantiles(windows, wanted)
    shown = [
        {"quantile": int(each) if each == 1 else each, "value": value}
        for each, value in zip(wanted, values, strict=True)
    ]
    return {"count": count, "percentiles": shown}


def client(session: Session, published_to: str = "") -> Json:
    """One connection; with ``published_to`` its publications to that topic alone."""
    request, subscriber, tls = session.request, session.subscriber, session.tls
    return {
        "client_id": request.client_id,
        "hostname": request.hostname,
        "version": "V2",
        "remote_address": session.remote_address,
        "state": session.state,
        "ready_count": subscriber.rdy if subscriber else 0,
        "in_flight_count": len(subscriber.in_flight) if subscriber else 0,
        "message_count": subscriber.message_count if subscriber else 0,
        "finish_count": subscriber.finish_count if subscriber else 0,
        "requeue_count": subscriber.requeue_count if subscriber else 0,
        "connect_ts": session.connected_at,
        "sample_rate": session.agreement.sample_rate,
        "deflate": session.agreement.deflate,
        "snappy": session.agreement.snappy,
        "user_agent": request.user_agent,
        **_authentication(session),
        **_publications(session, published_to),
        "topology_zone": request.topology_zone,
        "topology_region": request.topology_region,
        "tls": tls is not None,
        "tls_cipher_suite": (tls.cipher or "") if tls else "",
        "tls_version": (tls.version or "").replace("TLSv", "TLS") if tls else "",
        "tls_negotiated_protocol": (tls.selected_alpn or "") if tls else "",
        "tls_negotiated_protocol_is_mutual": bool(tls and tls.selected_alpn),
    }


def _authentication(session: Session) -> Json:
    grant = session.grant
    if grant is None:
        return {}
    shown = {"authed": True, "auth_identity": grant.identity, "auth_identity_url": grant.identity_url}
    return {key: value for key, value in shown.items() if value}


def _publications(session: Session, wanted: str) -> Json:
    counts = [
        {"topic": topic, "count": count}
        for topic, count in session.pub_counts.items()
        if not wanted or topic == wanted
    ]
    return {"pub_counts": counts} if counts else {}


def producers(sessions: Iterable[Session], wanted: Filter) -> list[Json] | None:
    """The clients that have published, to the topic asked for; None when there are none."""
    found = [
        client(session, wanted.topic)
        for session in sessions
        if session.pub_counts and (not wanted.topic or wanted.topic in session.pub_counts)
    ]
    return found or None
