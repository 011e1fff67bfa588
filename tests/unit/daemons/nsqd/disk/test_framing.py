from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.daemons.nsqd.disk.framing import bounds, cut, pack_size
from nsq.errors import UsageError

SIZES = bounds(1, 9)


def framed(*records: bytes) -> bytes:
    return b"".join(pack_size(len(record)) + record for record in records)


def test_sizes_are_four_bytes_big_endian() -> None:
    assert pack_size(0x0102) == b"\0\0\x01\x02"


@given(st.lists(st.binary(min_size=1, max_size=9)), st.data())
def test_a_cut_buffer_gives_the_whole_records_before_the_cut(batch: list[bytes], data: st.DataObject) -> None:
    buffer = framed(*batch)
    cut_at = data.draw(st.integers(0, len(buffer)))
    spans, bad = cut(buffer[:cut_at], 0, 1000, SIZES)
    whole = [record for number, record in enumerate(batch, 1) if len(framed(*batch[:number])) <= cut_at]
    assert [buffer[begin:end] for begin, end in spans] == whole
    assert not bad


def test_the_limit_is_kept() -> None:
    assert cut(framed(b"a", b"b", b"c"), 5, 1, SIZES) == ([(9, 10)], False)


@pytest.mark.parametrize("size", [b"\0\0\0\0", b"\0\0\0\x0a", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
def test_a_size_outside_the_bounds_is_bad(size: bytes) -> None:
    assert cut(framed(b"a") + size, 0, 1000, SIZES) == ([(4, 5)], True)
    assert cut(size, 0, 1000, SIZES) == ([], True)


@pytest.mark.parametrize(("smallest", "largest"), [(0, 5), (5, 4), (1, 2**31)])
def test_bounds_that_cannot_be_are_refused(smallest: int, largest: int) -> None:
    with pytest.raises(UsageError, match=f"{smallest} to {largest}"):
        bounds(smallest, largest)
