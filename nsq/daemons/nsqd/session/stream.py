"""Turns a connection's bytes into commands and frames into bytes: magic, layers, parser, output buffer; also
the errors that refuse a command.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from nsq.errors import LayerError
from nsq.wire.commands import MAGIC_V2, Command, CommandParser, Limits
from nsq.wire.layers import Layer, Stack, Tls

#: Buffered output is written at this size at the latest: enough for full packets, little memory.
_WRITE_AT = 64 * 1024


class Link(Protocol):
    """The connection under a stream."""

    @property
    def full(self) -> bool:
        """Whether the client reads more slowly than nsqd writes: it gets no further messages."""

    @property
    def congested(self) -> bool:
        """Whether it does not read its replies either: its commands wait."""

    def write(self, data: bytes) -> None: ...

    def pause_reading(self) -> None:
        """Deliver no input until ``resume_reading``."""

    def resume_reading(self) -> None: ...

    def finish(self) -> None:
        """Send what was written, then close."""


class BadMagic(Exception):
    """The client's first bytes are not the V2 magic."""


class Refused(Exception):
    """The command is refused: the client gets ``code text``, then the connection is closed."""

    fatal = True

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code} {text}")

    def __bytes__(self) -> bytes:
        return str(self).encode("utf-8", "surrogateescape")


class Failed(Refused):
    """The command failed: the client gets ``code text``; the connection stays open."""

    fatal = False


def readable(raw: bytes) -> str:
    """Decode to text that turns back into the same bytes."""
    return raw.decode("utf-8", "surrogateescape")


class _Held:
    """Held frames, and the ticket of the sync that releases them; None until ``seal``."""

    def __init__(self) -> None:
        self.ticket: int | None = None
        self.frames: list[bytes] = []


