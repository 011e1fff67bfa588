from __future__ import annotations

import math

import pytest

from nsq.config import Config
from nsq.errors import InvalidMessage, InvalidName, UsageError
from nsq.producer.request import checked_timeout, multi_publish_request, publish_request
from nsq.wire import commands

CONFIG = Config(max_msg_size=100)


def test_pub() -> None:
    request = publish_request("orders", b"body", None, CONFIG)

    assert request == ("orders", 1, 4, commands.pub("orders", b"body"))


@pytest.mark.parametrize("body", [bytearray(b"body"), memoryview(b"body"), memoryview(b"xbxoxdxy")[1::2]])
def test_whatever_is_like_bytes_is_copied(body: object) -> None:
    assert publish_request("orders", body, None, CONFIG).data == commands.pub("orders", b"body")


@pytest.mark.parametrize(
    ("defer", "milliseconds"), [(0.001, 1), (30, 30_000), (30.0, 30_000), (1.2345, 1234), (3600, 3_600_000)]
)
def test_a_deferred_message_is_dpub_in_milliseconds(defer: float, milliseconds: int) -> None:
    request = publish_request("orders", b"body", defer, CONFIG)

    assert request.data == commands.dpub("orders", milliseconds, b"body")


@pytest.mark.parametrize("defer", [0, 0.0, 0.0001])
def test_what_is_deferred_by_nothing_is_pub(defer: float) -> None:
    assert publish_request("orders", b"body", defer, CONFIG).data == commands.pub("orders", b"body")


@pytest.mark.parametrize("defer", [-0.001, 3600.1, math.inf, math.nan, True, "30"])
def test_a_delay_out_of_range_is_named(defer: float) -> None:
    with pytest.raises(InvalidMessage, match=r"^defer is .* must be"):
        publish_request("orders", b"body", defer, CONFIG)


@pytest.mark.parametrize("topic", ["", "no spaces", "ümlaut", "x" * 65, None])
def test_a_topic_is_checked(topic: str) -> None:
    with pytest.raises(InvalidName):
        publish_request(topic, b"body", None, CONFIG)
    with pytest.raises(InvalidName):
        multi_publish_request(topic, [b"body"], CONFIG)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("text", "the message is a str, must be bytes: encode it"),
        (7, "the message is a int, must be bytes"),
        (None, "the message is a NoneType"),
        (b"", "the message is empty"),
        (b"x" * 101, "the message has 101 bytes, must have at most 100"),
    ],
)
def test_a_body_is_checked(body: object, text: str) -> None:
    with pytest.raises(InvalidMessage, match=text):
        publish_request("orders", body, None, CONFIG)


def test_a_body_of_the_largest_size_is_taken() -> None:
    assert publish_request("orders", b"x" * 100, None, CONFIG).size == 100


def test_mpub_of_any_iterable() -> None:
    request = multi_publish_request("orders", (body for body in (b"one", b"three")), CONFIG)

    assert request == ("orders", 2, 8, commands.mpub("orders", [b"one", b"three"]))


@pytest.mark.parametrize(
    ("bodies", "text"),
    [
        ([], "bodies is empty, must hold at least one message"),
        (b"body", "bodies is one bytes, must be several"),
        ("body", "bodies is one str, must be several"),
        (None, "bodies is None, must be a list"),
        ([b"fine", b""], "message 1 is empty"),
        ([b"fine", b"fine", "text"], "message 2 is a str"),
        ([b"x" * 101], "message 0 has 101 bytes"),
    ],
)
def test_bodies_are_checked_each(bodies: list[object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        multi_publish_request("orders", bodies, CONFIG)


def test_bodies_are_checked_together() -> None:
    config = Config()
    body = b"x" * config.max_msg_size
    count = 5
    assert multi_publish_request("orders", [body] * (count - 1), config).messages == count - 1

    with pytest.raises(
        InvalidMessage, match="5 messages take 5242904 bytes together, must be at most 5242880"
    ):
        multi_publish_request("orders", [body] * count, config)


def test_an_nsqd_may_take_larger_batches_and_later_messages() -> None:
    config = Config(max_body_size=10 * 1024 * 1024, max_defer=86400.0)
    body = b"x" * config.max_msg_size

    assert multi_publish_request("orders", [body] * 8, config).messages == 8
    assert publish_request("orders", b"body", 86400.0, config).data == commands.dpub(
        "orders", 86_400_000, b"body"
    )
    with pytest.raises(InvalidMessage, match="defer is 86401 s, must be 0 to 86400 s"):
        publish_request("orders", b"body", 86401.0, config)


def test_one_message_of_the_largest_size_is_always_a_batch() -> None:
    config = Config(max_msg_size=6 * 1024 * 1024)

    assert multi_publish_request("orders", [b"x" * config.max_msg_size], config).messages == 1


def test_a_timeout() -> None:
    assert checked_timeout(None, 10.0) == 10.0
    assert checked_timeout(5, 10.0) == 5.0
    assert checked_timeout(0, 10.0, may_be_zero=True) == 0.0


@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan, "5", True])
def test_a_timeout_that_is_none(timeout: float) -> None:
    with pytest.raises(UsageError, match=r"^timeout is .* must be"):
        checked_timeout(timeout, 10.0)
