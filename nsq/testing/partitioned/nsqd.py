"""One node's side of a connection: the commands of the partitioned V2 protocol in, frames out.

Message ids are raw bytes, so FIN, REQ and TOUCH are cut by length.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import struct
import time
from typing import Any

from nsq.wire.commands import MAGIC_V2
from nsq.wire.frames import CLOSE_WAIT, HEARTBEAT, OK, OK_FRAME, encode_error, encode_response
from nsq.wire.names import quoted, valid_channel, valid_topic

from .channel import Channel, Stored
from .program import Peer
from .state import NOT_LEADER, NOT_WRITABLE, TOPIC_NOT_EXIST, ClusterState, NodeState, Partition, Refused

VERSION = "0.3.7-HA.1.13.0"
MAX_MESSAGE = 1024 * 1024
MAX_BODY = 5 * 1024 * 1024
MAX_READY = 2500
MAX_UINT64 = 2**64 - 1
_STARTS = ("timestamp", "virtual_queue", "msgcount", "special")
#: Errors after which the server closes the connection, to whatever command.
_CLOSING = (
    "E_INVALID",
    "E_TOPIC_NOT_EXIST",
    "E_PUB_TOO_MUCH_WAITING",
    "E_IDENTIFY_FAILED",
    "E_UNAUTHORIZED",
)
_CLOSING_KINDS = ("E_BAD_", "E_SUB_", "E_AUTH_")
_BAD_KEY = """cannot parse JSON: cannot parse object: cannot find opening '"" for object key"""


