from __future__ import annotations

import json

import pytest

from nsq.errors import WalForeign
from nsq.spark.wal import names as identity


def test_an_identity_is_read_back() -> None:
    made = "5f0c"
    text = identity.encode_identity(made, 1_700_000_000)
    assert identity.decode_identity(text, "p") == made
    assert json.loads(text)["created"] == "2023-11-14T22:13:20Z"


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b"\xff\xfe", b'{"format": "1", "identity": "x"}', b'{"format": 1, "identity": ""}'],
)
def test_a_file_that_is_no_identity_is_refused(text: bytes) -> None:
    with pytest.raises(WalForeign, match="p is not the identity of a log"):
        identity.decode_identity(text, "p")


def test_a_newer_format() -> None:
    with pytest.raises(WalForeign, match="p has format 2"):
        identity.decode_identity(b'{"format": 2, "identity": "x"}', "p")
