"""What PUB, PUB_TRACE and PUB_EXT carry, and the recorded errors to a bad one."""

from __future__ import annotations

import json
import struct
from typing import Any

from nsq.wire.frames import OK, encode_response

from .channel import Stored
from .state import Partition

MAX_MESSAGE = 1024 * 1024
MAX_UINT64 = 2**64 - 1
_TRACE_ID = struct.Struct(">Q")
_PUBLISHED = struct.Struct(">2sQQQI")
_INTERNAL_ID = struct.Struct(">Q")
_BAD_KEY = b"""cannot parse JSON: cannot parse object: cannot find opening '"" for object key"""


class Refused(Exception):
    """An error frame; the connection stays open unless ``close``."""

    def __init__(self, text: bytes, *, close: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.close = close


def read_message(partition: Partition, verb: bytes, data: bytes) -> tuple[bytes, int, bytes, bool]:
    """Return a published message's body, trace id and ext, and whether its answer is the long one."""
    kind = verb.rpartition(b"PUB")[2]
    if not kind:
        return data, 0, b"", False
    if kind == b"_TRACE":
        return data[8:], _TRACE_ID.unpack_from(data)[0], b"", True
    if not partition.topic.extended:
        text = f"E_EXT_NOT_SUPPORT ext content not supported in topic {partition.topic.name}"
        raise Refused(text.encode(), close=False)
    length = int.from_bytes(data[:2], "big")
    header, body = data[2 : 2 + length], data[2 + length :]
    if not header and verb == b"MPUB_EXT":
        return body, 0, b"", False
    trace_id = _trace_id(header)
    return body, trace_id or 0, b"\4" + data[: 2 + length], trace_id is not None


def _trace_id(header: bytes) -> int | None:
    """Return the trace id in a JSON header, None without one."""
    try:
        fields = json.loads(header)
    except ValueError:
        if not header:
            reason = b'cannot parse JSON: cannot parse empty string; unparsed tail: ""'
        else:
            reason = b'%s; unparsed tail: "%s"' % (_BAD_KEY, header[1:])
        raise Refused(b"E_INVALID_JSON_HEADER fail to parse json header:" + reason, close=False) from None
    if not isinstance(fields, dict):
        raise Refused(b"E_INVALID_JSON_HEADER json header should be an object", close=False)
    text = fields.get("##trace_id")
    if text is None:
        return None
    if not isinstance(text, str):
        raise Refused(b"INVALID_TRACE_ID passin trace id should be string", close=False)
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_UINT64):
        raise Refused(b"INVALID_TRACE_ID invalid trace id", close=False)
    return int(text)


def headers_of(ext: bytes) -> dict[str, Any]:
    """Return the JSON headers of a stored message."""
    headers: dict[str, Any] = json.loads(ext[3:]) if ext[:1] == b"\4" else {}
    return headers


def encode_published(first: Stored, trace_id: int, size: int) -> bytes:
    """Encode the answer that says what was stored where."""
    internal_id = _INTERNAL_ID.unpack_from(first.id)[0]
    return encode_response(_PUBLISHED.pack(OK, internal_id, trace_id, first.offset, size))


def check_size(size: int, kind: bytes, text: bytes, *, batch: bool = False) -> None:
    code = b"E_BAD_MESSAGE" if batch else b"E_BAD_BODY"
    if size <= 0:
        raise Refused(b"%s %s" % (code, text))
    if size > MAX_MESSAGE:
        prefix = b"MPUB " if batch else b""
        raise Refused(b"E_BAD_MESSAGE %smessage too big %d > %d" % (prefix, size, MAX_MESSAGE))
    if size <= 8 and kind == b"_TRACE":
        raise Refused(b"E_BAD_BODY invalid body size %d with trace id enabled" % size)
    if size <= 2 and kind == b"_EXT":
        raise Refused(b"E_BAD_BODY invalid body size %d with ext content enabled" % size)
