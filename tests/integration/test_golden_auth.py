"""AUTH against tcp_auth.json, and what nsqd asks the auth server: a real one that allows as recorded."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import factory
from tests.golden import conversation, recordings

FILE = "tcp_auth.json"
CASES = recordings.cases(FILE)
RECORDED_QUESTIONS = recordings.load(FILE)["what_the_auth_server_saw"]
ALLOWED = {"topic": "allowed.*", "channels": ["ok.*"], "permissions": ["subscribe", "publish"]}


class Question(NamedTuple):
    """One request to the auth server."""

    method: str
    path: str
    accept: str | None


class AuthServer(ThreadingHTTPServer):
    """Gives the secret ``good`` its permissions and every other none; remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[Question] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: AuthServer

    def do_GET(self) -> None:
        self.server.asked.append(Question(self.command, self.path, self.headers.get("Accept")))
        secret = parse_qs(urlsplit(self.path).query).get("secret", [""])[0]
        answer = {
            "ttl": 3600,
            "identity": "worker",
            "identity_url": "http://id.example",
            "authorizations": [ALLOWED] if secret == "good" else [],
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
        """Log nothing to stderr: ``asked`` has the requests."""


@contextmanager
def running_auth_server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="auth-server")
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Replayed(NamedTuple):
    outcomes: dict[str, Exception | None]
    asked: list[Question]


@pytest.fixture(scope="module")
def replayed() -> Iterator[Replayed]:
    with running_auth_server() as auth, factory(Nsqd) as make:
        nsqd = make(auth_http_addresses=(auth.address,))
        outcomes: dict[str, Exception | None] = {}
        for case in CASES:  # one after the other: the auth server's record has the cases' order
            outcomes |= conversation.replay_all([case], nsqd.tcp_address)
        yield Replayed(outcomes, list(auth.asked))


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
    assert [
        parse_qs(urlsplit(each.path).query)["secret"] for each in replayed.asked[len(RECORDED_QUESTIONS) :]
    ] == [
        ["good"],
        ["good"],
    ]
