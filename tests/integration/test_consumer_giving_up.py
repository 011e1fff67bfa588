"""Messages that fail too often: the consumer gives them up, or stores them as dead letters."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsq import Consumer, ConsumerHooks, DeadLetterFile, DeadLetterTopic, GiveUp, Message, Producer, aio
from nsq.errors import ConfigError, InvalidName
from nsq.testing import Nsqadmin, Nsqd
from nsq.testing.plugin import Factory
from nsq.tools import front_door
from tests.golden.recordings import others_are_judged

from .consuming import (
    CHANNEL,
    TOPIC,
    Recorder,
    channel_of,
    create,
    expect_drained,
    log_of,
    make_consumer,
    publish,
    running,
    until,
)


def test_a_message_is_given_up_after_its_attempts(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"cannot_succeed"])
    seen = Recorder(lambda message: False)
    kept = Recorder()
    given_up: list[bytes] = []

    class Hooks(ConsumerHooks):
        def given_up(self, message: Message) -> None:
            given_up.append(message.body)

    consumer = make_consumer(nsqd, max_attempts=3, give_up=kept, hooks=Hooks())
    with log_of() as log, running(consumer.add_handler(seen)):
        kept.wait_for(1)
        expect_drained(nsqd, requeues=3)
        until("counted", lambda: consumer.stats().given_up == 1)
        log.wait_for("ERROR", "gave up on", "attempt 4", "cannot_succeed", nsqd.tcp_address, "give_up has it")
    assert seen.attempts == [1, 2, 3]
    assert kept.attempts == [4]
    assert given_up == [b"cannot_succeed"]


def test_records_about_a_message_have_fields(nsqd: Nsqd, caplog: pytest.LogCaptureFixture) -> None:
    create(nsqd)
    publish(nsqd, [b"cannot_succeed"])
    with running(make_consumer(nsqd, max_attempts=1).add_handler(lambda message: 1 / 0)) as consumer:
        until("given up", lambda: consumer.stats().given_up == 1)
    about = [vars(record) for record in caplog.records if hasattr(record, "nsq_message_id")]
    assert [each["msg"].split()[0] for each in about] == ["handler", "gave"]
    assert {each["nsq_message_id"] for each in about} == {about[0]["nsq_message_id"]}
    assert [each["nsq_attempts"] for each in about] == [1, 2]
    at = {"nsq_topic": TOPIC, "nsq_channel": CHANNEL, "nsqd_address": nsqd.tcp_address}
    assert all(each.items() >= at.items() for each in about)
    of_consumer = [record for record in caplog.records if record.name == "nsq.consumer"]
    assert [record.getMessage() for record in of_consumer if not hasattr(record, "nsq_topic")] == []


def test_without_max_attempts_nothing_is_given_up(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"again and again"])
    seen = Recorder(lambda message: message.attempts > 10)
    with running(make_consumer(nsqd, max_attempts=0).add_handler(seen)):
        seen.wait_for(11)
        expect_drained(nsqd, requeues=10)


def test_what_cannot_be_kept_is_not_given_up(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"precious"])

    def keep(message: Message) -> None:
        if message.attempts < 4:
            raise OSError("disk full")

    kept = Recorder(keep)
    with (
        log_of() as log,
        running(make_consumer(nsqd, max_attempts=1, give_up=kept).add_handler(lambda m: False)),
    ):
        kept.wait_for(3)
        expect_drained(nsqd, requeues=3)
    assert kept.attempts == [2, 3, 4]
    log.wait_for("ERROR", "giving up on", "failed; nsqd delivers it again")


@pytest.mark.parametrize("own_producer", [False, True])
def test_dead_letters_go_to_a_topic(nsqd: Nsqd, own_producer: bool) -> None:
    create(nsqd)
    create(nsqd, "orders.dead", "people")
    publish(nsqd, [b"cannot_succeed", b"fine"])
    dead = Recorder()
    with Producer(nsqd.tcp_address) as producer:
        give_up = DeadLetterTopic(producer, "orders.dead")
        keep: dict[str, Any] = {"give_up": give_up} if own_producer else {"dead_letters": "orders.dead"}
        consumer = make_consumer(nsqd, max_attempts=2, **keep)
        consumer.add_handler(lambda message: message.body == b"fine")
        undertaker = Consumer("orders.dead", "people", nsqd=nsqd.tcp_address).add_handler(dead)
        with running(consumer), running(undertaker):
            (message,) = dead.wait_for(1)
            expect_drained(nsqd, requeues=2)
    assert message.body == b"cannot_succeed"


def test_dead_letters_stay_while_their_topic_cannot_be_reached(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd, cemetery = nsqd_factory(), nsqd_factory()
    create(nsqd)
    publish(nsqd, [b"cannot_succeed"])
    cemetery.stop(keep_data=True)
    with Producer(cemetery.tcp_address, publish_timeout=0.2) as producer:
        consumer = make_consumer(nsqd, max_attempts=1, give_up=DeadLetterTopic(producer, "dead"))
        with log_of() as log, running(consumer.add_handler(lambda message: False)):
            log.wait_for("ERROR", "giving up on", "delivers it again")
            assert channel_of(nsqd)["message_count"] == 1
            cemetery.start()
            until("buried", lambda: consumer.stats().given_up == 1)
    # More than one if an answer came when its publish had been given up.
    assert cemetery.get("/stats?format=json&topic=dead").json()["topics"][0]["depth"] >= 1


def test_dead_letters_go_to_a_file(nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd)
    publish(nsqd, ["zu spät".encode(), b"\xff\x00"])
    path = tmp_path / "dead.jsonl"
    consumer = make_consumer(nsqd, max_attempts=1, threads=4, give_up=DeadLetterFile(path))
    with running(consumer.add_handler(lambda message: False)):
        expect_drained(nsqd, requeues=2)
    first, second = sorted(
        map(json.loads, path.read_text().splitlines()), key=lambda letter: "body" in letter
    )
    assert base64.b64decode(first["body_base64"]) == b"\xff\x00"
    assert second["body"] == "zu spät"
    assert second["attempts"] == 2
    assert second["nsqd_address"] == nsqd.tcp_address
    assert len(second["id"]) == 16


def test_a_dead_letter_topic_needs_a_name_nsqd_accepts() -> None:
    with pytest.raises(InvalidName, match="no spaces"):
        DeadLetterTopic(Producer("127.0.0.1:4150"), "no spaces")


@pytest.mark.parametrize("auto_touch", [False, True])
def test_nothing_is_given_up_that_no_handler_has_seen(nsqd_factory: Factory[Nsqd], auto_touch: bool) -> None:
    """A handler that is much slower than the window allows: messages time out here, again and again."""
    nsqd = nsqd_factory(max_msg_timeout="2s")
    create(nsqd)
    bodies = [b"%d" % number for number in range(30)]
    publish(nsqd, bodies)
    given_up = Recorder()
    seen = Recorder(lambda message: time.sleep(0.1))
    consumer = make_consumer(nsqd, max_in_flight=20, msg_timeout=1.0, auto_touch=auto_touch, give_up=given_up)
    with log_of() as log, running(consumer.add_handler(seen)):
        until("all are handled", lambda: set(seen.bodies) == set(bodies), 60.0)
        until("all are finished", lambda: consumer.stats().finished == len(bodies), 60.0)
        assert consumer.stats().timed_out > 0
        warnings = [line for line in log.lines if "time out before their handlers are done" in line]
    assert given_up.bodies == []
    assert [line.startswith("WARNING") for line in warnings] == [True] + [False] * (len(warnings) - 1)


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
        told = {each.get("body"): each["dead_letter"] for each in letters}
        assert told[None]["reason"] == "its handler gave it up"
        assert told[None]["error"] == "it is no text"
        assert told["no order"]["reason"] == "it failed at its last attempt (max_attempts is 2)"
        assert told["no order"]["error"].startswith("JSONDecodeError: Expecting value")
        assert "decoder.py" in told["no order"]["place"]
        assert told["no order"]["attempts"] == "2"
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
