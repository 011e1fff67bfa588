"""One node's side of a connection: the commands of the partitioned V2 protocol in, frames out.

Bytes in, bytes out; the time is an argument. Ids are raw bytes, so FIN, REQ and TOUCH are cut by length.
"""

from __future__ import annotations

import bisect
import json
import re
import struct
import time
from collections.abc import Callable
from typing import Any

from nsq.wire.commands import MAGIC_V2
from nsq.wire.frames import CLOSE_WAIT, HEARTBEAT, OK_FRAME, encode_error, encode_response
from nsq.wire.names import quoted, valid_channel, valid_topic

from .channel import Channel, Stored
from .publishes import MAX_MESSAGE, Refused, check_size, encode_published, headers_of, read_message
from .state import TOPIC_NOT_EXIST, ClusterState, MustWait, NodeState, Partition

VERSION = "0.3.7-HA.1.13.0"
MAX_BODY = 5 * 1024 * 1024
MAX_READY = 2500
_SMALLEST = 8  # a message with less may lack what its command demands
_MAX_LINE = 16 * 1024
_SIZE = struct.Struct(">i")
_FINS = re.compile(rb"(?:FIN [\s\S]{16}\n)+")
_FIN_STEP = 21


class _Incomplete(Exception):
    """The rest of the command has not come yet."""


