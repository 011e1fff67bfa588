"""Options are sent to another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsq.consumer.consumer import Consumer
from nsq.spark.receiver import receiving
from nsq.spark.receiver.protocol import packed, unpacked
from nsq.spark.receiver.receiving import Receiving, consumer_config
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import open_wal

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
def test_options_are_unpacked_as_they_were(more: dict[str, str]) -> None:
    options = SourceOptions.of(NEEDED | more)
    assert unpacked(packed(options)) == options


def test_messages_are_given_up_only_with_a_dead_letter_topic() -> None:
    given = NEEDED | {"maxAttempts": "3", "maxAge": "1m", "maxInFlight": "77", "rate": "50"}
    config = consumer_config(SourceOptions.of(given))
    assert (config.max_attempts, config.max_age, config.max_in_flight, config.rate) == (0, 0.0, 77, 50.0)
    config = consumer_config(SourceOptions.of(given | {"deadLetterTopic": "dead"}))
    assert (config.max_attempts, config.max_age) == (3, 60.0)


class OneSearch:
    """An event that ends a search after the first wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def is_set(self) -> bool:
        return bool(self.waits)

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)


def searching(given: dict[str, str], wal: Any = None) -> Receiving:
    needed = {name: text for name, text in NEEDED.items() if name != "topic"}
    options = SourceOptions.of({**needed, **given, "topicsPattern": "shop_.*"})
    search: Any = OneSearch()
    it = Receiving(options, wal, changed=lambda: None)
    it._ending = search
    return it


@pytest.mark.parametrize(("given", "pause"), [({}, 5.0), ({"lookupdPollInterval": "100ms"}, 0.1)])
def test_new_topics_are_searched_for_every_five_seconds_or_as_often_as_nsqlookupd_is_asked(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], pause: float
) -> None:
    monkeypatch.setattr(receiving, "find_topics", lambda options: [])
    it: Any = searching(given)
    it._search()
    assert it._ending.waits == [pause]


def test_a_topic_that_cannot_be_received_now_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(consumer: Consumer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(receiving, "find_topics", lambda options: ["shop_a"])
    monkeypatch.setattr(Consumer, "start", refuse)
    wal = open_wal(str(tmp_path / "wal"))
    wal.prepare()
    it: Any = searching({}, wal)
    it._open_log()
    for _ in range(2):
        it._ending = OneSearch()
        it._search()
        assert it.status().error == "can't start new thread"
        assert it._topics == {}
    it._intake.close()
    assert caplog.text.count("can't start new thread") == 1
