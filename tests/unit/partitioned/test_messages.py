"""Messages as the recorded servers sent them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nsq.partitioned.messages import DetailedMessage, PartitionedMessage, read_detailed
from nsq.partitioned.wire import JSON_HEADER, TAG_HEADER
from nsq.wire.frames import FrameParser
from tests.fakes.messages import Delegate

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "partitioned"


def recorded() -> Iterator[Any]:
    """Yield each recorded message: how it was subscribed, its frame, and what it means."""
    for path in sorted(GOLDEN.glob("[0-9]*.json")):
        recording = json.loads(path.read_text())
        hints = recording.get("decoder_hints", {})
        for number, step in enumerate(recording["steps"]):
            meaning = step.get("frame", {}).get("message")
            if meaning is not None:
                frame = bytes.fromhex(step["hex"])
                yield pytest.param(
                    hints.get("ext", False),
                    hints.get("detail12", False),
                    frame,
                    meaning,
                    id=f"{path.stem}-{number}",
                )


@pytest.mark.parametrize(("extended", "detailed", "frame", "meaning"), list(recorded()))
def test_a_recorded_message_is_read_as_it_was_meant(
    extended: bool, detailed: bool, frame: bytes, meaning: dict[str, Any]
) -> None:
    decode = partial(read_detailed, extended, detailed, Delegate(), 1.0, 61.0)
    [message] = FrameParser(decode).feed(frame)
    assert isinstance(message, DetailedMessage)
    assert message.id.hex() == meaning["id_hex"]
    assert message.internal_id == meaning["internal_id"]
    assert message.trace_id == meaning["trace_id"]
    assert message.partition == meaning["internal_id"] >> 50
    assert message.attempts == meaning["attempts"]
    assert message.timestamp == meaning["timestamp_ns"]
    assert message.body.hex() == meaning["body_hex"]
    assert message.offset == meaning.get("disk_queue_offset")
    assert message.size == meaning.get("disk_queue_size")
    if meaning.get("ext_ver") == JSON_HEADER:
        entries = json.loads(meaning["ext_bytes"])
        assert message.headers == {key: entries[key] for key in entries if not key.startswith("##")}
        assert message.tag == entries.get("##client_dispatch_tag")
    else:
        assert (message.headers, message.tag) == (None, None)


def test_there_are_recorded_messages_of_every_kind() -> None:
    kinds = {(parameters.values[0], parameters.values[1]) for parameters in recorded()}
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}


def test_a_message_of_a_plain_subscription_knows_its_partition_and_ids() -> None:
    message = PartitionedMessage(
        Delegate(), 1.0, 61.0, 17, 1, bytes.fromhex("000c000000000004000000000000002a"), b"b"
    )
    assert (message.partition, message.internal_id, message.trace_id) == (3, 0x000C000000000004, 42)
    assert [message.offset, message.size, message.headers, message.tag] == [None] * 4
    assert message.id_text == "000c000000000004000000000000002a"
    assert repr(message) == "<Message 3377699720527876 of orders/3, attempt 1, 1 bytes: b'b'>"
    assert not hasattr(message, "__dict__")


def test_a_tag_of_an_older_server_is_read() -> None:
    data = bytes([TAG_HEADER, 0, 5]) + b"green" + b"body"
    message = read_detailed(True, False, Delegate(), 1.0, 61.0, 17, 1, bytes(16), data)
    assert (message.tag, message.headers, message.body) == ("green", {}, b"body")
