"""nsqd's V2 protocol against the recorded conversations of tcp.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import factory
from tests.golden import conversation, recordings

CASES = recordings.cases("tcp.json")


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Mapping[str, Exception | None]]:
    with factory(Nsqd) as make:
        nsqd = make(max_rdy_count=10000)
        yield conversation.replay_all(CASES, nsqd.tcp_address)


@pytest.mark.parametrize("name", [case["case"] for case in CASES])
def test_nsqd_answers_clients_as_gos_did(name: str, outcomes: Mapping[str, Exception | None]) -> None:
    failure = outcomes[name]
    if failure is not None:
        raise failure
