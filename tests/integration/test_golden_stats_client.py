"""/stats while a consumer holds a message, against nsqd_stats_client.json."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsq.testing import Nsqd, V2Client
from nsq.testing.plugin import factory
from nsq.wire import commands
from tests.golden import recordings, web

EXCHANGES = recordings.exchanges("nsqd_stats_client.json")
PERCENTILES = [f"--e2e-processing-latency-percentile={each}" for each in (0.5, 0.99)]
VOLATILE = {"start_time", "connect_ts", "remote_address"}


@pytest.fixture(scope="module")
def answers() -> Iterator[web.Answers]:
    with factory(Nsqd) as make:
        nsqd = make(flags=PERCENTILES)
        for request in (
            "/channel/create?topic=clicks&channel=archive",
            "/channel/create?topic=orders&channel=archive",
        ):
            nsqd.post("/topic/create?" + request.split("?")[1])
            assert nsqd.post(request).status == 200
        assert nsqd.post("/pub?topic=golden_tls", b"x").status == 200
        with V2Client(nsqd.tcp_address) as consumer:
            consumer.identify(client_id="golden", hostname="golden.host", user_agent="golden/1")
            consumer.send(commands.sub("orders", "archive") + commands.rdy(5))
            consumer.expect_ok()
            assert nsqd.post("/pub?topic=orders", b"8 bytes!").status == 200
            consumer.expect_message()
            yield web.ask_all(nsqd, EXCHANGES)


@pytest.mark.parametrize("number", range(len(EXCHANGES)), ids=[web.request_name(each) for each in EXCHANGES])
def test_statistics_of_clients_are_as_gos_were(number: int, answers: web.Answers) -> None:
    web.check(answers[number], EXCHANGES[number], VOLATILE)
