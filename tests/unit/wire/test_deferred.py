"""The envelope of messages that are deferred beyond nsqd's limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsq.wire.deferred import unwrap, wrap


@given(st.binary(max_size=50), st.integers(0, 10**15))
def test_a_body_comes_out_of_the_envelope_as_it_went_in(body: bytes, due_ms: int) -> None:
    assert unwrap(wrap(body, due_ms)) == (body, due_ms)


def test_other_messages_are_not_taken_for_envelopes() -> None:
    for body in (
        b"",
        b"hello",
        b"nsq-deferred",
        b"nsq-deferred \n",
        b"nsq-deferred -1\nx",
        b" nsq-deferred 1\nx",
    ):
        assert unwrap(body) is None
