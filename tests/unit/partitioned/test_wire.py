"""The bytes of the recorded conversations, made and parsed by our code."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsq.errors import FrameError, InvalidMessage, MpubFailed, ServerError, server_error
from nsq.partitioned import wire
from nsq.partitioned.rules import Particular
from nsq.partitioned.snapshots import Snapshots
from nsq.partitioned.table import TopicTable
from nsq.producer.endpoint import command_of
from nsq.producer.publishes import Publish
from nsq.wire.commands import Limits, unpack_bodies
from nsq.wire.frames import PUBLISHED, Published

RECORDINGS = Path(__file__).parents[2] / "golden/partitioned"


def steps(name: str, direction: str) -> Iterator[dict[str, Any]]:
    recorded = json.loads((RECORDINGS / f"{name}.json").read_text("utf-8"))
    yield from (step for step in recorded["steps"] if step["dir"] == direction)


def sent(name: str) -> list[bytes]:
    return [bytes.fromhex(step["hex"]) for step in steps(name, "C->S")]


def received(name: str) -> list[bytes]:
    """The data of each frame."""
    return [bytes.fromhex(step["frame"]["data_hex"]) for step in steps(name, "S->C") if "frame" in step]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("40_sub_partition", wire.sub("plain2", "chA", 0)),
        ("53_sub_advanced", wire.sub_advanced("plain2", "chAdv", 0)),
        ("54_sub_advanced_offset_end", wire.sub_advanced("plain2", "chOff1", 0, "special:-1")),
        ("60_sub_ordered", wire.sub_ordered("ordered3", "chOrd", 0)),
    ],
)
def test_a_subscription_is_encoded_as_it_was_recorded(name: str, command: bytes) -> None:
    assert command in sent(name)


@pytest.mark.parametrize(
    "name",
    ["10_pub_partition", "11_mpub_partition", "12_pub_trace", "14_mpub_trace", "15_pub_ext", "16_mpub_ext"],
)
def test_a_recorded_publish_is_encoded_again_from_its_parts(name: str) -> None:
    pairs = [(data, encoded_again(data)) for data in sent(name)]
    assert [data for data, again in pairs if again] == [again for _, again in pairs if again] != []


def encoded_again(command: bytes) -> bytes:
    """Take a recorded publish apart, and encode a publish of the same parts; empty for another command."""
    line, _, rest = command.partition(b"\n")
    verb, *words = line.decode("latin-1").split(" ")
    if "PUB" not in verb or len(words) != 2:
        return b""
    bodies = unpack_bodies(rest[4:], Limits()) if verb.startswith("M") else [rest[4:]]
    headers = traces = None
    if verb.endswith("_EXT"):
        parts = list(map(cut_header, bodies))
        headers, bodies = [header for header, _ in parts], [body for _, body in parts]
    elif verb.endswith("_TRACE"):
        traces, bodies = [int.from_bytes(each[:8], "big") for each in bodies], [each[8:] for each in bodies]
    options: dict[str, Any] = {"several": verb.startswith("M"), "headers": headers, "traces": traces}
    publish, router = Publish(words[0], bodies[0]), Any
    topic = Snapshots({}, in_turn=True).disconnected(TopicTable(words[0]))
    Particular(router, bodies, **options).place(publish, topic, int(words[1]))  # type: ignore[arg-type]
    return command_of([publish])


def cut_header(message: bytes) -> tuple[bytes, bytes]:
    (size,) = struct.unpack_from(">H", message)
    return message[2 : 2 + size], message[2 + size :]


def test_the_long_answer_to_a_publish_says_where_the_message_is() -> None:
    answers = [wire.published(data) for data in received("12_pub_trace")[1:]]
    assert answers[0] == Published(8, 0x1122334455667788, 0xE4, 0x24)
    assert wire.published(received("14_mpub_trace")[-1]) == Published(11, 0, 0x154, 0x3F)


def test_the_short_answer_says_nothing_and_every_result_is_true() -> None:
    assert wire.published(b"OK") is None
    assert wire.published(b"NO" + bytes(28)) is None
    assert PUBLISHED
    assert Published(0, 0, 0, 0)


def test_a_header_gives_its_entries_tag_and_trace_id() -> None:
    data = wire.checked_header({"k": "v", "n": 1}, 2**64 - 1, "green")
    found = wire.parse_header(wire.JSON_HEADER, data)
    assert found == wire.Header({"k": "v", "n": 1}, "green", 2**64 - 1)
    assert wire.parse_header(wire.TAG_HEADER, b"green") == wire.Header({}, "green", None)
    assert wire.parse_header(wire.NO_HEADER, b"") is None
    assert wire.parse_header(wire.JSON_HEADER, b"[1]") is None
    assert wire.parse_header(wire.JSON_HEADER, b"{") is None


@pytest.mark.parametrize(
    "data", [b"", b"\4", b"\4\0", b"\4\0\5ab", b"\0short"], ids=["none", "kind", "length", "header", "detail"]
)
def test_a_message_that_ends_too_early_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError, match="too short"):
        wire.payload(data, extended=True, detailed=True)


@pytest.mark.parametrize(
    ("check", "value", "reason"),
    [
        (wire.checked_trace, -1, "trace is -1"),
        (wire.checked_trace, 2**64, "trace is 18446744073709551616"),
        (wire.checked_trace, True, "trace is True"),
        (wire.checked_trace, "7", "trace is '7'"),
        (wire.checked_partition, 1024, "partition is 1024"),
        (wire.checked_partition, "0", "partition is '0'"),
        (wire.checked_tag, "", "tag is ''"),
        (wire.checked_tag, "x" * 101, "tag is 'xxx"),
        (wire.checked_tag, 7, "tag is 7"),
        (wire.checked_header, ["k"], "must be a mapping"),
        (wire.checked_header, {1: "v"}, "has the key 1"),
        (wire.checked_header, {"##trace_id": "1"}, "reserved"),
        (wire.checked_header, {"k": b"bytes"}, "cannot be written as JSON"),
        (wire.checked_header, {"k": float("nan")}, "cannot be written as JSON"),
        (wire.checked_header, {"k": "x" * 70_000}, "must take at most 65535"),
    ],
)
def test_a_bad_argument_is_refused_by_name(check: Callable[[Any], object], value: Any, reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        check(value)


def test_every_recorded_error_has_a_class_that_knows_whether_the_connection_goes_on() -> None:
    for row in json.loads((RECORDINGS / "errors_observed.json").read_text("utf-8")):
        if row["code"] == "E_BAD_PROTOCOL":
            continue  # of an address that is no nsqd's
        error = server_error(bytes.fromhex(row["example_frame_hex"])[8:])
        assert type(error) is not ServerError, row["code"]
        assert error.code == row["code"]
        # After SUB each error ends the connection; the rules in ``table`` tell of the codes that the original
        # NSQ has too.
        shared = isinstance(error, MpubFailed) or row["command"].startswith("SUB")
        if row["closes_connection"] is not None and not shared:
            assert error.fatal == row["closes_connection"], row["code"]
