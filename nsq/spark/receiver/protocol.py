"""What owner and receiver say to each other: a line of JSON each, over the receiver's stdin and stdout.

The owner's first line are the settings, every other one a command; the receiver sends events. Pure: no pipe,
clock or process. A line that cannot be read is a ``Garbled``, never an exception: neither side may end
because of what the other one writes. Must not import pyspark or pyarrow.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nsq.spark.wal.store import Segment

#: Of both directions. Owner and receiver come from one installation; where they do not, this tells.
VERSION = 1
#: No sensible line is longer; what is, is given up instead of collected.
LONGEST_LINE = 1 << 20
_SHOWN = 80


@dataclass(frozen=True)
class Garbled:
    """A line that means nothing here, and why."""

    why: str


# What the owner says.


@dataclass(frozen=True)
class Begin:
    """The first line. ``settings`` is what ``settings.packed`` makes; it may hold secrets."""

    settings: Mapping[str, Any] = dataclasses.field(repr=False)


@dataclass(frozen=True)
class Roll:
    """Seal what is open; answered by ``Rolled`` with the same token."""

    token: int


@dataclass(frozen=True)
class Stop:
    """End gracefully; answered by ``Stopped``, unless somebody loses patience."""


# What the receiver says.


@dataclass(frozen=True)
class Ready:
    """It receives. ``receiver`` is the name of this life in the log."""

    receiver: str
    pid: int


@dataclass(frozen=True)
class Rolled:
    """The answer to a roll, or with token 0 a segment that it sealed by itself.

    ``segment`` is None when there was nothing to seal, or, with an ``error``, when it cannot be sealed now.
    """

    token: int
    segment: Segment | None = None
    error: str = ""


@dataclass(frozen=True)
class Status:
    """How a receiver is. ``paused`` says why it takes no messages at the moment, ``error`` what is amiss.

    ``open_rows`` and ``open_bytes`` are durable and in no segment yet.
    """

    received: int = 0
    open_rows: int = 0
    open_bytes: int = 0
    sealed: int = 0
    paused: str = ""
    connections: int = 0
    in_flight: int = 0
    error: str = ""


@dataclass(frozen=True)
class Fault:
    """Why the receiver ends unasked. ``settings``: with the same ones another life would end like this."""

    text: str
    settings: bool = False


@dataclass(frozen=True)
class Stopped:
    """Its last word after a graceful end. nsqd delivers again what was left ``in_flight``."""

    segment: Segment | None = None
    in_flight: int = 0


Command = Begin | Roll | Stop
Event = Ready | Rolled | Status | Fault | Stopped

_COMMANDS: dict[str, type[Any]] = {"begin": Begin, "roll": Roll, "stop": Stop}
_EVENTS: dict[str, type[Any]] = {
    "ready": Ready,
    "rolled": Rolled,
    "status": Status,
    "fault": Fault,
    "stopped": Stopped,
}
_WORDS = {kind: word for word, kind in (_COMMANDS | _EVENTS).items()}
_TYPES = {"str": str, "int": int, "bool": bool, "Segment | None": list, "Mapping[str, Any]": dict}


def encoded(said: Command | Event) -> bytes:
    """The line, its end included."""
    fields = {field.name: getattr(said, field.name) for field in dataclasses.fields(said)}
    return json.dumps({"v": VERSION, "is": _WORDS[type(said)], **fields}).encode() + b"\n"


def command(line: bytes) -> Command | Garbled:
    found: Command | Garbled = _decoded(line, _COMMANDS)
    return found


def event(line: bytes) -> Event | Garbled:
    found: Event | Garbled = _decoded(line, _EVENTS)
    return found


def _decoded(line: bytes, kinds: Mapping[str, type[Any]]) -> Any:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return Garbled(f"no JSON: {_shown(line)}")
    if not isinstance(said, dict):
        return Garbled(f"no object: {_shown(line)}")
    if said.get("v") != VERSION:
        return Garbled(f"version {said.get('v')!r}, where {VERSION} is spoken")
    word = said.get("is")
    kind = kinds.get(word) if isinstance(word, str) else None
    if kind is None:
        return Garbled(f"unknown here: {word!r}")
    try:
        return kind(**{name: _value(field, said) for name, field in _fields(kind).items() if name in said})
    except (TypeError, ValueError) as error:
        return Garbled(f"{word}: {error}")


def _fields(kind: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(kind)}


def _value(field: dataclasses.Field[Any], said: Mapping[str, Any]) -> Any:
    value = said[field.name]
    wanted = _TYPES[str(field.type)]
    if wanted is list:
        return None if value is None else _segment(value)
    if type(value) is not wanted:  # exactly: True is an int elsewhere
        raise TypeError(f"{field.name} is no {wanted.__name__}")
    return value


def _segment(value: Any) -> Segment:
    match value:
        case [str(receiver), int(number), int(rows), int(size)]:
            return Segment(receiver, number, rows, size)
    raise TypeError(f"no segment: {str(value)[:_SHOWN]}")


def _shown(line: bytes) -> str:
    # Of the settings nothing may be shown, whatever has become of them on the way.
    return repr(line[:_SHOWN]) if b"begin" not in line else "a line of settings"


class Lines:
    """Cuts a stream of bytes into lines; what is too long to be one is skipped to its end."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, without their ends; empty ones are left out."""
        *complete, self._rest = (self._rest + data).split(b"\n")
        if complete and self._skipping:
            self._skipping = False
            del complete[0]
        if len(self._rest) > self._longest:
            self._rest, self._skipping = b"", True
        return [line for line in complete if line.strip() and len(line) <= self._longest]
