"""The frames that nsqd sends: length-prefixed, of three types.

Both ends use this: the daemon encodes, the client parses. Pure bytes; imports only errors.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from nsq.errors import FrameError, NotNsqd

FRAME_RESPONSE = 0
FRAME_ERROR = 1
FRAME_MESSAGE = 2

HEARTBEAT = b"_heartbeat_"
OK = b"OK"
CLOSE_WAIT = b"CLOSE_WAIT"

#: A frame holds a message of at most nsqd's --max-msg-size, 1 MiB by default; this leaves room for more.
DEFAULT_MAX_FRAME = 64 * 1024 * 1024

_HEAD = struct.Struct(">ii")
_MESSAGE_HEAD = struct.Struct(">iiqH16s")
_HEAD_SIZE = _HEAD.size
_MESSAGE_HEAD_SIZE = _MESSAGE_HEAD.size
_MESSAGE_OVERHEAD = _MESSAGE_HEAD_SIZE - 4

#: nsqlookupd answers "  V2" with E_BAD_PROTOCOL, whose beginning stands where a frame has its type.
_NSQLOOKUPD = int.from_bytes(b"E_BA", "big")

M = TypeVar("M")


class Response(NamedTuple):
    """A successful answer, or a heartbeat."""

    data: bytes


class ErrorReply(NamedTuple):
    """An E_ code and its explanation."""

    data: bytes


class RawMessage(NamedTuple):
    """A message on the wire: time in nanoseconds since the epoch, deliveries so far, id, body."""

    timestamp: int
    attempts: int
    id: bytes
    body: bytes


class Published(NamedTuple):
    """The result of a publish, which is always true. For a traced message a partitioned NSQ says where it is
    stored: ``internal_id``, ``offset`` and ``size`` in the partition, and the ``trace_id``; of a batch these
    are the first message's, and the size of all. None means unknown.
    """

    internal_id: int | None = None
    trace_id: int | None = None
    offset: int | None = None
    size: int | None = None


#: The result of every publish of which nothing is known but that it is stored.
PUBLISHED = Published()


def encode_response(data: bytes) -> bytes:
    return _HEAD.pack(len(data) + 4, FRAME_RESPONSE) + data


def encode_error(data: bytes) -> bytes:
    return _HEAD.pack(len(data) + 4, FRAME_ERROR) + data


def encode_message(timestamp: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    return _MESSAGE_HEAD.pack(len(body) + 30, FRAME_MESSAGE, timestamp, attempts, message_id) + body


class Encodable(Protocol):
    """An object with a message's fields under these names."""

    id: bytes
    timestamp: int
    attempts: int
    body: bytes


def encode_messages(messages: Iterable[Encodable]) -> list[bytes]:
    """Encode a frame for each message; calling ``encode_message`` for each takes a third longer."""
    pack = _MESSAGE_HEAD.pack
    return [
        pack(len(body := message.body) + 30, FRAME_MESSAGE, message.timestamp, message.attempts, message.id)
        + body
        for message in messages
    ]


#: Shared objects for the few usual responses: they save a producer an allocation per publish.
_COMMON = {data: Response(data) for data in (OK, HEARTBEAT, CLOSE_WAIT)}

#: nsqd answers publishes that were sent together with OKs in a row, which the parser takes in one piece.
OK_FRAME = encode_response(OK)
_OKS = re.compile(b"(?:%s)+" % re.escape(OK_FRAME))
_OK_SIZE = len(OK_FRAME)
OKAY = _COMMON[OK]


