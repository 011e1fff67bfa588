"""Which columns of a DataFrame are published, and whether they can be. Pure; imports no Spark."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from nsq.errors import ConfigError

_TEXTS = ("string", "char", "varchar")
_BODIES = ("binary", *_TEXTS)
_WHOLES = ("byte", "short", "integer", "long")
_DEFER = "deferMs"


class Columns(NamedTuple):
    """Their places; None for one that is not there, or not needed."""

    body: int
    topic: int | None
    defer: int | None

    @classmethod
    def of(cls, fields: Sequence[tuple[str, str]], topic: str) -> Columns:
        """``fields`` are the names and types, as Spark calls them; ``topic`` is the option, or empty.

        Columns by other names are left alone: rows as the source makes them can be published as they are.
        """
        body = _place(fields, "body", _BODIES, "binary or string; for example to_json(struct(*)) AS body")
        if body is None:
            raise ConfigError(f"there is no column body, which is what is published{_among(fields)}")
        if topic:
            place = None
        else:
            place = _place(fields, "topic", _TEXTS, "string")
            if place is None:
                raise ConfigError(
                    "there is no column topic and no option topic: .option('topic', …), or a column of that "
                    f"name{_among(fields)}"
                )
        return cls(body, place, _place(fields, _DEFER, _WHOLES, "a whole number of milliseconds"))


def _place(fields: Sequence[tuple[str, str]], name: str, types: tuple[str, ...], wanted: str) -> int | None:
    found = [place for place, (given, _) in enumerate(fields) if _plain(given) == _plain(name)]
    if len(found) > 1:
        raise ConfigError(f"there are {len(found)} columns {name}, must be one")
    if not found:
        _refuse_misspelt(fields, name)
        return None
    given, kind = fields[found[0]]
    if kind not in types:
        raise ConfigError(f"column {given} is of type {kind}, must be {wanted}")
    return found[0]


def _refuse_misspelt(fields: Sequence[tuple[str, str]], name: str) -> None:
    """A delay that is left alone would not be noticed for long."""
    if name != _DEFER:
        return
    close = difflib.get_close_matches(_plain(name), [_plain(given) for given, _ in fields], n=1, cutoff=0.75)
    for given, _ in fields:
        if [_plain(given)] == close:
            raise ConfigError(f"column {given} is not known; did you mean {_DEFER}?")


def _plain(name: str) -> str:
    """As Spark compares them, and deferMs is defer_ms too."""
    return name.replace("_", "").lower()


def _among(fields: Sequence[tuple[str, str]]) -> str:
    return f" (there are: {', '.join(name for name, _ in fields)})" if fields else ""
