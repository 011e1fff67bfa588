from __future__ import annotations

import pytest

from nsq.errors import ConfigError, NsqError

pytest.importorskip("pyspark")

from nsq.spark.batch import PeekOptions, StatsOptions


def test_a_look_is_asked_for_by_name() -> None:
    options = PeekOptions.of({"mode": "peek", "topic": "orders", "lookupd": "l:4161", "limit": "5"})

    assert (options.topic, options.limit, options.timeout) == ("orders", 5, 10.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "peek", "nsqd": "a:4150"}, "option topic is missing"),
        ({"mode": "peek", "topic": "orders"}, "option nsqd or lookupd is missing"),
        ({"mode": "take", "topic": "orders", "nsqd": "a:4150"}, "must be one of: peek"),
        ({"mode": "peek", "topic": "orders", "nsqd": "a:4150", "limit": "0"}, "at least 1"),
        (
            {"mode": "peek", "topic": "orders", "nsqd": "a:4150,b:4150", "nsqdHttp": "a:4151"},
            "nsqdHttp must have as many addresses as nsqd",
        ),
    ],
)
def test_a_look_that_cannot_be_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as told:
        PeekOptions.of(given)
    assert "\n" not in str(told.value)


def test_statistics_are_of_everything_unless_told_otherwise() -> None:
    options = StatsOptions.of({"nsqd": "a:4151,b:4151"})

    assert (options.nsqd, options.topic, options.channel) == (("a:4151", "b:4151"), "", "")
    assert not options.fail_fast


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option lookupd or nsqd is missing.*HTTP"),
        ({"nsqd": "a:4151", "channel": "billing"}, "of which topic"),
        ({"nsqd": "a:4151", "topic": "no topic"}, "no topic"),
        ({"nsqd": "a:4151", "topic": "orders", "channel": "no channel"}, "no channel"),
        ({"nsqd": "a:4151", "failfest": "true"}, "did you mean failFast"),
    ],
)
def test_statistics_that_cannot_be_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(NsqError, match=words):
        StatsOptions.of(given)
