"""What a disk queue's record holds of a message: timestamp, attempts, id and body. Pure.

Eight bytes of nanoseconds and two of attempts, big-endian, then the 16 characters of the id; the body is the
rest. It is the payload of a message frame on the wire, so a record can be sent on as it is.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from nsq.errors import InvalidMessage

_HEAD = struct.Struct(">qH16s")

OVERHEAD = _HEAD.size  # 26: the record of an empty body


class Record(NamedTuple):
    timestamp: int  # nanoseconds since 1970
    attempts: int
    id: bytes
    body: bytes


def encode(timestamp: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    if len(message_id) != 16:
        raise InvalidMessage(f"message id {message_id!r} has {len(message_id)} bytes; it takes 16")
    return _HEAD.pack(timestamp, attempts, message_id) + body


def decode(record: bytes) -> Record:
    if len(record) < OVERHEAD:
        raise InvalidMessage(f"a record of {len(record)} bytes is no message: it takes at least {OVERHEAD}")
    timestamp, attempts, message_id = _HEAD.unpack_from(record)
    return Record(timestamp, attempts, message_id, record[OVERHEAD:])
