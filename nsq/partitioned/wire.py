"""The protocol of partitioned NSQ, where it differs from the original: commands, replies, message payloads.

    PUB topic partition          PUB_TRACE, PUB_EXT and their MPUBs: a prefix before each message
    SUB topic channel partition  SUB_ADVANCED and SUB_ORDERED: a detail before each message's body
    "OK" or 30 bytes             the answer to a publish; the long one says where the message is stored

Encoders trust their arguments; the functions named ``checked_…`` take a user's. Pure bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from nsq.errors import FrameError, InvalidMessage
from nsq.wire.frames import OK, Published

#: Keys of JSON headers that begin like this are the server's.
RESERVED = "##"
TRACE_KEY, TAG_KEY = "##trace_id", "##client_dispatch_tag"
#: The server keeps the partition in ten bits of a message's internal id.
MAX_PARTITIONS = 1024
MAX_TRACE_ID = 2**64 - 1
MAX_TAG = 100

#: Kinds of an extended message's header: none, a tag as older servers had it, a JSON object.
NO_HEADER, TAG_HEADER, JSON_HEADER = 0, 2, 4

_SIZE = struct.Struct(">i")
_TRACE = struct.Struct(">Q")
_HEADER_SIZE = struct.Struct(">H")
_PUBLISHED = struct.Struct(">2sQQQI")
_DETAIL = struct.Struct(">QI")
_ID = struct.Struct(">QQ")


class Meta(NamedTuple):
    """A topic's settings, as nsqlookupd tells them."""

    partition_num: int
    replica: int = 1
    ordered: bool = False
    extended: bool = False


# Publishing.


def traced(trace_id: int, body: bytes) -> bytes:
    """Return the message as PUB_TRACE and MPUB_TRACE carry it."""
    return _TRACE.pack(trace_id) + body


def extended(header: bytes, body: bytes) -> bytes:
    """Return the message as PUB_EXT and MPUB_EXT carry it. ``header`` is a JSON object."""
    return b"".join((_HEADER_SIZE.pack(len(header)), header, body))


def sized(verb: str, topic: str, partition: int, data: bytes) -> bytes:
    """Return a command of the publish family: its line, and its data with their size."""
    return b"".join((f"{verb} {topic} {partition}\n".encode(), _SIZE.pack(len(data)), data))


def published(data: bytes) -> Published | None:
    """Parse the answer of 30 bytes to a publish; None for anything else."""
    if len(data) != _PUBLISHED.size or not data.startswith(OK):
        return None
    _, internal_id, trace_id, offset, size = _PUBLISHED.unpack(data)
    return Published(internal_id, trace_id, offset, size)


# A user's arguments.


def checked_trace(trace_id: object) -> int:
    if isinstance(trace_id, bool) or not isinstance(trace_id, int) or not 0 <= trace_id <= MAX_TRACE_ID:
        raise InvalidMessage(f"trace is {trace_id!r}, must be an int from 0 to 2**64 - 1")
    return int(trace_id)


def checked_partition(partition: object) -> int:
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < MAX_PARTITIONS:
        raise InvalidMessage(f"partition is {partition!r}, must be an int from 0 to {MAX_PARTITIONS - 1}")
    return int(partition)


def checked_tag(tag: object) -> str:
    if not isinstance(tag, str) or not 0 < len(tag.encode()) <= MAX_TAG:
        raise InvalidMessage(f"tag is {tag!r:.200}, must be text of 1 to {MAX_TAG} bytes")
    return tag


def checked_header(headers: object, trace_id: int | None = None, tag: str | None = None) -> bytes:
    """Return a user's headers, and the trace id and tag, as the JSON object of an extended message."""
    if headers is None:
        headers = {}
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers is {headers!r:.200}, must be a mapping from names to values")
    entries: dict[str, Any] = {}
    for name, value in headers.items():
        if not isinstance(name, str):
            raise InvalidMessage(f"headers has the key {name!r}, must have text as keys")
        if name.startswith(RESERVED):
            raise InvalidMessage(
                f"headers has the key {name!r}: keys that begin with {RESERVED} are reserved"
            )
        entries[name] = value
    if trace_id is not None:
        entries[TRACE_KEY] = str(trace_id)  # the server refuses a number
    if tag is not None:
        entries[TAG_KEY] = tag
    try:
        header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"headers cannot be written as JSON: {error}") from None
    if len(header) > 0xFFFF:
        raise InvalidMessage(f"headers take {len(header)} bytes as JSON, must take at most {0xFFFF}")
    return header


# Subscribing.


def sub(topic: str, channel: str, partition: int) -> bytes:
    return f"SUB {topic} {channel} {partition}\n".encode()


def sub_advanced(topic: str, channel: str, partition: int, start: str = "") -> bytes:
    """``start`` is ``timestamp:SECONDS``, ``virtual_queue:BYTES``, ``msgcount:N`` or ``special:-1``, the end.
    With it the server ignores the partition, and takes the node's first one of the topic.
    """
    return f"SUB_ADVANCED {topic} {channel} {partition}{' ' if start else ''}{start}\n".encode()


def sub_ordered(topic: str, channel: str, partition: int) -> bytes:
    return f"SUB_ORDERED {topic} {channel} {partition}\n".encode()


# Messages.


class Payload(NamedTuple):
    """What follows a message's id: the header of an extended topic, the detail of an ordered or advanced
    subscription, the body.
    """

    header_kind: int
    header: bytes
    offset: int | None
    size: int | None
    body: bytes


def payload(data: bytes, *, extended: bool, detailed: bool) -> Payload:
    """Split what follows a message's id. Raises FrameError if the data end too early."""
    kind, header, start = NO_HEADER, b"", 0
    try:
        if extended:
            kind, start = data[0], 1
            if kind != NO_HEADER:
                (length,) = _HEADER_SIZE.unpack_from(data, 1)
                start = 3 + length
                header = data[3:start]
                if len(header) != length:
                    raise IndexError
        offset, size = _DETAIL.unpack_from(data, start) if detailed else (None, None)
    except (IndexError, struct.error):
        raise FrameError(
            f"a message of {len(data)} bytes after its id, too short for its header and detail"
        ) from None
    return Payload(kind, header, offset, size, data[start + 12 if detailed else start :])


def split_id(message_id: bytes) -> tuple[int, int]:
    """Return the internal id and the trace id in the 16 bytes of a message's id."""
    internal_id, trace_id = _ID.unpack(message_id)
    return internal_id, trace_id


def partition_of(internal_id: int) -> int:
    return internal_id >> 50


class Header(NamedTuple):
    """The header of a message on an extended topic: a user's entries, and the reserved ones by name."""

    headers: dict[str, Any]
    tag: str | None
    trace_id: int | None


def parse_header(kind: int, data: bytes) -> Header | None:
    """Return the header of an extended message; None if it has none, or one that cannot be read."""
    if kind == TAG_HEADER:
        return Header({}, data.decode("utf-8", "replace"), None)
    if kind != JSON_HEADER:
        return None
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entries, dict):
        return None
    tag, trace = entries.pop(TAG_KEY, None), entries.pop(TRACE_KEY, None)
    has_trace = isinstance(trace, str) and trace.isascii() and trace.isdigit()
    return Header(entries, tag if isinstance(tag, str) else None, int(trace) if has_trace else None)
