"""Between the bytes of a connection and the commands of a client: magic, layers, parser, output buffer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

from nsq.errors import LayerError
from nsq.wire.commands import MAGIC_V2, BadCommand, Command, CommandParser, Limits
from nsq.wire.layers import Layer, Stack, Tls

#: Output collected before it is written even though more is coming: enough for whole packets, little to hold.
_WRITE_AT = 64 * 1024


class Link(Protocol):
    """The connection under a stream."""

    @property
    def congested(self) -> bool:
        """Whether the client takes its bytes more slowly than they are written."""

    def write(self, data: bytes) -> None: ...

    def pause_reading(self) -> None:
        """Let no more input come until ``resume_reading``."""

    def resume_reading(self) -> None: ...

    def finish(self) -> None:
        """Send what was written, then close."""


class BadMagic(Exception):
    """The client does not begin as a V2 client does."""


class Stream:
    """Yields commands batch by batch, so that a command can change how what follows it is read.

    ``read`` and ``write`` raise LayerError for bytes that a layer cannot take; ``read`` raises BadMagic.
    """

    def __init__(self, link: Link, limits: Limits) -> None:
        self._link = link
        self._parser = CommandParser(limits)
        self._layers = Stack()
        self._magic: bytes | None = b""
        self._arrived: deque[bytes] = deque()
        self._plain = b""
        self._handshake: tuple[Tls, Callable[[Tls], None]] | None = None
        self._paused = False
        self._finished = False
        self._out: list[bytes] = []
        self._out_size = 0

    # Bytes in, commands out.

    def read(self, data: bytes) -> Iterator[list[Command]]:
        """The commands that ``data`` completes. While paused it only keeps the data."""
        if data:
            self._arrived.append(data)
        while self._readable:
            if commands := self._next_batch():
                yield commands

    @property
    def _readable(self) -> bool:
        if self._paused or self._finished:
            return False
        return bool(self._plain or self._arrived or self._parser.stopped or self._layers.more)

    def _next_batch(self) -> list[Command]:
        if self._parser.stopped:
            return self._parser.feed(b"")
        if not self._plain:
            self._plain = self._layers.unwrap(
                b"" if self._layers.more or not self._arrived else self._arrived.popleft()
            )
            if self._handshake is not None and self._handshake[0].handshake_done:
                self._finish_handshake()
        plain, self._plain = self._plain, b""
        if plain and self._magic is not None:
            plain = self._check_magic(plain)
        return self._parser.feed(plain) if plain else []

    def _check_magic(self, plain: bytes) -> bytes:
        """Compare what has come of the first four bytes; return what follows them."""
        magic = (self._magic or b"") + plain
        if not MAGIC_V2.startswith(magic[:4]):
            raise BadMagic(magic[:4])
        self._magic = None if len(magic) >= 4 else magic
        return magic[4:]

    @property
    def error(self) -> BadCommand | None:
        """What was malformed behind the last command."""
        return self._parser.error

    def pause(self) -> None:
        """Yield nothing more until ``resume``."""
        self._paused = True
        self._link.pause_reading()

    def resume(self) -> None:
        self._paused = False
        self._link.resume_reading()

    # Layers.

    @property
    def layered(self) -> bool:
        return bool(self._layers.layers)

    def push(self, layer: Layer) -> None:
        """Read and write through the layer from here on.

        Bytes that came in one piece with the command that asked for it are the layer's, never plain commands.
        """
        self.flush()
        rest = self._parser.take_rest() + self._plain
        self._plain = layer.unwrap(rest) if rest else b""
        self._layers.push(layer)

    def push_tls(self, layer: Tls, then: Callable[[Tls], None]) -> None:
        """Push; call ``then`` when the handshake is through, before what came behind it is read."""
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

    @property
    def congested(self) -> bool:
        return self._link.congested

    def write(self, frame: bytes) -> None:
        self._out.append(frame)
        self._out_size += len(frame)
        if self._out_size >= _WRITE_AT:
            self.flush()

    def write_all(self, frames: list[bytes]) -> None:
        self._out += frames
        self._out_size += sum(map(len, frames))
        if self._out_size >= _WRITE_AT:
            self.flush()

    def flush(self) -> None:
        """Send what has been collected: nothing waits once there is nothing more to add."""
        if self._layers.has_pending:
            self._link.write(self._layers.pending())
        # What a heartbeat adds during a handshake waits for its end.
        if self._out and self._handshake is None:
            data = b"".join(self._out)
            self._out.clear()
            self._out_size = 0
            self._link.write(self._layers.wrap(data))

    def finish(self) -> None:
        """Send everything, the layers' farewell last, and close. Nothing is read any more."""
        self._finished = True
        # A layer that is broken gives no farewell; the end itself must still come.
        with suppress(LayerError):
            self.flush()
        with suppress(LayerError):
            if farewell := self._layers.close():
                self._link.write(farewell)
        self._link.finish()
