"""CloudEvents written by hand; the official package is a second opinion."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import example, given
from hypothesis import strategies as st

from nsq.errors import InvalidMessage
from nsq.wire.envelope import DEAD_LETTER, Envelope, dead_letter_in, unwrap, without_reason, wrap

HEAD = {"id": "1", "source": "/shop", "type": "order.paid", "traceparent": "00-ab-cd-03"}
headers = st.dictionaries(st.from_regex(r"\Ax[a-z0-9]{0,18}\Z"), st.text(), max_size=3)
documents: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), each, max_size=3)
    ),
    max_leaves=6,
)


@given(headers, st.binary())
def test_bytes_come_out_unchanged(more: dict[str, str], body: bytes) -> None:
    assert unwrap(wrap(body, {**HEAD, **more})) == Envelope({"specversion": "1.0", **HEAD, **more}, body)


@given(headers, documents)
def test_json_comes_out_equal_and_the_official_package_reads_it(
    more: dict[str, str], document: object
) -> None:
    data = wrap(json.dumps(document).encode(), {**HEAD, **more}, is_json=True)
    envelope = unwrap(data)
    assert envelope is not None
    assert json.loads(envelope.body) == document
    assert envelope.content_type == "application/json"


def test_the_official_package_reads_ours_and_we_read_its() -> None:
    theirs = JSONFormat().read(CloudEvent, wrap(b'{"order": 1}', HEAD, is_json=True))
    assert theirs.get_data() == {"order": 1}
    assert theirs.get_attributes()["traceparent"] == HEAD["traceparent"]
    assert JSONFormat().read(CloudEvent, wrap(b"\0\xff", HEAD)).get_data() == b"\0\xff"
    ours = unwrap(JSONFormat().write(theirs))
    assert ours is not None
    assert (ours.attributes["type"], json.loads(ours.body)) == ("order.paid", {"order": 1})


@pytest.mark.parametrize(
    "data",
    [
        *[b"", b"{", b"plain", b'{"order": 1}', b'{"specversion": "1.0"}'],
        b'{"specversion": "2.0", "id": "1", "source": "s", "type": "t"}',
        b'{"specversion": "1.0", "id": 1, "source": "s", "type": "t"}',
        b'{"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data_base64": "%"}',
        b'{"specversion": "1.0", "id": "1", "source": "s", "type": "t"',
        b'\xff{"specversion"}',
        b'{"specversion": ' + b"[" * 100_000,
    ],
)
def test_a_body_without_an_envelope_is_unchanged(data: bytes) -> None:
    assert unwrap(data) is None


@given(st.binary())
def test_any_bytes_are_an_envelope_or_none(data: bytes) -> None:
    for each in (data, b'{"specversion"' + data):
        assert isinstance(unwrap(each), Envelope | None)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.just("\ud800"),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(st.characters()), each, max_size=3),
    max_leaves=4,
)


@given(
    st.fixed_dictionaries(
        {}, optional={"data": anything, "data_base64": anything, "datacontenttype": anything, "x": anything}
    )
)
@example({"data": "a lone surrogate: \ud800", "datacontenttype": "text/plain"})
def test_any_json_in_an_envelope_is_an_envelope_or_none(members: dict[str, Any]) -> None:
    data = json.dumps({"specversion": "1.0", **HEAD, **members}).encode()
    assert isinstance(unwrap(data), Envelope | None)


def test_text_of_another_type_is_the_body_itself() -> None:
    data = json.dumps(
        {"specversion": "1.0", **HEAD, "datacontenttype": "text/plain", "data": "ä", "count": 3}
    )
    envelope = unwrap(data.encode())
    assert envelope is not None
    assert (envelope.body, envelope.attributes["count"]) == ("ä".encode(), "3")


@pytest.mark.parametrize(
    "attributes", [{"id": "1"}, {**HEAD, "Upper": "x"}, {**HEAD, "data": "x"}, {**HEAD, "x": 1}]
)
def test_headers_that_cannot_be_are_refused_by_name(attributes: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"source|Upper|data|'x'"):
        wrap(b"body", attributes)


@given(st.binary(min_size=1), st.text(), st.integers(0, 100))
def test_a_dead_letter_gives_its_body_back_and_shows_the_beginning_of_it(
    body: bytes, reason: str, cut: int
) -> None:
    letter = wrap(body, {**HEAD, "type": DEAD_LETTER, "reason": f"x{reason}"})
    assert without_reason(letter) == body
    assert without_reason(body) == body
    shown = dead_letter_in(letter[: len(letter) - cut])
    if shown is not None:  # else even its headers are cut
        assert shown.attributes["reason"] == f"x{reason}"
        assert body.startswith(shown.body)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"data_base64":"aaaa"}',
        b'{"type":"nsq.deadletter","data_base64":"aaaa"}',
        b'{"specversion":"1.0","id":"1","source":"a","type":"other","data_base64":"aaaa"}',
        b'nsq.deadletter,"data_base64":"aaaa"}',
        wrap(wrap(b"x", {**HEAD, "type": DEAD_LETTER}), HEAD),
    ],
)
def test_other_messages_are_no_dead_letters(data: bytes) -> None:
    assert dead_letter_in(data) is None
    assert without_reason(data) == data
