"""Between the bytes of a connection and the commands of a client: magic, layers, parser, output buffer, and
how a command is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from nsq.errors import LayerError
from nsq.wire.commands import MAGIC_V2, Command, CommandParser, Limits
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


class Refused(Exception):
    """Answered with ``code text``; the connection is closed behind it."""

    fatal = True

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code} {text}")

    def __bytes__(self) -> bytes:
        return str(self).encode("utf-8", "surrogateescape")


class Failed(Refused):
    """The command failed; the client may go on."""

    fatal = False


def readable(raw: bytes) -> str:
    """Decode to text that turns back into the same bytes."""
    return raw.decode("utf-8", "surrogateescape")


class _Held:
    """Frames that wait, and what for: the ticket is None until that is known."""

    def __init__(self) -> None:
        self.ticket: int | None = None
        self.frames: list[bytes] = []


class Stream:
    """Yields commands batch by batch, so that a command can change how what follows it is read.

    ``read`` and ``write`` raise LayerError for bytes that a layer cannot take; ``read`` raises BadMagic.
    """

    def __init__(self, link: Link, limits: Limits) -> None:
        self._link = link
        self._limits = limits
        self.parser = CommandParser(limits)
        self._layers = Stack()
        self.layered = False
        self._direct = False  # the magic has come, and there is no layer
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
        """The commands that ``data`` completes. While paused or congested it only keeps the data.

        What layers make of it comes in pieces of bounded size, one per call: ``readable`` then is still true.
        """
        parser = self.parser
        commands: list[Command] = []
        waits = parser.stopped or self._arrived or self._plain or self._paused or self._finished
        if self._direct and not waits and not self._link.congested:
            # As nearly always: what comes is plain, and all before it has been executed.
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
        """Whether ``read(b"")`` would go on."""
        # While the client does not take its answers, executing more of what it sent would only pile up more.
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
        """Compare what has come of the first four bytes; return what follows them."""
        magic = (self._magic or b"") + plain
        if not MAGIC_V2.startswith(magic[:4]):
            raise BadMagic(magic[:4])
        self._magic = None if len(magic) >= 4 else magic
        self._direct = self._magic is None and not self.layered
        return magic[4:]

    @property
    def greeted(self) -> bool:
        """Whether the client has begun as a V2 client does."""
        return self._magic is None

    def drop(self) -> None:
        """The connection is gone: let go of everything that takes memory, as the collector may take long."""
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
        """Yield nothing more until ``resume``."""
        if not self._paused:
            self._paused = True
            self._link.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._link.resume_reading()

    # Layers.

    @property
    def shaking_hands(self) -> bool:
        """Whether nothing can be written until a TLS handshake is through."""
        return self._handshake is not None

    def push(self, layer: Layer) -> None:
        """Read and write through the layer from here on.

        Bytes that came in one piece with the command that asked for it are the layer's, never plain commands.
        """
        self.flush()
        rest = self.parser.take_rest() + self._plain
        self._plain = layer.unwrap(rest) if rest else b""
        self._layers.push(layer)
        self.layered, self._direct = True, False

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

    def write(self, frame: bytes) -> None:
        if self._held:
            self._held[-1].frames.append(frame)
            return
        self._out.append(frame)
        self._out_size += len(frame)
        if self._out_size >= _WRITE_AT:
            self.flush()

    def write_all(self, frames: list[bytes]) -> None:
        if self._held:
            self._held[-1].frames += frames
            return
        self._out += frames
        self._out_size += sum(map(len, frames))
        if self._out_size >= _WRITE_AT:
            self.flush()

    def write_at_once(self, frame: bytes) -> None:
        """Past what is held, for a frame that answers nothing. Raises LayerError."""
        self._out.append(frame)
        self.flush()

    # An answer can depend on what is not done yet: it and all behind it is held, in order, until then.

    def hold(self) -> None:
        """Hold what is written from here on, until it is sealed and released."""
        if not self._held or self._held[-1].ticket is not None:
            self._held.append(_Held())

    @property
    def holding(self) -> bool:
        return bool(self._held)

    @property
    def unsealed(self) -> bool:
        return bool(self._held) and self._held[-1].ticket is None

    def seal(self, ticket: int) -> None:
        """``release`` of this ticket, or a later one, is what the held frames wait for."""
        self._held[-1].ticket = ticket

    def drop_held(self) -> None:
        self._held.clear()

    def release(self, ticket: int) -> None:
        """Raises LayerError. With nothing held it does nothing: one sync may answer several waits."""
        if not self._held:
            return
        while self._held and self._held[0].ticket is not None and self._held[0].ticket <= ticket:
            self._out += self._held.popleft().frames
        if self._finished and not self._held:
            self.finish()
        else:
            self.flush()

    def flush(self) -> None:
        """Send what has been collected: nothing waits once there is nothing more to add."""
        if self.layered and self._layers.has_pending:
            self._link.write(self._layers.pending())
        if self._out and self._handshake is None:
            data = b"".join(self._out)
            self._out.clear()
            self._out_size = 0
            self._link.write(self._layers.wrap(data) if self.layered else data)

    def finish(self) -> None:
        """Send everything, the layers' farewell last, and close. Nothing is read any more."""
        self._finished = True
        self._forget_input()
        if self._held:
            return  # the end comes behind what is held
        # A layer that is broken gives no farewell; the end itself must still come.
        with suppress(LayerError):
            self.flush()
        with suppress(LayerError):
            if farewell := self._layers.close():
                self._link.write(farewell)
        self._link.finish()
