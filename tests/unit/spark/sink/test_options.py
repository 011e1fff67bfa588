from __future__ import annotations

import pytest

from nsq.errors import ConfigError, InvalidName
from nsq.spark.options import SinkOptions


def test_options_have_defaults() -> None:
    options = SinkOptions.of({"nsqd": "a:4150, b:4150"})

    assert options.nsqd == ("a:4150", "b:4150")
    assert (options.mpub_messages, options.pipeline, options.retries) == (500, 8, 3)
    assert options.topic == ""


def test_names_come_as_spark_lowers_them() -> None:
    options = SinkOptions.of(
        {
            "lookupd": "l:4161",
            "mpubmessages": "10",
            "mpubbytes": "64k",
            "timeout": "5s",
        }
    )

    assert (options.mpub_messages, options.mpub_bytes, options.timeout) == (10, 65536, 5.0)


def test_options_of_config_are_accepted() -> None:
    assert SinkOptions.of({"nsqd": "a:4150", "maxmsgsize": "2000000"}).config.max_msg_size == 2_000_000


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"topic": "orders"}, "option nsqd or lookupd is missing"),
        ({"nsqd": "a:4150", "mpubMessages": "0"}, "mpubMessages is 0, but must be at least 1"),
        ({"nsqd": "a:4150", "mpubBytes": "6m"}, "mpubBytes is 6291456, but must be at most 5242880"),
        ({"nsqd": "a:4150", "resume": "partition"}, "there is no option 'resume'"),
        ({"nsqd": "a:4150", "pipelin": "1"}, "did you mean pipeline"),
    ],
)
def test_impossible_values_are_refused_in_one_line(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        SinkOptions.of(given)
    assert "\n" not in str(raised.value)


def test_a_topic_that_no_nsqd_takes_is_refused() -> None:
    with pytest.raises(InvalidName, match="orders today"):
        SinkOptions.of({"nsqd": "a:4150", "topic": "orders today"})
