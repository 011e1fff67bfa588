from __future__ import annotations

import math

import pytest

from benchmarks.servers.pieces import (
    HEAD,
    Asked,
    Held,
    Ring,
    count_fins,
    cut_publishes,
    is_piece_of_fin,
    is_piece_of_publish,
)
from nsq.wire.commands import dpub, fin, mpub, pub, rdy
from nsq.wire.frames import FrameParser, RawMessage

GO = Asked.of(0, 0)


def messages(pieces: list[memoryview]) -> list[RawMessage]:
    frames = FrameParser(RawMessage).feed(b"".join(pieces))
    assert all(isinstance(frame, RawMessage) for frame in frames)
    return frames  # type: ignore[return-value]


def fins(count: int) -> bytes:
    return b"".join(fin(b"%016x" % number) for number in range(count))


def test_a_ring_hands_out_whole_distinct_messages_of_its_size_and_comes_round() -> None:
    ring = Ring(50, count=10)
    first = ring.take(8)
    assert sum(map(len, first)) == 8 * (HEAD.size + 50)
    taken = messages(first)
    assert {(len(message.body), message.attempts) for message in taken} == {(50, 1)}
    assert len({message.id for message in taken}) == len({message.timestamp for message in taken}) == 8
    over_the_end = ring.take(5)
    assert len(over_the_end) == 2
    assert [m.id for m in messages(over_the_end)] == [b"%016x" % number for number in (8, 9, 0, 1, 2)]
    assert messages(ring.take(3))[0].id == b"%016x" % 3
    assert len(messages(ring.take(25))) == 25


@pytest.mark.parametrize(
    ("data", "count"),
    [
        *((fins(count), count) for count in (1, 2, 50)),
        (fins(3) + fins(1)[:9], 3),
        (fins(3) + rdy(100), 3),
        # Left to the parser:
        (b"", 0),
        (rdy(2500) + fins(4), 0),
        (fins(2) + rdy(100) + fins(5), 0),
    ],
)
def test_fins_are_counted_up_to_other_bytes(data: bytes, count: int) -> None:
    assert count_fins(data) == count


@pytest.mark.parametrize(
    ("piece", "may_become_one"),
    [(b"", True), (b"F", True), (fins(1)[:9], True), (b"NOP", False), (rdy(100), False)],
)
def test_a_piece_of_a_fin_is_recognized(piece: bytes, may_become_one: bool) -> None:
    assert is_piece_of_fin(piece) is may_become_one


PUBLISHES = pub("t", b"one\nPUB ") + mpub("topic", [b"two", b"three"]) + dpub("t", 5, b"four")


def test_publishes_with_any_body_are_counted() -> None:
    assert cut_publishes(PUBLISHES) == (3, len(PUBLISHES))
    assert cut_publishes(PUBLISHES + rdy(1)) == (3, len(PUBLISHES))


@pytest.mark.parametrize("end", range(1, len(dpub("t", 5, b"four"))))
def test_an_incomplete_publish_is_left_over(end: int) -> None:
    whole = len(PUBLISHES) - len(dpub("t", 5, b"four"))
    data = PUBLISHES[: whole + end]

    assert cut_publishes(data) == (2, whole)
    assert is_piece_of_publish(data[whole:])


def test_other_commands_are_not_counted_as_publishes() -> None:
    assert cut_publishes(fins(2)) == (0, 0)
    assert not is_piece_of_publish(rdy(1))
    assert not is_piece_of_publish(b"SUB t c\n")


@pytest.mark.parametrize(
    ("size", "timeout", "asked"),
    [
        (0, 0, Asked(16 * 1024, 0.25)),
        (16 * 1024, 25, Asked(16 * 1024, 0.025)),
        (-1, 250, Asked(0, None)),
        (0, -1, Asked(16 * 1024, None)),
    ],
)
def test_identify_has_the_requested_fields(size: int, timeout: int, asked: Asked) -> None:
    assert Asked.of(size, timeout) == asked


def test_a_few_bytes_wait_for_the_ticker() -> None:
    held = Held(GO, began=100.0)

    assert held.due == math.inf
    assert held.add(b"one", now=100.3) == b""
    assert held.due == pytest.approx(100.5)  # it ticks from the beginning on, not from the first byte
    assert held.add(b"two", now=100.4) == b""
    assert held.due == pytest.approx(100.5)
    assert held.flush() == b"onetwo"
    assert held.due == math.inf


def test_a_full_buffer_is_flushed_at_once_and_the_rest_waits() -> None:
    held = Held(Asked(100, 0.25), began=0.0)

    assert held.add(b"x" * 250, now=0.1) == b"x" * 200
    assert held.due == pytest.approx(0.25)
    assert held.add(b"y" * 50, now=0.2) == b"x" * 50 + b"y" * 50
    assert held.due == math.inf


def test_without_a_buffer_nothing_waits() -> None:
    held = Held(Asked.of(-1, 0), began=0.0)

    assert held.add(b"at once", now=1.0) == b"at once"
    assert held.due == math.inf


def test_without_a_ticker_only_a_full_buffer_goes_out() -> None:
    held = Held(Asked.of(0, -1), began=0.0)

    assert held.add(bytes(16 * 1024 - 1), now=1.0) == b""
    assert held.due == math.inf
    assert len(held.add(b"!", now=1.0)) == 16 * 1024