class NsqdConnection:
    """What a node knows about one client."""

    def __init__(
        self, cluster: ClusterState, node: NodeState, reader: asyncio.StreamReader, peer: Peer
    ) -> None:
        self.number = next(cluster.client_numbers)
        self.ready = 0
        self.in_flight: dict[bytes, tuple[Stored, float]] = {}
        self.msg_timeout = 60.0
        self.detailed = False
        self.tag: str | None = None
        self.send, self.end = peer.send, peer.end
        self._cluster = cluster
        self._node = node
        self._reader = reader
        self._going = peer.going
        self._extended = False
        self._sample_rate = 0
        self._filter: dict[str, Any] = {}
        self._heartbeat_interval = 30.0
        self._next_heartbeat = cluster.clock() + self._heartbeat_interval
        self._heard = True  # something, since the last heartbeat
        self._busy = False  # with a command: what the client sends waits
        self._partition: Partition | None = None
        self._channel: Channel | None = None

    async def run(self) -> None:
        """Execute commands until the client or an error ends the connection, each when the node is going."""
        if await self._reader.readexactly(len(MAGIC_V2)) != MAGIC_V2:
            self._refuse("E_BAD_PROTOCOL")
            return
        while True:
            line = await self._read_line()
            await self._going()
            self._heard = self._busy = True
            verb = line.partition(b" ")[0].decode("latin-1")
            try:
                await self._execute(verb, line)
            except Refused as refused:
                self._refuse(str(refused))
                if _closes(verb, refused.code):
                    return
            self._busy = False

    def leave(self) -> None:
        """The connection has ended."""
        if self._channel is not None and self._partition is not None:
            self._channel.unsubscribe(self)
            self._cluster.deliver(self._partition)  # what was in flight can go to others

    def tick(self) -> None:
        """Send a heartbeat if it is time; end the connection of a client that is silent."""
        now = self._cluster.clock()
        if self._heartbeat_interval and now >= self._next_heartbeat:
            late = now >= self._next_heartbeat + self._heartbeat_interval  # this node was stalled
            if not self._heard and not late:
                self.end()
            self._heard = self._busy
            self._next_heartbeat = now + self._heartbeat_interval
            self.send(encode_response(HEARTBEAT))

    def accepts(self, message: Stored) -> bool:
        if not self._filter:
            return True
        found = message.headers.get(str(self._filter.get("filter_ext_key")))
        return (found == self._filter.get("filter_data")) != bool(self._filter.get("inverse"))

    # Commands

    async def _read_line(self) -> bytes:
        """Return a command without its newline."""
        line = await self._reader.readuntil(b"\n")
        if line.startswith((b"FIN ", b"REQ ", b"TOUCH ")):
            missing = line.index(b" ") + 1 + 16 + 1 - len(line)
            if missing > 0:  # the newline is a byte of the id
                line += await self._reader.readexactly(missing)
                if not line.endswith(b"\n"):
                    line += await self._reader.readuntil(b"\n")
            return line[:-1]
        return line[:-2] if line.endswith(b"\r\n") else line[:-1]

    async def _execute(self, verb: str, line: bytes) -> None:
        params = line.split(b" ")[1:]
        self._node.received[verb] += 1
        match verb:
            case "IDENTIFY":
                await self._identify()
            case "SUB" | "SUB_ADVANCED" | "SUB_ORDERED":
                self._sub(verb, params)
            case "RDY":
                self._rdy(params)
            case "FIN" | "REQ" | "TOUCH":
                self._answer_message(verb, line[len(verb) + 1 :])
            case "PUB" | "PUB_TRACE" | "PUB_EXT":
                await self._pub(verb, params)
            case "MPUB" | "MPUB_TRACE" | "MPUB_EXT":
                await self._mpub(verb, params)
            case "CLS":
                self.ready = 0
                self.send(encode_response(CLOSE_WAIT))
            case "INTERNAL_CREATE_TOPIC":
                self._create_topic(params)
            case _ if verb != "NOP":
                raise Refused(f"E_INVALID invalid command [{' '.join(map(_go_bytes, line.split(b' ')))}]")

    def _refuse(self, text: str) -> None:
        self.send(encode_error(text.encode("utf-8", "surrogateescape")))

    def _refuse_as_wanted(self, verb: str) -> None:
        """Give the answer that a test has asked for."""
        for refusal in self._node.refusals:
            if refusal[0] == verb:
                self._node.refusals.remove(refusal)
                raise Refused(refusal[1])

    async def _identify(self) -> None:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        try:
            wanted = json.loads(await self._reader.readexactly(max(size, 0)))
        except ValueError:
            raise Refused("E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        self._extended = bool(wanted.get("extend_support"))
        self._filter = wanted.get("ext_filter") or {}
        self.tag = wanted.get("desired_tag") or None
        self._sample_rate = int(wanted.get("sample_rate") or 0)
        self.msg_timeout = (wanted.get("msg_timeout") or 60_000) / 1000
        self._heartbeat_interval = max(0, wanted.get("heartbeat_interval") or 30_000) / 1000
        self._next_heartbeat = self._cluster.clock() + self._heartbeat_interval
        if not wanted.get("feature_negotiation"):
            self.send(OK_FRAME)
            return
        granted: dict[str, object] = {
            "max_rdy_count": MAX_READY,
            "version": VERSION,
            "max_msg_timeout": 900_000,
            "msg_timeout": int(self.msg_timeout * 1000),
            "tls_v1": False,
            "deflate": False,
            "deflate_level": 0,
            "max_deflate_level": 6,
            "snappy": False,
            "sample_rate": self._sample_rate,
            "auth_required": False,
            "output_buffer_size": 100,
            "output_buffer_timeout": 50,
        }
        if self.tag is not None:
            granted["desired_tag"] = self.tag
        self.send(encode_response(json.dumps(granted, separators=(",", ":")).encode()))

    def _sub(self, verb: str, params: list[bytes]) -> None:
        ordered = verb == "SUB_ORDERED"
        self._refuse_as_wanted(verb)
        if self._channel is not None:
            raise Refused("E_INVALID cannot SUB in current state")
        if not self._heartbeat_interval:
            raise Refused("E_INVALID cannot SUB with heartbeats disabled")
        if len(params) < 2:
            raise Refused("E_INVALID SUB insufficient number of parameters")
        if not valid_topic(params[0]):
            raise Refused(f"E_BAD_TOPIC SUB topic name {quoted(params[0])} is not valid")
        if not valid_channel(params[1]):
            raise Refused(f"E_BAD_CHANNEL SUB channel name {quoted(params[1])} is not valid")
        number = _partition_number(params[2]) if len(params) == 3 else -1
        start = _text(params[3]) if verb == "SUB_ADVANCED" and len(params) == 4 else ""
        if start and start.partition(":")[0] not in _STARTS:
            raise Refused(f"E_INVALID invalid consume offset:{start}")
        if ordered and self._sample_rate:
            raise Refused("E_INVALID order consume is not allowed while sample rate is not 0")
        partition = self._held(params[0], number)
        self._check_subscription(partition, params[1].decode(), ordered=ordered)
        self._partition = partition
        self._channel = self._cluster.channel_of(partition, params[1].decode())
        if start and not self._channel.subscribers:
            self._channel.seek(_start_position(partition, start))
        self.detailed = verb != "SUB"
        self._channel.subscribe(self, ordered=ordered)
        self.send(OK_FRAME)

    def _check_subscription(self, partition: Partition, channel: str, *, ordered: bool) -> None:
        topic = partition.topic
        if topic.ordered and not ordered:
            raise Refused("E_SUB_ORDER_IS_MUST this topic is configured only allow ordered sub")
        if topic.extended and not self._extended:
            raise Refused("E_SUB_EXTEND_NEED this topic is extended and should identify as extend support.")
        if self._extended and not topic.extended:
            raise Refused(
                "E_SUB_EXTEND_FORBIDDON this topic is not extended and should not identify as extend support."
            )
        if topic.registered_channels_only and channel not in partition.channels:
            raise Refused("E_SUB_CHANNEL_NOT_REGISTERED channel is not registered under topic.")
        if partition.leader != self._node.index:
            raise Refused(NOT_LEADER)
        if partition.moving:
            raise Refused(NOT_WRITABLE)

    def _rdy(self, params: list[bytes]) -> None:
        count = int(params[0]) if params and params[0].isdigit() else -1
        if not 0 <= count <= MAX_READY:
            shown = _text(b" ".join(params[:1]))
            raise Refused(f"E_INVALID RDY count {shown} out of range 0-{MAX_READY}")
        if self._channel is None:
            raise Refused("E_INVALID cannot RDY in current state")
        self.ready = count
        self._deliver()

    def _answer_message(self, verb: str, rest: bytes) -> None:
        """Execute FIN, REQ or TOUCH. After a bad one the next message is sent first, as recorded."""
        channel, now, failure = self._channel, self._cluster.clock(), "Message ID not in flight"
        message_id = rest[:16]
        delay = _milliseconds(rest[17:]) if verb == "REQ" else 0.0
        if channel is not None:
            if verb == "FIN":
                failed = channel.finish(self, message_id)
            elif verb == "REQ":
                failed = channel.requeue(self, message_id, delay, now)
            else:
                failed = channel.touch(self, message_id, now)
            self._deliver()
            if failed is None:
                return
            failure = failed
        reason = "failed ErrType:7 ErrCode:0 :" if verb == "FIN" else "failed"
        raise Refused(f"E_{verb}_FAILED {verb} {_go_bytes(message_id)} {reason} {failure}")

    def _create_topic(self, params: list[bytes]) -> None:
        if len(params) < 2:
            raise Refused("E_INVALID CREATE_TOPIC insufficient number of parameters")
        number = _partition_number(params[1])
        if number < 0:
            raise Refused("E_BAD_PARTITION partition should not less than 0")
        if self._cluster.coordinator:
            raise Refused(
                "E_CREATE_TOPIC_FAILED CREATE_TOPIC is not allowed here while cluster feature enabled."
            )
        extended = params[2:] == [b"true"]
        self._cluster.add_standalone(params[0].decode(), number, self._node.index, extended=extended)
        self.send(OK_FRAME)

    # Publishing

    async def _pub(self, verb: str, params: list[bytes]) -> None:
        number = self._number_to_publish(verb, params)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        _check_size(size, verb, f"E_BAD_BODY invalid body size {size}", "E_BAD_MESSAGE")
        partition = self._target(params, number)
        data = await self._reader.readexactly(size)
        self._refuse_as_wanted(verb)
        body, trace_id, ext, traced = read_message(partition, verb, data)
        await self._cluster.wait_for_replicas(partition, self._node, traced=traced)
        stored = partition.append(body, time.time_ns(), trace_id, ext)
        self.send(_published(stored, trace_id, stored.size) if traced else OK_FRAME)
        self._cluster.deliver(partition)

    async def _mpub(self, verb: str, params: list[bytes]) -> None:
        number = self._number_to_publish(verb, params)
        size, count = struct.unpack(">ii", await self._reader.readexactly(8))
        if size <= 0 or size > MAX_BODY:
            raise Refused(f"E_BAD_BODY MPUB invalid body size {size}")
        if not 0 < count <= (MAX_BODY - 4) // 5:
            raise Refused(f"E_BAD_BODY MPUB invalid message count {count}")
        partition = self._target(params, number)
        left, messages = size - 4, []
        for index in range(count):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4)) if left >= 4 else (0,)
            bad = f"MPUB invalid message({index}) body size {size}"
            _check_size(size, verb, f"E_BAD_MESSAGE {bad}", "E_BAD_MESSAGE MPUB")
            left -= 4 + size
            if left < 0:
                raise Refused("E_BAD_BODY MPUB messages exceed the declared body size")
            # As in the real server, an error here leaves the rest of the batch in the stream.
            messages.append(read_message(partition, verb, await self._reader.readexactly(size)))
        self._refuse_as_wanted(verb)
        traced = verb == "MPUB_TRACE"
        await self._cluster.wait_for_replicas(partition, self._node, traced=traced)
        stored = [partition.append(body, time.time_ns(), trace, ext) for body, trace, ext, _ in messages]
        whole = sum(each.size for each in stored)
        self.send(_published(stored[0], 0, whole) if traced else OK_FRAME)
        self._cluster.deliver(partition)

    def _number_to_publish(self, verb: str, params: list[bytes]) -> int:
        """Return the partition of a publish. As in the server, it counts only in a line of three words."""
        if not params:
            raise Refused(f"E_INVALID {verb} insufficient number of parameters")
        return _partition_number(params[1]) if len(params) == 2 else -1

    def _target(self, params: list[bytes], number: int) -> Partition:
        topic = self._cluster.topics.get(params[0].decode("latin-1"))
        if topic is not None and topic.ordered and number == -1:
            raise Refused("E_BAD_PARTITION topic partition is not valid for multi partition: -1")
        return self._held(params[0], number)

    def _held(self, topic: bytes, number: int) -> Partition:
        partition = self._cluster.held(topic.decode("latin-1"), number, self._node.index)
        if partition is None:
            raise Refused(TOPIC_NOT_EXIST)
        return partition

    def _deliver(self) -> None:
        if self._partition is not None:
            self._cluster.deliver(self._partition)


