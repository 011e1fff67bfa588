"""What owner and receiver say to each other: a line of JSON each, over the receiver's stdin and stdout.

The owner's first line holds the settings, as a command line is no place for secrets; every other one is a
command, and the receiver sends events. Both come from one installation. Pure: no pipe, clock or process. A
line that cannot be read is a ``Garbled``, never an exception: a stray print must end neither side.
Must not import pyspark or pyarrow.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nsq.errors import ConfigError
from nsq.spark.source.options import SourceOptions

_SHOWN = 80
#: Of each text of a status: what a pipe takes at once holds the whole line then.
_LONGEST_TEXT = 500


@dataclass(frozen=True)
class Garbled:
    """A line that means nothing here."""

    why: str


# What the owner says.


@dataclass(frozen=True)
class Begin:
    """The first line. ``settings`` is what ``packed`` makes; it may hold secrets."""

    settings: str = dataclasses.field(repr=False)


@dataclass(frozen=True)
class Roll:
    """Seal what is open; answered by ``Rolled`` with the same token."""

    token: int


@dataclass(frozen=True)
class Stop:
    """End gracefully; answered by ``Stopped``, unless the process is killed first."""


# What the receiver says. ``sealed`` counts the segments of this life.


@dataclass(frozen=True)
class Ready:
    """It receives. ``receiver`` is the name of this life in the log."""

    receiver: str


@dataclass(frozen=True)
class Rolled:
    """The answer to a roll; with an ``error`` something cannot be sealed now."""

    token: int
    sealed: int = 0
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


def together(statuses: Iterable[Status]) -> Status:
    """Several as one."""
    listed = list(statuses)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(Status):
        values = [getattr(each, field.name) for each in listed]
        texts = isinstance(field.default, str)
        found[field.name] = (
            "; ".join(filter(None, dict.fromkeys(values)))[:_LONGEST_TEXT] if texts else sum(values)
        )
    return Status(**found)


@dataclass(frozen=True)
class Fault:
    """Why the receiver ends unasked. ``settings``: with the same ones another life would end like this."""

    text: str
    settings: bool = False


@dataclass(frozen=True)
class Stopped:
    """Its last word after a graceful end. nsqd delivers again what was left ``in_flight``."""

    sealed: int = 0
    in_flight: int = 0


Command = Begin | Roll | Stop
Event = Ready | Rolled | Status | Fault | Stopped

_KINDS = {kind.__name__: kind for kind in (Begin, Roll, Stop, Ready, Rolled, Status, Fault, Stopped)}


def encoded(said: Command | Event) -> bytes:
    """The line, its end included."""
    return json.dumps([type(said).__name__, vars(said)]).encode() + b"\n"


def decoded(line: bytes) -> Command | Event | Garbled:
    try:
        word, fields = json.loads(line)
        said: Command | Event = _KINDS[word](**fields)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        # Of the settings nothing may be shown, whatever has become of them on the way.
        return Garbled("a line of settings" if b"Begin" in line else f"{line[:_SHOWN]!r}: {error}")
    return said


def packed(options: SourceOptions) -> str:
    """A receiver's settings as they travel; raises ConfigError for what cannot be handed on."""
    try:
        return base64.b64encode(pickle.dumps(options)).decode()
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ConfigError(
            f"an option cannot be handed to another process ({error}): give it as text, such as tlsCaFile "
            "instead of an ssl.SSLContext"
        ) from None


def unpacked(settings: str) -> SourceOptions:
    options = pickle.loads(base64.b64decode(settings))
    assert isinstance(options, SourceOptions)
    return options
