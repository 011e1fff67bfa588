"""Messages that fail too often: a consumer gives them up, or stores them as dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from nsq import Consumer, ConsumerHooks, DeadLetterTopic, Message, Producer
from tests.behaviour.conftest import NsqdFactory
from tests.integration.consuming import (
    CHANNEL,
    TOPIC,
    AnyNsqd,
    Recorder,
    channel_of,
    create,
    expect_drained,
    log_of,
    make_consumer,
    publish,
    running,
    transport_of,
    until,
)


@pytest.mark.parametrize("kept", [True, False])
def test_a_message_is_given_up_after_its_attempts(nsqd: AnyNsqd, kept: bool) -> None:
    publish(nsqd, [b"a body that is too long for one line in the log of a program"])
    seen, keep = Recorder(lambda message: False), Recorder()
    given_up: list[int] = []

    class Hooks(ConsumerHooks):
        def given_up(self, message: Message) -> None:
            given_up.append(message.attempts)

    consumer = make_consumer(nsqd, max_attempts=3, give_up=keep if kept else None, hooks=Hooks())
    with log_of() as log, running(consumer.add_handler(seen)):
        expect_drained(nsqd, requeues=3)
        until("counted", lambda: consumer.stats().given_up == 1)
        line = log.wait_for("ERROR", "gave up on <Message", "attempt 4", nsqd.tcp_address)
    assert "of orders, attempt 4, 60 bytes: b'a body that is too long for one line in '…>" in line
    lost = "it is lost. Consumer(…, dead_letters='orders.dead') would keep it in that topic"
    assert line.endswith(f"(max_attempts is 3): {'give_up has it' if kept else lost}")
    assert seen.attempts == [1, 2, 3]
    assert keep.attempts == ([4] if kept else [])
    assert given_up == [4]


def test_log_records_about_a_message_have_fields(nsqd: AnyNsqd, caplog: pytest.LogCaptureFixture) -> None:
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


def test_without_max_attempts_nothing_is_given_up(nsqd: AnyNsqd) -> None:
    publish(nsqd, [b"again and again"])
    seen = Recorder(lambda message: message.attempts > 10)
    with running(make_consumer(nsqd, max_attempts=0).add_handler(seen)):
        seen.wait_for(11)
        expect_drained(nsqd, requeues=10)


def test_a_message_that_cannot_be_kept_is_not_given_up(nsqd: AnyNsqd) -> None:
    publish(nsqd, [b"precious"])

    def keep(message: Message) -> None:
        if message.attempts < 4:
            raise OSError("disk full") if message.attempts < 3 else SystemExit

    kept = Recorder(keep)
    consumer = make_consumer(nsqd, max_attempts=1, give_up=kept).add_handler(lambda message: False)
    with log_of() as log, running(consumer):
        kept.wait_for(3)
        expect_drained(nsqd, requeues=3)
    assert kept.attempts == [2, 3, 4]
    log.wait_for("ERROR", "giving up on", "failed; nsqd delivers it again")
    assert consumer.stats().given_up == 1


@pytest.mark.parametrize("own_producer", [False, True])
def test_dead_letters_go_to_a_topic(nsqd: AnyNsqd, own_producer: bool) -> None:
    create(nsqd, "orders.dead", "people")
    publish(nsqd, [b"cannot_succeed", b"fine", b"cannot_succeed"])
    dead, transport = Recorder(), transport_of(nsqd)
    with log_of() as log, Producer(nsqd.tcp_address, transport=transport) as producer:
        give_up = DeadLetterTopic(producer, "orders.dead")
        keep: dict[str, Any] = {"give_up": give_up} if own_producer else {"dead_letters": "orders.dead"}
        consumer = make_consumer(nsqd, max_attempts=2, max_msg_size=1, **keep)
        consumer.add_handler(lambda message: message.body == b"fine")
        undertaker = Consumer("orders.dead", "people", nsqd=nsqd.tcp_address, transport=transport)
        with running(consumer), running(undertaker.add_handler(dead)):
            dead.wait_for(2)
            expect_drained(nsqd, requeues=4)
        log.wait_for("(max_attempts is 2)", "give_up has it" if own_producer else "topic orders.dead has it")
    assert dead.bodies == [b"cannot_succeed"] * 2
    assert consumer.stats().given_up == 2


def test_dead_letters_stay_while_their_topic_cannot_be_reached(nsqd_factory: NsqdFactory) -> None:
    nsqd, cemetery = nsqd_factory(), nsqd_factory()
    publish(nsqd, [b"cannot_succeed"])
    cemetery.stop(keep_data=True)
    with Producer(cemetery.tcp_address, publish_timeout=0.2, transport=transport_of(nsqd)) as producer:
        consumer = make_consumer(nsqd, max_attempts=1, give_up=DeadLetterTopic(producer, "dead"))
        with log_of() as log, running(consumer.add_handler(lambda message: False)):
            log.wait_for("ERROR", "giving up on", "delivers it again")
            assert channel_of(nsqd)["message_count"] == 1
            assert consumer.stats().given_up == 0
            cemetery.start()
            until("buried", lambda: consumer.stats().given_up == 1)
    # More than one if an answer came when its publish had been given up.
    assert cemetery.get("/stats?format=json&topic=dead").json()["topics"][0]["depth"] >= 1
