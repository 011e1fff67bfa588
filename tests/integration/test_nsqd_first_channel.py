"""A first channel that gets its topic's backlog, in hundreds of portions, without delaying other clients."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from nsq.wire import commands
from tests.integration.clients import channel_stats, consumer, dial, finish_all, publish, topic_stats
from tests.integration.judged import only_ours
from tests.integration.patience import eventually

pytestmark = only_ours("how long others wait")

MODES = pytest.mark.parametrize("durable", [False, True], ids=["normal", "durable"])

MANY = 60_000


def loaded(nsqd_factory: Factory[Nsqd], durable: bool, count: int) -> Nsqd:
    """An nsqd with this many messages in a topic without channels."""
    nsqd = nsqd_factory(
        process=True, mem_queue_size=500, stop_timeout=60, **({"durable": True} if durable else {})
    )
    for start in range(0, count, 10_000):
        publish(nsqd, "t", bodies(start, min(start + 10_000, count)))
    return nsqd


def bodies(start: int, stop: int) -> list[bytes]:
    return [b"%06d" % number for number in range(start, stop)]


def at_once(nsqd: Nsqd, requests: Iterable[tuple[str, bytes]]) -> list[bytes]:
    """The bodies of the answers to requests that arrive together and are dealt with one after the other."""
    wire = b"".join(
        b"%s HTTP/1.1\r\nHost: nsqd\r\nContent-Length: %d\r\n\r\n%s" % (line.encode(), len(body), body)
        for line, body in requests
    )
    with dial(nsqd.http_address) as client, client.makefile("rb") as answers:
        client.sendall(wire)
        return [_answer(answers) for _ in requests]


def _answer(answers: Any) -> bytes:
    assert b" 200 " in answers.readline()
    length = 0
    while (line := answers.readline().strip().lower()) != b"":
        name, _, value = line.partition(b":")
        if name == b"content-length":
            length = int(value)
    found: bytes = answers.read(length)
    return found


def drain(nsqd: Nsqd, count: int) -> list[bytes]:
    found: list[bytes] = []
    with consumer(nsqd, "t", rdy=2000) as client:
        while len(found) < count:
            message = client.expect_message(timeout=60)
            found.append(message.body)
            finish_all(client, [message])
    return found


def test_other_clients_are_served_while_the_first_channel_takes_over(nsqd_factory: Factory[Nsqd]) -> None:
    """The requests arrive together, and nothing but turns of the loop lies between their answers; with
    --durable the disk would, and all could be over first.
    """
    nsqd = loaded(nsqd_factory, False, MANY)
    with consumer(nsqd, "other") as listener:
        *_, seen = at_once(
            nsqd,
            [
                ("POST /channel/create?topic=t&channel=channel", b""),
                ("POST /pub?topic=other", b"meanwhile"),
                ("POST /pub?topic=t", b"behind"),
                ("GET /stats?format=json&include_mem=false", b""),
            ],
        )
        message = listener.expect_message()
        assert message.body == b"meanwhile"
        finish_all(listener, [message])
    topics = {topic["topic_name"]: topic for topic in json.loads(seen)["topics"]}
    assert topics["other"]["message_count"] == 1
    waiting, arrived = topics["t"]["depth"], topics["t"]["channels"][0]["depth"]
    assert 0 < waiting < MANY
    assert waiting + arrived == MANY + 1
    eventually(lambda: topic_stats(nsqd, "t")["depth"], lambda depth: depth == 0, within=100)
    assert channel_stats(nsqd, "t")["depth"] == MANY + 1
    assert drain(nsqd, 3000) == bodies(0, 3000)


@MODES
def test_a_stop_meanwhile_keeps_everything(nsqd_factory: Factory[Nsqd], durable: bool) -> None:
    nsqd = loaded(nsqd_factory, durable, 20_000)
    at_once(nsqd, [("POST /channel/create?topic=t&channel=channel", b"")])
    nsqd.restart()
    # What was in memory is written behind the rest when nsqd stops.
    assert (drain(nsqd, 20_000) if durable else sorted(drain(nsqd, 20_000))) == bodies(0, 20_000)


def test_a_kill_meanwhile_loses_nothing_that_was_confirmed(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = loaded(nsqd_factory, True, 20_000)
    at_once(
        nsqd, [("POST /channel/create?topic=t&channel=channel", b""), ("POST /pub?topic=t", b"confirmed")]
    )
    nsqd.kill()
    nsqd.restart()
    expected = {*bodies(0, 20_000), b"confirmed"}
    with consumer(nsqd, "t", rdy=2000) as client:
        while expected:
            message = client.expect_message(timeout=60)
            expected.discard(message.body)
            client.send(commands.fin(message.id))