def _closes(verb: str, code: str) -> bool:
    """Whether the server closes the connection after giving this error to that command."""
    if verb.startswith("SUB") and code.startswith("E_FAILED_ON"):
        return True
    return code in _CLOSING or code.startswith(_CLOSING_KINDS)


def read_message(partition: Partition, verb: str, data: bytes) -> tuple[bytes, int, bytes, bool]:
    """Return a published message's body, trace id and ext, and whether its answer is the long one."""
    if verb.endswith("_TRACE"):
        return data[8:], int.from_bytes(data[:8], "big"), b"", True
    if not verb.endswith("_EXT"):
        return data, 0, b"", False
    length = int.from_bytes(data[:2], "big")
    header, body = data[2 : 2 + length], data[2 + length :]
    if not partition.topic.extended:
        raise Refused(f"E_EXT_NOT_SUPPORT ext content not supported in topic {partition.topic.name}")
    if not header and verb == "MPUB_EXT":
        return body, 0, b"", False
    trace_id = trace_id_of(header)
    return body, trace_id or 0, b"\4" + data[: 2 + length], trace_id is not None


def trace_id_of(header: bytes) -> int | None:
    """Return the trace id in a JSON header, None without one."""
    try:
        fields = json.loads(header)
    except ValueError:
        text = _text(header)
        reason = f'{_BAD_KEY}; unparsed tail: "{text[1:]}"'
        if not text:
            reason = 'cannot parse JSON: cannot parse empty string; unparsed tail: ""'
        raise Refused(f"E_INVALID_JSON_HEADER fail to parse json header:{reason}") from None
    trace_id = fields.get("##trace_id") if isinstance(fields, dict) else None
    if trace_id is None:
        return None
    if not isinstance(trace_id, str):
        raise Refused("INVALID_TRACE_ID passin trace id should be string")
    if not (trace_id.isascii() and trace_id.isdigit() and int(trace_id) <= MAX_UINT64):
        raise Refused("INVALID_TRACE_ID invalid trace id")
    return int(trace_id)


