from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from nsq.consumer.handlers import DeadLetterFile, DeadLetterTopic
from nsq.errors import InvalidName
from nsq.message import Message
from tests.fakes.messages import Delegate
from tests.fakes.nsqd import A, id_of


def dead(body: bytes = b"body", number: int = 1) -> Message:
    return Message(Delegate(), 0.0, 1.0, 17, 6, id_of(number), body)


class Publisher:
    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []

    def publish(self, topic: str, body: bytes) -> None:
        self.published.append((topic, body))


class TestTopic:
    def test_a_dead_letter_topic_gets_the_message_as_it_is(self) -> None:
        publisher = Publisher()
        DeadLetterTopic(publisher, "orders_dead")(dead(b"\xff\x00"))
        assert publisher.published == [("orders_dead", b"\xff\x00")]

    def test_the_name_of_a_dead_letter_topic_is_checked_at_once(self) -> None:
        with pytest.raises(InvalidName):
            DeadLetterTopic(Publisher(), "or ders")


class TestFile:
    def test_a_dead_letter_file_gets_a_line_for_each_message(self, tmp_path: Path) -> None:
        path = tmp_path / "dead"
        keep = DeadLetterFile(path)
        keep(dead("grüße\n".encode()))
        keep(dead(b"\xff", 2))
        text, binary = map(json.loads, path.read_bytes().splitlines())
        same: dict[str, Any] = {"attempts": 6, "timestamp": 17, "nsqd_address": A}
        assert text == {"id": "0000000000000001", **same, "body": "grüße\n"}
        assert binary == {"id": "0000000000000002", **same, "body_base64": "/w=="}

    def test_a_dead_letter_file_may_be_rotated_away(self, tmp_path: Path) -> None:
        path = tmp_path / "dead"
        keep = DeadLetterFile(path)
        keep(dead())
        path.rename(tmp_path / "dead.1")
        keep(dead())
        assert len(path.read_bytes().splitlines()) == 1

    def test_an_error_of_the_file_reaches_the_consumer(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="No such file"):
            DeadLetterFile(tmp_path / "nowhere" / "dead")(dead())

    def test_a_message_whose_write_is_cut_short_is_not_taken_for_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a write that is cut short the message must not be taken for kept."""

        class Full(io.FileIO):
            def write(self, data: Any) -> int:
                return super().write(data[:5])

        monkeypatch.setattr("builtins.open", lambda path, mode, buffering: Full(path, mode))
        with pytest.raises(OSError, match="only a part"):
            DeadLetterFile(tmp_path / "dead")(dead())
