from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import FrameError, NotNsqd
from nsq.wire import lookup
from nsq.wire.frames import (
    CLOSE_WAIT,
    HEARTBEAT,
    OK,
    ErrorReply,
    FrameParser,
    RawMessage,
    Response,
    encode_error,
    encode_message,
    encode_messages,
    encode_response,
)

ID = b"0123456789abcdef"
Frames = list[Any]

messages = st.builds(
    RawMessage,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 65535),
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=300),
)
replies = st.sampled_from([OK, HEARTBEAT, CLOSE_WAIT]) | st.binary(max_size=50)
frames = st.one_of(messages, replies.map(Response), st.binary(max_size=50).map(ErrorReply))


def encode(frame: Any) -> bytes:
    if isinstance(frame, RawMessage):
        return encode_message(*frame)
    return (encode_response if isinstance(frame, Response) else encode_error)(frame.data)


def parse(wire: bytes, cuts: list[int]) -> tuple[Frames, str]:
    """The frames, and what error ended them."""
    parser = FrameParser(RawMessage, max_frame=1000)
    found: Frames = []
    places = sorted({0, len(wire), *(place % (len(wire) + 1) for place in cuts)})
    for start, end in pairwise(places):
        try:
            found += parser.feed(wire[start:end])
        except FrameError as error:
            return found, str(error)
    return found, ""


cuts = st.lists(st.integers(0, 5000), max_size=30)


@given(st.lists(frames, max_size=10), cuts)
def test_encoded_frames_are_parsed_in_any_chunks(sent: Frames, cuts: list[int]) -> None:
    wire = b"".join(map(encode, sent))
    assert parse(wire, cuts) == (sent, "")
    assert parse(wire, list(range(len(wire)))) == (sent, "")


@given(st.lists(frames, max_size=6), cuts, st.integers(0, 5000), st.binary(min_size=1, max_size=6))
def test_garbage_raises_nothing_but_frame_errors(
    sent: Frames, cuts: list[int], place: int, damage: bytes
) -> None:
    wire = bytearray(b"".join(map(encode, sent)))
    at = place % (len(wire) + 1)
    wire[at : at + len(damage)] = damage
    _, whole = parse(bytes(wire), [])
    found, piecemeal = parse(bytes(wire), cuts)
    assert whole == piecemeal
    assert all(isinstance(frame, (RawMessage, Response, ErrorReply)) for frame in found)


def test_frames_of_every_type_are_encoded() -> None:
    assert encode_response(b"OK") == bytes.fromhex("00000006000000004f4b")
    assert encode_error(b"E_X") == b"\0\0\0\7\0\0\0\1E_X"
    assert encode_message(1, 2, ID, b"b") == b"\0\0\0\x1f\0\0\0\2" + struct.pack(">qH", 1, 2) + ID + b"b"


def test_messages_are_encoded_together_as_one_by_one() -> None:
    messages = [RawMessage(1, 2, ID, b"b"), RawMessage(3, 0xFFFF, ID[::-1], b"")]
    assert encode_messages(messages) == [encode_message(*message) for message in messages]


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (struct.pack(">ii", 3, 0), "a frame size of 3"),
        (struct.pack(">ii", -1, 0), "a frame size of -1"),
        (struct.pack(">ii", 1001, 0), "a frame of 1001 bytes, above this connection's limit of 1000"),
        (struct.pack(">ii", 4, 3), "unknown type 3"),
        (struct.pack(">ii", 4, -1), "unknown type -1"),
        (struct.pack(">ii", 29, 2) + b"x" * 25, "a message frame of 29 bytes"),
    ],
)
def test_an_impossible_frame_is_an_error(wire: bytes, said: str) -> None:
    with pytest.raises(FrameError, match=said) as caught:
        FrameParser(RawMessage, max_frame=1000).feed(wire)
    assert not isinstance(caught.value, NotNsqd)


def test_the_smallest_and_largest_frames_there_are() -> None:
    parser = FrameParser(RawMessage, max_frame=1000)
    assert parser.feed(encode_response(b"")) == [Response(b"")]
    assert parser.feed(encode_message(0, 0, ID, b"")) == [RawMessage(0, 0, ID, b"")]
    assert parser.feed(encode_error(b"x" * 996)) == [ErrorReply(b"x" * 996)]


def test_an_http_server_is_named_as_what_it_is() -> None:
    with pytest.raises(NotNsqd, match="HTTP port"):
        FrameParser(RawMessage).feed(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_a_reply_of_nsqlookupd_is_named_as_such() -> None:
    with pytest.raises(NotNsqd, match=r"as nsqlookupd does.*HTTP port"):
        FrameParser(RawMessage).feed(lookup.reply(b"E_BAD_PROTOCOL"))


def test_a_large_frame_may_arrive_in_small_chunks() -> None:
    body = bytes(range(256)) * 20_000
    wire = encode_message(1, 1, ID, body)
    parser = FrameParser(RawMessage)
    found: Frames = []
    for start in range(0, len(wire), 500):
        assert not found
        found += parser.feed(wire[start : start + 500])
    assert found == [RawMessage(1, 1, ID, body)]
