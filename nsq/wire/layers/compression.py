"""Deflate and snappy, in the forms that nsqd uses."""

from __future__ import annotations

import zlib

from nsq.errors import ConfigError
from nsq.wire.layers.base import MAX_OUTPUT, Breakable

_SNAPPY_BLOCK = 65536
_SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_CHECKSUM = 4  # bytes of it before every block
# The format's bound for a block that grows under compression: 32 + n + n/6, and the checksum before it.
_SNAPPY_COMPRESSED_MAX = _SNAPPY_CHECKSUM + 32 + _SNAPPY_BLOCK + _SNAPPY_BLOCK // 6


class _Compression(Breakable):
    """The base of compressions, which have nothing of their own to send."""

    has_pending = False

    def pending(self) -> bytes:
        return b""

    def close(self) -> bytes:
        return b""


class Deflate(_Compression):
    """A raw deflate stream in each direction, sync-flushed after every ``wrap``.

    Deflate carries no checksum: damaged input may decode to wrong bytes instead of failing.
    """

    _name = "deflate"

    def __init__(self, level: int = 6, max_output: int = MAX_OUTPUT) -> None:
        if not 1 <= level <= 9:
            raise ConfigError(f"deflate: level is {level}, must be from 1 to 9")
        self._max_output = max_output
        self._deflater = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        self._held = b""
        self.more = False
        self.peer_closed = False

    def wrap(self, data: bytes) -> bytes:
        self.refuse_if_broken()
        if not data:
            return b""
        return self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)

    def unwrap(self, data: bytes) -> bytes:
        self.refuse_if_broken()
        inflater = self._inflater
        wire = self._held + data if self._held else data
        if self.peer_closed:
            if wire:
                raise self.broken(f"{len(wire)} bytes follow the final block of the stream")
            return b""
        try:
            plain = inflater.decompress(wire, self._max_output)
        except zlib.error as error:
            raise self.broken(f"the stream is corrupt: {error}") from error
        self.peer_closed = inflater.eof
        self._held = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
        # zlib may keep output although it has consumed all input; only another call shows it.
        self.more = bool(self._held) or (len(plain) == self._max_output and not inflater.eof)
        return plain


class Snappy(_Compression):
    """The snappy framing format in each direction; every ``wrap`` ends with a whole chunk.

    This class splits the stream into chunks, and passes whole ones to python-snappy, ``max_output`` bytes at
    most per call: python-snappy's own stream decompressor buffers without a limit, and accepts a stream
    without its identifier. But it checks the checksums in compiled code: a call costs 2-10 us and each chunk
    about 1 us more, where CRC-32C in Python costs 1.5 us per 20 bytes. The stream compressor needs 0.2 us for
    20 bytes, and stores what does not shrink, so small payloads need no special case.
    """

    _name = "snappy"
    peer_closed = False  # the format has no mark for its end

    def __init__(self, max_output: int = MAX_OUTPUT) -> None:
        self._max_output = max_output
        import snappy  # here, because few connections use it

        self._compressor = snappy.StreamCompressor()
        self._decompressor = snappy.StreamDecompressor()
        self._held = bytearray()
        self._skip = 0  # bytes of a padding or skippable chunk that have not arrived; they are dropped
        self._identified = False
        self.more = False

    def wrap(self, data: bytes) -> bytes:
        self.refuse_if_broken()
        if not data:
            return b""
        wire: bytes = self._compressor.compress(data)
        return wire

    def unwrap(self, data: bytes) -> bytes:
        self.refuse_if_broken()
        self._held += data
        chunks, size = self._take_chunks()
        return self._decode(chunks, size) if chunks else b""

    def _take_chunks(self) -> tuple[list[bytes], int]:
        """Take the whole data chunks that fit into ``max_output``; return them and the sum of their sizes."""
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
            raise self.broken(f"the stream begins with a chunk 0x{kind:02x}, not with its identifier")
        if kind == 0x00:
            legal = _SNAPPY_CHECKSUM < length <= _SNAPPY_COMPRESSED_MAX
        elif kind == 0x01:
            legal = _SNAPPY_CHECKSUM <= length <= _SNAPPY_CHECKSUM + _SNAPPY_BLOCK
        elif kind == 0xFF:
            legal = length == len(_SNAPPY_IDENTIFIER) - 4
        elif kind < 0x80:
            raise self.broken(f"chunk type 0x{kind:02x} is reserved and may not be skipped")
        else:
            legal = True
        if not legal:
            raise self.broken(f"a chunk of type 0x{kind:02x} cannot be {length} bytes long")

    def _check_identifier(self, chunk: bytearray) -> None:
        if chunk != _SNAPPY_IDENTIFIER:
            raise self.broken("the stream identifier is damaged")
        self._identified = True

    def _plain_size(self, kind: int, preamble: bytearray, length: int) -> int:
        """The decoded size of a block, with which it begins: a little-endian base-128 number."""
        if kind == 0x01:
            return length - _SNAPPY_CHECKSUM
        size = 0
        for position, byte in enumerate(preamble):
            size |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                if size > _SNAPPY_BLOCK:
                    raise self.broken(f"a chunk announces {size} bytes, the format allows {_SNAPPY_BLOCK}")
                return size
        raise self.broken("a chunk announces no valid size")

    def _decode(self, chunks: list[bytes], size: int) -> bytes:
        try:
            plain: bytes = self._decompressor.decompress(b"".join((_SNAPPY_IDENTIFIER, *chunks)))
        except Exception as error:  # OSError today, UncompressError and others in other releases
            raise self.broken(f"a chunk is corrupt: {error}") from error
        if len(plain) != size:
            raise self.broken(f"chunks announced {size} bytes and decoded to {len(plain)}")
        return plain
