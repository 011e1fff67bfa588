from __future__ import annotations

import pytest

from nsq.errors import ConfigError, UsageError
from nsq.spark.source.options import SourceOptions

GIVEN = {"topic": "orders", "channel": "spark", "wal": "/wal", "nsqd": "a:4150,b:4150"}


def test_names_as_spark_hands_them_over() -> None:
    options = SourceOptions.of(
        {**GIVEN, "maxbytespertrigger": "32m", "nsqdhttp": "a:1,b:2", "fsync": "false"}
    )
    assert options.nsqd == ("a:4150", "b:4150")
    assert options.nsqd_http == ("a:1", "b:2")
    assert (options.max_bytes_per_trigger, options.fsync) == (32 << 20, False)


def test_an_address_is_required() -> None:
    with pytest.raises(ConfigError, match="option nsqd or lookupd is missing"):
        SourceOptions.of({name: text for name, text in GIVEN.items() if name != "nsqd"})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"topic": "orders", "deadLetterTopic": "not a name"}, "not a name"),
        ({"topic": "orders", "deadLetterTopic": "orders"}, "'orders', which this stream reads"),
        ({"topicsPattern": "o.*", "deadLetterTopic": "o_dead"}, "'o_dead', which this stream reads"),
        ({"topic": "orders", "deadLetterTopic": "dead", "maxAttempts": "0"}, "needs maxAttempts above 0"),
    ],
)
def test_dead_letters_that_cannot_work_are_refused(given: dict[str, str], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        SourceOptions.of({"channel": "spark", "wal": "/wal", "nsqd": "a:4150"} | given)
