"""What a receiver tells of itself: to its owner, and in its manifest to other processes. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: The longest text in a status, so that a line with it fits into one atomic write to a pipe.
_LONGEST_TEXT = 500


@dataclass(frozen=True)
class Status:
    """The state of a receiver. ``paused`` says why it takes no messages now, ``error`` what is wrong.

    ``sealed`` counts segments. ``full`` is 1 when it has paused because the log is full.
    """

    received: int = 0
    sealed: int = 0
    paused: str = ""
    full: int = 0
    connections: int = 0
    in_flight: int = 0
    error: str = ""


def merge_statuses(statuses: Iterable[Status]) -> Status:
    """Combine several statuses: add the numbers, join the texts."""
    listed = list(statuses)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(Status):
        values = [getattr(each, field.name) for each in listed]
        texts = isinstance(field.default, str)
        found[field.name] = (
            "; ".join(filter(None, dict.fromkeys(values)))[:_LONGEST_TEXT] if texts else sum(values)
        )
    return Status(**found)
