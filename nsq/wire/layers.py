"""What can lie between the V2 protocol and the socket: TLS, deflate, snappy, and a stack of them.

A layer turns bytes into bytes. It knows no socket, clock, thread or logger and must import none of them. Only
TLS owns a lock: OpenSSL forbids two threads in one SSL object, and a connection reads and writes at once. The
thread-based client and the asyncio daemons share this module.

The contract, for a single layer and for a :class:`Stack` alike:

* ``unwrap`` hands out a bounded amount per call, whatever the input expands to, and keeps the rest. While
  ``more`` is true, call ``unwrap(b"")`` before feeding new bytes; its answer may be empty even then.
* Only the side that sends may call ``wrap``, ``pending`` and ``close``: bytes must reach the wire in the
  order these return them. A reader that finds ``has_pending`` set wakes the sender. Were it to send the bytes
  itself, it could overtake, or be overtaken by, a record the sender has already sealed.
* What cannot be decoded raises :class:`~nsq.errors.LayerError`, and from then on ``wrap`` and ``unwrap``
  always do. ``pending`` and ``close`` still answer: they hold the TLS alert that tells the peer why.
"""

from __future__ import annotations

import re
import ssl
import threading
import zlib
from contextlib import suppress
from typing import Any, Protocol

import snappy

from nsq.errors import ConfigError, LayerError

MAX_OUTPUT = 1 << 20
"""What one ``unwrap`` returns at most, unless a layer is told otherwise."""

_TLS_RECORD = 16384
_SNAPPY_BLOCK = 65536
_SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_CHECKSUM = 4  # bytes of it before every block
# The format's bound for a block that grows under compression: 32 + n + n/6, and the checksum before it.
_SNAPPY_COMPRESSED_MAX = _SNAPPY_CHECKSUM + 32 + _SNAPPY_BLOCK + _SNAPPY_BLOCK // 6


#: What ``Tls`` is made from; named here for those who hand it on and need nothing else of ssl.
TlsContext = ssl.SSLContext


class Layer(Protocol):
    """One transformation of a connection's bytes; the module's docstring has the contract."""

    @property
    def more(self) -> bool:
        """Whether ``unwrap(b"")`` may yield more without new input."""

    @property
    def has_pending(self) -> bool:
        """Whether the sender should call ``pending`` and send what it returns."""

    @property
    def peer_closed(self) -> bool:
        """Whether the peer ended its direction properly. An end of file without it is a truncated stream."""

    def wrap(self, data: bytes) -> bytes:
        """Plain to wire, flushed: the peer can decode everything given so far. Includes what was pending."""

    def unwrap(self, data: bytes) -> bytes:
        """Wire to plain; empty when a whole unit has not arrived yet."""

    def pending(self) -> bytes:
        """Bytes the layer itself wants sent (a TLS handshake, a key update, an alert)."""

    def close(self) -> bytes:
        """The last bytes to send; nothing can be wrapped afterwards, but reading goes on."""


class _Breakable:
    """A layer that, once it has failed, fails every further use with the same words."""

    _name = "layer"
    _failure: str | None = None

    def _refuse_if_broken(self) -> None:
        if self._failure is not None:
            raise LayerError(self._failure)

    def _broken(self, reason: str) -> LayerError:
        self._failure = f"{self._name}: {reason}"
        return LayerError(self._failure)


class _Compression(_Breakable):
    """What compressions share: they never speak on their own."""

    has_pending = False

    def pending(self) -> bytes:
        return b""

    def close(self) -> bytes:
        return b""


def _bounded(name: str, max_output: int, least: int) -> int:
    if max_output < least:
        raise ConfigError(f"{name}: max_output is {max_output}, must be at least {least} bytes")
    return max_output


