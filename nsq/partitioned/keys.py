"""Which partition a key belongs to: ``murmur3(key) % partition_num``, as with the Go client.

The other clients hash differently: see docs/partitioned.md for the functions that match them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from nsq.errors import InvalidMessage, UsageError

#: What a user gives to have messages in one partition.
Key = str | bytes | int

#: Maps a key, as the user gave it, to a whole number that is not negative.
Hash = Callable[[Any], int]


def checked_key(key: object) -> Key:
    if isinstance(key, bool) or not isinstance(key, (str, bytes, int)):
        raise InvalidMessage(f"key is {key!r:.200}, must be a str, bytes or an int")
    return key


def key_bytes(key: Key) -> bytes:
    """Return the bytes that are hashed: a str as UTF-8, an int as its decimal text."""
    if isinstance(key, bytes):
        return key
    return (key if isinstance(key, str) else str(int(key))).encode("utf-8", "surrogatepass")


def partition_for(key: Key, count: int, hashed: Hash | None = None) -> int:
    """Return the partition of a key, from 0 to ``count - 1``. Raises UsageError if ``hashed`` fails."""
    if hashed is None:
        return murmur3(key_bytes(key)) % count
    try:
        number = hashed(key)
    except Exception as error:
        raise UsageError(f"the hash function failed on the key {key!r:.200}: {error!r}") from error
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise UsageError(
            f"the hash function returned {number!r:.200} for the key {key!r:.200}, must return an int >= 0"
        )
    return number % count


@lru_cache(maxsize=4096)
def murmur3(data: bytes, seed: int = 0) -> int:
    """MurmurHash3 for x86, 32 bits."""
    mixed, end = seed, len(data) & ~3
    for at in range(0, end, 4):
        mixed ^= _scrambled(int.from_bytes(data[at : at + 4], "little"))
        mixed = _rotated(mixed, 13) * 5 + 0xE6546B64 & _MASK
    if end < len(data):
        mixed ^= _scrambled(int.from_bytes(data[end:], "little"))
    mixed ^= len(data)
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _MASK
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _MASK
    return mixed ^ mixed >> 16


_MASK = 0xFFFFFFFF


def _scrambled(block: int) -> int:
    return _rotated(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
