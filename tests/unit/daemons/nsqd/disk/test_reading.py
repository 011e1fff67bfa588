from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import patch

import pytest

from nsq.daemons.nsqd.disk.layout import bounds, pack_size
from nsq.daemons.nsqd.disk.reading import CHUNK, FileReader, survey

SIZES = bounds(1, 3 * CHUNK)


def written(directory: Path, *parts: bytes) -> tuple[Path, int]:
    path = directory / "file"
    path.write_bytes(b"".join(parts))
    return path, path.stat().st_size


def framed(record: bytes) -> bytes:
    return pack_size(len(record)) + record


def read_all(path: Path, end: int, *, limit: int = 1000) -> tuple[list[bytes], FileReader]:
    reader = FileReader(path, 0, SIZES)
    found: list[bytes] = []
    while spans := reader.spans(limit, end):
        found += [reader.buffer[begin:stop] for begin, stop in spans]
    reader.close()
    return found, reader


def test_records_of_any_size_come_in_order_and_every_byte_is_read_once(tmp_path: Path) -> None:
    batch = [bytes([number]) * size for number, size in enumerate([1, CHUNK - 7, 5, 2 * CHUNK + 1, 3, CHUNK])]
    path, end = written(tmp_path, *map(framed, batch))
    sizes: list[int] = []
    real = os.pread

    def counting(descriptor: int, size: int, offset: int) -> bytes:
        assert offset == sum(sizes)
        chunk = real(descriptor, size, offset)
        sizes.append(len(chunk))
        return chunk

    with patch("os.pread", counting):
        found, reader = read_all(path, end)
    assert found == batch
    assert reader.flaw is None
    assert sum(sizes) == end


def test_a_reader_follows_a_growing_file(tmp_path: Path) -> None:
    path, end = written(tmp_path, framed(b"one"), framed(b"two"))
    reader = FileReader(path, 0, SIZES)
    assert reader.spans(10, 7) == [(4, 7)]
    assert reader.spans(10, 7) == []
    assert len(reader.spans(10, end)) == 1
    assert reader.offset == end
    reader.close()


@pytest.mark.parametrize(
    ("rest", "missing", "flaw"),
    [
        (framed(b"two")[:-1], 0, ("ends within the record at byte 7", True)),
        (b"\0\1", 0, ("ends within the record at byte 7", True)),
        (b"", 20, ("ends at byte 7, 20 bytes too early", False)),
    ],
)
def test_a_file_that_ends_too_early_is_flawed(
    tmp_path: Path, rest: bytes, missing: int, flaw: tuple[str, bool]
) -> None:
    path, end = written(tmp_path, framed(b"one"), rest)
    assert survey(path, 0, end + missing, SIZES) == (1, 7, flaw)


def test_an_impossible_size_is_a_flaw_to_be_kept(tmp_path: Path) -> None:
    path, end = written(tmp_path, framed(b"one"), b"\xff\xff\xff\xff", framed(b"two"))
    found = survey(path, 0, end, SIZES)
    assert found.flaw is not None
    assert "claims a record of -1 bytes at byte 7" in found.flaw.text
    assert found.flaw.keep


@pytest.mark.parametrize("zeros", [1, 3, 4, 100, 2 * CHUNK])
def test_zeros_up_to_the_end_are_nothing_worth_keeping(tmp_path: Path, zeros: int) -> None:
    path, end = written(tmp_path, framed(b"one"), bytes(zeros))
    assert survey(path, 0, end, SIZES) == (1, 7, (f"holds nothing but {zeros} zeros from byte 7 on", False))


@pytest.mark.parametrize("zeros", [4, 2 * CHUNK])
def test_zeros_before_something_else_are_kept(tmp_path: Path, zeros: int) -> None:
    path, end = written(tmp_path, framed(b"one"), bytes(zeros), b"\x01")
    found = survey(path, 0, end, SIZES)
    assert found.flaw is not None
    assert found.flaw.keep


def test_a_sector_that_is_gone_is_a_flaw(tmp_path: Path) -> None:
    path, end = written(tmp_path, framed(b"one"))
    with patch("os.pread", side_effect=OSError(errno.EIO, "Input/output error")):
        found = survey(path, 0, end, SIZES)
    assert found == (0, 0, ("cannot be read at byte 0: Input/output error", True))


def test_other_read_errors_are_raised(tmp_path: Path) -> None:
    path, end = written(tmp_path, framed(b"one"))
    with (
        patch("os.pread", side_effect=OSError(errno.ENOMEM, "no memory")),
        pytest.raises(OSError, match="no mem"),
    ):
        survey(path, 0, end, SIZES)