class Deflate(_Compression):
    """A raw deflate stream in each direction, sync-flushed after every ``wrap``.

    Deflate carries no checksum: damaged input may decode to wrong bytes instead of failing.
    """

    _name = "deflate"

    def __init__(self, level: int = 6, max_output: int = MAX_OUTPUT) -> None:
        if not 1 <= level <= 9:
            raise ConfigError(f"deflate: level is {level}, must be from 1 to 9")
        self._max_output = _bounded(self._name, max_output, 1)
        self._deflater = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        self._held = b""
        self.more = False
        self.peer_closed = False

    def wrap(self, data: bytes) -> bytes:
        self._refuse_if_broken()
        if not data:
            return b""
        return self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)

    def unwrap(self, data: bytes) -> bytes:
        self._refuse_if_broken()
        inflater = self._inflater
        wire = self._held + data if self._held else data
        if self.peer_closed:
            if wire:
                raise self._broken(f"{len(wire)} bytes follow the final block of the stream")
            return b""
        try:
            plain = inflater.decompress(wire, self._max_output)
        except zlib.error as error:
            raise self._broken(f"the stream is corrupt: {error}") from error
        self.peer_closed = inflater.eof
        self._held = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
        # A full answer can leave output inside zlib although all input is consumed; only asking again tells.
        self.more = bool(self._held) or (len(plain) == self._max_output and not inflater.eof)
        return plain


class Snappy(_Compression):
    """The snappy framing format in each direction; every ``wrap`` ends with a whole chunk.

    Chunks are framed here and only whole ones reach python-snappy, up to ``max_output`` in one call: its
    stream decompressor buffers without a bound and accepts a stream without the identifier. It does check the
    checksums in compiled code, which nothing else at hand does: a call costs 2-10 us (it sets up its buffers
    anew) and each chunk in it about 1 us more, where CRC-32C in Python costs 1.5 us per 20 bytes. The stream
    compressor needs 0.2 us for 20 bytes and stores by itself what does not shrink, so tiny payloads get no
    path of their own.
    """

    _name = "snappy"
    peer_closed = False  # the format has no end mark

    def __init__(self, max_output: int = MAX_OUTPUT) -> None:
        self._max_output = _bounded(self._name, max_output, _SNAPPY_BLOCK)
        self._compressor = snappy.StreamCompressor()
        self._decompressor = snappy.StreamDecompressor()
        self._held = bytearray()
        self._skip = 0  # bytes of a padding or skippable chunk still to come; dropped, never kept
        self._identified = False
        self.more = False

    def wrap(self, data: bytes) -> bytes:
        self._refuse_if_broken()
        if not data:
            return b""
        wire: bytes = self._compressor.compress(data)
        return wire

    def unwrap(self, data: bytes) -> bytes:
        self._refuse_if_broken()
        self._held += data
        chunks, size = self._take_chunks()
        return self._decode(chunks, size) if chunks else b""

    def _take_chunks(self) -> tuple[list[bytes], int]:
        """Cuts off the whole data chunks held, as far as ``max_output`` has room, and sums their sizes."""
        held, offset, total = self._held, 0, 0
        chunks: list[bytes] = []
        self.more = False
        while True:
            if self._skip:
                offset += self._skipped(len(held) - offset)
            body = offset + 4
            if len(held) < body:
                break
            kind, length = held[offset], int.from_bytes(held[offset + 1 : body], "little")
            self._check_header(kind, length)
            if 0x80 <= kind < 0xFF:
                offset, self._skip = body, length
                continue
            end = body + length
            if len(held) < end:
                break
            if kind == 0xFF:
                self._check_identifier(held[offset:end])
            else:
                size = self._plain_size(kind, held[body + 4 : min(end, body + 9)], length)
                if total + size > self._max_output:
                    self.more = True
                    break
                chunks.append(bytes(held[offset:end]))
                total += size
            offset = end
        del held[:offset]
        return chunks, total

    def _skipped(self, available: int) -> int:
        step = min(self._skip, available)
        self._skip -= step
        return step

    def _check_header(self, kind: int, length: int) -> None:
        if not self._identified and kind != 0xFF:
            raise self._broken(f"the stream begins with a chunk 0x{kind:02x}, not with its identifier")
        if kind == 0x00:
            legal = _SNAPPY_CHECKSUM < length <= _SNAPPY_COMPRESSED_MAX
        elif kind == 0x01:
            legal = _SNAPPY_CHECKSUM <= length <= _SNAPPY_CHECKSUM + _SNAPPY_BLOCK
        elif kind == 0xFF:
            legal = length == len(_SNAPPY_IDENTIFIER) - 4
        elif kind < 0x80:
            raise self._broken(f"chunk type 0x{kind:02x} is reserved and may not be skipped")
        else:
            legal = True
        if not legal:
            raise self._broken(f"a chunk of type 0x{kind:02x} cannot be {length} bytes long")

    def _check_identifier(self, chunk: bytearray) -> None:
        if chunk != _SNAPPY_IDENTIFIER:
            raise self._broken("the stream identifier is damaged")
        self._identified = True

    def _plain_size(self, kind: int, preamble: bytearray, length: int) -> int:
        """A compressed block begins with its plain size, a little-endian base-128 number."""
        if kind == 0x01:
            return length - _SNAPPY_CHECKSUM
        size = 0
        for position, byte in enumerate(preamble):
            size |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                if size > _SNAPPY_BLOCK:
                    raise self._broken(f"a chunk announces {size} bytes, the format allows {_SNAPPY_BLOCK}")
                return size
        raise self._broken("a chunk announces no legible size")

    def _decode(self, chunks: list[bytes], size: int) -> bytes:
        try:
            plain: bytes = self._decompressor.decompress(b"".join((_SNAPPY_IDENTIFIER, *chunks)))
        except Exception as error:  # OSError today, UncompressError and others in other releases
            raise self._broken(f"a chunk is corrupt: {error}") from error
        if len(plain) != size:
            raise self._broken(f"chunks announced {size} bytes and decoded to {len(plain)}")
        return plain


