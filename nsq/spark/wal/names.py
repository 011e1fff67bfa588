"""How things are called inside a write-ahead log. Text only: no I/O, no pyarrow.

    000007.open                  being written: segment 7 of its receiver
    000007-1250-250000.arrow     sealed: 1250 rows, 250000 bytes of bodies

A listing alone says how much there is to read. Names that begin with a dot are not finished yet, and nobody's
business but their maker's.
"""

from __future__ import annotations

import os
import re
import secrets
import time

from nsq.spark.wal.store import Segment

IDENTITY = "identity.json"
SUBJECT = "subject.json"
OWNER = "owner"
LOCK = "lock"

_RECEIVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SEALED = re.compile(r"([0-9]{6,12})-([0-9]{1,12})-([0-9]{1,15})\.arrow")
_OPEN = re.compile(r"([0-9]{6,12})\.open")
_RESERVED = {IDENTITY, SUBJECT, OWNER, f"{OWNER}.json"}


def new_receiver(
    host: str | None = None, pid: int | None = None, now: float | None = None, chance: str | None = None
) -> str:
    """A name that no receiver had before; it sorts by time and says where to look for the process.

    What is not given comes from the system.
    """
    spelt = re.sub(r"[^A-Za-z0-9.]+", "-", os.uname().nodename if host is None else host).strip("-.")[:80]
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time.time() if now is None else now))
    number = os.getpid() if pid is None else pid
    return f"{moment}-{spelt or 'host'}-{number}-{chance or secrets.token_hex(4)}"


def is_receiver(name: str) -> bool:
    """Whether a folder of that name is a receiver's."""
    return _RECEIVER.fullmatch(name) is not None and name not in _RESERVED


def open_file(number: int) -> str:
    return f"{number:06d}.open"


def sealed_file(segment: Segment) -> str:
    return f"{segment.number:06d}-{segment.rows}-{segment.bytes}.arrow"


def sealed_pattern(number: int) -> str:
    """Of a file that is not there any more, so that nobody knows what it held."""
    return f"{number:06d}-*.arrow"


def read_open(name: str) -> int | None:
    """The number in the name of a file that is being written; None for any other name."""
    found = _OPEN.fullmatch(name)
    return int(found[1]) if found else None


def read_sealed(receiver: str, name: str) -> Segment | None:
    """The segment that a file is; None for any other name."""
    found = _SEALED.fullmatch(name)
    return Segment(receiver, int(found[1]), int(found[2]), int(found[3])) if found else None
