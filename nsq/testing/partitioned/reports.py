"""What a cluster says about its messages and channels. Pickled when it runs in another process."""

from __future__ import annotations

from typing import Any, NamedTuple


class StoredMessage(NamedTuple):
    """A message in the log of a partition."""

    body: bytes
    internal_id: int
    trace_id: int
    offset: int
    size: int
    headers: dict[str, Any]
    timestamp: int  # nanoseconds since the epoch


class ChannelState(NamedTuple):
    """The state of a channel of one partition."""

    depth: int
    in_flight: int
    finished: int
    subscribers: int
