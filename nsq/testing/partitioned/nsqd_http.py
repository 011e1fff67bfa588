"""An nsqd: what a test can do to it, and what it answers over HTTP. ``nsqd`` is its other protocol."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Any

from nsq.wire.commands import BadBodies, Limits, unpack_bodies
from nsq.wire.names import valid_channel

from .channel import Channel
from .http import Answer, Args, Page, Site
from .nsqd import MAX_BODY, MAX_MESSAGE, MAX_UINT64, VERSION, NsqdConnection, trace_id_of
from .program import HOST, Peer, Program
from .state import ClusterState, NodeState, Partition, Refused

_NO_TOPIC: Answer = (404, "E_TOPIC_NOT_EXIST")
#: What the double does not count.
_NO_TOPIC_FIGURES: dict[str, object] = {
    **dict.fromkeys(("backend_start", "hourly_pubsize", "client_num", "pub_failed_cnt"), 0),
    **dict.fromkeys(("msg_size_stats", "msg_write_latency_stats"), [0] * 16),
    "client_pub_stats": [],
    "e2e_processing_latency": {"count": 0, "percentiles": None},
}
_NO_CHANNEL_FIGURES: dict[str, object] = {
    **dict.fromkeys(("hourly_subsize", "requeue_count", "timeout_count", "deferred_count"), 0),
    **dict.fromkeys(("deferred_from_delay_count", "delayed_queue_count"), 0),
    **dict.fromkeys(("depth_ts_nano", "delayed_queue_recent_nano"), 0),
    **dict.fromkeys(("depth_ts", "delayed_queue_recent"), "1970-01-01 00:00:00 +0000 UTC"),
    **dict.fromkeys(("msg_consume_latency_stats", "msg_delivery_latency_stats"), [0] * 12),
    **dict.fromkeys(("skipped", "zan_test_skipped"), False),
    "clients": [],
    "e2e_processing_latency": {"count": 0, "percentiles": None},
}


class PartitionedNsqd(Program):
    """One nsqd: its connections, and its HTTP pages."""

    def __init__(self, cluster: ClusterState, state: NodeState) -> None:
        self._cluster = cluster
        self._state = state
        self._clients: set[NsqdConnection] = set()
        self._start_time = int(time.time())
        pages: dict[str, Page] = {
            "GET /info": self._info,
            "GET /stats": self._stats,
            "GET /coordinator/stats": self._coordinator_stats,
            "GET /message/stats": self._message_stats,
            "GET /message/historystats": self._history,
            "POST /disable/write": self._disable_write,
        }
        for name in ("pub", "pub_ext", "pubtrace", "mpub"):
            pages[f"POST /{name}"] = functools.partial(self._publish, name)
        for verb in ("create", "delete", "empty", "pause", "unpause"):
            pages[f"POST /channel/{verb}"] = functools.partial(self._change, verb)
        super().__init__(self._talk, Site(pages).talk)

    async def _talk(self, reader: asyncio.StreamReader, peer: Peer) -> None:
        client = NsqdConnection(self._cluster, self._state, reader, peer)
        self._clients.add(client)
        try:
            await client.run()
        finally:
            self._clients.discard(client)
            client.leave()

    def tick(self) -> None:
        for client in [] if self.stalled else list(self._clients):
            client.tick()

    # What a test does to it

    def kill(self, lost_fins: int = 0) -> None:
        self._cluster.lose_fins(self._state, lost_fins)
        super().kill()

    def changed(self) -> None:
        self._state.running, self._state.responsive = self.running, self.going.is_set()
        if self._state.responsive:
            self._cluster.recovered(self._state)
        else:
            self._cluster.failed(self._state)

    def refuse(self, command: str, answer: str, times: int) -> None:
        self._state.refusals += [(command, answer)] * times

    def disable_writes(self, kind: str) -> None:
        self._state.write_disabled = kind

    def received(self) -> dict[str, int]:
        return dict(self._state.received)

    def connections(self) -> int:
        return len(self._clients)

    # Pages

    def _partition(self, args: Args) -> Partition | None:
        """Return the partition that a request names. The default is one that this node leads."""
        try:
            number = int(args.get("partition") or -1)
        except ValueError:
            return None
        return self._cluster.held(args.get("topic", ""), number, self._state.index)

    def _info(self, args: Args, body: bytes) -> Answer:
        tcp_port, http_port = self.ports
        return 200, {
            "version": VERSION,
            "broadcast_address": HOST,
            "hostname": f"node{self._state.index}",
            "http_port": http_port,
            "tcp_port": tcp_port,
            "start_time": self._start_time,
            "ha_support": self._cluster.coordinator,
        }

    def _disable_write(self, args: Args, body: bytes) -> Answer:
        self._state.write_disabled = args.get("type", "").replace("none", "")
        return 200, None

    def _coordinator_stats(self, args: Args, body: bytes) -> Answer:
        return 200, _COORDINATOR_STATS

    def _message_stats(self, args: Args, body: bytes) -> Answer:
        if not args.get("channel"):
            return 400, "MISSING_ARG_CHANNEL"
        return _NO_TOPIC if self._partition(args) is None else (200, "")

    def _history(self, args: Args, body: bytes) -> Answer:
        return _NO_TOPIC if self._partition(args) is None else (200, {"hourly_pub_size": [0] * 22})

    # Publishing

    async def _publish(self, name: str, args: Args, body: bytes) -> Answer:
        if not 0 < len(body) <= (MAX_BODY if name == "mpub" else MAX_MESSAGE):
            return (406, "MSG_EMPTY") if not body else (413, "MSG_TOO_BIG")
        partition = self._partition(args)
        if partition is None:
            return _NO_TOPIC
        try:
            return await self._store(partition, name, args, body)
        except Refused as refused:
            return 400, refused.code
        except BadBodies as bad:
            return 413, bad.code.removeprefix("E_")

    async def _store(self, partition: Partition, name: str, args: Args, body: bytes) -> Answer:
        trace, header = args.get("trace_id", ""), args.get("ext", "")
        traced, ext, bodies = name == "pubtrace", b"", [body]
        if partition.leader == self._state.index:  # checked first, as in the real server
            if traced and not (trace.isdigit() and int(trace) <= MAX_UINT64):
                return 400, "INVALID_TRACE_ID"
            if name == "pub_ext":
                found = trace_id_of(header.encode())
                trace, traced = str(found or 0), found is not None
                if not partition.topic.extended:
                    return 400, "E_EXT_NOT_SUPPORT"
                ext = b"\4" + len(header.encode()).to_bytes(2, "big") + header.encode()
        if name == "mpub":
            bodies = unpack_bodies(body, Limits()) if "binary" in args else body.split(b"\n")
        await self._cluster.wait_for_replicas(partition, self._state, traced=traced)
        number = int(trace) if trace.isdigit() else 0
        stored = [partition.append(each, time.time_ns(), number, ext) for each in bodies if each]
        self._cluster.deliver(partition)
        if not traced:
            return 200, "OK"
        internal_id = int.from_bytes(stored[0].id[:8], "big")
        where = {"queue_offset": stored[0].offset, "rawsize": stored[0].size}
        return 200, {"status": "OK", "id": internal_id, "trace_id": trace, **where}

    # Channels

    def _change(self, verb: str, args: Args, body: bytes) -> Answer:
        """Change a channel of one partition: the server has one of that name in each."""
        name = args.get("channel", "")
        if not args.get("topic"):
            return 400, "MISSING_ARG_TOPIC"
        if not valid_channel(name):
            return 400, "INVALID_ARG_CHANNEL" if name else "MISSING_ARG_CHANNEL"
        partition = self._partition(args)
        if partition is None:
            return _NO_TOPIC
        if verb == "create":
            self._cluster.channel_of(partition, name)
            return 200, None
        channel = partition.channels.get(name)
        if channel is None:
            return 404, "CHANNEL_NOT_FOUND"
        if verb in ("delete", "empty") and partition.leader != self._state.index:
            return 400, "E_FAILED_ON_NOT_LEADER"
        if verb == "delete":
            channel.leader_changed()  # ends its subscriptions
            del partition.channels[name]
        elif verb == "empty":
            channel.seek(len(partition.log))
        else:
            channel.paused = verb == "pause"
            self._cluster.deliver(partition)
        return 200, None

    # Figures

    def _stats(self, args: Args, body: bytes) -> Answer:
        partitions = [
            each
            for each in self._cluster.partitions
            if self._state.index in each.replicas and args.get("topic") in (None, "", each.topic.name)
        ]
        head = {"version": VERSION, "health": "OK", "start_time": self._start_time}
        topics = [self._topic_stats(each, args.get("channel")) for each in partitions]
        if args.get("format") != "json":
            return 200, _as_text(self._start_time, topics)
        return 200, {**head, "topics": topics}

    def _topic_stats(self, partition: Partition, only: str | None) -> dict[str, object]:
        """Return the figures of a partition. Depths are bytes; followers have them, too."""
        topic = partition.topic
        several = topic.ordered or topic.multi_part
        channels = [
            _channel_stats(partition, each)
            for each in partition.channels.values()
            if only in (None, "", each.name)
        ]
        return _NO_TOPIC_FIGURES | {
            "topic_name": topic.name,
            "topic_full_name": f"{topic.name}-{partition.number}",
            "topic_partition": str(partition.number),
            "channels": channels,
            "channel_num": len(channels),
            "depth": partition.end,
            "backend_depth": partition.end,
            "message_count": len(partition.log),
            "is_leader": partition.leader == self._state.index,
            "is_multi_ordered": topic.ordered,
            "is_multi_part": topic.multi_part,
            "is_ext": topic.extended,
            "is_channel_auto_create_disabled": topic.registered_channels_only,
            "statsd_name": f"{topic.name}.{partition.number}" if several else topic.name,
        }


def _channel_stats(partition: Partition, channel: Channel) -> dict[str, object]:
    """Return the figures of a channel, whose depth is messages."""
    depth, in_flight, _, subscribers = channel.state()
    return _NO_CHANNEL_FIGURES | {
        "channel_name": channel.name,
        "backlogs": depth,
        "depth": depth,
        "depth_size": sum(message.size for message in partition.log[::-1][:depth]),
        "backend_depth": depth,
        "in_flight_count": in_flight,
        "message_count": len(partition.log),
        "client_num": subscribers,
        "paused": channel.paused,
    }


def _as_text(start_time: int, topics: list[dict[str, Any]]) -> str:
    """Return the figures as the server shows them to people, unless a request says format=json."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start_time))
    lines = [f"nsqd v{VERSION} (built w/go1.19.8 unset unset)", f"start_time {started}"]
    lines += [f"uptime {time.time() - start_time:.3f}s", "", "Health: OK"]
    for topic in topics:
        lines += ["", _TOPIC_LINE.format_map(topic), *map(_CHANNEL_LINE.format_map, topic["channels"])]
    return "\n".join([*lines, ""])


