"""Dead letters: in a file, with their reasons, and sent back to their topic."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from nsq import Consumer, ConsumerHooks, GiveUp, Message, aio
from nsq.errors import ConfigError
from nsq.testing import Nsqadmin, Nsqd
from nsq.testing.plugin import Factory
from nsq.tools import front_door
from nsq.wire.envelope import unwrap
from tests.golden.recordings import others_are_judged

from .consuming import (
    CHANNEL,
    TOPIC,
    Recorder,
    create,
    expect_drained,
    log_of,
    make_consumer,
    publish,
    running,
)


@pytest.mark.parametrize("way", ["threads", "batch", "loop"])
def test_a_dead_letter_says_why_and_goes_back_as_the_message_that_it_was(
    nsqd: Nsqd, way: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    create(nsqd)
    publish(nsqd, [b"\xff {", b"no order", b'{"order": 1}'])
    options: dict[str, Any] = {"max_attempts": 2, "dead_letters": "orders.dead", "dead_letter_reasons": True}

    def bill(message: Message) -> None:
        try:
            message.json()
        except UnicodeDecodeError as error:
            raise GiveUp("it is no text") from error

    if way == "loop":
        asyncio.run(_bill_on_a_loop(nsqd, bill, options))
    else:
        consumer = make_consumer(nsqd, **options)
        if way == "batch":
            consumer.add_batch_handler(lambda messages: bill(messages[0]), 1, 0.0)
        else:
            consumer.add_handler(bill)
        with running(consumer):
            expect_drained(nsqd, requeues=1)
    if not others_are_judged():
        peek = ["peek", "orders.dead", "--json", f"--nsqd-http-address={nsqd.http_address}"]
        assert front_door.main(peek) == 0
        letters = json.loads(capsysbinary.readouterr().out)
        reasons = {each.get("body"): each["dead_letter"] for each in letters}
        assert reasons[None]["reason"] == "its handler gave it up"
        assert reasons[None]["error"] == "it is no text"
        assert reasons["no order"]["reason"] == "it failed at its last attempt (max_attempts is 2)"
        assert reasons["no order"]["error"].startswith("JSONDecodeError: Expecting value")
        assert "decoder.py" in reasons["no order"]["place"]
        assert reasons["no order"]["attempts"] == "2"
        assert front_door.main([*peek[:2], *peek[3:]]) == 0
        assert (
            "orders/billing gave it up: its handler gave it up · it is no text"
            in capsysbinary.readouterr().out.decode("utf-8", "replace")
        )
        with Nsqadmin(nsqd=[nsqd]) as admin:
            shown = admin.get("/api/peek/orders.dead").json()["messages"]
            assert {each["body"]: each["dead_letter"].get("error") for each in shown}[
                "/yB7"
            ] == "it is no text"
    assert (
        front_door.main(["redrive", "orders.dead", "orders", f"--nsqd-http-address={nsqd.http_address}"]) == 0
    )
    seen = Recorder()
    with running(make_consumer(nsqd).add_handler(seen)):
        seen.wait_for(2)
    assert sorted(seen.bodies) == [b"no order", b"\xff {"]


async def _bill_on_a_loop(nsqd: Nsqd, bill: Callable[[Message], None], options: dict[str, Any]) -> None:
    async def handle(message: Message) -> None:
        bill(message)

    consumer = aio.Consumer(TOPIC, CHANNEL, nsqd=nsqd.tcp_address, default_requeue_delay=0.0, **options)
    consumer.add_handler(handle)
    async with consumer:
        await asyncio.to_thread(expect_drained, nsqd, requeues=1)


@pytest.mark.parametrize("way", ["threads", "batch", "loop"])
def test_old_messages_go_to_the_dead_letters_together_and_fresh_ones_are_handled(
    nsqd: Nsqd, way: str
) -> None:
    create(nsqd)
    create(nsqd, "orders.dead", "people")
    publish(nsqd, [b"old %d" % number for number in range(500)])
    time.sleep(1.1)  # the shortest max_age is 1 s
    publish(nsqd, [b"fresh"])
    seen, letters, told = Recorder(), Recorder(), Counter[str]()

    class Hooks(ConsumerHooks):
        def given_up(self, message: Message) -> None:
            told["given up"] += 1

    options: dict[str, Any] = {
        "nsqd": nsqd.tcp_address,
        "max_age": 1.0,
        "dead_letters": "orders.dead",
        "dead_letter_reasons": True,
        "max_in_flight": 300,
        "hooks": Hooks(),
    }

    async def handle(message: Message) -> None:
        seen(message)

    async def on_loop() -> None:
        async with aio.Consumer(TOPIC, CHANNEL, **options).add_handler(handle) as consumer:
            await asyncio.to_thread(expect_drained, nsqd)
            assert consumer.consumer.stats().given_up == 500

    undertaker = Consumer("orders.dead", "people", nsqd=nsqd.tcp_address).add_handler(letters)
    with log_of() as log, running(undertaker):
        if way == "loop":
            asyncio.run(on_loop())
        else:
            consumer = Consumer(TOPIC, CHANNEL, **options)
            if way == "batch":
                consumer.add_batch_handler(lambda messages: [seen(each) for each in messages], 100, 0.01)
            else:
                consumer.add_handler(seen)
            with running(consumer):
                expect_drained(nsqd)
                assert consumer.stats().given_up == 500
        letters.wait_for(500)
    assert seen.bodies == [b"fresh"]
    assert told == {"given up": 500}
    letter = unwrap(letters.messages[0].body)
    assert letter is not None
    assert letter.attributes["reason"].startswith("too old: 1.")
    assert letter.body.startswith(b"old ")
    logged = [line for line in log.lines if "too old" in line]
    assert [line.split()[0] for line in logged] == ["WARNING"]


def test_a_dead_letter_that_is_too_large_with_its_reason_goes_without(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(max_msg_size=1000)
    create(nsqd)
    create(nsqd, "orders.dead", "people")
    publish(nsqd, [b"x" * 900])
    consumer = make_consumer(nsqd, max_attempts=1, dead_letters="orders.dead", dead_letter_reasons=True)
    seen = Recorder()
    undertaker = Consumer("orders.dead", "people", nsqd=nsqd.tcp_address).add_handler(seen)
    with log_of() as log, running(consumer.add_handler(lambda message: 1 / 0)), running(undertaker):
        seen.wait_for(1)
        expect_drained(nsqd)
        log.wait_for("WARNING", "too large for the topic orders.dead")
    assert seen.bodies == [b"x" * 900]


def test_reasons_need_a_topic_for_dead_letters() -> None:
    with pytest.raises(ConfigError, match="dead_letter_reasons needs dead_letters"):
        Consumer("orders", "billing", nsqd="127.0.0.1:1", dead_letter_reasons=True)