class NsqdConnection:
    """What a node knows about one client. ``touched`` is called when there is something to send."""

    def __init__(
        self,
        cluster: ClusterState,
        node: NodeState,
        touched: Callable[[], None],
        stored: Callable[[Partition], None],
    ) -> None:
        self.out: list[bytes] = []
        self.closing = False
        self.ready = 0
        self.in_flight: dict[bytes, tuple[Stored, float]] = {}
        self.msg_timeout = 60.0
        self.detailed = False
        self.tag: str | None = None
        self._cluster = cluster
        self._node = node
        self._touched = touched
        self._stored = stored
        self._held = b""
        self._magic = False
        self._extended = False
        self._sample_rate = 0
        self._filter: dict[str, Any] = {}
        self._heartbeat_interval = 30.0
        self._next_heartbeat = time.monotonic() + self._heartbeat_interval
        self._heard = True  # something, since the last heartbeat
        self._partition: Partition | None = None
        self._channel: Channel | None = None
        self._pub_line = b""  # the line of the last plain PUB, and the partition it is for
        self._pub_target: Partition | None = None
        self.waiting = False  # a publish waits for the quorum, and everything behind it too

    # Bytes in

    def feed(self, data: bytes, now: float) -> None:
        data = self._held + data if self._held else data
        self._heard = True
        self.waiting = False
        position = 0
        if not self._magic:
            if len(data) < len(MAGIC_V2):
                self._held = data
                return
            self._magic, position = True, len(MAGIC_V2)
            if data[:position] != MAGIC_V2:
                self._refuse(Refused(b"E_BAD_PROTOCOL"))
        try:
            while position < len(data) and not self.closing:
                position = self._take(data, position, now)
        except _Incomplete:
            pass
        except MustWait:
            self.waiting = True
        except Refused as refused:  # it closes: those that do not are handled where they arise
            self._refuse(refused)
        self._held = data[position:]

    def tick(self, now: float) -> None:
        if self.waiting:
            self.feed(b"", now)
        if self._heartbeat_interval and now >= self._next_heartbeat:
            late = now >= self._next_heartbeat + self._heartbeat_interval  # this node was stalled
            if not self._heard and not late:
                self.closing = True
            self._heard = False
            self._next_heartbeat = now + self._heartbeat_interval
            self._answer(encode_response(HEARTBEAT))

    def closed(self) -> None:
        if self._channel is not None and self._partition is not None:
            self._channel.unsubscribe(self)
            self._stored(self._partition)  # what was in flight can go to others
            self._channel = None

    # What a channel calls

    def push(self, frames: list[bytes]) -> None:
        self.out += frames
        self._touched()

    def unsubscribe(self) -> None:
        self._channel = None
        self.closing = True
        self._touched()

    def accepts(self, message: Stored) -> bool:
        if not self._filter:
            return True
        found = headers_of(message.ext).get(str(self._filter.get("filter_ext_key")))
        return (found == self._filter.get("filter_data")) != bool(self._filter.get("inverse"))

    def tag_of(self, message: Stored) -> str | None:
        return headers_of(message.ext).get("##client_dispatch_tag")

    # Commands

    def _take(self, data: bytes, position: int, now: float) -> int:
        """Execute the command, or the run of equal ones, at ``position``; return where the next begins."""
        if self._pub_line and data.startswith(self._pub_line, position):
            after = self._pubs(data, position)
            if after > position:
                return after
        if data.startswith(b"FIN ", position):
            return self._fins(data, position, now)
        raw_id = data.startswith((b"REQ ", b"TOUCH "), position)
        skip = data.index(b" ", position) + 17 if raw_id else position
        newline = data.find(b"\n", skip)
        if newline < 0:
            if len(data) - position > _MAX_LINE:
                raise Refused(b"E_INVALID command line too long")
            raise _Incomplete
        after = newline + 1
        if raw_id:
            self._requeue_or_touch(data[position:newline], now)
            return after
        line = data[position : newline - 1 if data[newline - 1 : newline] == b"\r" else newline]
        params = line.split(b" ")
        verb = params[0].decode("latin-1")
        if verb not in _COMMANDS:
            raise Refused(b"E_INVALID invalid command [%s]" % b" ".join(map(_go_bytes, params)))
        self._node.received[verb] += 1
        try:
            return _COMMANDS[verb](self, params, data, after, now)
        except (_Incomplete, MustWait):
            self._node.received[verb] -= 1  # it is taken again
            raise

    def _refuse_as_wanted(self, verb: bytes) -> None:
        """Give the answer that a test has asked for."""
        for refusal in self._node.refusals:
            if refusal.verb == verb.decode():
                self._node.refusals.remove(refusal)
                raise Refused(refusal.answer, close=refusal.close)

    def _identify(self, params: list[bytes], data: bytes, position: int, now: float) -> int:
        body, after = _sized(data, position)
        try:
            wanted = json.loads(body)
        except ValueError:
            raise Refused(b"E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        self._extended = bool(wanted.get("extend_support"))
        self._filter = wanted.get("ext_filter") or {}
        self.tag = wanted.get("desired_tag") or None
        self._sample_rate = int(wanted.get("sample_rate") or 0)
        self.msg_timeout = (wanted.get("msg_timeout") or 60_000) / 1000
        interval = wanted.get("heartbeat_interval") or 30_000
        self._heartbeat_interval = max(0, interval) / 1000
        self._next_heartbeat = now + self._heartbeat_interval
        if not wanted.get("feature_negotiation"):
            self._answer(OK_FRAME)
            return after
        granted = {
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
        self._answer(encode_response(json.dumps(granted, separators=(",", ":")).encode()))
        return after

    def _sub(self, params: list[bytes], data: bytes, position: int, now: float) -> int:
        verb = params[0]
        ordered = verb == b"SUB_ORDERED"
        self._refuse_as_wanted(verb)
        if self._channel is not None:
            raise Refused(b"E_INVALID cannot SUB in current state")
        if not self._heartbeat_interval:
            raise Refused(b"E_INVALID cannot SUB with heartbeats disabled")
        if len(params) < 3:
            raise Refused(b"E_INVALID SUB insufficient number of parameters")
        if not valid_topic(params[1]):
            raise Refused(b"E_BAD_TOPIC SUB topic name %s is not valid" % quoted(params[1]).encode())
        if not valid_channel(params[2]):
            raise Refused(b"E_BAD_CHANNEL SUB channel name %s is not valid" % quoted(params[2]).encode())
        number = _partition_number(params[3]) if len(params) == 4 else -1
        start = params[4] if verb == b"SUB_ADVANCED" and len(params) == 5 else b""
        if start and start.partition(b":")[0] not in _STARTS:
            raise Refused(b"E_INVALID invalid consume offset:" + start)
        if ordered and self._sample_rate:
            raise Refused(b"E_INVALID order consume is not allowed while sample rate is not 0")
        partition = self._cluster.held(params[1].decode(), number, self._node.index)
        if partition is None:
            raise Refused(TOPIC_NOT_EXIST)
        topic, name = partition.topic, params[2].decode()
        if topic.ordered and not ordered:
            raise Refused(b"E_SUB_ORDER_IS_MUST this topic is configured only allow ordered sub")
        if topic.extended and not self._extended:
            raise Refused(b"E_SUB_EXTEND_NEED this topic is extended and should identify as extend support.")
        if self._extended and not topic.extended:
            raise Refused(
                b"E_SUB_EXTEND_FORBIDDON this topic is not extended and should not identify as "
                b"extend support."
            )
        if topic.registered_channels_only and name not in partition.channels:
            raise Refused(b"E_SUB_CHANNEL_NOT_REGISTERED channel is not registered under topic.")
        if partition.leader != self._node.index:
            raise Refused(b"E_FAILED_ON_NOT_LEADER ")
        if partition.moving:
            raise Refused(b"E_FAILED_ON_NOT_WRITABLE ")
        self._partition = partition
        self._channel = partition.channel(name, first_twice=self._cluster.first_twice)
        if start and not self._channel.subscribers:
            self._channel.seek(_start_position(partition, start))
        self.detailed = verb != b"SUB"
        self._channel.subscribe(self, ordered=ordered)
        self._answer(OK_FRAME)
        return position

    def _rdy(self, params: list[bytes], data: bytes, position: int, now: float) -> int:
        count = int(params[1]) if len(params) > 1 and params[1].isdigit() else -1
        if not 0 <= count <= MAX_READY:
            shown = b" ".join(params[1:2])
            raise Refused(b"E_INVALID RDY count %s out of range 0-%d" % (shown, MAX_READY))
        if self._channel is None:
            raise Refused(b"E_INVALID cannot RDY in current state")
        self.ready = count
        self._deliver()
        return position

    def _fins(self, data: bytes, position: int, now: float) -> int:
        run = _FINS.match(data, position)
        if run is not None:
            end = run.end()
        elif len(data) >= position + _FIN_STEP:  # a short id: the server takes 16 bytes, and skips one
            end = position + _FIN_STEP
        else:
            raise _Incomplete
        ids = [data[start : start + 16] for start in range(position + 4, end, _FIN_STEP)]
        self._node.received["FIN"] += len(ids)
        failed = ids
        if self._channel is not None:
            failed = self._channel.finish(self, ids)
            if failed:  # the next message is sent first, as recorded
                self._channel.deliver(now)
            self._deliver()
        for message_id in failed:
            reason = b"failed ErrType:7 ErrCode:0 : Message ID not in flight"
            self._answer(encode_error(b"E_FIN_FAILED FIN %s %s" % (_go_bytes(message_id), reason)))
        return end

    def _requeue_or_touch(self, line: bytes, now: float) -> None:
        verb, _, rest = line.partition(b" ")
        message_id, channel = rest[:16], self._channel
        self._node.received[verb.decode()] += 1
        if verb == b"REQ":
            try:
                delay = int(rest[17:]) / 1000
            except ValueError:
                raise Refused(b"E_INVALID REQ could not parse timeout " + rest[17:]) from None
            done = channel is not None and channel.requeue(self, message_id, delay, now)
        else:
            done = channel is not None and channel.touch(self, message_id, now)
        if done:
            self._deliver()
            return
        text = b"E_%s_FAILED %s %s failed Message ID not in flight" % (verb, verb, _go_bytes(message_id))
        self._answer(encode_error(text))

    def _nop(self, params: list[bytes], data: bytes, position: int, now: float) -> int:
        return position

    def _cls(self, params: list[bytes], data: bytes, position: int, now: float) -> int:
        self.ready = 0
        self._answer(encode_response(CLOSE_WAIT))
        return position

    def _create_topic(self, params: list[bytes], data: bytes, position: int, now: float) -> int:
        if len(params) < 3:
            raise Refused(b"E_INVALID CREATE_TOPIC insufficient number of parameters")
        number = _partition_number(params[2])
        if number < 0:
            raise Refused(b"E_BAD_PARTITION partition should not less than 0")
        if self._cluster.coordinator:
            text = b"E_CREATE_TOPIC_FAILED CREATE_TOPIC is not allowed here while cluster feature enabled."
            self._answer(encode_error(text))
            return position
        extended = params[3:] == [b"true"]
        self._cluster.add_standalone(params[1].decode(), number, self._node.index, extended=extended)
        self._answer(OK_FRAME)
        return position

    # Publishing

    def _pub(self, params: list[bytes], data: bytes, position: int, now: float) -> int:
        kind = params[0].rpartition(b"PUB")[2]  # empty, _TRACE or _EXT
        number = self._number_to_publish(params)
        if len(data) < position + 4:
            raise _Incomplete
        size: int = _SIZE.unpack_from(data, position)[0]
        check_size(size, kind, b"invalid body size %d" % size)
        partition = self._target(params, number)
        if len(data) < position + 4 + size:
            raise _Incomplete
        after = position + 4 + size
        if not kind:
            self._pub_line, self._pub_target = b" ".join(params) + b"\n", partition
        try:
            self._refuse_as_wanted(params[0])
            body, trace_id, ext, traced = read_message(partition, params[0], data[position + 4 : after])
            self._check_writable(partition, now, traced=traced)
        except Refused as refused:
            if refused.close:
                raise
            self._refuse(refused)
            return after
        stored = partition.append(body, time.time_ns(), trace_id, ext)
        self._stored(partition)
        self._answer(encode_published(stored, trace_id, stored.size) if traced else OK_FRAME)
        return after

    def _pubs(self, data: bytes, position: int) -> int:
        """Store a run of plain PUBs with the same line; return where it ends."""
        partition, node = self._pub_target, self._node
        assert partition is not None
        if partition.writable_at != node.index or node.write_disabled or node.refusals:
            return position
        line, unpack, end = self._pub_line, _SIZE.unpack_from, len(data)
        head, bodies = len(line) + 4, list[bytes]()
        while (start := position + head) <= end and data.startswith(line, position):
            (size,) = unpack(data, start - 4)
            stop = start + size
            if stop > end or not 0 < size <= MAX_MESSAGE:
                break
            bodies.append(data[start:stop])
            position = stop
        if bodies:
            partition.extend(bodies, time.time_ns())
            node.received["PUB"] += len(bodies)
            self._stored(partition)
            self._answer(OK_FRAME * len(bodies))
        return position

    def _mpub(self, params: list[bytes], data: bytes, position: int, now: float) -> int:
        kind = params[0].rpartition(b"PUB")[2]
        number = self._number_to_publish(params)
        if len(data) < position + 8:
            raise _Incomplete
        size: int = _SIZE.unpack_from(data, position)[0]
        count: int = _SIZE.unpack_from(data, position + 4)[0]
        if size <= 0 or size > MAX_BODY:
            raise Refused(b"E_BAD_BODY MPUB invalid body size %d" % size)
        if not 0 < count <= (MAX_BODY - 4) // 5:
            raise Refused(b"E_BAD_BODY MPUB invalid message count %d" % count)
        partition = self._target(params, number)
        if len(data) < position + 4 + size:
            raise _Incomplete
        after, position = position + 4 + size, position + 8
        bodies: list[bytes] = []
        messages: list[tuple[bytes, int, bytes]] = []
        unpack = _SIZE.unpack_from
        for index in range(count):
            size = unpack(data, position)[0] if position + 4 <= after else 0
            if not _SMALLEST < size <= MAX_MESSAGE:
                check_size(size, kind, b"MPUB invalid message(%d) body size %d" % (index, size), batch=True)
            start, position = position + 4, position + 4 + size
            if position > after:
                raise Refused(b"E_BAD_BODY MPUB messages exceed the declared body size")
            if not kind:
                bodies.append(data[start:position])
                continue
            try:
                body, trace_id, ext, _ = read_message(partition, params[0], data[start:position])
            except Refused as refused:
                if not refused.close:  # as in the real server, the rest of the batch stays in the stream
                    self._refuse(refused)
                    return position
                raise
            messages.append((body, trace_id, ext))
        traced = kind == b"_TRACE"
        try:
            self._refuse_as_wanted(params[0])
            self._check_writable(partition, now, traced=traced)
        except Refused as refused:
            if refused.close:
                raise
            self._refuse(refused)
            return after
        timestamp, first = time.time_ns(), len(partition.log)
        partition.extend(bodies, timestamp)
        for body, trace_id, ext in messages:
            partition.append(body, timestamp, trace_id, ext)
        self._stored(partition)
        stored = partition.log[first]
        self._answer(encode_published(stored, 0, partition.end - stored.offset) if traced else OK_FRAME)
        return after

    def _number_to_publish(self, params: list[bytes]) -> int:
        """Return the partition of a publish. As in the server, it counts only in a line of three words."""
        if len(params) < 2:
            raise Refused(b"E_INVALID %s insufficient number of parameters" % params[0])
        return _partition_number(params[2]) if len(params) == 3 else -1

    def _target(self, params: list[bytes], number: int) -> Partition:
        name = params[1].decode("latin-1")
        topic = self._cluster.topics.get(name)
        if topic is not None and topic.ordered and number == -1:
            raise Refused(b"E_BAD_PARTITION topic partition is not valid for multi partition: -1")
        partition = self._cluster.held(name, number, self._node.index)
        if partition is None:
            raise Refused(TOPIC_NOT_EXIST)
        return partition

    def _check_writable(self, partition: Partition, now: float, *, traced: bool) -> None:
        error = self._cluster.refuse(partition, self._node, now, traced=traced)
        if error is not None:
            raise Refused(error, close=False)

    # Bytes out

    def _answer(self, frame: bytes) -> None:
        self.out.append(frame)
        self._touched()

    def _refuse(self, refused: Refused) -> None:
        self._answer(encode_error(refused.text))
        self.closing = self.closing or refused.close

    def _deliver(self) -> None:
        """Let the channel deliver once the commands that came together are executed."""
        if self._partition is not None:
            self._stored(self._partition)


_COMMANDS: dict[str, Callable[[NsqdConnection, list[bytes], bytes, int, float], int]] = {
    "IDENTIFY": NsqdConnection._identify,
    "SUB": NsqdConnection._sub,
    "SUB_ADVANCED": NsqdConnection._sub,
    "SUB_ORDERED": NsqdConnection._sub,
    "RDY": NsqdConnection._rdy,
    "NOP": NsqdConnection._nop,
    "CLS": NsqdConnection._cls,
    "PUB": NsqdConnection._pub,
    "PUB_TRACE": NsqdConnection._pub,
    "PUB_EXT": NsqdConnection._pub,
    "MPUB": NsqdConnection._mpub,
    "MPUB_TRACE": NsqdConnection._mpub,
    "MPUB_EXT": NsqdConnection._mpub,
    "INTERNAL_CREATE_TOPIC": NsqdConnection._create_topic,
}

_STARTS = {b"timestamp", b"virtual_queue", b"msgcount", b"special"}


def _start_position(partition: Partition, start: bytes) -> int:
    """Return the index in the log at which a consume offset begins."""
    kind, _, text = start.partition(b":")
    try:
        value = int(text)
    except ValueError:
        raise Refused(b"E_INVALID invalid consume offset:" + start) from None
    if kind == b"special":
        return len(partition.log)
    if kind == b"msgcount":
        return value - 1  # as recorded: 2 begins with the second message
    if kind == b"timestamp":
        return bisect.bisect_left(partition.log, value * 10**9, key=lambda stored: stored.timestamp)
    return bisect.bisect_left(partition.log, value, key=lambda stored: stored.offset)


def _sized(data: bytes, position: int) -> tuple[bytes, int]:
    if len(data) < position + 4:
        raise _Incomplete
    after = position + 4 + int(_SIZE.unpack_from(data, position)[0])
    if len(data) < after:
        raise _Incomplete
    return data[position + 4 : after], after


def _partition_number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        shown = quoted(text).encode()
        raise Refused(
            b"E_BAD_PARTITION topic partition is not valid: strconv.Atoi: parsing %s: invalid syntax" % shown
        ) from None


def _go_bytes(data: bytes) -> bytes:
    """Show bytes as the server does: ``[49 50]``."""
    return b"[%s]" % b" ".join(b"%d" % byte for byte in data)
