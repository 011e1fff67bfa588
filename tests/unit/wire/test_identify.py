from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.wire.identify import AuthReply, BadJson, IdentifyReply, IdentifyRequest

BODIES = [IdentifyRequest, IdentifyReply, AuthReply]


def made(kind: Any) -> st.SearchStrategy[Any]:
    """Any values in all fields."""
    numbers = st.integers(-(2**63), 2**63 - 1)
    values = {field.name: numbers if field.type == "int" else ... for field in dataclasses.fields(kind)}
    return st.builds(kind, **values)


@given(st.one_of([made(kind) for kind in BODIES]))
def test_everything_survives_the_wire_and_what_is_missing_has_its_default(body: Any) -> None:
    assert type(body).decode(body.encode()) == body
    assert type(body).decode(b"{}") == type(body)()


def test_the_reply_has_the_order_and_form_of_the_wire() -> None:
    assert IdentifyReply(version="1.3.0", msg_timeout=60000, tls_v1=True).encode() == (
        b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":0,"msg_timeout":60000,"tls_v1":true,'
        b'"deflate":false,"deflate_level":0,"max_deflate_level":0,"snappy":false,"sample_rate":0,'
        b'"auth_required":false,"output_buffer_size":0,"output_buffer_timeout":0,"topology_region":"",'
        b'"topology_zone":"","exiting_not_stored":false,"draining":false}'
    )


def test_unknown_fields_are_ignored_and_null_is_absent() -> None:
    body = b'{"zzz": [1], "client_id": null, "hostname": "h", "heartbeat_interval": -1}'
    assert IdentifyRequest.decode(body) == IdentifyRequest(hostname="h", heartbeat_interval=-1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("heartbeat_interval", "1000"), ("heartbeat_interval", 1000.0), ("heartbeat_interval", True)],
        *[("tls_v1", 1), ("tls_v1", "true"), ("client_id", 7), ("client_id", ["c"]), ("sample_rate", {})],
    ],
)
def test_a_field_of_the_wrong_type_spoils_the_body(field: str, value: Any) -> None:
    with pytest.raises(BadJson, match=field):
        IdentifyRequest.decode(json.dumps({field: value}).encode())


@pytest.mark.parametrize(
    ("body", "timeout"),
    [
        (b'{"MSG_TIMEOUT":2000}', 2000),
        (b'{"msg_timeout":1000,"Msg_Timeout":2000}', 2000),
        (b'{"Msg_Timeout":2000,"msg_timeout":1000}', 1000),
        (b'{"msg_timeout":1000,"Msg_Timeout":null}', 1000),
        (b'{"msgtimeout":1000}', 0),
    ],
)
def test_capitals_in_keys_do_not_matter_and_the_last_key_wins(body: bytes, timeout: int) -> None:
    assert IdentifyRequest.decode(body).msg_timeout == timeout


def test_null_is_an_empty_object() -> None:
    assert IdentifyRequest.decode(b" null") == IdentifyRequest()


def test_a_name_that_is_no_utf8_spoils_nothing() -> None:
    assert IdentifyRequest.decode(b'{"hostname": "caf\xe9"}') == IdentifyRequest(hostname="caf\ufffd")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"nope", b"[]", b"1", b'"x"', b"\xff\xfe\xff", b"{", b"[" * 100_000, b"9" * 10_000),
        *(b'{"x": NaN}', b'{"x": -Infinity}', "{}".encode("utf-16"), b"\xef\xbb\xbf{}"),
    ],
)
def test_a_body_that_is_no_json_object_is_an_error(body: bytes) -> None:
    with pytest.raises(BadJson):
        IdentifyRequest.decode(body)


@given(st.binary(max_size=100))
def test_random_bytes_raise_no_other_error(body: bytes) -> None:
    with suppress(BadJson):
        assert isinstance(IdentifyRequest.decode(body), IdentifyRequest)
