"""nsqd's HTTP API against nsqd_http.json: one session in its order; each exchange is a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import factory
from tests.golden import recordings, web
from tests.golden.deviations import without_added

EXCHANGES = recordings.exchanges("nsqd_http.json")
VOLATILE = {"hostname", "http_port", "tcp_port", "start_time", *web.MEMORY}


@pytest.fixture(scope="module")
def answers() -> Iterator[web.Answers]:
    with factory(Nsqd) as make:
        nsqd = make(lookupd_tcp_addresses=("127.0.0.1:4160",))
        yield web.ask_all(nsqd, EXCHANGES)


@pytest.mark.parametrize(
    "number",
    range(len(EXCHANGES)),
    ids=[f"{i:02d} {web.request_name(each)}" for i, each in enumerate(EXCHANGES)],
)
def test_nsqd_answers_http_requests_as_gos_did(number: int, answers: web.Answers) -> None:
    web.check(answers[number], EXCHANGES[number], VOLATILE, without_added)
