"""Lines of JSON: what is said arrives as it was, and nothing that arrives can do harm."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.spark.receiver import protocol
from nsq.spark.receiver.protocol import (
    Begin,
    Fault,
    Garbled,
    Lines,
    Ready,
    Roll,
    Rolled,
    Status,
    Stop,
    Stopped,
)
from nsq.spark.wal.store import Segment

SEGMENT = Segment("r-1", 3, 100, 4000)


@pytest.mark.parametrize("said", [Begin({"topic": "orders", "list": [1, "zwei"]}), Roll(7), Stop()])
def test_commands_arrive_as_they_were(said: protocol.Command) -> None:
    line = protocol.encoded(said)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert protocol.command(line) == said


@pytest.mark.parametrize(
    "said",
    [
        Ready("r-1", 4711),
        Rolled(7, SEGMENT),
        Rolled(8),
        Rolled(9, error="no space\nleft"),
        Status(1, 2, 3, 4, "pausé", 5, 6, "a fault"),
        Fault("bad option", settings=True),
        Stopped(SEGMENT, 3),
        Stopped(),
    ],
)
def test_events_arrive_as_they_were(said: protocol.Event) -> None:
    line = protocol.encoded(said)
    assert line.count(b"\n") == 1
    assert protocol.event(line) == said


def garbled(line: bytes) -> str:
    said = protocol.event(line)
    assert isinstance(said, Garbled)
    return said.why


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"Traceback (most recent call last):", "no JSON"),
        (b"[1, 2]", "no object"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"v": 2, "is": "stopped"}', "version 2, where 1 is spoken"),
        (b'{"is": "stopped"}', "version None"),
        (b'{"v": 1, "is": "roll", "token": 1}', "unknown here: 'roll'"),
        (b'{"v": 1, "is": ["ready"]}', "unknown here"),
        (b'{"v": 1, "is": "ready"}', "missing"),
        (b'{"v": 1, "is": "rolled", "token": "1"}', "token is no int"),
        (b'{"v": 1, "is": "rolled", "token": true}', "token is no int"),
        (b'{"v": 1, "is": "rolled", "token": 1, "segment": ["r", 1, 2]}', "no segment"),
        (b'{"v": 1, "is": "rolled", "token": 1, "segment": 5}', "no segment"),
        (b'{"v": 1, "is": "fault", "text": null}', "text is no str"),
    ],
)
def test_garbage_is_said_to_be_garbage(line: bytes, why: str) -> None:
    assert why in garbled(line)


def test_what_later_versions_add_is_ignored() -> None:
    line = json.dumps({"v": 1, "is": "ready", "receiver": "r", "pid": 1, "mood": "good"}).encode()
    assert protocol.event(line) == Ready("r", 1)


def test_garbled_settings_are_not_shown() -> None:
    said = protocol.command(b'{"v": 1, "is": "begin", "settings": {"config": {"auth_secret": "geheim"}')
    assert isinstance(said, Garbled)
    assert "geheim" not in said.why
    assert "geheim" not in repr(Begin({"auth_secret": "geheim"}))


@given(st.binary())
def test_no_line_raises(line: bytes) -> None:
    protocol.event(line)
    protocol.command(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(
    st.sampled_from(["ready", "rolled", "status", "fault", "stopped"]),
    st.dictionaries(st.sampled_from(["token", "segment", "receiver", "pid", "text", "in_flight"]), JSON),
)
def test_no_object_raises(word: str, fields: dict[str, object]) -> None:
    protocol.event(json.dumps({"v": 1, "is": word, **fields}).encode())


@given(st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line and line.strip())), st.data())
def test_lines_come_out_however_they_arrive(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    reader, found = Lines(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == lines


def test_a_line_without_an_end_is_given_up() -> None:
    reader = Lines(longest=10)
    assert reader.feed(b"x" * 8) == []
    assert reader.feed(b"x" * 8) == []
    assert reader.feed(b"x" * 100) == []
    assert reader.feed(b"xxx\nnext\n") == [b"next"]
    assert reader.feed(b"y" * 11 + b"\nshort\n") == [b"short"]
