from __future__ import annotations

import operator
import struct
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.wire import commands
from nsq.wire.commands import (
    BadBodies,
    BadCommand,
    Command,
    CommandParser,
    Limits,
    PackedBodies,
    batches,
    unpack_bodies,
)

SMALL = Limits(max_msg_size=100, max_body_size=300, max_defer_ms=5000)
ID = b"0123456789abcdef"


def size(number: int) -> bytes:
    return struct.pack(">i", number)


def parsed(wire: bytes, limits: Limits = SMALL, cuts: list[int] | None = None) -> tuple[list[Command], Any]:
    """What a parser makes of the bytes when they come cut at these places; it goes on behind IDENTIFYs. How
    runs of FINs are cut is its own affair: each FIN is named by itself.
    """
    parser = CommandParser(limits)
    found: list[Command] = []
    for piece in cut(wire, cuts or []):
        found += one_by_one(parser.feed(piece))
        while parser.stopped:
            found += one_by_one(parser.feed(b""))
    return found, parser.error


def one_by_one(found: list[Command]) -> Iterator[Command]:
    for verb, params, body in found:
        if verb == b"FIN" and isinstance(body, list):
            yield from ((verb, [message_id], None) for message_id in body)
        else:
            yield verb, params, body


def cut(wire: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(wire), *(place % (len(wire) + 1) for place in cuts)})
    for start, end in pairwise(places):
        yield wire[start:end]


names = st.from_regex(r"[.a-zA-Z0-9_-]{1,20}(#ephemeral)?", fullmatch=True)
bodies = st.binary(min_size=1, max_size=100)
ids = st.binary(min_size=16, max_size=16).filter(lambda raw: not set(raw) & set(b" \r\n"))
delays = st.integers(0, 5000)


def encoded(number: int) -> bytes:
    return str(number).encode()


#: What an encoder wrote and what the parser must give.
exchanges = st.one_of(
    bodies.map(lambda body: (commands.identify(body), (b"IDENTIFY", [], body))),
    bodies.map(lambda body: (commands.auth(body), (b"AUTH", [], body))),
    st.tuples(names, names).map(lambda p: (commands.sub(*p), (b"SUB", [p[0].encode(), p[1].encode()], None))),
    delays.map(lambda n: (commands.rdy(n), (b"RDY", [encoded(n)], None))),
    ids.map(lambda i: (commands.fin(i), (b"FIN", [i], None))),
    ids.map(lambda i: (commands.touch(i), (b"TOUCH", [i], None))),
    st.tuples(ids, delays).map(lambda p: (commands.req(*p), (b"REQ", [p[0], encoded(p[1])], None))),
    st.tuples(names, bodies).map(lambda p: (commands.pub(*p), (b"PUB", [p[0].encode()], p[1]))),
    st.tuples(names, delays, bodies).map(
        lambda p: (commands.dpub(*p), (b"DPUB", [p[0].encode(), encoded(p[1])], p[2]))
    ),
    st.tuples(names, st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=8)).map(
        lambda p: (commands.mpub(*p), (b"MPUB", [p[0].encode()], p[1]))
    ),
    st.just((commands.NOP, (b"NOP", [], None))),
    st.just((commands.CLS, (b"CLS", [], None))),
)
conversations = st.lists(exchanges, max_size=12)
cuts = st.lists(st.integers(0, 10_000), max_size=30)


@given(conversations, cuts)
def test_encoded_commands_are_parsed_in_any_chunks(conversation: list[Any], cuts: list[int]) -> None:
    wire = b"".join(sent for sent, _ in conversation)
    for places in (cuts, list(range(len(wire)))):
        assert parsed(wire, cuts=places) == ([expected for _, expected in conversation], None)