class FrameParser(Generic[M]):
    """Cuts a byte stream into frames: ``feed`` returns the frames that are now complete.

    ``message`` builds the object for a message frame, so that a caller gets its own class in one step. An
    impossible frame raises; the complete frames before it in the chunk are lost, as is the connection.
    """

    def __init__(
        self, message: Callable[[int, int, bytes, bytes], M], *, max_frame: int = DEFAULT_MAX_FRAME
    ) -> None:
        self.message = message
        self._max_frame = max_frame
        self.held: list[bytes] = []
        """Pieces of an incomplete frame."""
        self._held_size = 0
        self._needed = 0
        self.replies = 0
        """The number of frames so far other than messages. If a chunk adds none, it had only messages."""

    def feed(self, data: bytes) -> list[M | Response | ErrorReply]:
        if self.held:
            # Join only when a whole frame is there: a large one that arrives in small chunks is copied once.
            self.held.append(data)
            self._held_size += len(data)
            if self._held_size < self._needed:
                return []
            data = b"".join(self.held)
            self.held.clear()
        frames: list[M | Response | ErrorReply] = []
        used = self._cut(data, frames)
        if used < len(data):
            self.held.append(data[used:] if used else data)
            self._held_size = len(data) - used
        return frames

    def _cut(self, data: bytes, frames: list[M | Response | ErrorReply]) -> int:
        position, end = 0, len(data)
        while end - position >= _HEAD_SIZE:
            size, kind = _HEAD.unpack_from(data, position)
            if not 4 <= size <= self._max_frame:
                raise self._impossible(data[position : position + _HEAD_SIZE], size)
            stop = position + 4 + size
            if stop > end:
                self._needed = 4 + size
                return position
            if kind != FRAME_MESSAGE:
                position = self._cut_replies(data, position, stop, kind, frames)
            elif size >= _MESSAGE_OVERHEAD:
                position = self._cut_messages(data, position, frames)
            else:
                raise FrameError(f"a message frame of {size} bytes, shorter than its own header")
        self._needed = _HEAD_SIZE
        return position

    def _cut_messages(self, data: bytes, position: int, frames: list[M | Response | ErrorReply]) -> int:
        """Cut the message at ``position`` and those that follow it in a row, each in one step."""
        end, limit = len(data), self._max_frame
        make, append, unpack = self.message, frames.append, _MESSAGE_HEAD.unpack_from
        while end - position >= _MESSAGE_HEAD_SIZE:
            size, kind, timestamp, attempts, message_id = unpack(data, position)
            stop = position + 4 + size
            if kind != FRAME_MESSAGE or stop > end or not _MESSAGE_OVERHEAD <= size <= limit:
                break
            append(make(timestamp, attempts, message_id, data[position + _MESSAGE_HEAD_SIZE : stop]))
            position = stop
        return position

    def _cut_replies(
        self, data: bytes, position: int, stop: int, kind: int, frames: list[M | Response | ErrorReply]
    ) -> int:
        """Cut the reply that ends at ``stop``; if it is an OK, also the OKs that follow it in a row."""
        oks = _OKS.match(data, position) if stop - position == _OK_SIZE and stop < len(data) else None
        if oks is None:
            frames.append(_reply(kind, data[position + 8 : stop]))
            self.replies += 1
            return stop
        count = (oks.end() - position) // _OK_SIZE
        frames += [OKAY] * count
        self.replies += count
        return oks.end()

    def _impossible(self, head: bytes, size: int) -> FrameError:
        if head.startswith(b"HTTP"):
            return NotNsqd(
                "the peer answers in HTTP: this is an HTTP port, not nsqd's TCP port (4150 by default)"
            )
        if size > self._max_frame:
            return FrameError(f"a frame of {size} bytes, above this connection's limit of {self._max_frame}")
        return FrameError(f"a frame size of {size}, which no frame can have: the peer does not speak V2")


def _reply(kind: int, data: bytes) -> Response | ErrorReply:
    if kind == FRAME_RESPONSE:
        return _COMMON.get(data) or Response(data)
    if kind == FRAME_ERROR:
        return ErrorReply(data)
    if kind == _NSQLOOKUPD:
        raise NotNsqd(
            "the peer answers as nsqlookupd does: this is its TCP port, which is for nsqds; "
            "clients ask its HTTP port (4161 by default)"
        )
    raise FrameError(f"a frame of unknown type {kind}")


def split_reply(data: bytes) -> tuple[Response | ErrorReply, bytes] | None:
    """Return the first frame and the bytes after it; None while the frame is incomplete.

    For the handshake, in which an answer decides how to read the bytes after it.
    """
    if len(data) < 4:
        return None
    stop = 4 + int(_HEAD.unpack_from(data + bytes(4))[0])
    parser = FrameParser(RawMessage)
    frames = parser.feed(data[: max(stop, _HEAD_SIZE)] if stop > 0 else data[:_HEAD_SIZE])
    if not frames:
        return None
    if isinstance(frames[0], RawMessage):
        raise FrameError("a message before anything was subscribed")
    return frames[0], data[stop:]