class Stream:
    """Yields commands in batches, so that a command can change how the bytes after it are read.

    ``read`` and ``write`` raise LayerError for bytes that a layer cannot take; ``read`` raises BadMagic.
    """

    def __init__(self, link: Link, limits: Limits) -> None:
        self._link = link
        self._limits = limits
        self.parser = CommandParser(limits)
        self._layers = Stack()
        self.layered = False
        self._direct = False  # whether the magic was received and there is no layer
        self._magic: bytes | None = b""
        self._arrived: deque[bytes] = deque()
        self._plain = b""
        self._handshake: tuple[Tls, Callable[[Tls], None]] | None = None
        self._paused = False
        self._finished = False
        self._held: deque[_Held] = deque()
        self._out: list[bytes] = []
        self._out_size = 0

    # Bytes in, commands out.

    def read(self, data: bytes) -> Iterable[list[Command]]:
        """Return the commands that ``data`` completes. While paused or congested, only keep the data.

        One call decompresses at most one piece of bounded size; if more is left, ``readable`` stays true.
        """
        parser = self.parser
        commands: list[Command] = []
        waits = parser.stopped or self._arrived or self._plain or self._paused or self._finished
        if self._direct and not waits and not self._link.congested:
            # The usual case: plain bytes, and all earlier ones have been executed.
            if data:
                commands = parser.feed(data)
            if not parser.stopped:
                return (commands,) if commands else ()
        elif data:
            self._arrived.append(data)
        return self._batches(commands)

    def _batches(self, commands: list[Command]) -> Iterator[list[Command]]:
        if commands:
            yield commands
        while self.readable:
            if commands := self._next_batch():
                yield commands
            if self._layers.more and not self.parser.stopped:
                return

    @property
    def readable(self) -> bool:
        """Whether ``read(b"")`` would return more commands."""
        # While the client does not read its replies, executing more commands would only buffer more replies.
        if self._paused or self._finished or self._link.congested:
            return False
        return bool(self._plain or self._arrived or self.parser.stopped or self._layers.more)

    def _next_batch(self) -> list[Command]:
        if self.parser.stopped:
            return self.parser.feed(b"")
        if not self._plain:
            self._plain = self._layers.unwrap(
                b"" if self._layers.more or not self._arrived else self._arrived.popleft()
            )
            if self._handshake is not None and self._handshake[0].handshake_done:
                self._finish_handshake()
        plain, self._plain = self._plain, b""
        if plain and self._magic is not None:
            plain = self._check_magic(plain)
        return self.parser.feed(plain) if plain else []

    def _check_magic(self, plain: bytes) -> bytes:
        """Check the first four bytes as far as they have arrived; return the bytes after them."""
        magic = (self._magic or b"") + plain
        if not MAGIC_V2.startswith(magic[:4]):
            raise BadMagic(magic[:4])
        self._magic = None if len(magic) >= 4 else magic
        self._direct = self._magic is None and not self.layered
        return magic[4:]

    @property
    def magic_received(self) -> bool:
        """Whether the client has sent the V2 magic."""
        return self._magic is None

    def drop(self) -> None:
        """Free all buffers after the connection has ended, without waiting for a garbage collection."""
        self._finished = True
        self._forget_input()
        self._layers = Stack()
        self.layered = self._direct = False
        self._handshake = None
        self._held.clear()
        self._out.clear()

    def _forget_input(self) -> None:
        self.parser = CommandParser(self._limits)
        self._plain = b""
        self._arrived.clear()

    def pause(self) -> None:
        """Yield no commands until ``resume``."""
        if not self._paused:
            self._paused = True
            self._link.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._link.resume_reading()

    # Layers.

    @property
    def handshaking(self) -> bool:
        """Whether output waits for a TLS handshake to finish."""
        return self._handshake is not None

    def push(self, layer: Layer) -> None:
        """Read and write through the layer from here on.

        Bytes that arrived right after the command that requested the layer belong to the layer.
        """
        self.flush()
        rest = self.parser.take_rest() + self._plain
        self._plain = layer.unwrap(rest) if rest else b""
        self._layers.push(layer)
        self.layered, self._direct = True, False

    def push_tls(self, layer: Tls, then: Callable[[Tls], None]) -> None:
        """Push the layer; call ``then`` after the handshake, before any bytes after it are read."""
        self.flush()
        self._handshake = (layer, then)
        self.push(layer)
        if layer.handshake_done:
            self._finish_handshake()

    def _finish_handshake(self) -> None:
        if self._handshake is not None:
            (layer, then), self._handshake = self._handshake, None
            then(layer)

    # Bytes out.

    def write(self, frame: bytes) -> None:
        if self._held:
            self._held[-1].frames.append(frame)
            return
        self._out.append(frame)
        self._out_size += len(frame)
        if self._out_size >= _WRITE_AT:
            self.flush()

    def write_at_once(self, frame: bytes) -> None:
        """Send a frame that is not a reply (a heartbeat), before any held frames. Raises LayerError."""
        self._out.append(frame)
        self.flush()

    # A reply may have to wait for an fsync: it and all later frames are held, in order, until then.

    def hold(self) -> None:
        """Hold all frames written from here on; ``seal`` names the sync and ``release`` sends them."""
        if not self._held or self._held[-1].ticket is not None:
            self._held.append(_Held())

    @property
    def holding(self) -> bool:
        return bool(self._held)

    @property
    def unsealed(self) -> bool:
        return bool(self._held) and self._held[-1].ticket is None

    def seal(self, ticket: int) -> None:
        """Send the held frames when this ticket, or a later one, is released."""
        self._held[-1].ticket = ticket

    def drop_held(self) -> None:
        self._held.clear()

    def release(self, ticket: int) -> None:
        """Send the frames held for this ticket or an earlier one, if any. Raises LayerError."""
        if not self._held:
            return
        while self._held and self._held[0].ticket is not None and self._held[0].ticket <= ticket:
            self._out += self._held.popleft().frames
        if self._finished and not self._held:
            self.finish()
        else:
            self.flush()

    def flush(self) -> None:
        """Send the buffered output."""
        if self.layered and self._layers.has_pending:
            self._link.write(self._layers.pending())
        if self._out and self._handshake is None:
            data = b"".join(self._out)
            self._out.clear()
            self._out_size = 0
            self._link.write(self._layers.wrap(data) if self.layered else data)

    def finish(self) -> None:
        """Stop reading, send all output and the layers' closing bytes, and close."""
        self._finished = True
        self._forget_input()
        if self._held:
            return  # ``release`` calls this again after the last held frame
        # A broken layer raises LayerError; the connection must still be closed.
        with suppress(LayerError):
            self.flush()
        with suppress(LayerError):
            if closing_bytes := self._layers.close():
                self._link.write(closing_bytes)
        self._link.finish()
