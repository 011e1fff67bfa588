"""Bytes and numbers as nsq_tail, nsq_stat and to_nsq show and read them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast
from unittest.mock import Mock

import pytest

from nsq.errors import BadMessage, DialFailed, PublishUncertain
from nsq.http.cluster import Channel, count_topics
from nsq.http.nsqd import NsqdStats
from nsq.tools.nsq_stat import Poll, StatOptions, lines, row, screen
from nsq.tools.nsq_tail import pretty
from nsq.tools.to_nsq import Publisher, Splitter


@pytest.mark.parametrize(
    ("chunks", "records"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a\nb"], [b"a", b"b"]),  # Go's to_nsq loses the last byte of the last record
        ([b"a", b"b", b"\nc"], [b"ab", b"c"]),
        ([b"\n\na\n\n"], [b"a"]),
        ([], []),
    ],
)
def test_records_are_cut_at_the_delimiter(chunks: list[bytes], records: list[bytes]) -> None:
    splitter = Splitter(b"\n")
    found = [record for chunk in chunks for record in splitter.feed(chunk)]
    assert found + splitter.end() == records


CHANNEL = {
    "channel_name": "c", "depth": 30, "backend_depth": 10, "in_flight_count": 4, "deferred_count": 5,
    "message_count": 160, "requeue_count": 6, "timeout_count": 7, "client_count": 8, "clients": [],
    "paused": False,
}  # fmt: skip
OPTIONS = StatOptions(topic="t", channel="c", nsqd_http_address=("a:1",))
TOPIC = {"topic_name": "t", "depth": 0, "backend_depth": 0, "message_count": 0, "paused": False}


def counted(**counts: int) -> Channel:
    zero = {name: 0 for name, value in CHANNEL.items() if type(value) is int}
    stats = {"topics": [{**TOPIC, "channels": [{**CHANNEL, **zero, **counts}]}]}
    (topic,) = count_topics([cast("NsqdStats", stats)])
    return topic.channels[0]


NOW = Poll({"a:1": counted(**{name: value for name, value in CHANNEL.items() if type(value) is int})})
BEFORE = Poll({"a:1": counted(message_count=101, depth=40)})


def test_stat_writes_gos_lines() -> None:
    assert lines(OPTIONS, BEFORE, None, 0) == (
        "------rate------+----------------depth----------------+--------------metadata---------------\n"
        "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients\n"
    )
    assert lines(OPTIONS, NOW, BEFORE, 1) == (
        "     29      34 |      30      20      10     4     5 |       6       7          160       8\n"
    )
    assert lines(OPTIONS, NOW, BEFORE, 24).count("\n") == 1
    assert lines(OPTIONS, NOW, BEFORE, 25).count("\n") == 3


def test_a_rate_is_cut_not_rounded_and_may_be_negative() -> None:
    text = row(counted(message_count=100, depth=13), counted(message_count=103, depth=10), 2.0)
    assert text.split()[:2] == ["-1", "-3"]


def test_an_nsqd_that_appears_or_goes_changes_no_rate() -> None:
    both = Poll({**NOW.nsqds, "b:1": counted(message_count=1000, depth=1000)})
    for now, before in ((both, NOW), (NOW, both)):
        assert lines(OPTIONS, now, before, 1).split()[:2] == ["0", "0"]


@pytest.mark.parametrize(("width", "last"), [(97, "9"), (96, "5"), (59, "5")])
def test_stat_on_a_terminal_shows_each_nsqd_below_the_sum(width: int, last: str) -> None:
    poll = Poll({**NOW.nsqds, "b:1": counted(message_count=1, depth=1, client_count=1)})
    shown = screen(OPTIONS, poll, None, width).splitlines()
    assert [line.split()[-1] for line in shown[-3:]] == [last, "a:1", "b:1"]
    assert max(map(len, shown[1:])) <= width


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"a":[1,2],"b":"\xc3\xa4"}', b'{\n  "a": [\n    1,\n    2\n  ],\n  "b": "\xc3\xa4"\n}'),
        (b"{not json", b"{not json"),
        (b"plain\ttext", b"plain\ttext"),
        (b"\x1b[2Jgone\r", b"\\x1b[2Jgone\\x0d"),
        (b"\xc2\x9b2J\xc3\x9b", b"\\xc2\\x9b2J\xc3\x9b"),
        (b'["\xc2\x9b2J\x7f"]', b'[\n  "\\u009b2J\\u007f"\n]'),
        (b"[" * 100_000, b"[" * 100_000),
    ],
)
def test_a_terminal_gets_json_in_lines_and_no_control_characters(body: bytes, shown: bytes) -> None:
    assert pretty(body) == shown


class OneTooLarge:
    """A producer whose nsqd refuses the record "large", and batches with it."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []

    def multi_publish_async(self, topic: str, bodies: list[bytes]) -> Future[None]:
        future: Future[None] = Future()
        if b"large" in bodies:
            future.set_exception(BadMessage("too large", "E_BAD_MESSAGE"))
        else:
            self.stored += bodies
            future.set_result(None)
        return future

    def ping(self) -> None:
        pass

    def publish(self, topic: str, body: bytes) -> None:
        if body == b"large":
            raise BadMessage("too large", "E_BAD_MESSAGE")
        self.stored.append(body)


class Doubtful(OneTooLarge):
    """A producer whose nsqd hangs."""

    def multi_publish_async(self, topic: str, bodies: list[bytes]) -> Future[None]:
        future: Future[None] = Future()
        future.set_exception(PublishUncertain("no answer"))
        return future


def test_to_nsq_counts_what_each_nsqd_has_stored_before_and_after_a_record_that_is_refused() -> None:
    first, second, third = OneTooLarge(), OneTooLarge(), Doubtful()
    producers: list[Any] = [first, second, third]
    publisher = Publisher("t", producers, Mock())
    for records in ([b"1", b"2"], [b"3", b"large", b"never"], [b"4"]):
        publisher.publish(records)
    for _ in range(2):
        with pytest.raises((BadMessage, PublishUncertain)):
            publisher.finish()
    publisher.count_the_rest()
    assert first.stored == second.stored == [b"1", b"2", b"4", b"3"]
    assert publisher.stored == [4, 4, 0]
    assert publisher.uncertain == [0, 0, 6]


def test_to_nsq_publishes_nothing_while_an_nsqd_cannot_be_reached() -> None:
    fine, dead = OneTooLarge(), OneTooLarge()
    dead.ping = Mock(side_effect=DialFailed("refused"))  # type: ignore[method-assign]
    producers: list[Any] = [fine, dead]
    publisher = Publisher("t", producers, Mock())
    with pytest.raises(DialFailed):
        publisher.publish([b"1"])
    publisher.count_the_rest()
    assert (fine.stored, publisher.stored) == ([], [0, 0])
