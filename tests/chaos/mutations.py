"""Mutations of recorded conversations. They come from a ``Random``, so a seed names a conversation."""

from __future__ import annotations

import gc
import random
import struct
from collections.abc import Callable

from nsq.daemons.nsqd.stats import Memory
from nsq.wire import commands
from tests.golden.conversation import as_bytes
from tests.golden.recordings import load

RECORDINGS = ("tcp.json", "tcp_upgrade.json", "tcp_auth.json")
_LARGEST = 64 * 1024
_NUMBERS = [0, 1, -1, 64, 255, 2500, 2501, 65535, 1 << 20, (1 << 20) + 1, 5 << 20, 1 << 31, 1 << 63, 10**30]
_INTERESTING = [
    b"\n",
    b" ",
    b"\r\n",
    b"\x00",
    b"\xff",
    b"#ephemeral",
    b"\x00\x00\x00\x00",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"FIN 0123456789abcdef\n",
    b"REQ 0123456789abcdef 0\n",
    b"TOUCH 0123456789abcdef\n",
    b"RDY 2500\n",
    b"NOP\n",
    b"CLS\n",
    b"a" * 65,
    commands.MAGIC_V2,
    commands.sub("topic", "channel"),
    commands.pub("topic", b"body"),
    commands.mpub("topic", [b"one", b"two"]),
    commands.dpub("topic", 10, b"later"),
    commands.identify(b'{"feature_negotiation":true,"snappy":true}'),
    commands.identify(b'{"feature_negotiation":true,"deflate":true,"deflate_level":9}'),
    commands.identify(b'{"feature_negotiation":true,"tls_v1":true}'),
]


def conversations() -> list[bytes]:
    """The bytes of the recorded clients, each as one piece."""
    return [
        b"".join(as_bytes(step["send"]) for step in case["steps"] if "send" in step)
        for name in RECORDINGS
        for case in load(name)["cases"]
    ]


class Mutator:
    """Spoils what clients have said to nsqd, unless it is given other ``originals``, which need not begin
    with ``opening``."""

    def __init__(
        self,
        seed: str,
        originals: list[bytes] | None = None,
        *,
        opening: bytes = commands.MAGIC_V2,
        interesting: list[bytes] = _INTERESTING,
    ) -> None:
        self.random = random.Random(seed)
        self._originals = conversations() if originals is None else originals
        self._opening = opening
        self._interesting = interesting
        self._ways: list[Callable[[bytearray], None]] = [
            self._flip,
            self._delete,
            self._insert,
            self._repeat,
            self._splice,
            self._resize,
            self._number,
        ]

    def conversation(self) -> bytes:
        data = bytearray(self.random.choice(self._originals))
        self.spoil(data)
        if self.random.random() < 0.9 and not data.startswith(self._opening):
            data[:0] = self._opening  # else hardly anything gets beyond its first bytes
        return bytes(data)

    def spoil(self, data: bytearray) -> None:
        for _ in range(self.random.choice([0, 1, 1, 2, 3, 5, 10])):
            self.random.choice(self._ways)(data)
        del data[_LARGEST:]

    def chunks(self, data: bytes) -> list[bytes]:
        if self.random.random() < 0.6:
            return [data]
        cuts = sorted(self.random.randrange(len(data) + 1) for _ in range(self.random.randint(1, 12)))
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]

    def _place(self, data: bytearray) -> int:
        return self.random.randrange(len(data) + 1)

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)

    def _delete(self, data: bytearray) -> None:
        start = self._place(data)
        del data[start : start + self.random.choice([1, 2, 4, 30])]

    def _insert(self, data: bytearray) -> None:
        place = self._place(data)
        data[place:place] = self.random.choice([*self._interesting, self.random.randbytes(8)])

    def _repeat(self, data: bytearray) -> None:
        start = self._place(data)
        piece = data[start : start + self.random.choice([1, 4, 20, 100])]
        data[start:start] = piece * self.random.choice([1, 2, 50])

    def _splice(self, data: bytearray) -> None:
        other = self.random.choice(self._originals)
        place = self._place(data)
        data[place:] = other[self.random.randrange(len(other) + 1) :]

    def _resize(self, data: bytearray) -> None:
        place = self._place(data)
        data[place : place + 4] = struct.pack(">I", self.random.choice(_NUMBERS) & 0xFFFF_FFFF)

    def _number(self, data: bytearray) -> None:
        """Another number in the place of one."""
        digits = [place for place, byte in enumerate(data) if 0x30 <= byte <= 0x39]
        if digits:
            place = self.random.choice(digits)
            data[place : place + 1] = b"%d" % self.random.choice(_NUMBERS)


def resident() -> int:
    """Return the bytes of memory in use."""
    gc.collect()
    return Memory().figures()["heap_in_use_bytes"]
