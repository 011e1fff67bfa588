"""The HTTP side of the double: nsqlookupd's answers, and those of nsqd that clients and tools ask for.

Bytes in, bytes out. With ``Accept: application/vnd.nsq; version=1.0``, and to a POST, an answer is bare JSON
with its true status; else JSON in an envelope, and every error is a 500.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from http.client import responses
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from nsq.wire.commands import BadBodies, Limits, unpack_bodies

from .channel import Channel
from .nsqd import MAX_BODY, VERSION
from .publishes import MAX_MESSAGE, MAX_UINT64
from .state import TOPIC_NOT_EXIST, ClusterState, MustWait, NodeState, Partition

_PLAIN_ACCEPT = "application/vnd.nsq; version=1.0"
_JSON_TYPE = "application/json; charset=utf-8"
_TEXT_TYPE = "text/plain; charset=utf-8"
_MAX_HEAD = 64 * 1024

Answer = tuple[int, Any]
"""A status and a body: bytes are sent unchanged, None as an empty body, anything else as JSON."""


class HttpConnection:
    """Cuts requests out of the bytes, and answers them with ``handle(method, path, args, body)``."""

    def __init__(self, handle: Callable[[str, str, Mapping[str, str], bytes], Answer]) -> None:
        self.out: list[bytes] = []
        self.closing = False
        self._handle = handle
        self._held = b""

    def feed(self, data: bytes, now: float) -> None:
        self._held += data
        while not self.closing and self._take():
            pass

    def tick(self, now: float) -> None:
        pass

    def closed(self) -> None:
        pass

    def _take(self) -> bool:
        head, mark, rest = self._held.partition(b"\r\n\r\n")
        if not mark:
            self.closing = len(self._held) > _MAX_HEAD
            return False
        request, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return False
        self._held = rest[length:]
        method, target, version = request.split(" ", 2)
        url = urlsplit(target)
        args = dict(parse_qsl(url.query, keep_blank_values=True))
        status, body = self._handle(method, url.path, args, rest[:length])
        plain = method == "POST" or headers.get("accept") == _PLAIN_ACCEPT
        self.out.append(_encode(status, body, plain=plain))
        connection = headers.get("connection", "").lower()
        self.closing = connection == "close" or (version == "HTTP/1.0" and connection != "keep-alive")
        return True


def _encode(status: int, body: Any, *, plain: bool) -> bytes:
    headers = []
    if isinstance(body, bytes):
        data = body
        headers.append(f"Content-Type: {_TEXT_TYPE}")
    else:
        if plain:
            headers.append("X-Nsq-Content-Type: nsq; version=1.0")
        data = b""
        if status != 200 and plain:
            data = _compact({"message": body})
        elif status != 200:
            data = _compact({"status_code": 500, "status_txt": body, "data": None})
            status = 500
        elif not plain:
            data = _compact({"status_code": 200, "status_txt": "OK", "data": body})
        elif body is not None:
            data = _compact(body)
        if data:
            headers.append(f"Content-Type: {_JSON_TYPE}")
    lines = [f"HTTP/1.1 {status} {responses.get(status, '')}", *headers, f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class LookupState:
    """The answers of one nsqlookupd: the present state, the state when it was frozen, or a test's claims."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.running = True
        self.stalled = False
        self.lost = False
        self.frozen: dict[tuple[str, int, bool], int | None] | None = None
        self.claims: dict[tuple[str, int], int | None] = {}
        self.answers: dict[str, Answer] = {}
        self.hidden: set[tuple[str, int]] = set()  # topic and node: hidden from writers
        self.hidden_lookups: set[int] = set()
        self.write_disabled = ""


