"""Replays the recordings of the partitioned NSQ, one file for each conversation, against a cluster.

The bytes that a client sent are sent again, and every byte received is compared. Only what is chance differs:
timestamps, and how far ids and offsets had counted when the recording began.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsq.testing import PartitionedCluster, V2Client
from nsq.testing.v2 import PeerClosed
from nsq.wire import commands
from nsq.wire.frames import FRAME_RESPONSE

FOLDER = Path(__file__).parent / "partitioned"
NAMES = sorted(path.stem for path in FOLDER.glob("[0-9]*.json"))
#: How long "no frame" is waited for; the recorder waited longer.
SILENCE = 0.15
#: The standalone nsqd of the recordings; the nodes of the cluster are 24201, 24202 and 24203.
STANDALONE = 24205
_FIRST_PORT = 24201
_PARTITION_OF_ID = 50

#: The topics of the recorded cluster, and the nodes of each partition, the leader first.
TOPICS: dict[str, tuple[list[list[int]], dict[str, bool]]] = {
    "plain2": ([[1], [0]], {}),
    "ordered3": ([[1], [2], [0]], {"ordered": True}),
    "ext1": ([[1]], {"extended": True}),
    "extordered2": ([[2], [0]], {"ordered": True, "extended": True}),
    "nochan1": ([[1]], {"registered_channels_only": True}),
    "repl1": ([[0, 2]], {}),
    # These were made later than the HTTP exchanges.
    "ordered6": ([[0], [1], [2], [0], [1], [2]], {"ordered": True}),
    "ordered2r2": ([[1, 2], [2, 1]], {"ordered": True}),
}


@functools.cache
def load(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def make_cluster(*, standalone: bool = False, **options: Any) -> PartitionedCluster:
    return PartitionedCluster(nodes=1 if standalone else 3, coordinator=not standalone, **options)


def create_topics(cluster: PartitionedCluster, *, except_for: Iterable[str] = ()) -> None:
    for name, (placement, options) in TOPICS.items():
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
        return self.cluster.nodes[0 if port == STANDALONE else port - _FIRST_PORT].tcp_address

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
                for _ in range(previous + 1, internal_id):
                    client.send(_sized(f"PUB_EXT {topic} 0\n", b'\0\x0a{"k":"no"}x'))
                    client.expect_ok()
                client.send(_publish(topic, message))
                client.expect(FRAME_RESPONSE)
                previous = internal_id

    def same(self, kind: str, partition: int, recorded: int, real: int) -> None:
        """Check a counter: it may begin at another number, but must then grow by the same steps."""
        distance = self.distances.setdefault((kind, partition), recorded - real)
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


def step_with(name: str, found: str | bytes) -> int:
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
