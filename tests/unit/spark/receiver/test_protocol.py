"""A line that cannot be parsed does no harm. Real receivers show that the others arrive."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsq.spark.receiver import protocol
from nsq.spark.receiver.protocol import Begin, Event, UnparsableLine


def encoded(said: object) -> bytes:
    return json.dumps(said).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"Traceback (most recent call last):",
        *[b"[1, 2]", b"\xff\xfe", b"[" * 100_000, b'{"Ready": {}}', b'["Read", {"receiver": "r"}]'],
        *[b'[["Ready"], {}]', b'["Ready", {}]', b'["Ready", 5]'],
        b'["Ready", {"receiver": "r", "mood": "good"}]',
    ],
)
def test_a_line_that_is_no_message_is_reported_with_its_beginning(line: bytes) -> None:
    said = protocol.decoded(line)
    assert isinstance(said, UnparsableLine)
    assert repr(line[:60]).strip("b'") in said.why


def test_a_garbled_line_of_settings_is_not_shown() -> None:
    said = protocol.decoded(b'["Begin", {"settings": "geheim"')
    assert isinstance(said, UnparsableLine)
    assert "geheim" not in said.why
    assert "geheim" not in repr(Begin("geheim"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(max_examples=60)
@given(st.binary() | st.tuples(st.sampled_from(["Ready", "Status", "Stopped"]), JSON).map(encoded))
def test_any_line_is_an_event_or_unparsable(line: bytes) -> None:
    assert isinstance(protocol.decoded(line), Event | UnparsableLine)
