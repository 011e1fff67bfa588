"""Draining an nsqd: it refuses publishes, leaves the nsqlookupds, delivers its messages, and exits."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from nsq.wire import commands
from tests.integration.clients import connected, consumer, finish_all, publish, topic_stats
from tests.integration.judged import only_ours
from tests.integration.patience import eventually

pytestmark = only_ours("Go's nsqd has no drain")


def drain(nsqd: Nsqd) -> None:
    os.kill(nsqd.pid, signal.SIGUSR1)
    eventually(lambda: nsqd.get("/ping").status, lambda status: status == 500)


def by_signal(nsqd: Nsqd) -> None:
    os.kill(nsqd.pid, signal.SIGUSR1)


def by_sigterm(nsqd: Nsqd) -> None:
    os.kill(nsqd.pid, signal.SIGTERM)


def over_http(nsqd: Nsqd) -> None:
    assert nsqd.request("PUT", "/config/drain").status == 200
    assert nsqd.get("/info").json()["draining"] is True


def nodes(lookupd: Nsqlookupd) -> int:
    return len(lookupd.get("/nodes").json()["producers"])


def test_a_drain_lets_consumers_finish_and_exits(nsqd_factory: Factory[Nsqd], nsqlookupd: Nsqlookupd) -> None:
    nsqd = nsqd_factory(process=True, lookupd=[nsqlookupd])
    publish(nsqd, "lonely", [b"stays"])
    with consumer(nsqd, "orders", rdy=1) as client, connected(nsqd) as publisher:
        publisher.send(commands.mpub("orders", [b"1", b"2"]) + commands.dpub("orders", 700, b"later"))
        publisher.expect_ok()
        publisher.expect_ok()
        held = client.expect_message()
        eventually(lambda: nodes(nsqlookupd), lambda count: count == 1)

        drain(nsqd)
        eventually(lambda: nodes(nsqlookupd), lambda count: count == 0)
        assert nsqd.get("/ping").text == "NOK - draining"
        refused = nsqd.post("/pub?topic=orders", b"x")
        assert (refused.status, refused.json()) == (503, {"message": "EXITING"})
        assert nsqd.post("/mpub?topic=orders", b"x").status == 503
        assert nsqd.request("PUT", "/config/nsqlookupd_tcp_addresses", b"[]").status == 200
        body = json.dumps([nsqlookupd.tcp_address]).encode()
        nsqd.request("PUT", "/config/nsqlookupd_tcp_addresses", body)  # it does not come back
        publisher.send(commands.pub("orders", b"x"))
        publisher.expect(1, b"E_PUB_FAILED PUB failed exiting")
        publisher.expect_closed()

        finish_all(client, [held])
        for wanted in (b"2", b"later"):
            message = client.expect_message()
            assert message.body == wanted
            assert nsqd.running
            finish_all(client, [message])
        client.expect_closed()
    eventually(lambda: not nsqd.running)
    assert nsqd.terminate() == 0
    assert nodes(nsqlookupd) == 0
    lines = [line.partition("draining: ")[2] for line in nsqd.log.splitlines() if "draining: " in line]
    assert lines[0] == "1 messages wait, 1 are in flight, 1 deferred, in 1 channels"
    assert lines[-2] == "1 messages of lonely stay on disk: there is no consumer"
    assert lines[-1].startswith("done after ")
    nsqd.start()
    assert topic_stats(nsqd, "lonely")["depth"] == 1


def depths(*nsqds: Nsqd) -> list[int]:
    return [
        sum(topic["depth"] for topic in nsqd.get("/stats?format=json").json()["topics"]) for nsqd in nsqds
    ]


@pytest.mark.parametrize("process", [True, False])
@pytest.mark.parametrize("begin", [by_signal, by_sigterm, over_http])
def test_every_way_to_begin_a_drain_lets_consumers_finish(
    begin: Callable[[Nsqd], None], process: bool, nsqd_factory: Factory[Nsqd]
) -> None:
    if not process and begin is not over_http:
        pytest.skip("a signal is for a process")
    nsqd = nsqd_factory(process=process, sigterm_mode="drain")
    publish(nsqd, "orders", [b"x"] * 20)
    with consumer(nsqd, "orders", rdy=20) as client:
        messages = [client.expect_message()]
        begin(nsqd)
        eventually(lambda: nsqd.get("/ping").text, lambda text: text == "NOK - draining")
        messages += [client.expect_message() for _ in range(19)]
        assert nsqd.running
        finish_all(client, messages)
        eventually(lambda: not nsqd.running)
    nsqd.restart()
    assert topic_stats(nsqd, "orders")["channels"][0]["depth"] == 0


@pytest.mark.parametrize("process", [True, False])
def test_a_request_to_stop_ends_a_drain(process: bool, nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(process=process)
    with consumer(nsqd, "orders") as client:
        publish(nsqd, "orders", [b"1", b"2"])
        client.expect_message()
        over_http(nsqd)
        over_http(nsqd)
        assert nsqd.request("PUT", "/config/shutdown", b"now").status == 200
        eventually(lambda: not nsqd.running)
    nsqd.restart()
    assert topic_stats(nsqd, "orders")["channels"][0]["depth"] == 2


def test_a_drain_that_consumers_do_not_end_has_its_time(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(process=True, drain_timeout=0.3)
    with consumer(nsqd, "orders") as client:
        publish(nsqd, "orders", [b"1", b"2"])
        client.expect_message()
        drain(nsqd)
        eventually(lambda: not nsqd.running)
    assert nsqd.terminate() == 0
    assert "--drain-timeout is over, the rest stays on disk: 1 messages wait, 1 are in flight" in nsqd.log
    nsqd.start()
    assert topic_stats(nsqd, "orders")["channels"][0]["depth"] == 2