class Tls(_Breakable):
    """TLS over memory buffers; ``pending`` and ``unwrap`` carry the handshake.

    A reading and a writing thread may share it. Where it verifies what, is the context's business.
    """

    _name = "tls"

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None,
        max_output: int = MAX_OUTPUT,
    ) -> None:
        self._max_output = _bounded(self._name, max_output, _TLS_RECORD)
        if context.check_hostname and not server_side and not server_hostname:
            # SSLSocket refuses this; SSLObject would verify a certificate for no name at all.
            raise ConfigError("tls: the context checks host names, so server_hostname must be given")
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        try:
            self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side, server_hostname)
        except (ValueError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls: the context or {server_hostname=} is unusable: {_reason(error)}"
            ) from error
        # Guards the SSL object and both buffers. Held while bytes are transformed, never while they travel.
        self._lock = threading.Lock()
        self._closed = False
        self.handshake_done = False
        self.peer_closed = False
        self.more = False
        self.has_pending = False
        self.unwrap(b"")  # a client speaks first: this leaves its hello pending

    def wrap(self, data: bytes) -> bytes:
        with self._lock:
            self._refuse_if_broken()
            if not self.handshake_done or self._closed:
                state = "is closed" if self._closed else "handshake is not done"
                raise LayerError(f"tls: {state}; {len(data)} bytes cannot be wrapped")
            rest = memoryview(data)
            try:
                while rest:  # write may take less than it is given
                    rest = rest[self._ssl.write(rest) :]
            except ssl.SSLError as error:
                self.has_pending = self._outgoing.pending > 0
                raise self._broken(f"write failed: {_reason(error)}") from error
            return self._drain()

    def unwrap(self, data: bytes) -> bytes:
        with self._lock:
            self._refuse_if_broken()
            if data:
                self._incoming.write(data)
            try:
                if not self.handshake_done:
                    self._ssl.do_handshake()
                    self.handshake_done = True
                return self._read()
            except ssl.SSLWantReadError:
                return b""
            except ssl.SSLError as error:
                stage = "read" if self.handshake_done else "handshake"
                raise self._broken(f"{stage} failed: {_reason(error)}") from error
            finally:
                self.has_pending = self._outgoing.pending > 0

    def pending(self) -> bytes:
        with self._lock:
            return self._drain()

    def close(self) -> bytes:
        with self._lock:
            if self.handshake_done and not self._closed and self._failure is None:
                self._say_goodbye()
            self._closed = True
            return self._drain()

    def _read(self) -> bytes:
        """Reads whole records, so nothing decrypted stays behind: ``_incoming`` alone tells what is left."""
        records: list[bytes] = []
        room = self._max_output
        # Asking first saves the exception that would otherwise end every chunk.
        while self._incoming.pending and room >= _TLS_RECORD and not self.peer_closed:
            try:
                record = self._ssl.read(_TLS_RECORD)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                record = b""
            self.peer_closed = not record
            records.append(record)
            room -= len(record)
        if self.peer_closed:
            self._incoming.read()  # whatever follows a close_notify is to be ignored
        self.more = room < _TLS_RECORD and self._incoming.pending > 0
        return records[0] if len(records) == 1 else b"".join(records)

    def _say_goodbye(self) -> None:
        # Having sent close_notify, OpenSSL looks for the peer's and fails on data: unread input steps aside.
        unread = self._incoming.read()
        with suppress(ssl.SSLError):  # usually "want read": the peer has not answered yet
            self._ssl.unwrap()
        self._incoming.write(unread)

    def _drain(self) -> bytes:
        self.has_pending = False
        return self._outgoing.read()

    @property
    def version(self) -> str | None:
        """For example ``TLSv1.3``; None before the handshake is done."""
        with self._lock:
            return self._ssl.version() if self.handshake_done else None

    @property
    def cipher(self) -> str | None:
        """OpenSSL's name of the cipher suite; None before the handshake is done."""
        with self._lock:
            suite = self._ssl.cipher() if self.handshake_done else None
            return suite[0] if suite else None

    @property
    def selected_alpn(self) -> str | None:
        with self._lock:
            return self._ssl.selected_alpn_protocol() if self.handshake_done else None

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """What the peer's certificate says, if it sent one; empty when the context did not verify it."""
        with self._lock:
            certificate = self._ssl.getpeercert() if self.handshake_done else None
            return None if certificate is None else dict(certificate)

    @property
    def peer_common_name(self) -> str:
        """The subject's common name in the peer's verified certificate, or an empty string."""
        subject = (self.peer_certificate or {}).get("subject", ())
        names = (value for part in subject for key, value in part if key == "commonName")
        return str(next(names, ""))


