"""The V1 protocol between nsqd and nsqlookupd, both sides: bytes in, commands or replies out.

A client sends the magic, then commands: lines of words. IDENTIFY's line is followed by a sized JSON body. The
answer to each is a sized reply, which unlike a frame of V2 has no type.
Pure bytes; imports only errors and modules of this folder.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import NamedTuple

from nsq.errors import FrameError, WireError
from nsq.wire.identify import BadJson, JsonBody
from nsq.wire.names import check_channel, check_topic

MAGIC = b"  V1"
OK = b"OK"

MAX_LINE = 4096
MAX_BODY = 64 * 1024
MAX_REPLY = 64 * 1024

_SIZE = struct.Struct(">i")


# Peer information in IDENTIFY and its reply


@dataclass(frozen=True, kw_only=True)
class PeerInfo(JsonBody):
    """Peer information: an nsqd's in IDENTIFY, an nsqlookupd's in its reply."""

    # Sorted, as Go writes a map.
    broadcast_address: str = ""
    hostname: str = ""
    http_port: int = 0
    tcp_port: int = 0
    topology_region: str = ""
    topology_zone: str = ""
    version: str = ""

    @property
    def complete(self) -> bool:
        """Whether all fields are set that an nsqlookupd requires."""
        return bool(self.broadcast_address and self.http_port and self.tcp_port and self.version)


def parse_peer_info(body: bytes) -> PeerInfo:
    """Parse peer information; raises WireError. Missing and null fields stay empty, unknown are ignored."""
    if body.strip() == b"null":
        return PeerInfo()
    try:
        return PeerInfo.decode(body)
    except BadJson as error:
        raise WireError(f"peer information: {error}") from None


def identify_reply(info: PeerInfo) -> bytes:
    """Return the body of nsqlookupd's answer to IDENTIFY, which omits region and zone."""
    fields = asdict(info)
    del fields["topology_region"], fields["topology_zone"]
    return json.dumps(fields, separators=(",", ":")).encode()


# The nsqd's side


def identify(info: PeerInfo) -> bytes:
    return b"IDENTIFY\n" + reply(info.encode())


def register(topic: str, channel: str | None = None) -> bytes:
    return _about("REGISTER", topic, channel)


def unregister(topic: str, channel: str | None = None) -> bytes:
    return _about("UNREGISTER", topic, channel)


def ping() -> bytes:
    return b"PING\n"


def _about(command: str, topic: str, channel: str | None) -> bytes:
    words = [command, check_topic(topic)]
    if channel is not None:
        words.append(check_channel(channel))
    return " ".join(words).encode() + b"\n"


class LookupReplyParser:
    """Cuts nsqlookupd's bytes into the bodies of its replies. The body of an error begins with ``E_``."""

    def __init__(self, max_size: int = MAX_REPLY) -> None:
        self._max_size = max_size
        self._pending = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the complete bodies. Raises FrameError for an impossible size: close the connection then."""
        data = self._pending + data
        replies = []
        at = 0
        while len(data) - at >= 4:
            (size,) = _SIZE.unpack_from(data, at)
            if not 0 <= size <= self._max_size:
                raise FrameError(
                    f"nsqlookupd sent a reply of {size} bytes; at most {self._max_size} are taken"
                )
            if len(data) - at - 4 < size:
                break
            replies.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        self._pending = data[at:]
        return replies


# The nsqlookupd's side


class Command(NamedTuple):
    """The words of a line: ``Command(b"REGISTER", (b"orders", b"archive"))``. A Body follows IDENTIFY."""

    name: bytes
    params: tuple[bytes, ...] = ()


class Body(NamedTuple):
    """The JSON that follows an IDENTIFY line."""

    data: bytes


class Violation(NamedTuple):
    """An invalid command. Send ``reply``, then close the connection."""

    reply: bytes


Event = Command | Body | Violation


class LookupCommandParser:
    """Turns an nsqd's bytes into events. A Violation is the last event."""

    def __init__(self, max_line: int = MAX_LINE, max_body: int = MAX_BODY) -> None:
        self._max_line = max_line
        self._max_body = max_body
        self._pending = b""
        self._next = self._magic
        self._violated = False

    def feed(self, data: bytes) -> list[Event]:
        if self._violated:
            return []
        self._pending += data
        events: list[Event] = []
        at = 0
        while not self._violated:
            event, taken = self._next(at)
            at += taken
            if event is not None:
                events.append(event)
            elif not taken:
                break
        self._pending = self._pending[at:]
        return events

    # Each state parses the pending bytes from ``at`` on, and returns an event, if it is complete, and the
    # number of bytes it took. No event and no bytes: it needs more.

    def _magic(self, at: int) -> tuple[Event | None, int]:
        if len(self._pending) - at < len(MAGIC):
            return None, 0
        if not self._pending.startswith(MAGIC, at):
            return self._violation(b"E_BAD_PROTOCOL")
        self._next = self._line
        return None, len(MAGIC)

    def _line(self, at: int) -> tuple[Event | None, int]:
        end = self._pending.find(b"\n", at)
        if (len(self._pending) if end < 0 else end) - at > self._max_line:
            text = b"E_INVALID command line longer than %d bytes"
            return self._violation(text % self._max_line)
        if end < 0:
            return None, 0
        name, *params = self._pending[at:end].strip().split(b" ")
        if name == b"IDENTIFY":
            self._next = self._body
        return Command(name, tuple(params)), end + 1 - at

    def _body(self, at: int) -> tuple[Event | None, int]:
        if len(self._pending) - at < 4:
            return None, 0
        (size,) = _SIZE.unpack_from(self._pending, at)
        if not 0 <= size <= self._max_body:
            text = b"E_BAD_BODY IDENTIFY body size %d is not between 0 and %d"
            return self._violation(text % (size, self._max_body))
        end = at + 4 + size
        if len(self._pending) < end:
            return None, 0
        self._next = self._line
        return Body(self._pending[at + 4 : end]), 4 + size

    def _violation(self, answer: bytes) -> tuple[Event, int]:
        self._violated = True
        return Violation(answer), 0


def reply(body: bytes) -> bytes:
    """Encode a sized body, as in nsqlookupd's replies and after IDENTIFY."""
    return _SIZE.pack(len(body)) + body
