"""nsqlookupd's HTTP API against nsqlookupd_http.json, with the two nsqds of the recording.

The recorded daemon keeps topics and producers in maps and answers in any order: there, order is not compared.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from nsq.testing import Nsqlookupd, V1Client
from nsq.testing.plugin import factory
from tests.golden import recordings, web

EXCHANGES = recordings.exchanges("nsqlookupd_http.json")
VOLATILE = {"remote_address", "id", "last_update"}
VM = {
    "hostname": "vm",
    "broadcast_address": "127.0.0.1",
    "tcp_port": 14150,
    "http_port": 14151,
    "version": "1.3.0",
}
G1 = {
    "hostname": "g1",
    "broadcast_address": "g1.example",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "9.9.9",
}


@pytest.fixture(scope="module")
def answers() -> Iterator[web.Answers]:
    with factory(Nsqlookupd) as make:
        nsqlookupd = make(tombstone_lifetime=3600.0)  # however long the exchanges take
        with V1Client(nsqlookupd.tcp_address) as vm, V1Client(nsqlookupd.tcp_address) as g1:
            vm.identify(**VM)
            for topic, channel in (("golden_tls", ""), ("orders", "archive"), ("clicks", "archive")):
                vm.register(topic)
                if channel:
                    vm.register(topic, channel)
            g1.identify(**G1)
            g1.register("orders")
            yield web.ask_all(nsqlookupd, EXCHANGES)


@pytest.mark.parametrize(
    "number",
    range(len(EXCHANGES)),
    ids=[f"{i:02d} {web.request_name(each)}" for i, each in enumerate(EXCHANGES)],
)
def test_nsqlookupd_answers_http_requests_as_gos_did(number: int, answers: web.Answers) -> None:
    web.check(answers[number], EXCHANGES[number], VOLATILE, _in_order)


def _in_order(answer: Any) -> Any:
    """The answer with what came out of a map sorted."""
    ordered = copy.deepcopy(answer)
    for peers in (ordered.get("producers", []), *(value for key, value in ordered.items() if ":" in key)):
        peers.sort(key=lambda peer: (peer["broadcast_address"], peer["http_port"]))
    for producer in ordered.get("producers", []):
        if "tombstones" in producer:  # parallel to the topics
            pairs = sorted(zip(producer["topics"], producer["tombstones"], strict=True))
            producer["topics"], producer["tombstones"] = [list(column) for column in zip(*pairs, strict=True)]
    if "topics" in ordered:
        ordered["topics"].sort()
    return ordered
