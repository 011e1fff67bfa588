"""AUTH against tcp_auth.json, and what nsqd asks the auth server: a real one that allows as recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import factory
from tests.golden import conversation, recordings
from tests.interop.auth_server import Question, running_auth_server

FILE = "tcp_auth.json"
CASES = recordings.cases(FILE)
RECORDED_QUESTIONS = recordings.load(FILE)["what_the_auth_server_saw"]
ALLOWED = {"topic": "allowed.*", "channels": ["ok.*"], "permissions": ["subscribe", "publish"]}


class Replayed(NamedTuple):
    outcomes: dict[str, Exception | None]
    asked: list[Question]


@pytest.fixture(scope="module")
def replayed() -> Iterator[Replayed]:
    asked: list[Question] = []
    worker = {"identity": "worker", "identity_url": "http://id.example"}
    with running_auth_server({"good": [ALLOWED]}, asked, **worker) as address, factory(Nsqd) as make:
        nsqd = make(auth_http_addresses=(address,))
        outcomes: dict[str, Exception | None] = {}
        for case in CASES:  # one after the other: the auth server's record has the cases' order
            outcomes |= conversation.replay_all([case], nsqd.tcp_address)
        yield Replayed(outcomes, asked)


@pytest.mark.parametrize("name", [case["case"] for case in CASES])
def test_nsqd_answers_auth_as_gos_nsqd_did(name: str, replayed: Replayed) -> None:
    failure = replayed.outcomes[name]
    if failure is not None:
        raise failure


def test_the_auth_server_is_asked_as_recorded(replayed: Replayed) -> None:
    recorded = [
        Question(each["method"], each["path"], each["headers"]["Accept"]) for each in RECORDED_QUESTIONS
    ]
    asked = [
        question._replace(path=re.sub("&auth_secret=[^&]*", "", question.path)) for question in replayed.asked
    ]
    assert asked[: len(recorded)] == recorded


def test_nothing_else_is_asked(replayed: Replayed) -> None:
    """After the recorded questions only two more cases get as far as the auth server."""
    rest = [urlsplit(each.path).query for each in replayed.asked[len(RECORDED_QUESTIONS) :]]
    assert [parse_qs(query)["secret"] for query in rest] == [["good"], ["good"]]
