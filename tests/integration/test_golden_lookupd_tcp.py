"""nsqlookupd's V1 protocol against lookupd_tcp.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nsq.testing import Nsqlookupd, V1Client
from nsq.testing.plugin import factory
from tests.golden import recordings
from tests.golden.conversation import as_bytes, compact

CASES = recordings.cases("lookupd_tcp.json")
VOLATILE = {"hostname", "http_port", "tcp_port"}


@pytest.fixture(scope="module")
def nsqlookupd() -> Iterator[Nsqlookupd]:
    with factory(Nsqlookupd) as make:
        yield make()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_nsqlookupd_answers_nsqds_as_gos_did(case: dict[str, Any], nsqlookupd: Nsqlookupd) -> None:
    magic, *steps = case["steps"]
    with V1Client(nsqlookupd.tcp_address, magic=as_bytes(magic["send"])) as client:
        for step in steps:
            if "send" in step:
                client.send(as_bytes(step["send"]))
            else:
                _check(client.answer(), step["recv"])


def _check(answer: bytes, recorded: dict[str, Any]) -> None:
    if "data" in recorded:
        assert answer == as_bytes(recorded["data"])
        assert len(answer) == recorded["size"]
        return
    reply = json.loads(answer)
    assert answer == compact(reply), "not the compact JSON the Go daemons write"
    assert _masked(reply) == _masked(recorded["json"])


def _masked(reply: dict[str, Any]) -> list[tuple[str, object]]:
    """The replies in order, with random values replaced by their type."""
    return [(key, type(value) if key in VOLATILE else value) for key, value in reply.items()]