def _check_size(size: int, verb: str, invalid: str, too_big: str) -> None:
    if size <= 0:
        raise Refused(invalid)
    if size > MAX_MESSAGE:
        raise Refused(f"{too_big} message too big {size} > {MAX_MESSAGE}")
    if size <= 8 and verb.endswith("_TRACE"):
        raise Refused(f"E_BAD_BODY invalid body size {size} with trace id enabled")
    if size <= 2 and verb.endswith("_EXT"):
        raise Refused(f"E_BAD_BODY invalid body size {size} with ext content enabled")


def _published(first: Stored, trace_id: int, size: int) -> bytes:
    """Encode the answer that says what was stored where."""
    where = struct.pack(">QQI", trace_id, first.offset, size)
    return encode_response(OK + first.id[:8] + where)


def _start_position(partition: Partition, start: str) -> int:
    """Return the index in the log at which a consume offset begins."""
    kind, _, text = start.partition(":")
    try:
        value = int(text)
    except ValueError:
        raise Refused(f"E_INVALID invalid consume offset:{start}") from None
    if kind == "special":
        return len(partition.log)
    if kind == "msgcount":
        return value - 1  # as recorded: 2 begins with the second message
    if kind == "timestamp":
        return bisect.bisect_left(partition.log, value * 10**9, key=lambda stored: stored.timestamp)
    return bisect.bisect_left(partition.log, value, key=lambda stored: stored.offset)


def _partition_number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        reason = f"strconv.Atoi: parsing {quoted(text)}: invalid syntax"
        raise Refused(f"E_BAD_PARTITION topic partition is not valid: {reason}") from None


def _milliseconds(text: bytes) -> float:
    try:
        return int(text) / 1000
    except ValueError:
        raise Refused(f"E_INVALID REQ could not parse timeout {_text(text)}") from None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _go_bytes(data: bytes) -> str:
    """Show bytes as the server does: ``[49 50]``."""
    return f"[{' '.join(map(str, data))}]"
