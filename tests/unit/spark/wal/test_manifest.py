"""A manifest names exactly the segments that were named and not deleted, after any sequence of changes."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import WalForeign
from nsq.spark.wal import manifest
from nsq.spark.wal.manifest import KEPT, PAGE, Head, Row
from nsq.spark.wal.status import Status

#: Name so many segments, or delete up to so many of those that there are.
LIVES = st.lists(st.tuples(st.sampled_from(["name", "delete"]), st.integers(0, 2500)), max_size=8)


def row(number: int) -> Row:
    oldest = 1_700_000_000_123_456_789 + number
    return Row(number, 2 * number, 3 * number, 1_700_000_000.5 + number, oldest, oldest + 10)


@given(LIVES, st.integers(0, 6000))
def test_a_head_and_its_pages_name_what_was_named_and_not_deleted(
    life: list[tuple[str, int]], after: int
) -> None:
    head, pages, last, first = Head("one", "w"), {}, 0, 1
    for act, count in life:
        if act == "name":
            head = head.named(map(row, range(last + 1, last + count + 1)))
            last += count
            while full := head.full_page():
                pages[full[0].first] = manifest.decode_page(manifest.encode_page(full[1]), "p")
                head = head.with_page(full[0])
        else:
            first = min(first + count, last + 1)
            head = head.trimmed(first, first)
        head = manifest.decode_head(manifest.encode_head(head), "h")

    assert (head.first, head.last, head.count) == (first, last, last - first + 1)
    assert head.deleted in (0, first)
    assert len(head.tail) < PAGE + KEPT
    low = max(after, head.first - 1)
    found = [
        file
        for page in head.pages_after(low)
        for file in manifest.files("one", page.first, pages[page.first], low)
    ]
    found += head.files_of_tail(low)
    assert [file.segment.number for file in found] == list(range(max(first, after + 1), last + 1))
    assert [file.segment.rows for file in found] == [file.segment.number for file in found]
    exact = sum(3 * number for number in range(first, last + 1))
    assert abs(head.size - exact) <= 3 * PAGE * PAGE  # a page that is deleted in part is estimated


def test_a_head_stays_small_and_keeps_its_status() -> None:
    head = Head("one", "w", closed=True, status=Status(received=7, paused="full"))
    head = head.named(map(row, range(1, 86_401)))
    while full := head.full_page():
        head = head.with_page(full[0])
    data = manifest.encode_head(dataclasses.replace(head, beat=3))
    assert len(data) < 110_000
    read = manifest.decode_head(data, "h")
    assert (read.status.received, read.status.paused, read.closed, read.beat) == (7, "full", True, 3)


@pytest.mark.parametrize("receiver", ["one", "20260301T000000-host-1-abcd"])
def test_names_of_objects_can_be_read_back(receiver: str) -> None:
    assert manifest.receiver_of(manifest.head_name(receiver)) == receiver
    assert manifest.segment_of(manifest.segment_name(receiver, 1_234_567_890)) == (receiver, 1_234_567_890)


def test_other_objects_are_no_heads_or_segments() -> None:
    assert manifest.receiver_of("m/one.txt") is None
    assert manifest.segment_of("s/one/1.arrow") is None


def test_a_head_of_another_format_is_refused() -> None:
    with pytest.raises(WalForeign, match="m/one"):
        manifest.decode_head(b'{"format": 3}', "m/one")
