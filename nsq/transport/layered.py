"""A stream with layers: TLS, deflate, snappy. Without layers it passes calls to the inner stream.

The contract of ``nsq.wire.layers`` assigns the calls to threads. The reader calls ``read`` only. The one
current writer calls ``write``, ``flush_pending`` and ``close`` with a farewell: if wrapping and sending were
separate, records could overtake each other. ``push`` and ``handshake`` are called before there are two
threads, or while both are idle. ``wake``, ``abandon`` and a plain ``close`` touch no layer; any thread may
call them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from nsq.errors import ConnectionFailed, ConnectionLost, LayerError, Unanswered
from nsq.wire.layers import Layer, Stack, Tls

from .base import CHUNK, Stream, WrappedStream


class LayeredStream(WrappedStream):
    """A stream with a ``stack`` of layers, empty at first, to which ``push`` adds. No other code may unwrap
    or wrap with the stack.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.stack = Stack()
        self.on_pending: Callable[[], None] | None = None
        """The reader calls it when a layer has bytes to send, before it blocks again. It must wake the writer
        for ``flush_pending``, and must not write itself."""
        self.truncated = False
        """Whether the stream ended without TLS's closing message: an attacker may have cut the rest off."""
        self._plain = b""  # unwrapped before the first read
        self._over = False  # nothing more can be read
        self._closed = False
        self._intact = True  # everything wrapped so far has been sent completely

    def read(self, limit: int = CHUNK) -> bytes:
        """Read as a Stream does. ``limit`` bounds the inner stream's bytes; they may unwrap to more."""
        stack = self.stack
        if not stack.layers:
            return self.stream.read(limit)
        if self._plain:
            plain, self._plain = self._plain, b""
            return b"" if self._over else plain
        while not self._over:
            plain = self._more(limit)
            if stack.has_pending and self.on_pending is not None:
                self.on_pending()
            if plain:
                return plain
        return b""

    def _more(self, limit: int) -> bytes:
        """Read once and return the unwrapped bytes; none when a layer's unit is incomplete, or at the end."""
        if self.stack.more:
            return self.stack.unwrap(b"")
        if not self.stack.peer_closed:
            wire = self.stream.read(limit)
            if wire:
                return self.stack.unwrap(wire)
            tls = [layer for layer in self.stack.layers if isinstance(layer, Tls)]
            self.truncated = not self._over and not all(layer.peer_closed for layer in tls)
        self._over = True
        return b""

    @property
    def readable(self) -> Callable[[], bool] | None:
        inner = super().readable
        if inner is None or not self.stack.layers:
            return inner
        return lambda: bool(self._plain or self._over or self.stack.more or inner())

    def write(self, data: bytes, timeout: float) -> None:
        """Wrap and send ``data``, after the layers' own pending bytes."""
        if self.stack.layers:
            self._send(self.stack.wrap(data), timeout)
        else:
            self.stream.write(data, timeout)

    @property
    def has_pending(self) -> bool:
        """Whether a layer has bytes of its own to send."""
        return self.stack.has_pending

    def flush_pending(self, timeout: float) -> None:
        """Send the layers' own pending bytes, if there are any."""
        data = self.stack.pending()
        if data:
            self._send(data, timeout)

    def _send(self, data: bytes, timeout: float) -> None:
        self._intact = False  # until all is sent: half a record can never be completed
        self.stream.write(data, timeout)
        self._intact = True

    def push(self, layer: Layer, received: bytes = b"") -> None:
        """Add a layer on the plain side.

        ``received`` are bytes read from this stream after the answer that announced the layer: they belong to
        the layer already, and the next ``read`` begins with what they unwrap to.
        """
        if received:
            self._plain += layer.unwrap(received)  # ``read`` fetches what the layer holds back
        self.stack.push(layer)

    def handshake(self, timeout: float) -> None:
        """Do the TLS handshake of the layer pushed last; the calling thread is reader and writer.

        Raises LayerError when it fails (after telling the peer why, if it still listens), Unanswered when the
        time is up.
        """
        deadline = time.monotonic() + timeout
        before = self.read_timeout
        try:
            while not all(layer.handshake_done for layer in self.stack.layers if isinstance(layer, Tls)):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Unanswered(f"{self.peer}: the TLS handshake was not done within {timeout:.3g} s")
                self.flush_pending(left)
                self.read_timeout = left
                wire = self.stream.read()
                if not wire:
                    raise ConnectionLost(f"{self.peer}: the connection ended during the TLS handshake")
                # When the server is done, it may send data at once, in the same chunk.
                self._plain += self.stack.unwrap(wire)
            self.flush_pending(max(deadline - time.monotonic(), 0.0))
        except LayerError:
            with suppress(ConnectionFailed):
                self.flush_pending(max(deadline - time.monotonic(), 0.0))
            raise
        finally:
            self.read_timeout = before

    def wake(self) -> None:
        self._over = True
        super().wake()

    def close(self, *, farewell: float | None = None) -> None:
        """End the connection. With ``farewell`` (seconds) the layers may say goodbye first.

        Only the current writer may ask for a farewell. None is sent after a write that failed half-way, and a
        peer that does not take it in time gets none.
        """
        if farewell is not None and self._intact and not self._closed:
            with suppress(ConnectionFailed, LayerError):
                data = self.stack.close()
                if data:
                    self.stream.write(data, farewell)
        self._over = self._closed = True
        self.stream.close()

    def abandon(self) -> None:
        self._over = self._closed = True
        self.stream.abandon()
