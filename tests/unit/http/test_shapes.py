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


def test_a_value_of_the_right_shape_is_returned() -> None:
    value = {"inner": [{"name": "a", "size": 1.5}], "count": 3, "by_name": {"x": {"name": "x", "size": 0}}}
    assert conform(value, Outer) == value


def test_unknown_keys_stay() -> None:
    assert conform({"count": 1, "newer": [None]}, Outer) == {"count": 1, "newer": [None]}


def test_a_list_that_is_null_is_empty() -> None:
    assert conform({"inner": None}, Outer) == {"inner": []}
    assert conform(None, list[int]) == []


def test_null_and_any_value_are_accepted_where_the_shape_allows_them() -> None:
    value = {"maybe": None, "anything": {"x": [1]}}
    assert conform(value, Outer) == value


def test_a_dataclass_is_made_of_its_keys_alone() -> None:
    value = {"must": 1, "made": {"names": None, "newer": 1}}
    assert conform(value, Mixed) == {"must": 1, "made": Made(())}
    assert conform({"names": ["a"], "size": 2}, Made) == Made(("a",), 2)


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
