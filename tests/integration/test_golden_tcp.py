"""The protocols of nsqd and nsqlookupd against recorded conversations with Go's."""

from __future__ import annotations

import json
import re
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from nsq.testing import MemoryNsqd, Nsqd, Nsqlookupd, V1Client, V2Client
from nsq.testing.plugin import factory
from nsq.transport import Stream
from tests.golden import conversation, recordings
from tests.golden.conversation import Conversation, as_bytes, compact
from tests.integration.authority import Authority
from tests.interop.auth_server import Question, running_auth_server

CASES = {name: recordings.cases(f"{name}.json") for name in ("tcp", "tcp_auth", "tcp_upgrade", "lookupd_tcp")}


def each_case(recording: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", CASES[recording], ids=lambda case: case["case"])


Outcomes = Mapping[str, Exception | None]


def check(outcomes: Outcomes, case: dict[str, Any]) -> None:
    failure = outcomes[case["case"]]
    if failure is not None:
        raise failure


@pytest.fixture(scope="module", params=["nsqd", "memory"])
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    if request.param == "memory":
        with MemoryNsqd(max_rdy_count=10000) as nsqd, relayed(nsqd) as address:
            yield conversation.replay_all(CASES["tcp"], address)
    else:
        with factory(Nsqd) as make:
            yield conversation.replay_all(CASES["tcp"], make(max_rdy_count=10000).tcp_address)


@contextmanager
def relayed(nsqd: MemoryNsqd) -> Iterator[str]:
    """Relay a TCP port to an nsqd in memory."""

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            stream = nsqd.connect(nsqd.tcp_address, timeout=1.0)
            back = threading.Thread(target=self._answer, args=(stream,))
            back.start()
            with suppress(OSError):
                while data := self.request.recv(65536):
                    stream.write(data, 1.0)
            stream.close()
            back.join()

        def _answer(self, stream: Stream) -> None:
            with suppress(OSError):
                while data := stream.read():
                    self.request.sendall(data)
                self.request.shutdown(socket.SHUT_WR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        try:
            yield "127.0.0.1:{1}".format(*server.server_address)
        finally:
            server.shutdown()
            serving.join()


@each_case("tcp")
def test_nsqd_answers_clients_as_gos_did(case: dict[str, Any], outcomes: Outcomes) -> None:
    check(outcomes, case)


# AUTH, and what nsqd asks the auth server: a real one that allows as recorded.

QUESTIONS = recordings.load("tcp_auth.json")["what_the_auth_server_saw"]
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
        for case in CASES["tcp_auth"]:  # one after the other: the auth server's record has the cases' order
            outcomes |= conversation.replay_all([case], nsqd.tcp_address)
        yield Replayed(outcomes, asked)


@each_case("tcp_auth")
def test_nsqd_answers_auth_as_gos_nsqd_did(case: dict[str, Any], replayed: Replayed) -> None:
    check(replayed.outcomes, case)


def test_the_auth_server_is_asked_as_recorded_and_nothing_else(replayed: Replayed) -> None:
    recorded = [Question(each["method"], each["path"], each["headers"]["Accept"]) for each in QUESTIONS]
    asked = [each._replace(path=re.sub("&auth_secret=[^&]*", "", each.path)) for each in replayed.asked]
    assert asked[: len(recorded)] == recorded
    # After the recorded questions only two more cases get as far as the auth server.
    rest = [parse_qs(urlsplit(each.path).query)["secret"] for each in replayed.asked[len(recorded) :]]
    assert rest == [["good"], ["good"]]


# TLS, snappy, deflate and their combinations: which OK arrives in which layer. Implementations compress
# differently, so the tests compare the decoded bytes.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[Nsqd]:
    with factory(Nsqd) as make:
        yield make(**authority.server_options)


@each_case("tcp_upgrade")
def test_nsqd_negotiates_layers_as_gos_did(case: dict[str, Any], secured: Nsqd, authority: Authority) -> None:
    magic, identify, granted, *rest = case["steps"]
    with V2Client(secured.tcp_address, magic=as_bytes(magic["send"])) as client:
        followed = Conversation(client)
        followed.follow(2, identify)
        followed.follow(3, granted)
        features = granted["recv"]["json"]
        if features["tls_v1"]:
            assert rest.pop(0)["recv"]["data"] == "OK"
            client.start_tls(authority.client_context(), "127.0.0.1")
        for number, step in enumerate(rest, start=4):
            if "recv_raw_hex" in step and features["snappy"]:
                client.start_snappy()
            elif "recv_raw_hex" in step:
                client.start_deflate(features["deflate_level"])
            followed.follow(number, step)
        client.expect_silence(0.05)


# nsqlookupd's V1 protocol

VOLATILE = {"hostname", "http_port", "tcp_port"}


@pytest.fixture(scope="module")
def nsqlookupd() -> Iterator[Nsqlookupd]:
    with factory(Nsqlookupd) as make:
        yield make()


@each_case("lookupd_tcp")
def test_nsqlookupd_answers_nsqds_as_gos_did(case: dict[str, Any], nsqlookupd: Nsqlookupd) -> None:
    magic, *steps = case["steps"]
    with V1Client(nsqlookupd.tcp_address, magic=as_bytes(magic["send"])) as client:
        for step in steps:
            if "send" in step:
                client.send(as_bytes(step["send"]))
                continue
            answer, recorded = client.answer(), step["recv"]
            if "data" in recorded:
                assert (answer, len(answer)) == (as_bytes(recorded["data"]), recorded["size"])
                continue
            reply = json.loads(answer)
            assert answer == compact(reply), "not the compact JSON the Go daemons write"
            assert _masked(reply) == _masked(recorded["json"])


def _masked(reply: dict[str, Any]) -> list[tuple[str, object]]:
    """The replies in order, with random values replaced by their type."""
    return [(key, type(value) if key in VOLATILE else value) for key, value in reply.items()]
