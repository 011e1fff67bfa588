"""An nsqd in memory that makes a correct handshake, over any layers, and then sends the given bytes."""

from __future__ import annotations

import json
import ssl
import struct
from collections import deque
from collections.abc import Iterable

from nsq.errors import LayerError
from nsq.wire.layers import Deflate, Layer, Snappy, Stack, Tls

LAYERS = {
    "plain": (),
    "tls": ("tls_v1",),
    "snappy": ("snappy",),
    "deflate": ("deflate",),
    "tls and snappy": ("tls_v1", "snappy"),
    "tls and deflate": ("tls_v1", "deflate"),
}
_OK = struct.pack(">ii", 6, 0) + b"OK"


class HostileNsqd:
    """A Transport and its only Stream. ``granted`` is the answer to IDENTIFY, correct or corrupted."""

    peer = "hostile:4150"

    def __init__(
        self, layers: Iterable[str], context: ssl.SSLContext, *, spoil_grant: bytes | None = None
    ) -> None:
        self.read_timeout: float | None = None
        self._upgrades = deque(layers)
        self._context = context
        self._stack = Stack()
        self._tls: Tls | None = None
        self._out: deque[bytes] = deque()
        self._woken = False
        self._greeted = self.subscribed = False
        grant = {"max_rdy_count": 2500, "msg_timeout": 60_000, "max_msg_timeout": 900_000}
        text = json.dumps({**grant, **dict.fromkeys(self._upgrades, True)}).encode()
        self._grant = struct.pack(">ii", 4 + len(text), 0) + text if spoil_grant is None else spoil_grant

    def wrap(self, data: bytes) -> bytes:
        """Return the data as it would be on the wire now."""
        return self._stack.wrap(data)

    def say(self, chunks: Iterable[bytes]) -> None:
        self._out.extend(chunks)

    # Transport and Stream.

    def connect(self, address: str, *, timeout: float) -> HostileNsqd:
        return self

    def read(self, limit: int = 65536) -> bytes:
        if self._woken or not self._out:
            return b""
        chunk = self._out.popleft()
        if len(chunk) > limit:
            self._out.appendleft(chunk[limit:])
        return chunk[:limit]

    def write(self, data: bytes, timeout: float) -> None:
        if self.subscribed:
            return  # answers to messages are ignored
        try:
            self._hear(self._stack.unwrap(data))
        except LayerError:
            self._woken = True  # corrupted data misled the client: let it see the end

    def wake(self) -> None:
        self._woken = True

    def close(self) -> None:
        self._woken = True

    def abandon(self) -> None:
        self._woken = True

    # The handshake.

    def _hear(self, plain: bytes) -> None:
        if self._tls is not None and (self._stack.has_pending or not self._tls.handshake_done):
            self._out.append(self._stack.pending())
        if not self._greeted:
            self._greeted = True
            self._out.append(self._grant)
            self._upgrade()
        elif self._tls is not None and self._tls.handshake_done and self._upgrades:
            self._out.append(self._stack.pending() + self._stack.wrap(_OK))
            self._upgrades.popleft()
            self._tls = None
            self._upgrade()
        elif b"SUB " in plain:
            self._out.append(self._stack.wrap(_OK))
            self.subscribed = True

    def _upgrade(self) -> None:
        if not self._upgrades:
            return
        if self._upgrades[0] == "tls_v1":
            self._tls = Tls(self._context, server_side=True, server_hostname=None)
            self._stack.push(self._tls)
            return
        layer: Layer = Snappy() if self._upgrades.popleft() == "snappy" else Deflate()
        self._stack.push(layer)
        self._out.append(self._stack.wrap(_OK))