def _reason(error: Exception) -> str:
    """OpenSSL's words without the place in CPython's source."""
    return re.sub(r" \(_ssl\.c:\d+\)$", "", str(error))


class Stack:
    """An ordered pile of layers, the wire side first; itself a layer, and the identity while empty."""

    def __init__(self, *layers: Layer) -> None:
        # Replaced, never changed: the other thread sees the pile before a push or after it.
        self._layers: tuple[Layer, ...] = layers

    def push(self, layer: Layer) -> None:
        """Puts a layer on the plain side.

        A peer may speak through the new layer at once, so bytes of it may already have come out of this stack
        behind the answer that announced it. Unwrap these with the new layer itself, then push it.
        """
        self._layers = (*self._layers, layer)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self._layers

    @property
    def more(self) -> bool:
        return any(layer.more for layer in self._layers)

    @property
    def has_pending(self) -> bool:
        return any(layer.has_pending for layer in self._layers)

    @property
    def peer_closed(self) -> bool:
        return any(layer.peer_closed for layer in self._layers)

    def wrap(self, data: bytes) -> bytes:
        for layer in reversed(self._layers):
            data = layer.wrap(data)
        return data

    def unwrap(self, data: bytes) -> bytes:
        if not self._layers:
            return data
        plain = self._lift(data)
        while not plain and self.more:
            plain = self._lift(b"")
        return plain

    def _lift(self, data: bytes) -> bytes:
        """One pass from the wire up; without input it starts at the highest layer that withholds something.

        Those below wait until the ones above are empty, which is what bounds the memory of the whole stack.
        """
        layers = self._layers
        start = 0
        if not data:
            start = max((place for place, layer in enumerate(layers) if layer.more), default=0)
        for layer in layers[start:]:
            data = layer.unwrap(data)
        return data

    def pending(self) -> bytes:
        data = b""
        for layer in reversed(self._layers):
            own = layer.pending()
            data = own + layer.wrap(data) if data else own
        return data

    def close(self) -> bytes:
        data = b""
        for layer in reversed(self._layers):
            carried = layer.wrap(data) if data else b""
            data = carried + layer.close()
        return data
