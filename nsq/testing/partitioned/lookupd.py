"""What a nsqlookupd answers: the present state, the state when it was frozen, or a test's claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nsq.errors import UsageError
from nsq.wire.names import valid_topic

from .http import Answer, Args, Site
from .nsqd import VERSION
from .program import HOST, Program
from .state import ClusterState, Partition, Topic


class PartitionedLookupd(Program):
    """One nsqlookupd. It knows the ports of all nsqds and all nsqlookupds."""

    def __init__(
        self,
        cluster: ClusterState,
        index: int,
        nodes: Sequence[Program],
        everyone: Sequence[PartitionedLookupd],
    ) -> None:
        self.lost = False
        self._cluster = cluster
        self._index = index
        self._nodes = nodes
        self._everyone = everyone
        self._claims: dict[tuple[str, int], int | None] = {}
        self._frozen: dict[tuple[str, int, bool], int | None] | None = None
        self._hidden: set[tuple[str, int]] = set()  # topic and node: hidden from writers
        self._hidden_lookups: set[PartitionedLookupd] = set()
        self._write_disabled = ""
        self._site = Site(
            {
                "GET /info": self._info,
                "GET /listlookup": self._list_lookups,
                "GET /lookup": self._lookup,
                "GET /topics": self._topics,
                "GET /channels": self._channels,
                "GET /nodes": self._list_nodes,
                "GET /cluster/stats": self._cluster_stats,
                "POST /topic/create": self._create_topic,
                "POST /topic/delete": self._delete_topic,
                "POST /topic/tombstone": self._tombstone,
                "POST /cluster/lookupd/tombstone": self._tombstone_lookup,
                "POST /disable/write": self._disable_write,
            }
        )
        super().__init__(self._site.talk)

    # What a test does to it

    def changed(self) -> None:
        """The others list it no more when it does not answer, unless it is the last one."""
        alone = all(other.lost for other in self._everyone if other is not self)
        self.lost = not self.going.is_set() and not alone

    def claim(self, topic: str, partition: int, node: int | None) -> None:
        self._claims[topic, partition] = node

    def answer(self, path: str, status: int, data: Any) -> None:
        self._site.answers[path] = (status, data)

    def freeze(self) -> None:
        """Remember what is true now, and answer that from now on."""
        self._frozen = {
            (each.topic.name, each.number, write): self._cluster.shown_leader(each, write=write)
            for each in self._cluster.partitions
            for write in (False, True)
        }

    def tell_the_truth(self) -> None:
        self._claims.clear()
        self._site.answers.clear()
        self._frozen = None

    def _leader(self, partition: Partition, *, write: bool) -> int | None:
        key = (partition.topic.name, partition.number)
        if key in self._claims:
            return self._claims[key]
        if self._frozen is not None:
            leader = self._frozen.get((*key, write))
        else:
            leader = self._cluster.shown_leader(partition, write=write)
        hidden = write and leader is not None and (key[0], leader) in self._hidden
        return None if hidden else leader

    # Pages

    def _info(self, args: Args, body: bytes) -> Answer:
        return 200, {"version": VERSION, "ha_support": self._cluster.coordinator}

    def _list_lookups(self, args: Args, body: bytes) -> Answer:
        if not self._cluster.coordinator:
            return 200, None
        shown = [each for each in self._everyone if not each.lost]
        nodes = [self._lookup_node(each) for each in shown if each not in self._hidden_lookups]
        return 200, {"lookupdleader": self._lookup_node(shown[0]), "lookupdnodes": nodes}

    def _lookup_node(self, lookup: PartitionedLookupd) -> dict[str, object]:
        (port,) = lookup.ports
        # Only HTTP is served: who takes the other ports is refused.
        return {
            "ID": f"{HOST}:{port}:{port}:nsqlookup",
            "NodeIP": HOST,
            "TcpPort": "1",
            "HttpPort": str(port),
            "RpcPort": "2",
            "Epoch": 0,
        }

    def _lookup(self, args: Args, body: bytes) -> Answer:
        name, access = args.get("topic"), args.get("access") or "r"
        if not name:
            return 400, "MISSING_ARG_TOPIC"
        if access not in ("r", "w"):
            return 400, "INVALID_ACCESS_MODE"
        topic, write = self._cluster.topics.get(name), access == "w"
        if topic is None and write and self._cluster.coordinator:
            return 404, "Key not found"
        partitions = _wanted(topic, args)
        answer: dict[str, Any] = {"channels": _channel_names(partitions)}
        if (write or args.get("metainfo")) and self._cluster.coordinator:
            known = topic or Topic(name)
            numbers = {"partition_num": len(known.partitions), "replica": known.replicas}
            answer["meta"] = _meta(known) | numbers
        disabled = self._write_disabled
        if write and topic and (disabled == "all" or (disabled and topic.ordered)):
            return 200, {**answer, "partitions": None, "producers": None}
        leaders = {each.number: self._leader(each, write=write) for each in partitions}
        led = {number: leader for number, leader in sorted(leaders.items()) if leader is not None}
        answer["partitions"] = {str(number): self._node(leader) for number, leader in led.items()}
        answer["producers"] = [self._node(leader) for leader in sorted(set(led.values()))]
        return 200, answer

    def _node(self, index: int) -> dict[str, object]:
        tcp_port, http_port = self._nodes[index].ports
        # The real server shows the port of the nsqd's own connection here, another one at each nsqlookupd.
        remote = f"{HOST}:{10_000 + 100 * self._index + index}"
        return {
            "id": remote,
            "remote_address": remote,
            "hostname": f"node{index}",
            "broadcast_address": HOST,
            "tcp_port": tcp_port,
            "http_port": http_port,
            "version": VERSION,
            "distributed_id": f"{HOST}:{tcp_port}:{tcp_port}:{index + 1}",
        }

    def _topics(self, args: Args, body: bytes) -> Answer:
        topics = self._cluster.topics.values()
        names = [topic.name for topic in topics]
        if not args.get("metaInfo"):
            return 200, {"topics": names}
        meta = [{"topic_name": topic.name, "registered_channels": None} | _meta(topic) for topic in topics]
        return 200, {"meta_info": meta, "topics": names}

    def _channels(self, args: Args, body: bytes) -> Answer:
        if not args.get("topic"):
            return 400, "MISSING_ARG_TOPIC"
        topic = self._cluster.topics.get(args["topic"])
        return 200, {"channels": _channel_names(_wanted(topic, args))}

    def _list_nodes(self, args: Args, body: bytes) -> Answer:
        shown = []
        for node in self._cluster.nodes:
            if not node.running:
                continue
            led: dict[str, list[str]] = {}
            for each in self._cluster.partitions:
                if each.leader == node.index:
                    led.setdefault(each.topic.name, []).append(str(each.number))
            fields = self._node(node.index)
            del fields["id"], fields["distributed_id"]
            tombstones = [(name, node.index) in self._hidden for name in led]
            shown.append({**fields, "tombstones": tombstones, "topics": list(led), "partitions": led})
        return 200, {"producers": shown}

    def _cluster_stats(self, args: Args, body: bytes) -> Answer:
        if not self._leads():
            return 400, "E_FAILED_ON_NOT_LEADER"
        names = ("hostname", "broadcast_address", "tcp_port", "http_port")
        nodes = [
            {name: self._node(node.index)[name] for name in names}
            | {"leader_load_factor": 0.5, "node_load_factor": 0.5}
            for node in self._cluster.nodes
            if node.running
        ]
        return 200, {"stable": True, "node_stat_list": nodes, "topn_topics": []}

    def _create_topic(self, args: Args, body: bytes) -> Answer:
        name = args.get("topic", "")
        if not name:
            return 400, "MISSING_ARG_TOPIC"
        if not valid_topic(name):
            return 400, "INVALID_ARG_TOPIC"
        for argument in ("partition_num", "replicator"):
            if not args.get(argument, "").isdigit():
                return 400, f"{'INVALID' if args.get(argument) else 'MISSING'}_ARG_TOPIC_{argument.upper()}"
        if not self._leads():
            return 400, "E_FAILED_ON_NOT_LEADER"
        if name in self._cluster.topics:
            return 400, "already exist"
        try:
            self._cluster.create_topic(
                name,
                partitions=int(args["partition_num"]),
                replicas=int(args["replicator"]),
                ordered=args.get("orderedmulti") == "true",
                extended=args.get("extend") == "true",
                multi_part=args.get("multipart") == "true",
            )
        except UsageError as error:
            return 400, str(error)
        return 200, None

    def _delete_topic(self, args: Args, body: bytes) -> Answer:
        if not args.get("topic"):
            return 400, "MISSING_ARG_TOPIC"
        if args.get("partition") != "**":
            given = args.get("partition")
            return 400, "REMOVE_SINGLE_PARTITION_NOT_ALLOWED" if given else "MISSING_ARG_TOPIC_PARTITION"
        if args["topic"] not in self._cluster.topics:
            return 500, "Key not found"
        if not self._leads():
            return 500, "not nsqlookupd leader"
        self._cluster.delete_topic(args["topic"])
        return 200, None

    def _tombstone(self, args: Args, body: bytes) -> Answer:
        for node in self._cluster.nodes:
            if args.get("node") == f"{HOST}:{self._nodes[node.index].ports[1]}":
                change = self._hidden.discard if args.get("restore") else self._hidden.add
                change((args.get("topic", ""), node.index))
        return 200, None

    def _tombstone_lookup(self, args: Args, body: bytes) -> Answer:
        for lookup in self._everyone:
            if args.get("node") == self._lookup_node(lookup)["ID"]:
                change = self._hidden_lookups.discard if args.get("restore") else self._hidden_lookups.add
                change(lookup)
        return 200, None

    def _disable_write(self, args: Args, body: bytes) -> Answer:
        self._write_disabled = args.get("type", "").replace("none", "")
        return 200, None

    def _leads(self) -> bool:
        return self is next(each for each in self._everyone if not each.lost)


def _meta(topic: Topic) -> dict[str, object]:
    return {
        "disable_channel_auto_create": topic.registered_channels_only,
        "extend_support": topic.extended,
        "multi_part": topic.multi_part,
        "ordered": topic.ordered,
    }


def _wanted(topic: Topic | None, args: Args) -> list[Partition]:
    partitions, only = topic.partitions if topic else [], args.get("partition")
    return [each for each in partitions if not only or str(each.number) == only]


def _channel_names(partitions: Iterable[Partition]) -> list[str]:
    return list(dict.fromkeys(name for partition in partitions for name in partition.channels))
