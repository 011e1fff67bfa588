from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import InvalidName
from nsq.wire import names

GOOD = ["a", "orders", "A.b-c_9", "a" * 64, "a#ephemeral", "a" * 54 + "#ephemeral", "."]
BAD = ["", "b@d", "a" * 65, "#ephemeral", "a" * 55 + "#ephemeral", "a\n", "a b", "é", "a#other"]
BAD += ["a#ephemeral#ephemeral", "a#ephemeral "]


@pytest.mark.parametrize("name", GOOD)
def test_good_names_are_valid_as_text_and_bytes(name: str) -> None:
    assert names.valid_topic(name)
    assert names.valid_channel(name)
    assert names.valid_topic(name.encode())
    assert names.check_topic(name) == name
    assert names.check_channel(name.encode()) == name


class Topic(str, Enum):  # noqa: UP042 - a StrEnum has another str()
    ORDERS = "orders"


class Unhashable(str):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


class Raw(bytes):
    def decode(self, *_: object) -> str:
        return "something else"


@pytest.mark.parametrize("name", [Topic.ORDERS, Unhashable("orders"), Raw(b"orders")])
@pytest.mark.parametrize("check", [names.check_topic, names.check_channel])
def test_a_name_of_another_class_becomes_an_exact_str(
    check: Callable[[str | bytes], str], name: str | bytes
) -> None:
    checked = check(name)
    assert type(checked) is str
    assert f"{checked}" == "orders"


@pytest.mark.parametrize("name", BAD)
def test_bad_names_are_refused_as_text_and_bytes(name: str) -> None:
    assert not names.valid_topic(name)
    assert not names.valid_channel(name.encode())
    with pytest.raises(InvalidName):
        names.check_topic(name)
    with pytest.raises(InvalidName):
        names.check_channel(name.encode())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is empty"),
        ("b@d", "contains '@'"),
        ("a" * 65, "has 65 characters"),
        ("#ephemeral", "nothing before its suffix"),
        ("a\n", r"contains '\n'"),
        ("a#other", "contains '#'"),
    ],
)
def test_the_error_says_what_is_wrong_and_the_rule(name: str, said: str) -> None:
    with pytest.raises(InvalidName) as caught:
        names.check_channel(name)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"channel name {name!r}")
    assert names.RULE in str(caught.value)


def test_a_very_long_name_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidName) as caught:
        names.check_topic("x" * 100_000)
    assert len(str(caught.value)) < 400


def test_the_error_names_the_type_of_a_wrong_value() -> None:
    with pytest.raises(InvalidName, match="topic name must be str, not int"):
        names.check_topic(7)  # type: ignore[arg-type]


def test_a_name_that_was_refused_is_refused_again() -> None:
    for _ in range(2):
        with pytest.raises(InvalidName):
            names.check_topic("no good")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"b@d", '"b@d"'),
        (b"", '""'),
        ("tö".encode(), '"tö"'),
        (b'a"b\\c', r'"a\"b\\c"'),
        (b"\a\b\f\r\t\v", r'"\a\b\f\r\t\v"'),
        (b"\x00\x1b\x7f", r'"\x00\x1b\x7f"'),
        (b"caf\xe9", r'"caf\xe9"'),
        ("\u2028\U000e0001".encode(), r'"\u2028\U000e0001"'),
    ],
)
def test_a_name_is_shown_as_one_line_of_text(name: bytes, shown: str) -> None:
    assert names.quoted(name) == shown


@given(st.binary(max_size=70))
def test_a_quoted_name_is_always_printable(name: bytes) -> None:
    shown = names.quoted(name)
    assert shown.isprintable()
    shown.encode("utf-8")  # no lone surrogates


def test_ephemeral_names_are_recognized() -> None:
    assert names.is_ephemeral("a#ephemeral")
    assert names.is_ephemeral(b"a#ephemeral")
    assert not names.is_ephemeral("ephemeral")
    assert not names.is_ephemeral(b"a")


@given(st.text(alphabet="ab.-_#ephmrl@\n", max_size=70))
def test_the_fast_rule_equals_the_plain_one(name: str) -> None:
    plain = 1 <= len(name) <= 64 and re.fullmatch(r"[.a-zA-Z0-9_-]+(#ephemeral)?", name) is not None
    assert names.valid_topic(name) is plain
    assert names.valid_topic(name.encode()) is plain
