"""Messages of a partitioned NSQ, and how they are read from what nsqd sends.

A message's id holds nsqd's own number of the message, with the partition in its highest bits, and the
publisher's trace id. On an extended topic headers come before the body, in a detailed subscription the
message's place in its partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nsq.message import Message, MessageDelegate
from nsq.partitioned.wire import Header, parse_header, partition_of, payload, split_id


class PartitionedMessage(Message):
    """A message of a partition."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Message {self.internal_id} of {self.topic}/{self.partition}, {self._shown()}>"

    @property
    def id_text(self) -> str:
        return self.id.hex()

    @property
    def partition(self) -> int:
        return partition_of(self.internal_id)

    @property
    def internal_id(self) -> int:
        return split_id(self.id)[0]

    @property
    def trace_id(self) -> int:
        return split_id(self.id)[1]


class DetailedMessage(PartitionedMessage):
    """A message with its headers, its place in the partition, or both."""

    __slots__ = ("_header", "_header_kind", "offset", "size")

    offset: int | None
    size: int | None
    _header_kind: int
    _header: bytes

    def _parsed(self) -> Header | None:
        return parse_header(self._header_kind, self._header)

    @property
    def headers(self) -> Mapping[str, Any] | None:
        header = self._parsed()
        return None if header is None else header.headers

    @property
    def tag(self) -> str | None:
        header = self._parsed()
        return None if header is None else header.tag


def read_detailed(
    extended: bool,
    detailed: bool,
    delegate: MessageDelegate,
    received_at: float,
    expires_at: float,
    timestamp: int,
    attempts: int,
    message_id: bytes,
    data: bytes,
) -> DetailedMessage:
    """Make a message from what follows its id. The arguments after the first two are those of ``Message``."""
    parts = payload(data, extended=extended, detailed=detailed)
    message = DetailedMessage(delegate, received_at, expires_at, timestamp, attempts, message_id, parts.body)
    message._header_kind, message._header = parts.header_kind, parts.header
    message.offset, message.size = parts.offset, parts.size
    return message
