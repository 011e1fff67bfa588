"""The double of the partitioned NSQ against all recordings of the real one.

A test sends the bytes that a client sent, and compares every byte of the answers. Only timestamps may differ,
and the numbers with which ids and offsets begin.
"""

from __future__ import annotations

import contextlib
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from nsq.testing import PartitionedCluster, Reply, V2Client
from nsq.testing.daemons.http import ask
from nsq.testing.v2 import PeerClosed
from nsq.wire import commands
from nsq.wire.frames import FRAME_RESPONSE, encode_error
from tests.golden import partitioned_recordings
from tests.golden.partitioned_recordings import PORTS, conversations

NAMES = sorted(conversations())
#: How long "no frame" is waited for; the recorder waited longer.
SILENCE = 0.15
#: The standalone nsqd of the recordings; the nodes of the cluster are 24201, 24202 and 24203.
STANDALONE = 24205
FIRST_PORT = 24201
_PARTITION_OF_ID = 50

#: The topics of the recorded cluster, and the nodes of each partition, the leader first.
TOPICS: dict[str, tuple[list[list[int]], dict[str, bool]]] = {
    "plain2": ([[1], [0]], {}),
    "ordered3": ([[1], [2], [0]], {"ordered": True}),
    "ext1": ([[1]], {"extended": True}),
    "extordered2": ([[2], [0]], {"ordered": True, "extended": True}),
    "nochan1": ([[1]], {"registered_channels_only": True}),
    "repl1": ([[0, 2]], {}),
    "multipart2": ([[1], [2]], {"multi_part": True}),
    # These were made later than the HTTP exchanges.
    "ordered6": ([[0], [1], [2], [0], [1], [2]], {"ordered": True}),
    "ordered2r2": ([[1, 2], [2, 1]], {"ordered": True}),
}
#: Those of the second recorder.
LATER_TOPICS: dict[str, tuple[list[list[int]], dict[str, bool]]] = {
    "rec_plain": ([[0, 1], [1, 2], [2, 0], [0, 1]], {"multi_part": True}),
    "rec_ordered": ([[2, 0], [0, 1], [1, 2], [2, 0]], {"ordered": True}),
    "rec_extended": ([[0, 1], [1, 2]], {"extended": True, "multi_part": True}),
    "rec_one": ([[0, 1]], {}),
}
#: Why a FIN fails after a REQ is up to the server's scans of its queue: one recording has this, one that.
NOT_OWNED = re.compile(rb"client does not own message : \d+ vs \d+")


def load(name: str) -> Any:
    return conversations()[name]


def make_cluster(*, standalone: bool = False, **options: Any) -> PartitionedCluster:
    return PartitionedCluster(nodes=1 if standalone else 3, coordinator=not standalone, **options)


def create_topics(
    cluster: PartitionedCluster,
    topics: Mapping[str, tuple[list[list[int]], dict[str, bool]]] = TOPICS,
    *,
    except_for: Iterable[str] = (),
) -> None:
    for name, (placement, options) in topics.items():
        if name not in except_for:
            cluster.create_topic(name, placement=placement, **options)


@dataclass
class Recorded:
    """A message as a frame carries it."""

    timestamp: int
    attempts: int
    internal_id: int
    trace_id: int
    ext: bytes
    detail: tuple[int, int] | None  # offset and size
    body: bytes

    @classmethod
    def parse(cls, data: bytes, *, extended: bool, detailed: bool) -> Recorded:
        timestamp, attempts, internal_id, trace_id = struct.unpack_from(">qHQQ", data)
        rest = data[26:]
        ext = rest[: 3 + int.from_bytes(rest[1:3], "big") if rest[0] else 1] if extended else b""
        rest = rest[len(ext) :]
        detail = struct.unpack_from(">QI", rest) if detailed else None
        body = rest[12:] if detailed else rest
        return cls(timestamp, attempts, internal_id, trace_id, ext, detail, body)

    @property
    def partition(self) -> int:
        return self.internal_id >> _PARTITION_OF_ID

    @property
    def message_id(self) -> bytes:
        return struct.pack(">QQ", self.internal_id, self.trace_id)


