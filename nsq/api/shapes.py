"""JSON answers held against the shape they are declared to have.

Pure; imports only errors.
"""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Any

from nsq.errors import ApiError


class Misshapen(ApiError):
    """An answer without something it must have, or with something else in its place; says where."""


def conform(value: Any, shape: Any, where: str = "") -> Any:
    """``value`` if it has this shape: a TypedDict, ``list[…]``, ``dict[str, …]``, a plain type, or such a
    type ``| None``. Otherwise Misshapen names the first place that differs.

    A list that is null is an empty one, as Go writes those. Keys nobody declared stay: they are a newer
    version's.
    """
    origin = typing.get_origin(shape)
    if origin is types.UnionType:
        inner = next(each for each in typing.get_args(shape) if each is not type(None))
        return None if value is None else conform(value, inner, where)
    if origin is list:
        items = _of_type([] if value is None else value, list, where)
        (inner,) = typing.get_args(shape)
        return [conform(item, inner, f"{where}[{number}]") for number, item in enumerate(items)]
    if origin is dict:
        inner = typing.get_args(shape)[1]
        entries = _of_type(value, dict, where)
        return {key: conform(item, inner, _below(where, key)) for key, item in entries.items()}
    if typing.is_typeddict(shape):
        return _conform_keys(_of_type(value, dict, where), shape, where)
    return value if shape is Any else _of_type(value, shape, where)


def _conform_keys(value: dict[str, Any], shape: Any, where: str) -> dict[str, Any]:
    declared, required = _keys(shape)
    for key in required:
        if key not in value:
            raise Misshapen(f"{_below(where, key)} is missing")
    return {
        key: conform(item, declared[key], _below(where, key)) if key in declared else item
        for key, item in value.items()
    }


@cache
def _keys(shape: Any) -> tuple[dict[str, Any], list[str]]:
    """What a TypedDict declares, and which of it must be there."""
    return typing.get_type_hints(shape), sorted(shape.__required_keys__)


def _of_type(value: Any, wanted: type, where: str) -> Any:
    # A bool is an int to isinstance, and JSON has no other numbers for a float than both.
    fits = type(value) in (int, float) if wanted is float else type(value) is wanted
    if not fits:
        name = "null" if value is None else type(value).__name__
        raise Misshapen(f"{where or 'the answer'} is {name}, not {wanted.__name__}")
    return value


def _below(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
