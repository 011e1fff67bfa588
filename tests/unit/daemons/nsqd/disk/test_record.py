from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.daemons.nsqd.disk import record
from nsq.errors import InvalidMessage


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**16 - 1),
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=50),
)
def test_what_goes_in_comes_out(timestamp: int, attempts: int, message_id: bytes, body: bytes) -> None:
    encoded = record.encode(timestamp, attempts, message_id, body)
    assert len(encoded) == record.OVERHEAD + len(body)
    assert record.decode(encoded) == (timestamp, attempts, message_id, body)


def test_the_bytes_are_those_of_a_message_frame() -> None:
    encoded = record.encode(1, 2, b"0123456789abcdef", b"body")
    assert encoded == b"\0\0\0\0\0\0\0\x01\0\x020123456789abcdefbody"


def test_an_id_of_another_length_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="has 3 bytes; it takes 16"):
        record.encode(0, 0, b"abc", b"")


def test_a_record_too_short_for_a_message_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="25 bytes"):
        record.decode(bytes(25))