_DEPTHS = "depth: {depth:<5} be-depth: {backend_depth:<5}"
_TOPIC_LINE = f"   [{{topic_name:15}}] {_DEPTHS} msgs: {{message_count:<8}} e2e%: "
_CHANNEL_LINE = (
    f"      [{{channel_name:25}}] {_DEPTHS} inflt: {{in_flight_count:<4}} def: {{deferred_count:<4}} "
    "re-q: {requeue_count:<5} timeout: {timeout_count:<5} msgs: {message_count:<8} e2e%: "
)
_COUNTED_CALLS = ["RPCCalls", "RPCTime", "BytesWritten", "BytesRead", "ReadCalls", "ReadErrors"]
_COUNTED_CALLS += ["WriteCalls", "WriteErrors", "DialCalls", "DialErrors", "AcceptCalls", "AcceptErrors"]
_COUNTED_ERRORS = ["WriteEpochError", "WriteNotLeaderError", "WriteQuorumError", "WriteBusyError"]
_COUNTED_ERRORS += ["RpcCheckFailed", "LeadershipError", "TopicCoordMissingError", "LocalErr"]
_COORDINATOR_STATS = {
    "rpc_stats": dict.fromkeys(_COUNTED_CALLS, 0),
    "ErrStats": {**dict.fromkeys(_COUNTED_ERRORS, 0), "OtherCoordErrs": {}},
    "topic_coord_stats": [],
}
