from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NotRequired, Required, TypedDict

import pytest

from nsq.errors import ApiError
from nsq.http.calls import Misshapen, conform


class Inner(TypedDict):
    name: str
    size: float


class Outer(TypedDict, total=False):
    inner: list[Inner]
    count: int
    by_name: dict[str, Inner]
    maybe: int | None
    anything: Any


@dataclass(frozen=True)
class Made:
    names: tuple[str, ...]
    size: float = 0.5


class Mixed(TypedDict, total=False):
    must: Required[int]
    made: Made


class Optional(TypedDict):
    must: int
    may: NotRequired[int]


@pytest.mark.parametrize(
    ("value", "shape", "made"),
    [
        ({"inner": [{"name": "a", "size": 1.5}], "by_name": {"x": {"name": "x", "size": 0}}}, Outer, None),
        ({"count": 1, "newer": [None]}, Outer, None),  # an unknown key stays
        ({"maybe": None, "anything": {"x": [1]}}, Outer, None),
        ({"inner": None}, Outer, {"inner": []}),  # a list that is null is empty
        (None, list[int], []),
        # A dataclass is made of its keys alone.
        ({"must": 1, "made": {"names": None, "newer": 1}}, Mixed, {"must": 1, "made": Made(())}),
        ({"names": ["a"], "size": 2}, Made, Made(("a",), 2)),
    ],
)
def test_a_value_of_the_right_shape_is_returned(value: object, shape: Any, made: object) -> None:
    assert conform(value, shape) == (value if made is None else made)


@pytest.mark.parametrize(
    ("value", "shape", "text"),
    [
        ({}, Mixed, "must is missing"),
        ({"must": 1, "made": {}}, Mixed, "made.names is missing"),
        ({"must": 1, "made": {"names": [1]}}, Mixed, "made.names[0] is int, not str"),
        ({"may": 1}, Optional, "must is missing"),
        ({"must": 1, "may": None}, Optional, "may is null, not int"),
        ({"inner": [{"name": "a", "size": 1}, {"name": "b"}]}, Outer, "inner[1].size is missing"),
        ({"inner": [{"name": None, "size": 1}]}, Outer, "inner[0].name is null, not str"),
        ({"inner": {}}, Outer, "inner is dict, not list"),
        ({"count": True}, Outer, "count is bool, not int"),
        ({"count": 1.0}, Outer, "count is float, not int"),
        ({"count": "1"}, Outer, "count is str, not int"),
        ({"inner": [{"name": "a", "size": True}]}, Outer, "inner[0].size is bool, not float"),
        ({"by_name": {"x": {"name": 1, "size": 1}}}, Outer, "by_name.x.name is int, not str"),
        ({"maybe": "x"}, Outer, "maybe is str, not int"),
        ([], Outer, "the answer is list, not dict"),
        (None, Outer, "the answer is null, not dict"),
    ],
)
def test_the_first_place_that_differs_is_named(value: object, shape: Any, text: str) -> None:
    with pytest.raises(Misshapen) as caught:
        conform(value, shape)
    assert isinstance(caught.value, ApiError)
    assert str(caught.value) == text