@given(conversations, cuts, st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=5)), max_size=4))
def test_garbage_gives_the_same_however_it_is_cut(
    conversation: list[Any], cuts: list[int], damage: list[tuple[int, bytes]]
) -> None:
    wire = bytearray(b"".join(sent for sent, _ in conversation))
    for place, bytes_ in damage:
        at = place % (len(wire) + 1)
        wire[at : at + len(bytes_)] = bytes_
    whole = parsed(bytes(wire))
    assert parsed(bytes(wire), cuts=cuts) == whole
    assert whole[1] is None or isinstance(whole[1], BadCommand)


#: Runs of what the parser has a quick way for, and what is almost that.
alike = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["t", "u"]), st.sampled_from([b"x", b"PUB t\n", b"x" * 100])).map(
            lambda p: (commands.pub(*p), (b"PUB", [p[0].encode()], p[1]))
        ),
        st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 5000), st.sampled_from([b"x", b"y" * 100])).map(
            lambda p: (commands.dpub(*p), (b"DPUB", [p[0].encode(), encoded(p[1])], p[2]))
        ),
        st.just((b"DPUB t 5\r\n" + size(1) + b"y", (b"DPUB", [b"t", b"5"], b"y"))),
        st.just((b"DPUB t 5 6\n" + size(1) + b"y", (b"DPUB", [b"t", b"5", b"6"], b"y"))),
        st.sampled_from([ID, b"g" * 16]).map(lambda i: (commands.fin(i), (b"FIN", [i], None))),
        st.just((commands.fin(ID[:-1]), (b"FIN", [ID[:-1]], None))),
        st.just((commands.fin(ID[:-1] + b"\r"), (b"FIN", [ID[:-1]], None))),
        st.just((b"FIN " + ID[:8] + b" " + ID[:7] + b"\n", (b"FIN", [ID[:8], ID[:7]], None))),
        st.just((b"PUB t\r\n" + size(1) + b"y", (b"PUB", [b"t"], b"y"))),
        st.just((b"PUB t more\n" + size(1) + b"z", (b"PUB", [b"t", b"more"], b"z"))),
    ),
    max_size=30,
)


@given(alike, cuts)
def test_runs_are_parsed_command_by_command(conversation: list[Any], cuts: list[int]) -> None:
    wire = b"".join(sent for sent, _ in conversation)
    assert parsed(wire, cuts=cuts) == ([expected for _, expected in conversation], None)


wrong_lines = st.sampled_from([b"PUB t\n", b"DPUB t 1\n"])
wrong_sizes = st.sampled_from([size(0), size(101), size(-1)])


@given(
    alike,
    cuts,
    st.builds(operator.add, wrong_lines, wrong_sizes)
    | st.sampled_from([b"DPUB t 5001\n" + size(1), b"DPUB t x\n", b"DPUB t 1234567890123456789\n"]),
)
def test_an_invalid_publish_in_a_run_is_an_error(
    conversation: list[Any], cuts: list[int], wrong: bytes
) -> None:
    wire = b"".join(sent for sent, _ in conversation)
    found, error = parsed(wire + wrong + b"NOP\n", cuts=cuts)
    assert found == [expected for _, expected in conversation]
    assert error is not None
    assert error.code in (b"E_BAD_MESSAGE", b"E_INVALID")


def test_a_run_of_fins_is_one_command() -> None:
    wire = commands.fin(ID) + commands.fin(b"g" * 16) + commands.NOP + commands.fin(ID)
    assert CommandParser(SMALL).feed(wire) == [
        (b"FIN", [], [ID, b"g" * 16]),
        (b"NOP", [], None),
        (b"FIN", [], [ID]),
    ]


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_random_bytes_never_raise(pieces: list[bytes]) -> None:
    parser = CommandParser(SMALL)
    for piece in pieces:
        for verb, params, body in parser.feed(piece):
            assert isinstance(verb, bytes)
            assert all(isinstance(param, bytes) for param in params)
            assert body is None or isinstance(body, (bytes, list))


def test_lines_may_end_with_carriage_return() -> None:
    assert parsed(b"NOP\r\nRDY 5\r\n\r\n\n")[0] == [
        (b"NOP", [], None),
        (b"RDY", [b"5"], None),
        (b"", [], None),
        (b"", [], None),
    ]


