"""Options of a daemon by their Python names, turned into the flags every nsqd understands, and read back.

Imports the flags' own declarations (``nsq.flags``), so that names and durations are spelled in one place.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nsq.errors import UsageError
from nsq.flags import FlagExit, parse
from nsq.literals import format_duration

_METADATA = "nsq.flags"


def to_arguments(options_class: type[Any], given: Mapping[str, object]) -> list[str]:
    """``{"msg_timeout": 1.0}`` becomes ``["--msg-timeout=1s"]``; a tuple or list repeats its flag."""
    fields = {field.name: field for field in dataclasses.fields(options_class) if _METADATA in field.metadata}
    arguments = []
    for name, value in given.items():
        if name not in fields:
            raise UsageError(f"no option is called {name!r}{_nearest(name, fields)}")
        flag = fields[name].metadata[_METADATA]
        spelled = flag.name or name.replace("_", "-")
        values = value if flag.repeated and isinstance(value, (tuple, list)) else (value,)
        arguments += [f"--{spelled}={_text(each, flag)}" for each in values]
    return arguments


def read_arguments(options_class: type[Any], arguments: Sequence[str], program: str) -> Any:
    """The options for a daemon in this process: what its program would have made of the same flags."""
    try:
        return parse(options_class, arguments, prog=program).options
    except FlagExit as refused:
        raise UsageError(refused.text.splitlines()[0]) from refused


def _text(value: object, flag: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)) and flag.kind is not None and flag.kind.word == "duration":
        return format_duration(value)
    return str(value)


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
