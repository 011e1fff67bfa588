"""A kombu message as an NSQ message, and the registration with kombu."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.contrib.celery.envelope import Envelope
from nsq.errors import InvalidMessage


@given(st.binary(max_size=50) | st.text(max_size=50), st.dictionaries(st.text(), st.text() | st.integers()))
def test_a_message_arrives_as_it_was_published(body: str | bytes, headers: dict[str, Any]) -> None:
    sent = Envelope(body, "application/json", "utf-8", headers, {"delivery_mode": 2}, "exchange", "key")
    arrived = Envelope.decode(sent.encode())
    assert arrived.body == (body.encode() if isinstance(body, str) else body)
    assert (arrived.headers, arrived.properties) == (headers, {"delivery_mode": 2})
    assert (arrived.exchange, arrived.routing_key) == ("exchange", "key")
    assert (arrived.content_type, arrived.content_encoding) == ("application/json", "utf-8")


@given(st.binary(max_size=100))
def test_a_message_without_an_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        Envelope.decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"{}\nbody",
        b"[]\nbody",
        b'{"nsq-celery": 1, "headers": {"x": {"__type__": "datetime", "__value__": 5}}}\nbody',
        b'{"nsq-celery": 2}\nbody',
        b'{"nsq-celery": 1, "unknown": 1}\nbody',
        b'{"nsq-celery": 1, "headers": null}\nbody',
        b'{"nsq-celery": 1, "routing_key": 1}\nbody',
        b'{"nsq-celery": 1, "headers": {}, "properties": []}\nbody',
    ],
)
def test_an_invalid_head_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        Envelope.decode(data)


@pytest.mark.parametrize(
    ("headers", "due"),
    [
        ({"task": "t", "eta": "1970-01-02T00:00:00+00:00"}, 86400.0),
        ({"task": "t", "eta": "1970-01-02T01:00:00+01:00"}, 86400.0),
        ({"task": "t", "eta": "1970-01-02T00:00:00Z"}, 86400.0),
        ({"task": "t", "eta": "1970-01-02T00:00:00"}, None),  # its zone is known to Celery alone
        ({"task": "t", "eta": "soon"}, None),
        ({"task": "t", "eta": 5}, None),
        ({"task": "t", "eta": None}, None),
        ({"task": "t"}, None),
        ({"eta": "1970-01-02T00:00:00+00:00"}, None),
    ],
)
def test_only_a_tasks_eta_with_a_zone_defers(headers: dict[str, Any], due: float | None) -> None:
    assert Envelope("", headers=headers).due == due


def test_expiration_is_celerys_business_for_tasks() -> None:
    assert Envelope("", properties={"expiration": "2500"}).lifetime == 2.5
    assert Envelope("", properties={}).lifetime is None
    assert Envelope("", properties={"expiration": "soon"}).lifetime is None
    assert Envelope("", headers={"task": "t"}, properties={"expiration": "2500"}).lifetime is None


def test_deaths_are_counted_in_a_header() -> None:
    envelope = Envelope("", headers={"x-nsq-deaths": "many"})
    assert [envelope.count_death(), envelope.count_death()] == [1, 2]
    assert Envelope.decode(envelope.encode()).count_death() == 3


def test_registering_with_kombu_loads_nothing_but_the_errors() -> None:
    program = """
import sys
import kombu.serialization, kombu.transport
assert kombu.transport.TRANSPORT_ALIASES["nsq+lookupd"] == "nsq.contrib.celery.transport:Transport"
print(sorted(name for name in sys.modules if name.split(".")[0] == "nsq"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.strip() == str(
        ["nsq", "nsq.contrib", "nsq.contrib.celery", "nsq.contrib.celery.register", "nsq.errors"]
    )


V2 = {"task": "t", "id": "1", "timelimit": [None, 5.0]}
V1 = {"task": "t", "id": "1", "args": [1], "kwargs": {}, "timelimit": [None, None]}


@pytest.mark.parametrize(
    ("headers", "body", "said"),
    [
        (V2, b"[[1], {}, {}]", ""),
        (V2, b"[[1], {}, null]", ""),
        (V2 | {"id": 17, "shadow": None, "timelimit": None}, b"[[], {}, {}]", ""),
        (V2 | {"compression": "application/x-gzip"}, b"\x1f\x8b", ""),
        ({}, json.dumps(V1).encode(), ""),
        ({"kind": "no task"}, b"null", ""),
        ({}, b"not JSON", ""),
        ({}, b'{"task": "of another program"}', ""),
        (V2, b"null", "its body has no args and kwargs"),
        (V2, b"17", "its body has no args and kwargs"),
        (V2, b"{}", "its body has no args and kwargs"),
        (V2, b"[[1], {}]", "its body has no args and kwargs"),
        (V2, b"[{}, [], {}]", "its body has no args and kwargs"),
        (V2, b"not JSON", "its body cannot be decoded"),
        (V2, b"[" * 100_000, "its body cannot be decoded"),
        (V2, b"\xff", "its body cannot be decoded"),
        (V2, b'[[{"__type__": "datetime", "__value__": 5}], {}, {}]', "its body cannot be decoded"),
        ({"task": "t"}, b"[[1], {}, {}]", "it has no id"),
        (V2 | {"task": ["t"]}, b"[[1], {}, {}]", r"its 'task' is \['t'\]"),
        (V2 | {"id": {}}, b"[[1], {}, {}]", "its 'id' is {}"),
        (V2 | {"shadow": [1]}, b"[[1], {}, {}]", "its 'shadow' is"),
        (V2 | {"timelimit": "long"}, b"[[1], {}, {}]", "its 'timelimit' is 'long'"),
        (V2 | {"timelimit": ["a", "b"]}, b"[[1], {}, {}]", "its 'timelimit' is"),
        ({}, json.dumps(V1 | {"timelimit": 17}).encode(), "its 'timelimit' is 17"),
        ({}, json.dumps(V1 | {"kwargs": None}).encode(), "its body has no args and kwargs"),
    ],
)
def test_what_says_that_it_is_a_task_and_cannot_be_one_is_refused(
    headers: dict[str, Any], body: bytes, said: str
) -> None:
    envelope = Envelope(body, "application/json", "utf-8", headers)
    if said:
        with pytest.raises(InvalidMessage, match=f"no task: {said}"):
            envelope.check_task()
    else:
        envelope.check_task()
