from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from nsq.errors import WalForeign
from nsq.spark.wal import Subject, names


def test_a_new_receiver_says_when_and_where_it_began() -> None:
    name = names.new_receiver(host="web 1.example/org", pid=42, now=1_700_000_000, chance="00c0ffee")
    assert name == "20231114T221320-web-1.example-org-42-00c0ffee"
    assert names.is_receiver(name)


def test_two_new_receivers_differ() -> None:
    assert names.new_receiver() != names.new_receiver()


@pytest.mark.parametrize("host", ["", "...", "-", "ünïcode", "x" * 300])
def test_a_receiver_can_be_named_after_any_host(host: str) -> None:
    assert names.is_receiver(names.new_receiver(host=host))


@pytest.mark.parametrize("name", ["", ".new-1", "a/b", "a~", "x" * 201, "a b"])
def test_invalid_names_are_no_receivers(name: str) -> None:
    assert not names.is_receiver(name)


def test_a_subject_is_read_back() -> None:
    orders = Subject("orders", "spark")
    assert names.decode_subject(names.encode_subject(orders), "p") == orders
    assert str(orders) == "orders/spark"


def test_topics_may_be_added_or_removed_but_not_exchanged() -> None:
    Subject("a,b", "spark").check(Subject("a", "spark"), "/w")
    Subject("a", "spark").check(Subject("a,b", "spark"), "/w")
    for found in (Subject("b,c", "spark"), Subject("a,b", "other")):
        with pytest.raises(WalForeign):
            Subject("a,b", "spark").check(found, "/w")


def test_an_identity_is_read_back() -> None:
    text = names.encode_identity("5f0c", 1_700_000_000)
    assert names.decode_identity(text, "p") == "5f0c"
    assert json.loads(text)["created"] == "2023-11-14T22:13:20Z"


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{}", b"\xff\xfe",
        b'{"format": "1", "identity": "x", "topic": "a", "channel": "b"}',
        b'{"format": 3, "identity": "", "topic": 7, "channel": "b"}',
        b'{"format": 3, "topic": "a"}',
    ],
)  # fmt: skip
def test_a_file_that_is_no_identity_or_subject_is_refused(text: bytes) -> None:
    with pytest.raises(WalForeign, match="p is not the identity of a log"):
        names.decode_identity(text, "p")
    with pytest.raises(WalForeign, match="p does not say what a log is for"):
        names.decode_subject(text, "p")


@pytest.mark.parametrize("decode", [names.decode_identity, names.decode_subject])
@pytest.mark.parametrize(
    ("version", "words"),
    [
        (1, "/wal/x belongs to a log of format 1, .* nor the checkpoints .*: read it to its end"),
        (4, "/wal/x has format 4.* read it with a newer one"),
    ],
)
def test_another_format_is_refused(decode: Callable[[bytes, str], object], version: int, words: str) -> None:
    with pytest.raises(WalForeign, match=words):
        decode(b'{"format": %d, "identity": "x", "topic": "a", "channel": "b"}' % version, "/wal/x")
