"""Options on their way to another process."""

from __future__ import annotations

import ssl

import pytest

from nsq.config import Config
from nsq.errors import ConfigError
from nsq.spark.receiver.protocol import packed, unpacked
from nsq.spark.receiver.receiving import consumer_config
from nsq.spark.source.options import SourceOptions

NEEDED = {"topic": "orders", "channel": "spark", "wal": "/wal", "nsqd": "a:4150,b:4150"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"maxInFlight": "100", "commitInterval": "20ms", "fsync": "false", "walMaxBytes": "1m"},
        {"lookupd": "c:4161", "authSecret": "geheim", "tls": "true", "tlsCaFile": "/ca.pem"},
        {"deadLetterTopic": "dead", "maxAttempts": "3", "sampleRate": "10", "msgTimeout": "5s"},
    ],
)
def test_they_arrive_as_they_were(more: dict[str, str]) -> None:
    options = SourceOptions.of(NEEDED | more)
    assert unpacked(packed(options)) == options


def test_what_cannot_be_written_down_is_named() -> None:
    config = Config(tls=ssl.create_default_context())
    options = SourceOptions(topic="t", channel="c", wal="/w", nsqd=("a:4150",), config=config)
    with pytest.raises(ConfigError, match=r"SSLContext.*give it as text"):
        packed(options)


def test_without_a_topic_for_dead_letters_nothing_is_given_up() -> None:
    options = SourceOptions.of(NEEDED | {"maxAttempts": "3", "maxInFlight": "77"})
    config = consumer_config(options)
    assert (config.max_attempts, config.max_in_flight) == (0, 77)


def test_with_one_it_is() -> None:
    config = consumer_config(SourceOptions.of(NEEDED | {"maxAttempts": "3", "deadLetterTopic": "dead"}))
    assert config.max_attempts == 3