class Stage:
    """A cluster, and the real id for each recorded id, which all replays on it share."""

    def __init__(self, cluster: PartitionedCluster) -> None:
        self.cluster = cluster
        self.ids: dict[bytes, bytes] = {}  # recorded message id -> real one
        self.distances: dict[tuple[str, int], int] = {}  # recorded minus real: of ids and offsets

    def node_address(self, recording: Mapping[str, Any]) -> str:
        port = int(recording["server"].rpartition(":")[2])
        return self.cluster.nodes[0 if port == STANDALONE else port - FIRST_PORT].tcp_address

    def publish(self, *names: str) -> None:
        """Publish what these recordings receive, once each, in the order of the ids.

        Where an id is missing, publish a message that the recorded filter rejects.
        """
        messages = {message.internal_id: message for name in names for message in _messages(load(name))}
        if not messages:
            return
        topic, previous = _topic_of(load(names[0])), min(messages) - 1
        with V2Client(self.node_address(load(names[0]))) as client:
            for internal_id, message in sorted(messages.items()):
                for _ in range(previous + 1, internal_id if "86" in names[0] else 0):
                    client.send(_sized(f"PUB_EXT {topic} 0\n", b'\0\x0a{"k":"no"}x'))
                    client.expect_ok()
                client.send(_publish(topic, message))
                client.expect(FRAME_RESPONSE)
                previous = internal_id

    def same(self, kind: str, partition: int, recorded: int, real: int) -> None:
        """Check a counter: it may begin at another number, but must then grow by the same steps.

        The real server skips an id now and then.
        """
        distance = self.distances.setdefault((kind, partition), recorded - real)
        if kind == "id" and recorded - real == distance + 1:
            self.distances[kind, partition] = distance = recorded - real
        assert recorded - real == distance, (
            f"{kind}: recorded {recorded}, got {real}, expected {distance} less"
        )


