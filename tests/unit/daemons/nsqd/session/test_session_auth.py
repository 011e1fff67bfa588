"""AUTH: the session pauses while an auth server is asked, and loses nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsq.daemons.nsqd.session.authorization import AuthError, Grant, parse_grant
from nsq.wire import commands
from nsq.wire.frames import ErrorReply, Response
from nsq.wire.layers import Snappy
from tests.fakes.session import HEARTBEAT, OK, Client, FakeAuthority, World, drained

ALL = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


class Setup:
    def __init__(self, **options: Any) -> None:
        self.authority = FakeAuthority()
        self.world = World(authority=self.authority, **options)

    def client(self, **client: Any) -> Client:
        return self.world.client(**client)

    def grant(self, *rules: dict[str, Any], ttl: int = 60) -> Grant:
        body = {"ttl": ttl, "identity": "worker", "authorizations": rules}
        return drained(parse_grant(json.dumps(body).encode(), self.world.clock.now()))

    def allow(self, *rules: dict[str, Any], ttl: int = 60) -> None:
        self.authority.answer(self.grant(*(rules or (ALL,)), ttl=ttl))

    def authenticated(self, ttl: int = 60) -> Client:
        client = self.client()
        client.send(commands.auth(b"secret"))
        self.allow(ttl=ttl)
        assert isinstance(client.frame(), Response)
        return client


def test_the_auth_server_gets_the_common_name_of_the_certificate() -> None:
    setup = Setup(tls=True)
    client = setup.client()
    client.upgrade(["tls_v1"])
    client.send(commands.auth(b"secret"))
    client.run_due()
    assert [(asked.tls, asked.common_name) for asked in setup.authority.asked] == [(True, "orders")]


@pytest.mark.parametrize(
    ("wire", "verb"),
    [
        (commands.sub("t", "c"), b"SUB"),
        (commands.pub("t", b"x"), b"PUB"),
        (commands.mpub("t", [b"x"]), b"MPUB"),
        (commands.dpub("t", 0, b"x"), b"DPUB"),
        (commands.dpub("t", 1, b"x"), b"DPUB"),
    ],
)
def test_nothing_goes_before_auth(wire: bytes, verb: bytes) -> None:
    setup = Setup()
    assert setup.client().refused(wire) == b"E_AUTH_FIRST AUTH required before " + verb
    assert setup.world.broker.topics == {}


def test_commands_behind_auth_wait_for_the_answer() -> None:
    """They may be in the same chunk, in one that was read before, or still in the socket."""
    setup = Setup()
    client = setup.client()
    client.send(commands.auth(b"secret"), commands.pub("t", b"a"), commands.pub("t", b"b") + b"PUB t\n\0")
    assert not client.link.reading
    client.overtake(b"\0\0\1c", commands.pub("t", b"d"))
    client.send(commands.pub("t", b"e"))
    assert client.frames() == []
    assert setup.world.broker.topics == {}
    setup.allow()
    assert client.frames()[1:] == [OK] * 5
    assert client.link.reading
    bodies = [message.body for message in setup.world.broker.topic("t").backlog.take(9)]
    assert bodies == [b"a", b"b", b"c", b"d", b"e"]


def test_an_identify_with_a_layer_may_follow_auth() -> None:
    setup = Setup()
    client, layer = setup.client(), Snappy()
    body = b'{"feature_negotiation":true,"snappy":true}'
    client.send(commands.auth(b"secret"), commands.identify(body), layer.wrap(commands.pub("t", b"x")))
    client.overtake(layer.wrap(commands.pub("t", b"y")))
    setup.allow()
    granted, reply = client.frame(), client.frame()
    assert isinstance(granted, Response)
    assert isinstance(reply, Response)
    assert json.loads(reply.data)["snappy"] is True
    client.push(layer)
    assert client.frames() == [OK, OK, OK]


def test_a_layer_that_breaks_in_what_waited_ends_the_session() -> None:
    """The error must end the session instead of the auth server's task."""
    setup = Setup()
    client = setup.client()
    body = b'{"feature_negotiation":true,"snappy":true}'
    client.send(commands.auth(b"secret"), commands.identify(body), b"no snappy at all")
    setup.allow()
    assert client.link.finished


@pytest.mark.parametrize(
    ("verdict", "answer"),
    [
        (AuthError("no auth server could be asked"), b"E_AUTH_FAILED AUTH failed"),
        (Grant((), 9e9), b"E_UNAUTHORIZED AUTH no authorizations found"),
    ],
)
def test_a_refused_auth_ends_the_connection(verdict: Grant | AuthError, answer: bytes) -> None:
    setup = Setup()
    client = setup.client()
    client.send(commands.auth(b"secret"), commands.pub("t", b"x"))
    setup.authority.answer(verdict)
    assert client.frames() == [ErrorReply(answer)]
    assert client.link.finished
    assert setup.world.broker.topics == {}
    assert "secret" not in setup.world.log.getvalue()


