"""Converts options of a daemon from their Python names to flags, which Go's daemons understand, and back.

Uses the declarations of the flags (``nsq.flags``), so that names and durations are spelled in one place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from nsq.errors import UsageError
from nsq.flags import FlagExit, parse
from nsq.options import METADATA, SECONDS, closest, format_duration


def to_arguments(options_class: type[Any], given: Mapping[str, object]) -> list[str]:
    """Turn ``{"msg_timeout": 1.0}`` into ``["--msg-timeout=1s"]``; a tuple or list repeats its flag."""
    fields = {field.name: field for field in dataclasses.fields(options_class) if METADATA in field.metadata}
    arguments = []
    for name, value in given.items():
        if name not in fields:
            meant = closest(name, fields, 0.6)
            hint = f" (did you mean {meant!r}?)" if meant else ""
            raise UsageError(f"no option is called {name!r}{hint}")
        flag = fields[name].metadata[METADATA]
        spelled = flag.name or name.replace("_", "-")
        values = value if flag.repeated and isinstance(value, (tuple, list)) else (value,)
        arguments += [f"--{spelled}={_text(each, flag)}" for each in values]
    return arguments


def read_arguments(options_class: type[Any], arguments: Sequence[str], program: str) -> Any:
    """Parse the flags to the options of a daemon in this process, as its program would."""
    try:
        return parse(options_class, arguments, prog=program).options
    except FlagExit as refused:
        raise UsageError(refused.text.splitlines()[0]) from refused


def _text(value: object, flag: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)) and flag.kind is SECONDS:
        return format_duration(value)
    return str(value)
