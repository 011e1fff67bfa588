"""Typed bodies and envelopes, from a producer to a handler and to the dead letters."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pydantic
import pytest

import nsq
from nsq import aio
from nsq.contrib.codecs import Codec, Json, Msgspec, Pydantic, body_of, enveloping, headers_of
from nsq.testing import Nsqd

from .conftest import PATIENCE, until


class Model(pydantic.BaseModel):
    number: int


class Struct(msgspec.Struct):
    number: int


CODECS: list[tuple[Codec[Any], Any]] = [
    (Json(), {"number": 1}),
    (Msgspec(Struct), Struct(number=1)),
    (Pydantic(Model), Model(number=1)),
]

#: An envelope whose text is no UTF-8.
LONE_SURROGATE = (
    rb'{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"text/plain","data":"\ud800"}'
)


def create(nsqd: Nsqd) -> None:
    for topic, channel in (("orders", "billing"), ("orders.dead", "dead")):
        assert nsqd.post(f"/topic/create?topic={topic}").status == 200
        assert nsqd.post(f"/channel/create?topic={topic}&channel={channel}").status == 200


def consumer_of(nsqd: Nsqd, **options: Any) -> nsq.Consumer:
    quick = {"default_requeue_delay": 0.0, "max_backoff_duration": 0.0}
    return nsq.Consumer("orders", "billing", nsqd=nsqd.tcp_address, **{**quick, **options})


def dead_letters(nsqd: Nsqd, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    consumer = nsq.Consumer("orders.dead", "dead", nsqd=nsqd.tcp_address)
    with consumer.add_handler(lambda message: bodies.append(message.body)):
        until(lambda: len(bodies) == count)
    return sorted(bodies)


@pytest.mark.parametrize(("codec", "value"), CODECS)
def test_a_typed_handler_gets_its_object_and_the_dead_letters_the_rest(
    nsqd: Nsqd, codec: Codec[Any], value: Any
) -> None:
    create(nsqd)
    seen: list[tuple[object, int]] = []

    @codec.handler
    def bill(order: Any, message: nsq.Message) -> None:
        seen.append((order, message.attempts))
        if message.attempts == 1:
            raise ValueError("an error of the handler is no error of the decoder")

    with nsq.Producer(nsqd.tcp_address) as producer:
        producer.publish("orders", codec.encode(value))
        producer.publish("orders", b"\xff no JSON")
        producer.publish("orders", b"[" * 100_000)
        producer.publish("orders", LONE_SURROGATE)
    consumer = consumer_of(nsqd, dead_letters="orders.dead").add_handler(bill)
    with consumer:
        until(lambda: consumer.stats().given_up == 3 and len(seen) == 2)
    assert seen == [(value, 1), (value, 2)]
    assert dead_letters(nsqd, 3) == [b"[" * 100_000, LONE_SURROGATE, b"\xff no JSON"]


def test_a_typed_handler_of_a_loop_and_of_a_batch_can_give_up_too(nsqd: Nsqd) -> None:
    create(nsqd)
    seen: list[object] = []

    @Pydantic(Model).handler
    async def bill(order: Model, message: nsq.Message) -> None:
        seen.append(order)

    async def main() -> None:
        async with aio.Producer(nsqd.tcp_address) as producer:
            await producer.multi_publish("orders", [b'{"number": 1}', b'{"number": "x"}'])
        consumer = aio.Consumer("orders", "billing", nsqd=nsqd.tcp_address, dead_letters="orders.dead")
        async with consumer.add_handler(bill):
            while not (seen and consumer.consumer.stats().given_up):  # noqa: ASYNC110 - it happens in nsqd
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))

    def refuse(messages: list[nsq.Message]) -> None:
        raise nsq.GiveUp("none of them")

    consumer = consumer_of(nsqd, dead_letters="orders.dead").add_batch_handler(refuse, 2, 0.1)
    with nsq.Producer(nsqd.tcp_address) as producer, consumer:
        producer.multi_publish("orders", [b"3", b"4"])
        until(lambda: consumer.stats().given_up == 2)
    assert seen == [Model(number=1)]
    assert dead_letters(nsqd, 3) == [b"3", b"4", b'{"number": "x"}']


def test_envelopes_carry_headers_and_plain_messages_come_through_too(nsqd: Nsqd) -> None:
    create(nsqd)
    seen: list[tuple[object, bytes, dict[str, str]]] = []

    @Json().handler
    def bill(order: Any, message: nsq.Message) -> None:
        seen.append((order, body_of(message), headers_of(message)))

    consumer = consumer_of(nsqd).add_handler(bill)
    hook = enveloping("/shop", "order.paid", is_json=True, tenant="north")
    with nsq.Producer(nsqd.tcp_address, around_publish=hook) as producer, consumer:
        producer.publish("orders", b'{"number":1}')
        until(lambda: len(seen) == 1)
        assert nsqd.post("/pub?topic=orders", b'{"number":2}').status == 200
        until(lambda: len(seen) == 2)
    (order, body, headers), plain = seen
    assert (order, body) == ({"number": 1}, b'{"number":1}')
    assert headers.pop("id")
    assert headers.pop("time").endswith("Z")
    assert headers == {"specversion": "1.0", "source": "/shop", "type": "order.paid", "tenant": "north"}
    assert plain == ({"number": 2}, b'{"number":2}', {})


def test_message_json_parses_the_body(nsqd: Nsqd) -> None:
    create(nsqd)
    seen: list[object] = []
    consumer = consumer_of(nsqd).add_handler(lambda message: seen.append(message.json()))
    with nsq.Producer(nsqd.tcp_address) as producer, consumer:
        producer.publish("orders", b'{"number": 1}')
        until(lambda: seen)
    assert seen == [{"number": 1}]


def test_a_wrong_header_is_found_at_once() -> None:
    with pytest.raises(nsq.InvalidMessage, match="Tenant"):
        enveloping("/shop", "order.paid", Tenant="north")
