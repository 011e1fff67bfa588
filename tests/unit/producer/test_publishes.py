"""A publish without a connection: made from a user's arguments, and joined with others."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nsq
from nsq.config import Config
from nsq.producer.answers import unsent
from nsq.producer.endpoint import command_of, join
from nsq.producer.publishes import Maker, Publish
from nsq.wire import commands

KIB = 1024
MIB = 1024 * KIB
MAKER = Maker(Config(max_msg_size=100, max_defer=7200.0))


def publish(topic: str = "orders", body: bytes = b"body", *, alone: bool = False) -> Publish:
    made = Publish(topic, body)
    made.no_batching = alone
    return made


def deferred(topic: str = "orders") -> Publish:
    return MAKER.new_publish(Publish, topic, b"deferred", 1.0)


class TestMade:
    @pytest.mark.parametrize(
        ("body", "defer", "milliseconds"),
        [
            (b"body", None, 0),
            (bytearray(b"body"), None, 0),
            (memoryview(b"xbxoxdxy")[1::2], None, 0),
            (b"body", 0, 0),
            (b"body", 0.0001, 0),
            (b"body", 0.001, 1),
            (b"body", 1.2345, 1234),
            (bytearray(b"body"), 30, 30_000),
            (b"body", 7200, 7_200_000),
        ],
    )
    def test_one_message_is_pub_or_dpub(self, body: object, defer: float, milliseconds: int) -> None:
        made = MAKER.new_publish(Publish, "orders", body, defer)
        dpub = commands.dpub("orders", milliseconds, b"body") if milliseconds else None
        assert made.command == dpub
        assert command_of([made]) == (dpub or commands.pub("orders", b"body"))
        assert (made.body, type(made.body)) == (b"body", bytes)
        assert (made.topic, made.messages, made.size, made.done()) == ("orders", 1, 4, False)

    def test_a_message_is_deferred_by_a_timedelta_or_until_a_datetime(self) -> None:
        now = datetime.now(UTC)
        for defer, milliseconds in (
            (timedelta(seconds=1.5), 1500),
            (now.astimezone(timezone(timedelta(hours=9))) + timedelta(seconds=600), 600_000),
            (now - timedelta(days=1), 0),
        ):
            made = MAKER.new_publish(Publish, "orders", b"body", defer)
            delay = int(made.command.split(b"\n")[0].split()[2]) if made.command else 0
            assert milliseconds - 60_000 < delay <= milliseconds
        with pytest.raises(nsq.InvalidMessage, match="must have a time zone"):
            MAKER.new_publish(Publish, "orders", b"body", datetime(2030, 1, 1))

    @pytest.mark.parametrize(
        ("topic", "body", "defer", "error", "text"),
        [
            *[
                ("orders", b"body", defer, nsq.InvalidMessage, r"^defer is .* must be seconds, a timedelta")
                for defer in (math.inf, math.nan, True, "30", object())
            ],
            ("orders", b"body", -0.001, nsq.InvalidMessage, r"^defer is -0.001 s, must be 0 to 7200 s"),
            ("orders", b"body", 7200.001, nsq.InvalidMessage, r"^defer is 7200.001 s, must be 0 to 7200 s"),
            *[(topic, b"body", None, nsq.InvalidName, "topic") for topic in ("", "no spaces", None)],
            ("orders", "text", None, nsq.InvalidMessage, "the message is a str, must be bytes: encode it"),
            ("orders", 7, None, nsq.InvalidMessage, "the message is a int, must be bytes"),
            ("orders", None, None, nsq.InvalidMessage, "the message is a NoneType"),
            ("orders", b"", None, nsq.InvalidMessage, "the message is empty"),
            ("orders", b"x" * 101, None, nsq.InvalidMessage, "has 101 bytes, must have at most 100"),
            ("orders", bytearray(101), 1.0, nsq.InvalidMessage, "has 101 bytes, must have at most 100"),
        ],
    )
    def test_one_message_is_checked(
        self, topic: str, body: object, defer: float | None, error: type[nsq.NsqError], text: str
    ) -> None:
        with pytest.raises(error, match=text):
            MAKER.new_publish(Publish, topic, body, defer)

    @pytest.mark.parametrize(
        ("topic", "bodies", "text"),
        [
            ("no spaces", [b"body"], "topic"),
            ("orders", [], "bodies is empty, must hold at least one message"),
            ("orders", b"body", "bodies is one bytes, must be several"),
            ("orders", "body", "bodies is one str, must be several"),
            ("orders", None, "bodies is None, must be a list"),
            ("orders", [b"fine", b""], "message 1 is empty"),
            ("orders", [b"fine", b"fine", "text"], "message 2 is a str"),
            ("orders", [b"x" * 101], "message 0 has 101 bytes"),
        ],
    )
    def test_several_messages_are_checked(self, topic: str, bodies: list[object], text: str) -> None:
        with pytest.raises(nsq.UsageError, match=text):
            MAKER.new_multi_publish(Publish, topic, bodies)

    def test_several_messages_may_come_from_any_iterable(self) -> None:
        made = MAKER.new_multi_publish(Publish, "orders", iter([b"x" * 100, bytearray(b"two")]))
        assert made.command == command_of([made]) == commands.mpub("orders", [b"x" * 100, b"two"])
        assert (made.messages, made.size) == (2, 103)

    @pytest.mark.parametrize(
        ("options", "most", "limit"),
        [
            ({}, 4, 5 * MIB),
            ({"max_body_size": 10 * MIB}, 9, 10 * MIB),
            ({"max_msg_size": 6 * MIB}, 1, 6 * MIB + 8),
        ],
        ids=["by default", "nsqd takes larger batches", "one message always fits"],
    )
    def test_several_messages_fit_into_one_mpub(self, options: dict[str, Any], most: int, limit: int) -> None:
        config = Config(**options)
        maker, body = Maker(config), b"x" * config.max_msg_size
        assert maker.new_multi_publish(Publish, "orders", [body] * most).messages == most
        packed = 4 + (most + 1) * (4 + len(body))
        text = f"{most + 1} messages take {packed} bytes together, must be at most {limit} "
        with pytest.raises(nsq.InvalidMessage, match=text):
            maker.new_multi_publish(Publish, "orders", [body] * (most + 1))


def joined(*publishes: Publish, largest: int = 5 * MIB) -> list[list[int]]:
    """The batches, as places in ``publishes``."""
    return [[publishes.index(each) for each in batch] for batch in join(list(publishes), largest)]


JOINED: dict[str, tuple[list[Publish], list[list[int]]]] = {
    "none": ([], []),
    "one": ([publish()], [[0]]),
    "one topic": ([publish(), publish(), publish()], [[0, 1, 2]]),
    "two topics": ([publish("a"), publish("b"), publish("a"), publish("b")], [[0, 2], [1, 3]]),
    "one deferred": ([deferred()], [[0]]),
    "a deferred one between": ([publish(), deferred(), publish(), publish()], [[0], [1], [2, 3]]),
    "a deferred one of another topic": ([publish("a"), deferred("b"), publish("a")], [[0, 2], [1]]),
    "one that was refused between": ([publish(), publish(alone=True), publish()], [[0], [1], [2]]),
    "a large one between": ([publish(), publish(body=b"x" * 512 * KIB), publish()], [[0], [1], [2]]),
    "too many bytes": ([publish(body=b"x" * 200 * KIB) for _ in range(4)], [[0, 1], [2, 3]]),
}

#: A small set of topics, all kinds of publishes, and bodies up to a little more than may be joined.
anything = st.lists(
    st.builds(
        lambda topic, size, kind: (
            deferred(topic) if kind == "deferred" else publish(topic, b"x" * size, alone=kind == "alone")
        ),
        st.sampled_from(["orders", "users", "events"]),
        st.one_of(
            st.integers(1, 100), st.integers(100 * KIB, 300 * KIB), st.integers(512 * KIB - 12, 512 * KIB + 8)
        ),
        st.sampled_from(["", "", "", "deferred", "alone"]),
    ),
    max_size=30,
)


class TestJoin:
    @pytest.mark.parametrize(("publishes", "batches"), JOINED.values(), ids=JOINED)
    def test_publishes_of_one_topic_that_are_small_are_joined(
        self, publishes: list[Publish], batches: list[list[int]]
    ) -> None:
        assert joined(*publishes) == batches

    def test_at_most_a_thousand_messages_are_joined(self) -> None:
        sizes = [len(batch) for batch in join([publish() for _ in range(2500)], 5 * MIB)]
        assert sizes == [1000, 1000, 500]

    @given(anything, st.one_of(st.integers(0, 200), st.integers(0, 600 * KIB), st.just(2**31)))
    def test_each_publish_is_in_one_batch_in_the_order_of_its_topic_and_batches_are_full(
        self, publishes: list[Publish], largest: int
    ) -> None:
        batches = join(publishes, largest)
        largest = min(largest, 512 * KIB)
        assert sum(map(len, batches)) == len(publishes)
        for topic in ("orders", "users", "events"):
            mine = [batch for batch in batches if batch[0].topic == topic]
            of_topic = [each for each in publishes if each.topic == topic]
            assert [each for batch in mine for each in batch] == of_topic
            for one, other in pairwise(mine):
                both = one + other[:1]  # they would not fit together
                alone = any(each.command or each.no_batching for each in both)
                assert alone or 4 + sum(4 + each.size for each in both) > largest
        for batch in batches:
            if len(batch) > 1:
                assert not any(each.command or each.no_batching for each in batch)
                assert command_of(batch) == commands.mpub(batch[0].topic, [each.body for each in batch])
                # nsqd counts the number of messages, then each with its size.
                assert len(command_of(batch).partition(b"\n")[2]) - 4 <= largest


def test_an_error_names_each_nsqd_once_that_may_have_stored_a_publish() -> None:
    tried = publish()
    tried.uncertain_at = ("a:4150", "b:4150", "a:4150", "a:4150")
    assert "it was sent to a:4150 (3 times) and b:4150 and not answered (then: time is up)" in str(
        unsent(tried, "time is up")
    )