class Replay:
    """One recording on one connection."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self._stage = stage
        self._recording = load(name)
        self._steps = self._recording["steps"]
        self._position = 1
        magic = bytes.fromhex(self._steps[0]["hex"])
        self._client = V2Client(stage.node_address(self._recording), magic=magic)

    def close(self) -> None:
        self._client.close()

    def run(self, stop: int | None = None) -> None:
        """Replay the steps before this one, or all."""
        end = len(self._steps) if stop is None else stop
        for number in range(self._position, end):
            step = self._steps[number]
            try:
                self._follow(step)
            except Exception as error:
                raise AssertionError(f"{self.name}, step {number}, {step.get('note')!r}: {error}") from error
        self._position = end

    def _follow(self, step: Mapping[str, Any]) -> None:
        if step["dir"] == "C->S":
            data = bytes.fromhex(step["hex"])
            for recorded, real in self._stage.ids.items():
                data = data.replace(recorded, real)
            with contextlib.suppress(PeerClosed):  # the next step shows whether that is right
                self._client.send(data)
        elif step["dir"] == "S->C":
            self._receive(step, bytes.fromhex(step["hex"]))
        elif "no frame within" in step["note"]:
            self._client.expect_silence(SILENCE)
        elif "server closed connection" in step["note"]:
            self._client.expect_closed()

    def _receive(self, step: Mapping[str, Any], expected: bytes) -> None:
        frame = self._client.frame()
        got = struct.pack(">ii", len(frame.data) + 4, frame.type) + frame.data
        if _is_message(step):
            self._compare(Recorded.parse(expected[8:], **_hints(self._recording)), expected, got)
        elif len(expected) == 38 and expected[8:10] == b"OK":
            self._compare_published(expected, got)
        else:
            for recorded, real in self._stage.ids.items():
                expected = expected.replace(_as_go(recorded), _as_go(real))
            got, expected = (NOT_OWNED.sub(b"Message ID not in flight", each) for each in (got, expected))
            # Not the size: an error shows ids in decimals, and ours may be shorter.
            assert got[4:] == expected[4:], f"got {got!r}, recorded {expected!r}"

    def _compare(self, recorded: Recorded, expected: bytes, got: bytes) -> None:
        assert got[:8] == expected[:8], f"got {got!r}, recorded {expected!r}"
        real = Recorded.parse(got[8:], **_hints(self._recording))
        assert real.timestamp > 10**18
        fields = ("attempts", "trace_id", "ext", "body")
        assert [getattr(real, name) for name in fields] == [getattr(recorded, name) for name in fields]
        self._stage.same("id", recorded.partition, recorded.internal_id, real.internal_id)
        self._stage.ids[recorded.message_id] = real.message_id
        if recorded.detail is not None and real.detail is not None:
            assert real.detail[1] == recorded.detail[1], "size"
            self._stage.same("offset", recorded.partition, recorded.detail[0], real.detail[0])

    def _compare_published(self, expected: bytes, got: bytes) -> None:
        assert len(got) == len(expected), f"got {got!r}, recorded {expected!r}"
        assert got[:10] == expected[:10]
        internal_id, trace_id, offset, size = struct.unpack_from(">QQQI", expected, 10)
        real_id, real_trace_id, real_offset, real_size = struct.unpack_from(">QQQI", got, 10)
        assert (real_trace_id, real_size) == (trace_id, size)
        self._stage.same("id", internal_id >> _PARTITION_OF_ID, internal_id, real_id)
        self._stage.same("offset", internal_id >> _PARTITION_OF_ID, offset, real_offset)


def at(name: str, found: str | bytes) -> int:
    """Return the number of the first step that sends these bytes, or has this text in its note."""
    for number, step in enumerate(load(name)["steps"]):
        if isinstance(found, str) and found in step.get("note", ""):
            return number
        if isinstance(found, bytes) and bytes.fromhex(step.get("hex", "")).startswith(found):
            return number
    raise ValueError(f"no step of {name} has {found!r}")


def _hints(recording: Mapping[str, Any]) -> dict[str, bool]:
    hints = recording["decoder_hints"]
    return {"extended": hints["ext"], "detailed": hints["detail12"]}


def _is_message(step: Mapping[str, Any]) -> bool:
    return step["dir"] == "S->C" and bytes.fromhex(step["hex"])[4:8] == b"\0\0\0\2"


def _messages(recording: Mapping[str, Any]) -> list[Recorded]:
    steps = filter(_is_message, recording["steps"])
    return [Recorded.parse(bytes.fromhex(step["hex"])[8:], **_hints(recording)) for step in steps]


def _topic_of(recording: Mapping[str, Any]) -> str:
    for step in recording["steps"]:
        found = re.match(rb"SUB\S* (\S+)", bytes.fromhex(step.get("hex", "")))
        if found:
            return found[1].decode()
    raise ValueError("this recording subscribes to nothing")


def _publish(topic: str, message: Recorded) -> bytes:
    """Encode the publish that leads to this message."""
    number = str(message.partition)
    if message.ext[:1] == b"\4":
        return _sized(f"PUB_EXT {topic} {number}\n", message.ext[1:] + message.body)
    if message.trace_id:
        return _sized(f"PUB_TRACE {topic} {number}\n", struct.pack(">Q", message.trace_id) + message.body)
    return commands.pub(f"{topic} {number}", message.body)


def _sized(line: str, body: bytes) -> bytes:
    return line.encode() + struct.pack(">i", len(body)) + body


def _as_go(data: bytes) -> bytes:
    return b"[%s]" % b" ".join(b"%d" % byte for byte in data)


# The plays.

#: Replay a recording until this step (None: to its end), or do something to the cluster.
Step = tuple[str, int | None] | Callable[[Stage], object]

#: Steps that the double does not follow, and why. The replay of the recording ends before them.
BEYOND = {
    ("89_ordered_leader_move_old", at("89_ordered_leader_move_old", "old connection")): (
        "the old leader delivered once more while the move was under way, a race that the double lacks"
    )
}


def publish(*names: str) -> Step:
    return lambda stage: stage.publish(*names)


def move(topic: str, to: int) -> Step:
    return lambda stage: stage.cluster.move_leader(topic, 0, to=to)


def node(index: int, action: str) -> Step:
    return lambda stage: getattr(stage.cluster.nodes[index], action)()


def disable_writes(kind: str) -> Step:
    return lambda stage: [each.disable_writes(kind) for each in stage.cluster.nodes]


def channel(topic: str, name: str) -> Step:
    return lambda stage: stage.cluster.create_channel(topic, name)


def standalone_topics(stage: Stage) -> None:
    with V2Client(stage.cluster.nodes[0].tcp_address) as client:
        for number in (0, 1):
            client.send(b"INTERNAL_CREATE_TOPIC st1 %d\n" % number)
            client.expect_ok()


def subscribed(name: str) -> Step:
    return name, at(name, b"SUB") + 2


def usual(name: str) -> list[Step]:
    """Subscribe if the recording does, publish what it receives, and replay the rest."""
    try:
        return [subscribed(name), publish(name), (name, None)]
    except ValueError:
        return [(name, None)]


def interrupted(name: str, number: int, action: Step) -> list[Step]:
    return [*usual(name)[:-1], (name, number), action, (name, None)]


FROM_END = "54_sub_advanced_offset_end"
VQ = "55_sub_advanced_offset_vq"
A, B = "68_ordered_two_consumers_A", "68_ordered_two_consumers_B"
TAGGED, UNTAGGED = "85_desired_tag_A", "85_desired_tag_none"
DROPPED, AFTER_DROP = "88_disconnect_redelivery", "88_disconnect_redelivery_2"
OLD, NEW = "89_ordered_leader_move_old", "89_ordered_leader_move_new"
PLAIN, ORDERED = "66_plain_sub_on_ordered_channel", "65_sub_ordered_on_plain"
SLAVE_FROZEN, SLAVE_KILLED = "37_pub_slave_frozen", "38_pub_slave_killed"
MOVED, MOVED_PRODUCER = "3a_leader_moved", "3a_leader_moved_producer"
KILLED, BACKLOG = "39_leader_killed_consumer", "90_ordered_backlog_first_sub"
BACKLOG_STANDALONE = "84_standalone_sub_ordered"

#: What happens around the recordings that need more than the usual.
PLAYS: dict[str, list[Step]] = {
    "35": [disable_writes("all"), ("35_pub_write_disabled_all", None)],
    "36": [disable_writes("ordered"), ("36_pub_write_disabled_ordered", None)],
    "37": interrupted(SLAVE_FROZEN, at(SLAVE_FROZEN, b"PUB repl1"), node(2, "stall")),
    "38": interrupted(SLAVE_KILLED, at(SLAVE_KILLED, b"PUB_TRACE repl1 0\n\0\0\0\t"), node(2, "kill")),
    "39": interrupted(KILLED, at(KILLED, "EOF"), node(0, "kill")),
    "3a": interrupted(MOVED, at(MOVED, "FIN after move"), move("repl1", 2)),
    "3a_producer": interrupted(
        MOVED_PRODUCER, at(MOVED_PRODUCER, b"PUB repl1 0\n\0\0\0\3mv0"), move("repl1", 2)
    ),
    "54": [(FROM_END, at(FROM_END, "no frame") + 1), publish(FROM_END), (FROM_END, None)],
    "55": [publish(VQ), (VQ, None)],
    "56": [publish(VQ), ("56_sub_advanced_offset_ts", None)],
    "58": [publish(VQ), ("58_sub_advanced_offset_msgcount", None)],
    "65, 66": [subscribed(ORDERED), publish(ORDERED, PLAIN), (ORDERED, None), (PLAIN, None)],
    "68": [
        (A, 6),
        (B, 6),
        publish(A, B),
        (A, at(A, "FIN")),
        (B, at(B, "no frame") + 1),
        (A, at(A, "no frame") + 1),
        (B, None),
        (A, None),
    ],
    "83": [standalone_topics, ("83_standalone_pub_sub", None)],
    "84": [
        standalone_topics,
        channel("st1", "o"),
        publish(BACKLOG_STANDALONE),
        (BACKLOG_STANDALONE, None),
    ],
    "85": [(TAGGED, 6), (UNTAGGED, 6), publish(TAGGED, UNTAGGED), (TAGGED, None), (UNTAGGED, None)],
    "88": [subscribed(DROPPED), publish(DROPPED, AFTER_DROP), (DROPPED, None), (AFTER_DROP, None)],
    "89": [
        subscribed(OLD),
        publish(OLD, NEW),
        (OLD, at(OLD, "FIN after move")),
        move("ordered2r2", 2),
        (OLD, at(OLD, "old connection")),
        (NEW, None),
    ],
    "90": [channel("ordered3", "prx0"), publish(BACKLOG), (BACKLOG, None)],
    "deliver plain": [channel("rec_plain", "c2"), publish("deliver plain"), ("deliver plain", None)],
    "deliver ordered": [channel("rec_ordered", "c2"), publish("deliver ordered"), ("deliver ordered", None)],
    "deliver extended": [
        channel("rec_extended", "c2"),
        publish("deliver extended"),
        ("deliver extended", None),
    ],
}
#: In this one the first message came twice before it was finished.
OPTIONS: dict[str, dict[str, Any]] = {"deliver ordered": {"first_twice": "at once"}}


def replayed(play: list[Step]) -> list[str]:
    return list(dict.fromkeys(step[0] for step in play if isinstance(step, tuple)))


IN_PLAYS = {name for play in PLAYS.values() for name in replayed(play)}
PLAYS |= {name: usual(name) for name in NAMES if name not in IN_PLAYS}


def perform(play: list[Step], **options: Any) -> None:
    ports = {int(load(name)["server"].rpartition(":")[2]) for name in replayed(play)}
    standalone = ports == {STANDALONE}
    with make_cluster(standalone=standalone, **options) as cluster, ExitStack() as connections:
        if not standalone:
            create_topics(cluster)
            create_topics(cluster, LATER_TOPICS)
        stage, replays = Stage(cluster), dict[str, Replay]()
        for step in play:
            if not isinstance(step, tuple):
                step(stage)
                continue
            name, stop = step
            if name not in replays:
                replays[name] = Replay(stage, name)
                connections.callback(replays[name].close)
            replays[name].run(stop)
            if stop is None:
                replays[name].close()


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Mapping[str, Exception | None]]:
    def outcome(name: str) -> Exception | None:
        try:
            perform(PLAYS[name], **OPTIONS.get(name, {}))
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(8, thread_name_prefix="replay") as pool:
        yield dict(zip(PLAYS, pool.map(outcome, PLAYS), strict=True))


@pytest.mark.parametrize("name", PLAYS)
def test_recorded_conversation(name: str, outcomes: Mapping[str, Exception | None]) -> None:
    failure = outcomes[name]
    if failure is not None:
        raise failure


def test_every_recording_is_replayed_to_its_end_unless_a_reason_is_given() -> None:
    last = {
        name: stop
        for play in PLAYS.values()
        for name, stop in (step for step in play if isinstance(step, tuple))
    }
    assert sorted(last) == NAMES
    assert {(name, stop) for name, stop in last.items() if stop is not None} == set(BEYOND)


# HTTP

EXCHANGES = {row["name"]: row for row in partitioned_recordings.load("http_lookupd")}
LATER_EXCHANGES = partitioned_recordings.exchanges()

#: Ids and figures that differ from run to run; in the first recordings channels, which others had made.
CHANCE = {"id", "remote_address", "hostname", "distributed_id", "ID", "RpcPort", "TcpPort", "queue_offset"}
CHANCE |= {"start_time", "depth_ts", "OtherCoordErrs"}
RECORDED_PORTS = {str(PORTS[kind] + n): n - 1 for kind in ("nsqd:tcp", "nsqd:http") for n in (1, 2, 3)}
RECORDED_LOOKUPS = {str(PORTS["lookup:http"] + 1): 0, str(PORTS["lookup:http"] + 2): 1, "24175": 0}


def comparable(value: Any, ports: Mapping[str, int], chance: set[str], *, figures: bool) -> Any:
    """Leave out what differs from cluster to cluster, and the order of what comes in any order.

    Without ``figures`` numbers only have to be numbers. Other topics than those made here are left out.
    """
    if isinstance(value, list):
        each = [comparable(one, ports, chance, figures=figures) for one in value]
        return sorted((one for one in each if one not in OTHER_TOPICS), key=str)
    if not isinstance(value, dict):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return 0 if is_number and (isinstance(value, float) or not figures) else value
    if value.get("topic_name") in OTHER_TOPICS:
        return value["topic_name"]
    found = {
        key: comparable(one, ports, chance, figures=figures)
        for key, one in value.items()
        if key not in chance and key not in OTHER_TOPICS
    }
    for key in {"tcp_port", "http_port", "HttpPort"} & found.keys():
        found[key] = ports[str(value[key])]
    if "tombstones" in value:
        found["tombstones"] = value["tombstones"].count(True)
    return found


CHANNELS_OF_PLAIN2 = ("chA", "chAdv", "chB", "chOP", "chOff1", "chOff2", "chOff3", "chOff5")
OTHER_TOPICS = ("one", "ext", "orders", "plain")


def exchange(recorded: Mapping[str, Any], cluster: PartitionedCluster) -> tuple[Reply, Mapping[str, int]]:
    """Send a recorded request to the same node or nsqlookupd of the cluster; return its ports, too."""
    request = recorded["request"]
    found = urlsplit(request["url"])
    port = str(found.port)
    if port in RECORDED_LOOKUPS:
        address = cluster.lookups[RECORDED_LOOKUPS[port]].http_address
    else:
        address = cluster.nodes[RECORDED_PORTS[port]].http_address
    target = f"{found.path}?{found.query}"
    for number, node in enumerate(cluster.nodes, start=1):
        target = target.replace(f"127.0.0.1:2421{number}", node.http_address)
    for number, lookup in enumerate(cluster.lookups, start=1):
        lookup_port = lookup.http_address.rpartition(":")[2]
        target = target.replace(f":2418{number}:2416{number}:", f":{lookup_port}:{lookup_port}:")
    body = request.get("body", bytes(14) if request["method"] == "POST" else None)
    headers = {"Accept": request["accept"]} if request["accept"] else {}
    reply = ask(address, request["method"], target, body, headers, timeout=20)
    ports = {
        each.rpartition(":")[2]: node.index
        for node in cluster.nodes
        for each in (node.tcp_address, node.http_address)
    }
    return reply, ports | {each.http_address.rpartition(":")[2]: each.index for each in cluster.lookups}


@pytest.fixture(scope="module")
def http_outcomes() -> Mapping[str, AssertionError | None]:
    found: dict[str, AssertionError | None] = {}

    def compare_all(rows: Mapping[str, Any], cluster: PartitionedCluster, chance: set[str]) -> None:
        for name, recorded in rows.items():
            there = standalone if ":24175" in recorded["request"]["url"] else cluster
            try:
                compare(recorded["response"], *exchange(recorded, there), chance, figures="stats" not in name)
            except AssertionError as error:
                found[name] = error

    with make_cluster() as cluster, make_cluster(standalone=True) as standalone:
        create_topics(cluster, except_for=["ordered6", "ordered2r2"])
        fill(cluster, "plain2", 0, *CHANNELS_OF_PLAIN2)
        compare_all(EXCHANGES, cluster, CHANCE | {"channels"})
    with make_cluster() as cluster, make_cluster(standalone=True) as standalone:
        create_topics(cluster, LATER_TOPICS)
        fill(cluster, "rec_plain", 0, "c2")
        fill(cluster, "rec_plain", 1, "co")
        fill(cluster, "rec_ordered", 0, "c", "c2")
        compare_all(LATER_EXCHANGES, cluster, CHANCE)
    return found


def fill(cluster: PartitionedCluster, topic: str, partition: int, *channels: str) -> None:
    """Create channels of a partition, and publish a message to it."""
    leader = cluster.leader(topic, partition)
    assert leader is not None
    where = f"topic={topic}&partition={partition}"
    for target in [*[f"/channel/create?{where}&channel={channel}" for channel in channels], f"/pub?{where}"]:
        assert ask(leader.http_address, "POST", target, b"x", {}, timeout=20).status == 200


def compare(
    expected: Mapping[str, Any], reply: Reply, ports: Mapping[str, int], chance: set[str], *, figures: bool
) -> None:
    assert reply.status == expected["http_status"]
    for header in ("Content-Type", "X-Nsq-Content-Type"):
        assert reply.headers.get(header) == expected["headers"].get(header), header
    if expected["body_json"] is None:
        times = re.compile(r"^(start_time|uptime) .*|\d+| +", re.MULTILINE)
        assert times.sub("", reply.body.decode()) == times.sub("", expected["body_text"])
        return
    recorded_ports = RECORDED_PORTS | RECORDED_LOOKUPS
    got = comparable(json.loads(reply.body), ports, chance, figures=figures)
    assert got == comparable(expected["body_json"], recorded_ports, chance, figures=figures)


@pytest.mark.parametrize("name", [*EXCHANGES, *LATER_EXCHANGES])
def test_recorded_http_exchange(name: str, http_outcomes: Mapping[str, AssertionError | None]) -> None:
    failure = http_outcomes.get(name)
    if failure is not None:
        raise failure


# Errors that no conversation shows: they were seen under load only.

SHOWN = {f"{name}.json" for name in NAMES}
UNSHOWN = [row for row in partitioned_recordings.load("errors_observed") if not SHOWN & set(row["seen_in"])]
COMMANDS = {
    "PUB": b"PUB repl1 0\n\0\0\0\1x",
    "MPUB": b"MPUB repl1 0\n\0\0\0\x09\0\0\0\1\0\0\0\1x",
    "PUB_TRACE": b"PUB_TRACE repl1 0\n\0\0\0\x09\0\0\0\0\0\0\0\1x",
    "SUB": b"SUB repl1 ch 0\n",
}


@pytest.mark.parametrize("row", UNSHOWN, ids=lambda row: f"{row['code']} to {row['command']}")
def test_errors_seen_under_load_only(row: Mapping[str, Any]) -> None:
    with make_cluster() as cluster, ExitStack() as stack:
        create_topics(cluster)
        if row["code"] == "E_FAILED_ON_NOT_WRITABLE":
            stack.enter_context(cluster.moving_leader("repl1", 0))
        else:
            cluster.nodes[0].refuse(row["command"], row["example_text"])
        with V2Client(cluster.nodes[0].tcp_address) as client:
            client.send(COMMANDS[row["command"]])
            frame = client.frame()
            assert encode_error(frame.data).hex() == row["example_frame_hex"]
            if row["closes_connection"]:
                client.expect_closed()
            else:
                client.send(b"NOP\n")
                client.expect_silence(0.1)