def test_a_second_auth_in_one_chunk_is_refused() -> None:
    setup = Setup()
    client = setup.client()
    client.send(commands.auth(b"secret") * 2)
    setup.allow()
    assert client.frames()[1:] == [ErrorReply(b"E_INVALID AUTH already set")]
    assert len(setup.authority.asked) == 1


@pytest.mark.parametrize(
    ("wire", "what"),
    [
        (commands.pub("other", b"x"), b'PUB on "other" ""'),
        (commands.mpub("other", [b"x"]), b'MPUB on "other" ""'),
        (commands.dpub("other", 5, b"x"), b'DPUB on "other" ""'),
        (commands.sub("other", "c"), b'SUB on "other" "c"'),
        (commands.sub("mine", "no"), b'SUB on "mine" "no"'),
    ],
)
def test_a_command_that_is_not_granted_is_refused(wire: bytes, what: bytes) -> None:
    setup = Setup()
    client = setup.client()
    client.send(commands.auth(b"secret"))
    setup.allow({**ALL, "topic": "^mine$", "channels": ["^c$", "^$"]})
    client.frames()
    assert client.refused(wire) == b"E_UNAUTHORIZED AUTH failed for " + what
    assert setup.world.broker.topics == {}


def test_an_expired_grant_is_asked_for_again() -> None:
    setup = Setup()
    client = setup.authenticated(ttl=10)
    setup.world.clock.advance(9.999)
    client.send(commands.pub("t", b"a"))
    assert client.frames() == [OK]
    setup.world.clock.advance(0.001)
    client.send(commands.pub("t", b"b"), commands.pub("t", b"c"))
    assert client.frames() == []
    assert [asked.secret for asked in setup.authority.asked] == ["secret", "secret"]
    setup.allow(ttl=10)
    assert client.frames() == [OK, OK]
    assert client.link.reading


def test_grants_that_expire_at_once_are_asked_for_again_and_again() -> None:
    setup = Setup()
    client = setup.authenticated(ttl=10)
    setup.world.clock.advance(10.0)
    client.send(commands.pub("t", b"x") * 3)
    for answered in range(3):
        assert client.frames() == ([OK] if answered else [])
        assert not client.link.reading
        setup.authority.answer(Grant(setup.grant(ALL).rules, setup.world.clock.now()))
    assert client.frames() == [OK]
    assert client.link.reading


@pytest.mark.parametrize("verdict", [AuthError("gone"), Grant((), 9e9)])
def test_a_grant_that_is_not_renewed(verdict: Grant | AuthError) -> None:
    setup = Setup()
    client = setup.authenticated(ttl=10)
    setup.world.clock.advance(10.0)
    client.send(commands.pub("t", b"x"))
    setup.authority.answer(verdict)
    (error,) = client.frames()
    assert isinstance(error, ErrorReply)
    assert error.data.startswith(b"E_")
    assert client.link.finished
    assert setup.world.broker.topics == {}


def test_a_late_reply_of_the_auth_server_is_ignored() -> None:
    for end in (Client.drop, lambda client: client.session.close()):
        setup = Setup()
        client = setup.client()
        client.send(commands.auth(b"secret"), commands.pub("t", b"x"))
        end(client)
        setup.allow()
        assert setup.world.broker.topics == {}
        assert client.link.written == []
        assert setup.world.clock.idle


def test_a_slow_auth_server_is_not_the_clients_silence() -> None:
    setup = Setup()
    client = setup.client()
    client.identify(heartbeat_interval=1000)
    client.send(commands.auth(b"secret"))
    setup.world.clock.advance(4.5)
    client.send(commands.NOP)
    assert client.frames() == [HEARTBEAT] * 4
    assert not client.link.finished
    setup.allow()
    assert len(client.frames()) == 1
    setup.world.clock.advance(1.9)
    client.send(commands.pub("t", b"x"))
    assert client.frames()[-1] == OK
    setup.world.clock.advance(2.0)
    client.frames()
    assert client.link.finished


def test_a_congested_link_while_the_auth_server_is_asked() -> None:
    setup = Setup()
    client = setup.client(capacity=10)
    client.send(commands.auth(b"secret"), commands.pub("t", b"x") * 3, b"RDY 1\n")
    setup.allow()
    *_, last = client.frames()
    assert last == ErrorReply(b"E_INVALID cannot RDY in current state")
    assert client.link.finished
