"""Declared options: accepted and refused values, and their descriptions."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from nsq import options
from nsq.errors import ConfigError
from nsq.options import METADATA, Option


@dataclasses.dataclass(frozen=True)
class Sample:
    pause: float = options.seconds(1.0, 0.5, 60.0, "Pause.", also=(0.0,))
    depth: int | None = options.count(None, 1, math.inf, "Depth.", also=(None,))
    share: float = options.share(0.25, "Share.")
    verbose: bool = options.switch("Verbose.")
    mode: str = options.choice("slow", ("slow", "fast"), "Mode.")
    where: str | None = options.maybe(options.PATH, "Where.")
    secret: str = options.declare("", Option("Secret.", options.TEXT, secret=True))


DECLARED: dict[str, Option] = {field.name: field.metadata[METADATA] for field in dataclasses.fields(Sample)}


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("pause", 60, 60.0),
        ("pause", 0.0, 0.0),
        ("depth", None, None),
        ("depth", 10**9, 10**9),
        ("share", 1.0, 1.0),
        ("mode", "fast", "fast"),
        ("where", Path("here"), "here"),
        ("where", b"here", "here"),
    ],
)
def test_accepted_values_are_kept_in_their_type(name: str, value: Any, kept: Any) -> None:
    found = DECLARED[name].checked(name, value)
    assert (found, type(found)) == (kept, type(kept))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("pause", 0.2, "pause is 0.2, but must be 0, or 0.5 s to 60 s"),
        ("pause", math.nan, "pause is nan, but must be 0, or 0.5 s to 60 s"),
        ("pause", True, "pause is True, but must be a number of seconds"),
        ("depth", 0, "depth is 0, but must be None, or at least 1"),
        ("depth", 1.5, "depth is 1.5, but must be a whole number"),
        ("share", 1.01, "share is 1.01, but must be 0 to 1"),
        ("verbose", 1, "verbose is 1, but must be True or False"),
        ("mode", "fastest", "mode is 'fastest', but must be one of: slow, fast"),
        ("secret", 17, "secret is a secret int, but must be a str"),
    ],
)
def test_a_refused_value_is_named_with_the_range(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DECLARED[name].checked(name, value)
    assert str(caught.value).startswith(said)


def test_a_long_value_is_shown_by_its_beginning() -> None:
    with pytest.raises(ConfigError) as caught:
        DECLARED["mode"].checked("mode", "x" * 1000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("pause", "1m30s", 90.0), ("depth", "0x10", 16), ("share", "0.5", 0.5), ("verbose", "true", True)],
)
def test_values_are_read_from_text(name: str, text: str, value: Any) -> None:
    assert DECLARED[name].parsed(name, text) == value


def test_an_error_in_text_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"^pause is '90': "):
        DECLARED["pause"].parsed("pause", "90")
