"""The lines of the logger ``nsq.trace``."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from nsq.errors import UsageError
from nsq.partitioned.messages import read_detailed
from nsq.partitioned.tracing import FIELDS, Tracing, log_delivery, log_publish
from nsq.wire.frames import Published
from tests.fakes.messages import Delegate, payload
from tests.fakes.nsqd import A

ID = "000c000000000004000000000000002a"


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsq.trace")


def line(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    [record] = caplog.records
    assert record.name == "nsq.trace"
    fields = json.loads(record.getMessage())
    assert record.nsq_trace == fields  # type: ignore[attr-defined]
    assert list(fields) == [name for name in FIELDS if name in fields]
    assert isinstance(fields, dict)
    return fields


def test_a_publish_says_where_its_message_is(caplog: pytest.LogCaptureFixture) -> None:
    published = Published(0x000C000000000004, 42, 1024, 64)
    log_publish("orders", 3, A, published, local_ip="10.0.0.9", tag="green", headers={"k": "v"})
    fields = line(caplog)
    assert fields.pop("timestamp") > 10**18
    assert fields == {
        "event": "publish",
        "topic": "orders",
        "partition": 3,
        "nsqd": A,
        "local_ip": "10.0.0.9",
        "message_id": ID,
        "internal_id": 0x000C000000000004,
        "trace_id": 42,
        "offset": 1024,
        "size": 64,
        "tag": "green",
        "headers": {"k": "v"},
    }


def test_a_delivery_has_the_same_ids_as_its_publish(caplog: pytest.LogCaptureFixture) -> None:
    data = payload(b"body", header=b'{"k":"v","##client_dispatch_tag":"green"}', detail=(1024, 64))
    message = read_detailed(True, True, Delegate(), 1.0, 61.0, 17, 2, bytes.fromhex(ID), data)
    log_delivery(message, "billing", local_ip="10.0.0.8")
    assert line(caplog) == {
        "event": "delivery",
        "topic": "orders",
        "partition": 3,
        "channel": "billing",
        "nsqd": A,
        "local_ip": "10.0.0.8",
        "message_id": ID,
        "internal_id": 0x000C000000000004,
        "trace_id": 42,
        "offset": 1024,
        "size": 64,
        "attempts": 2,
        "tag": "green",
        "headers": {"k": "v"},
        "timestamp": 17,
    }


def test_unknown_fields_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    message = read_detailed(False, False, Delegate(), 1.0, 61.0, 17, 1, bytes.fromhex(ID), b"body")
    log_delivery(message, "billing")
    assert set(FIELDS) - line(caplog).keys() == {"local_ip", "offset", "size", "tag", "headers"}


def test_a_switch_is_on_or_off() -> None:
    with pytest.raises(UsageError, match="True or False"):
        Tracing().switch("orders", "off")  # type: ignore[arg-type]
