from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.daemons.nsqd.disk.layout import (
    HEAD_SIZE,
    Layout,
    Meta,
    Position,
    Segment,
    Segments,
    bounds,
    cut,
    decode_record,
    files_by_queue,
    pack_head,
    pack_size,
    parse_meta,
)
from nsq.errors import InvalidMessage, UsageError


def test_files_are_called_as_the_go_nsqd_calls_them() -> None:
    layout = Layout("topic:channel")
    assert layout.meta == "topic:channel.diskqueue.meta.dat"
    assert layout.data(0) == "topic:channel.diskqueue.000000.dat"
    assert layout.data(12345678) == "topic:channel.diskqueue.12345678.dat"


@pytest.mark.parametrize(
    "file",
    [
        "t.diskqueue.meta.dat",
        "t.diskqueue.000000.dat.bad",
        "t.diskqueue.0.dat",
        "t.diskqueue.0000001.dat",
        "t.diskqueue.٠٠٠٠٠٠.dat",
        "t:c.diskqueue.000000.dat",
        "tt.diskqueue.000000.dat",
        "nsqd.dat",
    ],
)
def test_other_files_are_no_data_files(file: str) -> None:
    assert Layout("t").number(file) is None


def test_dots_in_a_name_mean_nothing() -> None:
    name = "a.diskqueue.000001.dat"
    assert Layout("a").number(Layout(name).data(3)) is None
    assert Layout("axb").number("a.b.diskqueue.000000.dat") is None
    assert list(files_by_queue([Layout(name).data(3), Layout(name).meta])) == [name]


def test_unfinished_meta_files_are_known() -> None:
    layout = Layout("t")
    assert layout.is_temporary("t.diskqueue.meta.dat.5577006791947779410.tmp")
    assert not layout.is_temporary("t.diskqueue.meta.dat")
    assert not layout.is_temporary("tt.diskqueue.meta.dat.1.tmp")


@pytest.mark.parametrize(
    "meta",
    [Meta(0, 0, 0, 0, 0), Meta(8, 0, 0, 1, 184), Meta(-3, 5, 10, 5, 10), Meta(1, 10**17, 1, 10**17, 9)],
)
def test_the_meta_file_is_read(meta: Meta) -> None:
    assert parse_meta(meta.text()) == meta


def test_a_meta_file_is_read_as_it_was_synced_while_others_overwrite_it() -> None:
    meta = Meta(99, 10**17, 3, 10**17 + 1, 10**17)
    synced, *others = meta.padded(), meta.with_end(100, 10**17 + 2, 0), meta.with_end(10**6, 10**17 + 30, 0)
    assert [line.strip() for line in others[0].splitlines()[:3]] == ["100", f"{10**17},3", f"{10**17 + 2},0"]
    for before, after in zip([synced, *others], others, strict=False):
        for torn in range(len(synced) + 1):
            assert parse_meta(after[:torn] + before[torn:]) == meta


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\0\0\0",
        "8\n0,0\n",
        "8\n0,0\n1,184\n9",
        "8\n0,-1\n1,184\n",
        "x\n0,0\n1,1\n",
        "1\n2,0\n1,5\n",
        "1\n1,6\n1,5\n",
        f"1\n0,0\n0,{10**18}\n",
    ],
)
def test_an_invalid_meta_file_is_ignored(text: str) -> None:
    assert parse_meta(text) is None


def test_files_are_grouped_by_the_name_of_their_queue() -> None:
    found = files_by_queue(
        [
            "t.diskqueue.000000.dat",
            "t.diskqueue.meta.dat.x7.tmp",
            "t:c.diskqueue.000001.dat.bad",
            "a.diskqueue.b.diskqueue.meta.dat",
            "nsqd.dat",
            "t.dues.dat",
        ]
    )
    assert found == {
        "t": ["t.diskqueue.000000.dat", "t.diskqueue.meta.dat.x7.tmp"],
        "t:c": ["t:c.diskqueue.000001.dat.bad"],
        "a.diskqueue.b": ["a.diskqueue.b.diskqueue.meta.dat"],
    }


SIZES = bounds(1, 9)


def framed(*records: bytes) -> bytes:
    return b"".join(pack_size(len(record)) + record for record in records)


@given(st.lists(st.binary(min_size=1, max_size=9)), st.data())
def test_a_cut_buffer_gives_the_whole_records_before_the_cut(batch: list[bytes], data: st.DataObject) -> None:
    buffer = framed(*batch)
    cut_at = data.draw(st.integers(0, len(buffer)))
    spans, bad = cut(buffer[:cut_at], 0, 1000, SIZES)
    whole = [record for number, record in enumerate(batch, 1) if len(framed(*batch[:number])) <= cut_at]
    assert [buffer[begin:end] for begin, end in spans] == whole
    assert not bad


def test_a_cut_returns_no_more_records_than_the_limit() -> None:
    assert cut(framed(b"a", b"b", b"c"), 5, 1, SIZES) == ([(9, 10)], False)


@pytest.mark.parametrize("size", [b"\0\0\0\0", b"\0\0\0\x0a", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
def test_a_size_outside_the_bounds_is_bad(size: bytes) -> None:
    assert cut(framed(b"a") + size, 0, 1000, SIZES) == ([(4, 5)], True)
    assert cut(size, 0, 1000, SIZES) == ([], True)


@pytest.mark.parametrize(("smallest", "largest"), [(0, 5), (5, 4), (1, 2**31)])
def test_bounds_that_cannot_be_are_refused(smallest: int, largest: int) -> None:
    with pytest.raises(UsageError, match=f"{smallest} to {largest}"):
        bounds(smallest, largest)


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**16 - 1),
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=50),
)
def test_a_record_is_decoded_as_encoded(
    timestamp: int, attempts: int, message_id: bytes, body: bytes
) -> None:
    encoded = pack_head(timestamp, attempts, message_id) + body
    assert len(encoded) == HEAD_SIZE + len(body)
    assert decode_record(encoded) == (timestamp, attempts, message_id, body)


def test_a_record_too_short_for_a_message_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="25 bytes"):
        decode_record(bytes(25))


def files(*ends: tuple[int, int]) -> Segments:
    first, *others = [Segment(number, end) for number, end in ends]
    segments = Segments(first, 10)
    for segment in others:
        segments.add(segment)
    return segments


def test_the_file_after_another_may_be_some_numbers_on() -> None:
    segments = files((3, 50), (4, 20), (9, 0))
    assert [segments.after(number) for number in (3, 4, 9)] == [segments[4], segments[9], None]


def test_the_size_behind_a_position_counts_every_file() -> None:
    segments = files((3, 50), (4, 20), (9, 5))
    assert segments.size_behind(Position(3, 10, 0)) == 65
    assert segments.size_behind(Position(4, 20, 0)) == 5
    assert segments.size_behind(Position(9, 5, 0)) == 0
