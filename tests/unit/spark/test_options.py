"""Options as text, with names in any case."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path

import pytest

from nsq.errors import ConfigError, InvalidName, NsqError
from nsq.spark.options import (
    Options,
    SinkOptions,
    count,
    lasting,
    moment,
    names,
    octets,
    option,
    seconds,
    size,
    switch,
)
from nsq.spark.source.options import SourceOptions
from nsq.spark.stats import StatsOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample(Options):
    place: str = option("Where.")
    max_bytes: int = octets(32 << 20, "How much.")
    pause: float = seconds(0.25, "How long.")
    addresses: tuple[str, ...] = option("Whom.", names, default=())
    count: int = count(3, "How many.")
    careful: bool = switch(True, "Whether.")
    mode: str = option("How.", default="slow", choices=("slow", "fast"))


def test_names_ignore_case_and_values_get_their_types() -> None:
    found = Sample.of(
        {
            "PLACE": "here", "maxbytes": "64k", "Pause": "1m30s", "addresses": "a:1, b:2,a:1,",
            "count": "0x10", "careful": "false", "mode": "fast",
        }
    )  # fmt: skip
    assert dataclasses.replace(found, config=Sample.of({"place": ""}).config) == Sample(
        place="here",
        max_bytes=65536,
        pause=90.0,
        addresses=("a:1", "b:2"),
        count=16,
        careful=False,
        mode="fast",
    )


def test_options_of_config_are_accepted() -> None:
    found = Sample.of(
        {"place": "here", "tlscafile": "/ca.pem", "tls": "true", "authSecret": "s3cret", "msg_timeout": "90s"}
    )
    assert (found.config.tls_ca_file, found.config.msg_timeout) == ("/ca.pem", 90.0)
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "option place is missing: .option('place', …)"),
        ({"place": "x", "maxByte": "1"}, "there is no option 'maxByte'; did you mean maxBytes?"),
        ({"place": "x", "authSecrets": "1"}, "there is no option 'authSecrets'; did you mean authSecret?"),
        (
            {"place": "x", "zzz": "1"},
            "there is no option 'zzz'; there are place, maxBytes, pause, addresses, count, careful, mode, "
            "httpSecretFile, httpSecretTo, and all fields of nsq.Config, such as tlsCaFile",
        ),
        ({"place": "x", "maxBytes": "lots"}, "maxBytes is 'lots': invalid size 'lots'"),
        ({"place": "x", "maxBytes": "0"}, "maxBytes is 0, but must be at least 1"),
        ({"place": "x", "pause": "90"}, "pause is '90': "),
        ({"place": "x", "count": "many"}, "count is 'many': "),
        ({"place": "x", "careful": "perhaps"}, "careful is 'perhaps': "),
        ({"place": "x", "mode": "fastest"}, "mode is 'fastest', but must be one of: slow, fast"),
        ({"place": "x", "msgTimeout": "-1s"}, "msg_timeout is -1.0, but must be"),
    ],
)
def test_a_wrong_option_is_an_error_in_one_line(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sample.of(given)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_options_that_spark_adds_are_ignored() -> None:
    assert Sample.of({"place": "x", "checkpointlocation": "/c"}, ignored=["checkpointLocation"]).place == "x"


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("1024", 1024), ("2kb", 2048), ("1MiB", 1 << 20), ("3 g", 3 << 30), ("1T", 1 << 40)],
)
def test_sizes_may_have_a_unit(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "-1", "1.5m", "m", "1x", "1 2"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid size"):
        size(text)


def test_the_table_of_options_shows_defaults_as_text() -> None:
    shown = {line.name: line.default for line in Sample.describe()}
    assert shown == {
        "place": "", "maxBytes": "32MiB", "pause": "250ms", "addresses": "", "count": "3", "careful": "true",
        "mode": "slow", "httpSecretFile": "", "httpSecretTo": "given",
    }  # fmt: skip
    assert {line.name: line.default for line in SourceOptions.describe()}["maxTriggerDelay"] == "15m0s"


def test_all_missing_options_are_named_together() -> None:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.of({"channel": "spark"})
    for name in ("option wal is missing", "option nsqd or lookupd is missing", "option topic is missing"):
        assert name in str(caught.value)


#: What each format refuses, beside what it needs: the options, and words of the error.
REFUSED: dict[type[Options], tuple[dict[str, str], list[tuple[dict[str, str], str]]]] = {
    SourceOptions: (
        {"channel": "spark", "wal": "/wal", "nsqd": "a:4150", "topic": "orders"},
        [
            ({"nsqd": ""}, "option nsqd or lookupd is missing"),
            ({"topic": "no topic"}, "topic name 'no topic'"),
            ({"deadLetterTopic": "not a name"}, "not a name"),
            ({"deadLetterTopic": "orders"}, "'orders', which this stream reads"),
            (
                {"topic": "", "topicsPattern": "o.*", "deadLetterTopic": "o_dead"},
                "'o_dead', which this stream",
            ),
            ({"deadLetterTopic": "dead", "maxAttempts": "0"}, "needs maxAttempts above 0"),
            # Kafka's names are answered with ours.
            ({"subscribe": "x"}, "topic or topics"),
            ({"kafka.bootstrap.servers": "x"}, "nsqd or lookupd"),
            ({"startingOffsets": "x"}, "startingPosition"),
            ({"maxOffsetsPerTrigger": "x"}, "maxMessagesPerTrigger"),
            ({"kafka.ssl.truststore.location": "x"}, "Kafka's client"),
        ],
    ),
    SinkOptions: (
        {"nsqd": "a:4150"},
        [
            ({"nsqd": "", "topic": "orders"}, "option nsqd or lookupd is missing"),
            ({"mpubMessages": "0"}, "mpubMessages is 0, but must be at least 1"),
            ({"mpubBytes": "6m"}, "mpubBytes is 6291456, but must be at most 5242880"),
            ({"topic": "orders today"}, "orders today"),
        ],
    ),
    StatsOptions: (
        {"nsqd": "a:4150"},
        [
            ({"nsqd": ""}, "option nsqd or lookupd is missing"),
            ({"nsqdHttp": "a:1,b:2"}, "as many addresses as nsqd"),
            ({"channel": "billing"}, "of which topic"),
            ({"topic": "no topic"}, "no topic"),
            ({"topic": "orders", "channel": "no channel"}, "no channel"),
        ],
    ),
}


@pytest.mark.parametrize(
    ("options", "given", "words"),
    [
        pytest.param(kind, needed | more, words, id=f"{kind.__name__} {more}")
        for kind, (needed, rows) in REFUSED.items()
        for more, words in rows
    ],
)
def test_impossible_options_of_a_format_are_refused_in_one_line(
    options: type[Options], given: dict[str, str], words: str
) -> None:
    with pytest.raises(NsqError, match=words) as caught:
        options.of({name: text for name, text in given.items() if text})
    assert "\n" not in str(caught.value)


def test_each_format_takes_what_it_needs_alone() -> None:
    assert [kind.of(needed).nsqd for kind, (needed, _) in REFUSED.items()] == [("a:4150",)] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "subscription"),
    [
        ({"topic": "orders"}, "orders"),
        ({"topics": "orders, clicks"}, "clicks,orders"),
        ({"topicsPattern": "shop_.*"}, "~shop_.*"),
        ({}, None),
        ({"topic": "orders", "topics": "clicks"}, None),
        ({"topicsPattern": "("}, None),
        ({"topics": "a b"}, None),
    ],
)
def test_topic_topics_or_topicspattern_choose_the_topics(
    given: dict[str, str], subscription: str | None
) -> None:
    rest = {"channel": "c", "wal": "w", "nsqd": "a:4150"}
    if subscription is None:
        with pytest.raises((ConfigError, InvalidName), match="topic"):
            SourceOptions.of(given | rest)
        return
    found = SourceOptions.of(given | rest)
    assert found.subscription == subscription
    assert not found.wants("something")
    assert found.wants("orders") or found.wants("shop_1")


@pytest.mark.parametrize(("text", "nanos"), [("1970-01-02", 86_400 * 10**9), ("1500", 1_500_000_000)])
def test_points_in_time_are_parsed_as_utc(text: str, nanos: int) -> None:
    assert moment(text) == nanos
    with pytest.raises(ConfigError, match="not a point in time"):
        moment(f"{text}x")


def test_points_in_time_may_have_a_zone() -> None:
    assert moment("1970-01-01T01:00:00.000001+01:00") == 1000
    assert moment(datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)) == 86_400 * 10**9
    with pytest.raises(ConfigError, match="has no time zone"):
        moment(datetime.datetime(1970, 1, 2))


@pytest.mark.parametrize(("text", "seconds"), [("7d", 604_800.0), ("36h", 129_600.0), ("0", 0.0)])
def test_a_duration_may_be_in_days(text: str, seconds: float) -> None:
    assert lasting(text) == seconds


def test_the_http_secret_comes_from_a_file_or_the_environment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NSQ_HTTP_SECRET", raising=False)
    given = {"nsqd": "a:4150"}
    assert StatsOptions.of(given).config.http_secret == ""
    for name in ("httpSecret", "http_secret"):
        with pytest.raises(ConfigError, match="would be shown in Spark's page"):
            StatsOptions.of({**given, name: "s3cret"})
    monkeypatch.setenv("NSQ_HTTP_SECRET", "s3cret")
    assert StatsOptions.of(given).config.http_secret == "s3cret"
    assert "s3cret" not in repr(StatsOptions.of(given))
    file = tmp_path / "secret"
    file.write_text("of-the-file\n")
    options = StatsOptions.of({**given, "httpSecretFile": str(file), "httpSecretTo": "any"})
    assert (options.config.http_secret, options.http_secret_to) == ("of-the-file", "any")
    with pytest.raises(ConfigError, match="httpSecretFile '/none'"):
        StatsOptions.of({**given, "httpSecretFile": "/none"})