class LookupPages:
    """The requests that a nsqlookupd answers."""

    def __init__(
        self,
        cluster: ClusterState,
        state: LookupState,
        lookups: list[LookupState],
        node_addresses: Callable[[int], tuple[str, int, int]],
        lookup_addresses: Callable[[int], tuple[str, int]],
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._lookups = lookups
        self._node_addresses = node_addresses
        self._lookup_addresses = lookup_addresses
        self._pages: dict[str, Callable[[Mapping[str, str]], Answer]] = {
            "/ping": lambda _: (200, b"OK"),
            "/info": lambda _: (200, {"version": VERSION, "ha_support": cluster.coordinator}),
            "/listlookup": self._list_lookups,
            "/lookup": self._lookup,
            "/topics": self._topics,
            "/channels": self._channels,
            "/nodes": self._nodes,
            "/topic/tombstone": self._tombstone,
            "/cluster/lookupd/tombstone": self._tombstone_lookup,
            "/disable/write": self._disable_write,
        }

    def handle(self, method: str, path: str, args: Mapping[str, str], body: bytes) -> Answer:
        if path in self._state.answers:
            return self._state.answers[path]
        page = self._pages.get(path)
        return page(args) if page is not None else (404, "NOT_FOUND")

    def freeze(self) -> None:
        """Remember what is true now, and answer that from now on."""
        partitions = [each for topic in self._cluster.topics.values() for each in topic.partitions]
        self._state.frozen = {
            (each.topic.name, each.number, write): self._cluster.shown_leader(each, write=write)
            for each in partitions
            for write in (False, True)
        }

    def _leader(self, partition: Partition, *, write: bool) -> int | None:
        key = (partition.topic.name, partition.number)
        if key in self._state.claims:
            return self._state.claims[key]
        if self._state.frozen is not None:
            leader = self._state.frozen.get((*key, write))
        else:
            leader = self._cluster.shown_leader(partition, write=write)
        hidden = write and leader is not None and (key[0], leader) in self._state.hidden
        return None if hidden else leader

    def _list_lookups(self, args: Mapping[str, str]) -> Answer:
        if not self._cluster.coordinator:
            return 200, None
        shown = [each for each in self._lookups if not each.lost]
        nodes = [self._lookup_node(each) for each in shown if each.index not in self._state.hidden_lookups]
        return 200, {"lookupdleader": self._lookup_node(shown[0]), "lookupdnodes": nodes}

    def _lookup_node(self, lookup: LookupState) -> dict[str, object]:
        host, port = self._lookup_addresses(lookup.index)
        # Only HTTP is served: who takes the other ports is refused.
        return {
            "ID": f"{host}:{port}:{port}:nsqlookup",
            "NodeIP": host,
            "TcpPort": "1",
            "HttpPort": str(port),
            "RpcPort": "2",
            "Epoch": 0,
        }

    def _lookup(self, args: Mapping[str, str]) -> Answer:
        name, access = args.get("topic"), args.get("access") or "r"
        if not name:
            return 400, "MISSING_ARG_TOPIC"
        if access not in ("r", "w"):
            return 400, "INVALID_ACCESS_MODE"
        topic, write = self._cluster.topics.get(name), access == "w"
        if topic is None and write and self._cluster.coordinator:
            return 404, "Key not found"
        only = args.get("partition", "")
        partitions = [
            each for each in (topic.partitions if topic else ()) if not only or str(each.number) == only
        ]
        answer: dict[str, Any] = {"channels": _channel_names(partitions)}
        if (write or args.get("metainfo")) and self._cluster.coordinator:
            answer["meta"] = {
                "disable_channel_auto_create": topic is not None and topic.registered_channels_only,
                "extend_support": topic is not None and topic.extended,
                "multi_part": False,
                "ordered": topic is not None and topic.ordered,
                "partition_num": len(topic.partitions) if topic is not None else 0,
                "replica": topic.replicas if topic is not None else 0,
            }
        disabled = self._state.write_disabled
        if write and topic and (disabled == "all" or (disabled and topic.ordered)):
            return 200, {**answer, "partitions": None, "producers": None}
        leaders = {each.number: self._leader(each, write=write) for each in partitions}
        led = {number: leader for number, leader in sorted(leaders.items()) if leader is not None}
        answer["partitions"] = {str(number): self._node(leader) for number, leader in led.items()}
        answer["producers"] = [self._node(leader) for leader in sorted(set(led.values()))]
        return 200, answer

    def _node(self, index: int) -> dict[str, object]:
        host, tcp_port, http_port = self._node_addresses(index)
        # The real server shows the port of the nsqd's own connection here, another one at each nsqlookupd.
        remote = f"{host}:{10_000 + 100 * self._state.index + index}"
        return {
            "id": remote,
            "remote_address": remote,
            "hostname": f"node{index}",
            "broadcast_address": host,
            "tcp_port": tcp_port,
            "http_port": http_port,
            "version": VERSION,
            "distributed_id": f"{host}:{tcp_port}:{tcp_port}:{index + 1}",
        }

    def _topics(self, args: Mapping[str, str]) -> Answer:
        topics = self._cluster.topics.values()
        names = [topic.name for topic in topics]
        if not args.get("metaInfo"):
            return 200, {"topics": names}
        meta = [
            {
                "topic_name": topic.name,
                "extend_support": topic.extended,
                "ordered": topic.ordered,
                "multi_part": False,
                "disable_channel_auto_create": topic.registered_channels_only,
                "registered_channels": None,
            }
            for topic in topics
        ]
        return 200, {"meta_info": meta, "topics": names}

    def _channels(self, args: Mapping[str, str]) -> Answer:
        topic, only = self._cluster.topics.get(args.get("topic", "")), args.get("partition", "")
        partitions = topic.partitions if topic else []
        shown = [each for each in partitions if not only or str(each.number) == only]
        return 200, {"channels": _channel_names(shown)}

    def _nodes(self, args: Mapping[str, str]) -> Answer:
        shown = []
        for node in self._cluster.nodes:
            if not node.running:
                continue
            fields = {
                name: value
                for name, value in self._node(node.index).items()
                if name not in ("id", "distributed_id")
            }
            led = {
                topic.name: [str(each.number) for each in topic.partitions if each.leader == node.index]
                for topic in self._cluster.topics.values()
            }
            led = {name: numbers for name, numbers in led.items() if numbers}
            tombstones = [(name, node.index) in self._state.hidden for name in led]
            shown.append({**fields, "tombstones": tombstones, "topics": list(led), "partitions": led})
        return 200, {"producers": shown}

    def _tombstone(self, args: Mapping[str, str]) -> Answer:
        for node in self._cluster.nodes:
            host, _, http_port = self._node_addresses(node.index)
            if args.get("node") == f"{host}:{http_port}":
                change = self._state.hidden.discard if args.get("restore") else self._state.hidden.add
                change((args.get("topic", ""), node.index))
        return 200, None

    def _tombstone_lookup(self, args: Mapping[str, str]) -> Answer:
        hidden = self._state.hidden_lookups
        for lookup in self._lookups:
            if args.get("node") == self._lookup_node(lookup)["ID"]:
                (hidden.discard if args.get("restore") else hidden.add)(lookup.index)
        return 200, None

    def _disable_write(self, args: Mapping[str, str]) -> Answer:
        self._state.write_disabled = args.get("type", "").replace("none", "")
        return 200, None


class NsqdPages:
    """The requests that an nsqd answers. ``stored`` is called with a partition that got messages."""

    def __init__(
        self,
        cluster: ClusterState,
        node: NodeState,
        stored: Callable[[Partition], None],
        address: Callable[[int], tuple[str, int, int]],
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._stored = stored
        self._address = address
        self._start_time = int(time.time())

    def handle(self, method: str, path: str, args: Mapping[str, str], body: bytes) -> Answer:
        match path:
            case "/ping":
                return 200, b"OK"
            case "/info":
                return 200, self._info()
            case "/stats":
                return 200, self._stats(args)
            case "/disable/write":
                self._node.write_disabled = args.get("type", "").replace("none", "")
                return 200, None
            case "/channel/create":
                self._cluster.create_channel(args.get("topic", ""), args.get("channel", ""))
                return 200, None
            case "/pub" | "/pubtrace" | "/mpub":
                return self._publish(path, args, body)
        return 404, "NOT_FOUND"

    def _info(self) -> dict[str, object]:
        """Return what nsqd says of itself; no recording shows it, so this is the original's."""
        host, tcp_port, http_port = self._address(self._node.index)
        return {
            "version": VERSION,
            "broadcast_address": host,
            "hostname": f"node{self._node.index}",
            "http_port": http_port,
            "tcp_port": tcp_port,
            "start_time": self._start_time,
        }

    def _publish(self, path: str, args: Mapping[str, str], body: bytes) -> Answer:
        name = args.get("topic", "")
        topic, number = self._cluster.topics.get(name), int(args.get("partition") or -1)
        traced = path == "/pubtrace"
        trace_id = args.get("trace_id", "")
        if traced and not (trace_id.isdigit() and int(trace_id) <= MAX_UINT64):
            return 400, "INVALID_TRACE_ID"
        partition = self._cluster.held(name, number, self._node.index)
        if topic is None or partition is None:
            return 404, TOPIC_NOT_EXIST.decode().strip()
        if not 0 < len(body) <= (MAX_BODY if path == "/mpub" else MAX_MESSAGE):
            return (400, "MSG_EMPTY") if not body else (413, "MSG_TOO_BIG")
        try:
            error = self._cluster.refuse(partition, self._node, time.monotonic(), traced=traced)
        except MustWait:
            error = b"E_FAILED_ON_NOT_WRITABLE"
        if error is not None:
            return 400, error.decode().strip()
        bodies = [body]
        if path == "/mpub":
            try:
                bodies = unpack_bodies(body, Limits()) if args.get("binary") else body.split(b"\n")
            except BadBodies as bad:
                return 400, bad.code
        first = None
        for each in filter(None, bodies):
            stored = partition.append(each, time.time_ns(), int(trace_id or 0))
            first = first or stored
        self._stored(partition)
        if not traced or first is None:
            return 200, b"OK"
        internal_id = int.from_bytes(first.id[:8], "big")
        fields = {"id": internal_id, "trace_id": trace_id, "queue_offset": first.offset}
        return 200, {"status": "OK", **fields, "rawsize": first.size}

    def _stats(self, args: Mapping[str, str]) -> dict[str, object]:
        wanted, channel = args.get("topic"), args.get("channel")
        topics = [
            self._partition_stats(partition, channel)
            for topic in self._cluster.topics.values()
            for partition in topic.partitions
            if self._node.index in partition.replicas and wanted in (None, "", topic.name)
        ]
        head = {"version": VERSION, "health": "OK", "start_time": self._start_time}
        return {**head, "topics": topics}

    def _partition_stats(self, partition: Partition, channel: str | None) -> dict[str, object]:
        leads = partition.leader == self._node.index
        channels = partition.channels.values() if leads else ()
        return {
            "topic_name": partition.topic.name,
            "topic_full_name": f"{partition.topic.name}-{partition.number}",
            "topic_partition": str(partition.number),
            "channels": [_channel_stats(each) for each in channels if channel in (None, "", each.name)],
            "depth": 0,
            "backend_depth": 0,
            "message_count": len(partition.log),
            "is_leader": leads,
            "paused": False,
        }


def _channel_stats(channel: Channel) -> dict[str, object]:
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.depth,
        "in_flight_count": channel.in_flight,
        "deferred_count": 0,
        "message_count": channel.messages,
        "requeue_count": 0,
        "timeout_count": 0,
        "clients": [],
        "client_num": len(channel.subscribers),
        "paused": False,
    }


def _channel_names(partitions: list[Partition]) -> list[str]:
    return list(dict.fromkeys(name for partition in partitions for name in partition.channels))
