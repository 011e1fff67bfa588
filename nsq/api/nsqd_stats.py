"""The JSON of nsqd's /stats, as types.

Only what makes sense of a topic, channel or client is required; the rest came with one version or another.
Counts are since nsqd started. Imports nothing of the package.
"""

from __future__ import annotations

from typing import TypedDict


class Percentile(TypedDict):
    """``value`` is in nanoseconds."""

    quantile: float
    value: float


class Latency(TypedDict, total=False):
    """Processing time from end to end; without percentiles unless nsqd was told which."""

    count: int
    percentiles: list[Percentile]


class PubCount(TypedDict):
    topic: str
    count: int


class _Client(TypedDict):
    client_id: str
    hostname: str
    remote_address: str


class ClientStats(_Client, total=False):
    """A consumer of a channel, or a producer. ``connect_ts`` is in seconds since 1970."""

    version: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    deflate: bool
    snappy: bool
    user_agent: str
    authed: bool
    auth_identity: str
    auth_identity_url: str
    pub_counts: list[PubCount]
    topology_zone: str
    topology_region: str
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool


class _Channel(TypedDict):
    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    paused: bool
    clients: list[ClientStats]


class ChannelStats(_Channel, total=False):
    """``clients`` is empty when they were not asked for; ``client_count`` says how many there are."""

    client_count: int
    global_msg_count: int
    e2e_processing_latency: Latency


class _Topic(TypedDict):
    topic_name: str
    channels: list[ChannelStats]
    depth: int
    backend_depth: int
    message_count: int
    paused: bool


class TopicStats(_Topic, total=False):
    message_bytes: int
    e2e_processing_latency: Latency


class MemoryStats(TypedDict, total=False):
    heap_objects: int
    heap_idle_bytes: int
    heap_in_use_bytes: int
    heap_released_bytes: int
    gc_pause_usec_100: int
    gc_pause_usec_99: int
    gc_pause_usec_95: int
    next_gc_bytes: int
    gc_total_runs: int


class _Stats(TypedDict):
    version: str
    health: str
    topics: list[TopicStats]


class NsqdStats(_Stats, total=False):
    """``start_time`` is in seconds since 1970. ``memory`` is there when it was asked for, ``producers`` with
    the clients.
    """

    start_time: int
    memory: MemoryStats
    producers: list[ClientStats]
