"""Lines of JSON: what is said arrives as it was, and nothing that arrives can do harm."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsq.spark.receiver import protocol
from nsq.spark.receiver.protocol import (
    Begin,
    Failed,
    Ready,
    Roll,
    Rolled,
    Status,
    Stop,
    Stopped,
    UnparsableLine,
)


@pytest.mark.parametrize(
    "said",
    [
        Begin("settings"),
        Roll(7),
        Stop(),
        Ready("r-1"),
        Rolled(7, 3),
        Rolled(9, error="no space\nleft"),
        Status(1, 2, 3, 4, "pausé", 5, 6, "a fault"),
        Failed("bad option", settings=True),
        Stopped(4, 3),
    ],
)
def test_what_is_said_arrives_as_it_was(said: protocol.Command | protocol.Event) -> None:
    line = protocol.encoded(said)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert protocol.decoded(line) == said


@pytest.mark.parametrize(
    "line",
    [
        b"Traceback (most recent call last):",
        b"[1, 2]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"Ready": {}}',
        b'["Read", {"receiver": "r"}]',
        b'[["Ready"], {}]',
        b'["Ready", {}]',
        b'["Ready", 5]',
        b'["Ready", {"receiver": "r", "mood": "good"}]',
    ],
)
def test_garbage_is_said_to_be_garbage(line: bytes) -> None:
    said = protocol.decoded(line)
    assert isinstance(said, UnparsableLine)
    assert repr(line[:60]).strip("b'") in said.why


def test_garbled_settings_are_not_shown() -> None:
    said = protocol.decoded(b'["Begin", {"settings": "geheim"')
    assert isinstance(said, UnparsableLine)
    assert "geheim" not in said.why
    assert "geheim" not in repr(Begin("geheim"))


@given(st.binary())
def test_no_line_raises(line: bytes) -> None:
    protocol.decoded(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(max_examples=40)
@given(
    st.sampled_from(["Ready", "Rolled", "Status", "Failed", "Stopped"]) | JSON,
    st.dictionaries(st.sampled_from(["token", "sealed", "receiver", "text", "in_flight"]), JSON) | JSON,
)
def test_no_list_raises(word: object, fields: object) -> None:
    protocol.decoded(json.dumps([word, fields]).encode())
