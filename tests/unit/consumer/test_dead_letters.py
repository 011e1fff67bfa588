from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from nsq.consumer.dead_letters import DeadLetterFile, DeadLetterTopic, dead_letter
from nsq.consumer.decisions import GivenUp, GiveUp
from nsq.errors import InvalidName
from nsq.message import Message
from nsq.wire.envelope import dead_letter_in
from tests.fakes.messages import Delegate
from tests.fakes.nsqd import A, id_of


def dead(body: bytes = b"body", number: int = 1) -> Message:
    return Message(Delegate(), 0.0, 1.0, 17, 6, id_of(number), body)


class Publisher:
    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []

    def publish(self, topic: str, body: bytes) -> None:
        self.published.append((topic, body))


def test_a_dead_letter_topic_gets_the_body_and_its_name_is_checked_at_once() -> None:
    publisher = Publisher()
    DeadLetterTopic(publisher, "orders_dead")(dead(b"\xff\x00"))
    assert publisher.published == [("orders_dead", b"\xff\x00")]
    with pytest.raises(InvalidName):
        DeadLetterTopic(publisher, "or ders")


@pytest.mark.parametrize(
    ("error", "reason", "shown"),
    [
        (GiveUp("cannot be read"), "its handler gave it up", "cannot be read"),
        (
            ValueError("a\nb\x00c" + "d" * 2000),
            "it failed at its last attempt (max_attempts is 5)",
            "ValueError: a b c",
        ),
        (None, "its attempts were used up, by requeues or timeouts (max_attempts is 5)", ""),
    ],
)
def test_a_dead_letter_says_why(error: Exception | None, reason: str, shown: str) -> None:
    if error is not None:
        with pytest.raises(type(error)):
            raise error
    letter = dead_letter_in(dead_letter(dead(), GivenUp(reason, error), "orders/billing"))
    assert letter is not None
    about = letter.attributes
    assert letter.body == b"body"
    assert (about["source"], about["reason"], about["attempts"]) == ("/orders/billing", reason, "6")
    assert about.get("error", "").startswith(shown)
    assert len(about.get("error", "")) <= 1000
    assert ("in test_a_dead_letter_says_why" in about.get("place", "")) == (error is not None)


class TestFile:
    def test_each_message_is_a_line_of_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "dead"
        keep = DeadLetterFile(path)
        keep(dead("grüße\n".encode()))
        keep(dead(b"\xff", 2))
        text, binary = map(json.loads, path.read_bytes().splitlines())
        same: dict[str, Any] = {"attempts": 6, "timestamp": 17, "nsqd_address": A}
        assert text == {"id": "0000000000000001", **same, "body": "grüße\n"}
        assert binary == {"id": "0000000000000002", **same, "body_base64": "/w=="}

    def test_the_file_may_be_rotated_away(self, tmp_path: Path) -> None:
        path = tmp_path / "dead"
        keep = DeadLetterFile(path)
        keep(dead())
        path.rename(tmp_path / "dead.1")
        keep(dead())
        assert len(path.read_bytes().splitlines()) == 1

    def test_a_file_that_cannot_be_opened_raises(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="No such file"):
            DeadLetterFile(tmp_path / "nowhere" / "dead")(dead())

    def test_a_write_that_is_cut_short_raises_and_spoils_no_later_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Full(io.FileIO):
            def write(self, data: Any) -> int:
                return super().write(data[:5])

        keep = DeadLetterFile(tmp_path / "dead")
        with monkeypatch.context() as patched:
            patched.setattr("builtins.open", lambda path, mode, buffering: Full(path, mode))
            with pytest.raises(OSError, match="only a part"):
                keep(dead())
        keep(dead(number=2))
        _, line = (tmp_path / "dead").read_bytes().splitlines()
        assert json.loads(line)["id"] == "0000000000000002"