def test_a_carriage_return_at_the_end_of_a_body_is_no_part_of_the_next_line() -> None:
    assert parsed(commands.pub("t", b"x\r") + b"\nNOP\n")[0] == [
        (b"PUB", [b"t"], b"x\r"),
        (b"", [], None),
        (b"NOP", [], None),
    ]


@pytest.mark.parametrize(
    ("wire", "error"),
    [
        (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
        (b"PUB b@d\n", b'E_BAD_TOPIC PUB topic name "b@d" is not valid'),
        (b"PUB t\n" + size(0), b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n" + size(-5), b"E_BAD_MESSAGE PUB invalid message body size -5"),
        (b"PUB t\n" + size(101), b"E_BAD_MESSAGE PUB message too big 101 > 100"),
        (b"DPUB t\n", b"E_INVALID DPUB insufficient number of parameters"),
        (b"DPUB b@d 1\n", b'E_BAD_TOPIC DPUB topic name "b@d" is not valid'),
        (b"DPUB t -1\n", b"E_INVALID DPUB could not parse timeout -1"),
        (b"DPUB t 1 \n" + size(0), b"E_BAD_MESSAGE DPUB invalid message body size 0"),
        (b"DPUB t 5001\n", b"E_INVALID DPUB timeout 5001 out of range 0-5000"),
        (b"DPUB t 9999999999999999999\n", b"E_INVALID DPUB timeout 9999999999999999999 out of range 0-5000"),
        (b"DPUB t 1\n" + size(101), b"E_BAD_MESSAGE DPUB message too big 101 > 100"),
        (b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
        (b'PUB a"\t\xff\n', b'E_BAD_TOPIC PUB topic name "a\\"\\t\\xff" is not valid'),
        (b"MPUB b@d\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "b@d" is not valid'),
        (b"MPUB t\n" + size(0), b"E_BAD_BODY MPUB invalid body size 0"),
        (b"MPUB t\n" + size(301), b"E_BAD_BODY MPUB body too big 301 > 300"),
        (b"MPUB t\n" + size(99) + size(0), b"E_BAD_BODY MPUB invalid message count 0"),
        (b"MPUB t\n" + size(99) + size(-1), b"E_BAD_BODY MPUB invalid message count -1"),
        # 300 bytes hold 59 messages of one byte at most, whatever this body's size.
        (b"MPUB t\n" + size(99) + size(60), b"E_BAD_BODY MPUB invalid message count 60"),
        (b"MPUB t\n" + size(99) + size(1) + size(101), b"E_BAD_MESSAGE MPUB message too big 101 > 100"),
        (
            b"MPUB t\n" + size(99) + size(2) + size(1) + b"a" + size(0),
            b"E_BAD_MESSAGE MPUB invalid message(1) body size 0",
        ),
        (
            b"MPUB t\n" + size(13) + size(2) + size(1) + b"a" + size(1),
            b"E_BAD_BODY MPUB messages exceed the declared body size",
        ),
        (b"IDENTIFY\n" + size(0), b"E_BAD_BODY IDENTIFY invalid body size 0"),
        (b"IDENTIFY\n" + size(301), b"E_BAD_BODY IDENTIFY body too big 301 > 300"),
        (b"AUTH x\n", b"E_INVALID AUTH invalid number of parameters"),
        (b"AUTH\n" + size(-1), b"E_BAD_BODY AUTH invalid body size -1"),
        (b"A" * (commands.MAX_LINE + 1), b"E_INVALID command line too long"),
        (b"A" * (commands.MAX_LINE + 1) + b"\n", b"E_INVALID command line too long"),
    ],
)
def test_a_malformed_command_is_an_error_at_once_and_ends_the_stream(wire: bytes, error: bytes) -> None:
    parser = CommandParser(SMALL)
    assert parser.feed(b"NOP\n" + wire) == [(b"NOP", [], None)]
    assert parser.error is not None
    assert bytes(parser.error) == error
    assert parser.feed(b"NOP\n") == []


def test_a_delay_without_a_digit_is_none() -> None:
    parser = CommandParser(SMALL)
    assert parser.feed(b"DPUB t \n" + size(1) + b"x") == [(b"DPUB", [b"t", b""], b"x")]
    assert parser.error is None


def test_a_count_that_other_bodies_could_hold_waits_for_its_messages() -> None:
    assert parsed(b"MPUB t\n" + size(9) + size(50) + size(1) + b"a") == ([], None)


def test_parsing_stops_behind_an_identify() -> None:
    parser = CommandParser(SMALL)
    wire = commands.NOP + commands.identify(b"{}") + commands.NOP + b"\x16\x03\x01 not a command"
    assert [verb for verb, _, _ in parser.feed(wire)] == [b"NOP", b"IDENTIFY"]
    assert parser.stopped
    assert parser.held == len(commands.NOP) + 17
    assert parser.take_rest() == commands.NOP + b"\x16\x03\x01 not a command"
    assert not parser.stopped
    assert parser.take_rest() == b""
    assert parser.feed(b"NOP\n") == [(b"NOP", [], None)]


def test_bytes_received_after_a_stop_follow_the_held_ones() -> None:
    parser = CommandParser(SMALL)
    parser.feed(commands.identify(b"{}") + b"RD")
    assert parser.feed(b"Y 7\n") == [(b"RDY", [b"7"], None)]


def test_stopping_does_not_copy_what_follows() -> None:
    """Otherwise each IDENTIFY in a chunk would copy all bytes after it: here 3000 times 4 MB."""
    chunk = commands.identify(b"{}") * 3_000 + b"PUB t\n" + size(5_000_000) + b"x" * 4_000_000
    parser = CommandParser(Limits(max_msg_size=5_000_000))
    tracemalloc.start()
    try:
        found = parser.feed(chunk)
        for _ in range(2_999):
            found += parser.feed(b"")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2_000_000
    assert ({verb for verb, _, _ in found}, len(found)) == ({b"IDENTIFY"}, 3_000)
    assert parser.feed(b"") == []
    assert parser.error is None


def test_an_mpub_of_small_messages_takes_little_more_memory_than_its_bytes_until_it_is_complete() -> None:
    wire = commands.mpub("t", (b"%02d" % (number % 100) for number in range(100_000)))
    parser = CommandParser(Limits())
    tracemalloc.start()
    try:
        for start in range(0, len(wire) - 1, 50_000):
            assert parser.feed(wire[start : min(start + 50_000, len(wire) - 1)]) == []
            assert parser.held <= start + 50_000
        assert tracemalloc.get_traced_memory()[0] < 1.2 * len(wire)
        (command,) = parser.feed(wire[-1:])
    finally:
        tracemalloc.stop()
    _, _, bodies = command
    assert isinstance(bodies, PackedBodies)
    assert len(bodies) == 100_000
    assert bodies[0:3] == [b"00", b"01", b"02"]
    assert bodies[0:2] == [b"00", b"01"], "again"
    assert bodies[2:99_999][-1] == b"98"
    assert bodies[99_999:200_000] == [b"99"]


def test_memory_stays_within_the_limits() -> None:
    """A client that announces much and then sends what it likes."""
    parser = CommandParser(SMALL)
    tracemalloc.start()
    try:
        parser.feed(b"PUB t\n" + size(100))
        for _ in range(2_000):
            parser.feed(b"y" * 1_000)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
    assert parser.error is not None


def test_commands_are_encoded_byte_for_byte() -> None:
    assert commands.identify(b"{}") == b"IDENTIFY\n\0\0\0\2{}"
    assert commands.auth(b"s") == b"AUTH\n\0\0\0\1s"
    assert commands.sub("t", "c") == b"SUB t c\n"
    assert commands.rdy(5) == b"RDY 5\n"
    assert commands.fin(ID) == b"FIN " + ID + b"\n"
    assert commands.fins([ID, ID[::-1]]) == commands.fin(ID) + commands.fin(ID[::-1])
    assert commands.req(ID, 7) == b"REQ " + ID + b" 7\n"
    assert commands.touch(ID) == b"TOUCH " + ID + b"\n"
    assert commands.pub("t", b"x") == b"PUB t\n\0\0\0\1x"
    assert commands.dpub("t", 9, b"x") == b"DPUB t 9\n\0\0\0\1x"
    assert commands.mpub("t", iter([b"a", b"bb"])) == b"MPUB t\n\0\0\0\x0f\0\0\0\2\0\0\0\1a\0\0\0\2bb"


@given(st.lists(bodies, min_size=1, max_size=20))
def test_packed_bodies_unpack(batch: list[bytes]) -> None:
    assert unpack_bodies(commands.pack_bodies(batch), Limits()) == batch


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "BAD_BODY"),
        (b"\0\0\0", "BAD_BODY"),
        (size(0), "BAD_BODY"),
        (size(-1), "BAD_BODY"),
        (size(60) + size(1) + b"a", "BAD_BODY"),
        (size(5) + b"zz", "BAD_MESSAGE"),
        (size(1), "BAD_MESSAGE"),
        (size(1) + size(0), "BAD_MESSAGE"),
        (size(1) + size(-4) + b"abcd", "BAD_MESSAGE"),
        (size(1) + size(101) + b"x" * 101, "BAD_MESSAGE"),
        (size(2) + size(1) + b"a" + size(2) + b"b", "BAD_MESSAGE"),
    ],
)
def test_bodies_that_do_not_unpack(data: bytes, code: str) -> None:
    with pytest.raises(BadBodies) as caught:
        unpack_bodies(data, SMALL)
    assert caught.value.code == code


@given(st.binary(max_size=400))
def test_unpacking_random_bytes_raises_only_what_it_says(data: bytes) -> None:
    try:
        batch = unpack_bodies(data, SMALL)
    except BadBodies:
        return
    assert data.startswith(commands.pack_bodies(batch))


def test_batches_are_bounded_and_keep_the_order() -> None:
    records = [b"x" * size for size in (1, 300_000, 300_000, 600_000, 2)]
    assert [[len(record) for record in batch] for batch in batches(records, len)] == [
        [1, 300_000],
        [300_000],
        [600_000],
        [2],
    ]
    assert [len(batch) for batch in batches([b"x"] * 25_000, len)] == [10_000, 10_000, 5_000]


@pytest.mark.parametrize(
    ("sizes", "most_messages", "most_bytes", "made"),
    [
        ([1] * 7, 3, 1000, [[1] * 3, [1] * 3, [1]]),
        ([40] * 3, 100, 4 + 2 * 44, [[40, 40], [40]]),
        ([1, 100, 1], 100, 50, [[1], [100], [1]]),
        ([], 3, 1000, []),
    ],
    ids=["many messages", "the next does not fit", "a large one travels alone", "nothing"],
)
def test_a_batch_ends_at_its_bounds(
    sizes: list[int], most_messages: int, most_bytes: int, made: list[list[int]]
) -> None:
    bodies = [b"x" * size for size in sizes]
    found = batches(bodies, len, most_messages, most_bytes)
    assert [[len(body) for body in batch] for batch in found] == made


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=40), st.integers(1, 8), st.integers(1, 200))
def test_nothing_is_lost_and_no_limit_is_passed(
    bodies: list[bytes], most_messages: int, most_bytes: int
) -> None:
    made = list(batches(bodies, len, most_messages, most_bytes))
    assert [body for batch in made for body in batch] == bodies
    for batch in made:
        assert 1 <= len(batch) <= most_messages
        assert len(batch) == 1 or len(commands.pack_bodies(batch)) <= most_bytes
