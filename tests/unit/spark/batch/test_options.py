from __future__ import annotations

import pytest

from nsq.errors import NsqError

pytest.importorskip("pyspark")

from nsq.spark.batch import StatsOptions


def test_statistics_are_of_all_topics_by_default() -> None:
    options = StatsOptions.of({"nsqd": "a:4150,b:4150"})

    assert (options.nsqd, options.topic, options.channel) == (("a:4150", "b:4150"), "", "")
    assert not options.fail_fast


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option nsqd or lookupd is missing"),
        ({"nsqd": "a:4150", "nsqdHttp": "a:1,b:2"}, "as many addresses as nsqd"),
        ({"nsqd": "a:4150", "channel": "billing"}, "of which topic"),
        ({"nsqd": "a:4150", "topic": "no topic"}, "no topic"),
        ({"nsqd": "a:4150", "topic": "orders", "channel": "no channel"}, "no channel"),
        ({"nsqd": "a:4150", "failfest": "true"}, "did you mean failFast"),
    ],
)
def test_impossible_options_of_statistics_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(NsqError, match=words):
        StatsOptions.of(given)
