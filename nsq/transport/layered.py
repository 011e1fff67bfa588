"""A stream under layers: TLS, deflate, snappy. Without a layer it is the stream inside and one call more.

The contract of ``nsq.wire.layers`` decides who may do what. The reader calls ``read`` and nothing else. The
one current writer calls ``write``, ``flush_pending`` and ``close`` with a farewell: wrapping and sending
belong together, or records overtake each other. ``push`` and ``handshake`` come before there are two
threads, or while both stand still. ``wake``, ``abandon`` and a plain ``close`` touch no layer and come from
anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from nsq.errors import ConnectionFailed, ConnectionLost, LayerError, Unanswered
from nsq.wire.layers import Layer, Stack, Tls

from .base import CHUNK, Stream, WrappedStream


class LayeredStream(WrappedStream):
    """``stack`` is empty at first and grows by ``push``; no other code may unwrap or wrap with it."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.stack = Stack()
        self.on_pending: Callable[[], None] | None = None
        """Called by the reader when a layer wants something sent, before it blocks again. It is to wake the
        writer for ``flush_pending``, and must not write itself."""
        self.truncated = False
        """Whether the peer's end came without TLS saying goodbye: an attacker may have cut the rest off."""
        self._plain = b""  # unwrapped before the first read
        self._over = False  # there is nothing more to read
        self._closed = False
        self._intact = True  # whatever was wrapped has been sent, whole

    def read(self, limit: int = CHUNK) -> bytes:
        """Read as a Stream does. ``limit`` bounds what the inner stream gives; it may unwrap to more."""
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
        """Take one step and return its bytes; none when a unit of some layer is incomplete, or at the end."""
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

    def write(self, data: bytes, timeout: float) -> None:
        """Wraps and sends ``data``, behind what the layers had pending themselves."""
        if self.stack.layers:
            self._send(self.stack.wrap(data), timeout)
        else:
            self.stream.write(data, timeout)

    @property
    def has_pending(self) -> bool:
        """Whether a layer wants something sent of its own."""
        return self.stack.has_pending

    def flush_pending(self, timeout: float) -> None:
        """Sends what the layers want sent of their own; nothing when there is nothing."""
        data = self.stack.pending()
        if data:
            self._send(data, timeout)

    def _send(self, data: bytes, timeout: float) -> None:
        self._intact = False  # until it is through: half a record can never be completed
        self.stream.write(data, timeout)
        self._intact = True

    def push(self, layer: Layer, received: bytes = b"") -> None:
        """Puts a layer on the plain side.

        ``received`` is what has come out of this stream behind the answer that announced the layer: it
        belongs to the layer already, and the next ``read`` begins with what it unwraps to.
        """
        if received:
            self._plain += layer.unwrap(received)  # what it withholds, reading asks it for
        self.stack.push(layer)

    def handshake(self, timeout: float) -> None:
        """Carries the TLS handshake of the layer pushed last; the calling thread is reader and writer.

        LayerError when it comes to nothing (the peer has been told why, if it still listens), Unanswered when
        the time is up.
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
                # A server that is done may speak at once, in the same chunk.
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
        """Ends the connection. With ``farewell`` (seconds) the layers may say goodbye first.

        Only the current writer may ask for a farewell. It is not sent behind a write that failed half-way,
        and a peer that does not take it in time goes without.
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
