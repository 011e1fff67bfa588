from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import FrameError, InvalidName, WireError
from nsq.wire import lookup
from nsq.wire.lookup import Body, Command, Event, LookupCommandParser, LookupReplyParser, PeerInfo, Violation

INFO = PeerInfo(broadcast_address="g1.example", hostname="g1", http_port=4151, tcp_port=4150, version="9.9.9")


def test_identify_carries_sorted_compact_json_behind_its_size() -> None:
    line, _, rest = lookup.identify(INFO).partition(b"\n")
    assert line == b"IDENTIFY"
    assert int.from_bytes(rest[:4], "big") == len(rest) - 4
    assert rest[4:] == (
        b'{"broadcast_address":"g1.example","hostname":"g1","http_port":4151,"tcp_port":4150,'
        b'"topology_region":"","topology_zone":"","version":"9.9.9"}'
    )


def test_commands_to_nsqlookupd_are_encoded() -> None:
    assert lookup.register("orders") == b"REGISTER orders\n"
    assert lookup.register("orders", "archive") == b"REGISTER orders archive\n"
    assert lookup.unregister("orders") == b"UNREGISTER orders\n"
    assert lookup.unregister("orders", "archive") == b"UNREGISTER orders archive\n"
    assert lookup.ping() == b"PING\n"


@pytest.mark.parametrize("words", [("b@d", None), ("t\nREGISTER u", None), ("t", ""), ("t", "c d")])
def test_a_command_about_a_bad_name_is_refused(words: tuple[str, str | None]) -> None:
    with pytest.raises(InvalidName):
        lookup.register(*words)


def test_peer_info_tolerates_what_it_does_not_know() -> None:
    body = b'{"tcp_port": 4150, "hostname": null, "distributed_id": "x", "topology_zone": "z1"}'
    assert lookup.parse_peer_info(body) == PeerInfo(tcp_port=4150, topology_zone="z1")
    assert lookup.parse_peer_info(b"null") == PeerInfo()


@pytest.mark.parametrize(
    "body",
    [
        *[b"", b'{"x"', b"[]", b"7", b'{"tcp_port": "4150"}', b'{"tcp_port": 4150.5}'],
        *[b'{"tcp_port": true}'],
        b'{"tcp_port": 9223372036854775808}',
        b'{"hostname": 7}',
        b'{"x": NaN}',
        b"[" * 60_000,
        b"{} {}",
    ],
)
def test_peer_info_that_is_none(body: bytes) -> None:
    with pytest.raises(WireError, match="peer information"):
        lookup.parse_peer_info(body)


@pytest.mark.parametrize("missing", ["broadcast_address", "http_port", "tcp_port", "version"])
def test_fields_that_nsqlookupd_requires_are_checked(missing: str) -> None:
    fields = json.loads(lookup.identify_reply(INFO))
    assert INFO.complete
    del fields[missing]
    assert not lookup.parse_peer_info(json.dumps(fields).encode()).complete


def test_replies_are_parsed_however_they_arrive() -> None:
    stream = lookup.reply(b"OK") + lookup.reply(b"") + lookup.reply(b"E_INVALID x")
    whole = LookupReplyParser()
    assert whole.feed(stream) == [b"OK", b"", b"E_INVALID x"]
    drop_by_drop = LookupReplyParser()
    parts = [body for at in range(len(stream)) for body in drop_by_drop.feed(stream[at : at + 1])]
    assert parts == [b"OK", b"", b"E_INVALID x"]


@pytest.mark.parametrize("head", [b"\x00\x00\x00\x11", b"\xff\xff\xff\xff", b"HTTP"])
def test_a_reply_of_an_impossible_size_is_an_error(head: bytes) -> None:
    with pytest.raises(FrameError, match="at most 16"):
        LookupReplyParser(max_size=16).feed(head)


def events(*chunks: bytes, **limits: int) -> list[Event]:
    parser = LookupCommandParser(**limits)
    return [event for chunk in chunks for event in parser.feed(chunk)]


def test_commands_are_parsed() -> None:
    stream = lookup.MAGIC + lookup.identify(INFO) + b"PING\r\nREGISTER orders archive\n"
    body = lookup.identify(INFO)[len(b"IDENTIFY\n") + 4 :]
    expected = [
        Command(b"IDENTIFY"),
        Body(body),
        Command(b"PING"),
        Command(b"REGISTER", (b"orders", b"archive")),
    ]
    assert events(stream) == expected
    assert events(*(stream[at : at + 1] for at in range(len(stream)))) == expected


def test_the_line_of_identify_is_parsed_before_its_body_arrives() -> None:
    assert events(lookup.MAGIC + b"IDENTIFY\n\x00\x00") == [Command(b"IDENTIFY")]


@pytest.mark.parametrize("start", [b"  V9", b"  V2PING\n", b"GET / HTTP/1.1\r\n"])
def test_a_wrong_magic_is_refused(start: bytes) -> None:
    assert events(start) == [Violation(b"E_BAD_PROTOCOL")]


def test_a_line_without_end() -> None:
    parser = LookupCommandParser(max_line=10)
    assert parser.feed(lookup.MAGIC + b"x" * 10) == []
    assert parser.feed(b"x") == [Violation(b"E_INVALID command line longer than 10 bytes")]
    assert parser.feed(b"PING\n" * 1000) == []


@pytest.mark.parametrize("size", [b"\x00\x00\x00\x65", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
def test_a_body_of_an_unacceptable_size_is_not_waited_for(size: bytes) -> None:
    answered = events(lookup.MAGIC + b"IDENTIFY\n" + size, max_body=100)[-1]
    assert isinstance(answered, Violation)
    assert answered.reply.startswith(b"E_BAD_BODY IDENTIFY body size ")


@given(st.lists(st.binary(max_size=40)))
def test_garbage_never_raises_and_ends_with_its_violation(chunks: list[bytes]) -> None:
    found = events(lookup.MAGIC, *chunks, max_line=50, max_body=50)
    assert not any(isinstance(event, Violation) for event in found[:-1])


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_cuts_do_not_matter(stream: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert events(lookup.MAGIC, *chunks, max_line=20) == events(lookup.MAGIC + stream, max_line=20)
