"""The protocol between a receiver process and its owner: lines of JSON over the receiver's stdin and stdout.

The owner's first line holds the settings, because other users can read a command line and settings may hold
secrets. Then the owner sends commands, and the receiver events. Both run the same version. A line that cannot
be parsed becomes an ``UnparsableLine``, never an exception, so a stray print ends neither side. Pure: no
pipe, clock or process. Must not import pyspark or pyarrow.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import pickle
from dataclasses import dataclass

from nsq.errors import ConfigError
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.status import Status

_SHOWN = 80


@dataclass(frozen=True)
class UnparsableLine:
    """A line that cannot be parsed."""

    why: str


# Commands: sent by the owner.


@dataclass(frozen=True)
class Begin:
    """The owner's first line. ``settings`` is the result of ``packed``, and may hold secrets."""

    settings: str = dataclasses.field(repr=False)


@dataclass(frozen=True)
class Stop:
    """Stop gracefully; the receiver answers ``Stopped``, unless it is killed first."""


# Events: sent by the receiver; ``Status`` is one too.


@dataclass(frozen=True)
class Ready:
    """The receiver has started. ``receiver`` is its name in the log."""

    receiver: str


@dataclass(frozen=True)
class Failed:
    """Why the receiver ends on its own. ``settings``: a restart with the same settings would fail too."""

    text: str
    settings: bool = False


@dataclass(frozen=True)
class Stopped:
    """The last event of a graceful stop. ``sealed`` counts the segments of this process. nsqd delivers the
    messages left ``in_flight`` again.
    """

    sealed: int = 0
    in_flight: int = 0


Command = Begin | Stop
Event = Ready | Status | Failed | Stopped

_KINDS = {kind.__name__: kind for kind in (Begin, Stop, Ready, Status, Failed, Stopped)}


def encoded(said: Command | Event) -> bytes:
    """A command or event as a line, including the newline."""
    return json.dumps([type(said).__name__, vars(said)]).encode() + b"\n"


def decoded(line: bytes) -> Command | Event | UnparsableLine:
    try:
        word, fields = json.loads(line)
        said: Command | Event = _KINDS[word](**fields)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        # A damaged line of settings must not be shown either: it may hold secrets.
        return UnparsableLine("a line of settings" if b"Begin" in line else f"{line[:_SHOWN]!r}: {error}")
    return said


def packed(options: SourceOptions) -> str:
    """Encode a receiver's settings for ``Begin``; raises ConfigError for options that cannot be pickled."""
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
