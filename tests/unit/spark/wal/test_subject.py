from __future__ import annotations

import pytest

from nsq.errors import WalForeign
from nsq.spark.wal import Subject
from nsq.spark.wal import names as subject


def test_a_subject_is_read_back() -> None:
    orders = Subject("orders", "spark")
    assert subject.decode_subject(subject.encode_subject(orders), "p") == orders
    assert str(orders) == "orders/spark"


def test_the_same_or_none_is_fine_and_another_is_refused_naming_both() -> None:
    orders = Subject("orders", "spark")
    orders.check(None, "/w")
    orders.check(Subject("orders", "spark"), "/w")
    with pytest.raises(WalForeign, match="/w is the log of clicks/spark, and this is to read orders/spark"):
        orders.check(Subject("clicks", "spark"), "/w")


def test_topics_may_be_added_or_removed_but_not_exchanged() -> None:
    Subject("a,b", "spark").check(Subject("a", "spark"), "/w")
    Subject("a", "spark").check(Subject("a,b", "spark"), "/w")
    for found in (Subject("b,c", "spark"), Subject("a,b", "other")):
        with pytest.raises(WalForeign):
            Subject("a,b", "spark").check(found, "/w")


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{}", b"\xff\xfe", b'{"format": "1", "topic": "a", "channel": "b"}',
        b'{"format": 1, "topic": 7, "channel": "b"}', b'{"format": 1, "topic": "a"}',
    ],
)  # fmt: skip
def test_a_file_that_is_no_subject_is_refused(text: bytes) -> None:
    with pytest.raises(WalForeign, match="p does not say what a log is for"):
        subject.decode_subject(text, "p")


def test_a_newer_format() -> None:
    with pytest.raises(WalForeign, match="p has format 2"):
        subject.decode_subject(b'{"format": 2, "topic": "a", "channel": "b"}', "p")
