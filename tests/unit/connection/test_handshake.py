"""Conversations with nsqds of all kinds, without a stream: what is said, and what is negotiated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsq.config import Config
from nsq.connection.handshake import Greeting, identify_request, shake_hands
from nsq.connection.subscription import Subscription
from nsq.errors import (
    AuthFailed,
    AuthFirst,
    AuthServerError,
    BadBody,
    BadTopic,
    HandshakeFailed,
    IdentifyFailed,
    InvalidCommand,
    NsqError,
    ServerError,
    SubFailed,
    Unauthorized,
    server_error,
)
from nsq.transport.tls import context_of
from nsq.wire import commands
from nsq.wire.frames import OK
from nsq.wire.identify import IdentifyReply
from nsq.wire.layers import Deflate, Layer, Snappy, Tls

SECRET = "s3cret"
SUB = commands.sub("orders", "billing")
AUTH = commands.auth(SECRET.encode())
ALICE = b'{"identity":"alice","identity_url":"","permission_count":2}'

Step = bytes | type[Layer]


def granting(**granted: Any) -> bytes:
    return json.dumps({"max_rdy_count": 2500, **granted}).encode()


class FakeStream(Greeting):
    """Gives the answers of an nsqd, and remembers what it was asked and which layers were put on."""

    def __init__(self, *answers: bytes) -> None:
        self.address = "nsqd.example:4150"
        self.answers = list(answers)
        self.steps: list[Step] = []

    def ask(self, command: bytes) -> bytes:
        self.steps.append(command)
        return self._answer()

    def put_on(self, layer: Layer) -> bytes:
        self.steps.append(type(layer))
        return self._answer()

    def _answer(self) -> bytes:
        answer = self.answers.pop(0)
        if answer.startswith(b"E_"):
            raise server_error(answer)
        return answer


def identify(config: Config) -> bytes:
    return commands.MAGIC_V2 + commands.identify(identify_request(config).encode())


ORDERS = Subscription("orders", "billing")


def shake(
    config: Config, *answers: bytes, subscription: Subscription | None = ORDERS
) -> tuple[list[Step], IdentifyReply]:
    """All that was said, and what was negotiated."""
    nsqd = FakeStream(*answers)
    reply = shake_hands(nsqd, config, context_of(config), subscription)
    assert nsqd.answers == []
    return nsqd.steps, reply


def refused(config: Config, *answers: bytes) -> tuple[list[Step], NsqError]:
    """What was said up to the last answer, and the error that one leads to."""
    nsqd = FakeStream(*answers)
    with pytest.raises(NsqError) as caught:
        shake_hands(nsqd, config, context_of(config), ORDERS)
    assert nsqd.answers == []
    return nsqd.steps, caught.value


class TestAgreement:
    @pytest.mark.parametrize(
        ("wanted", "granted", "agreed"),
        [
            ({}, {}, []),
            ({"snappy": True}, {"snappy": True}, [Snappy]),
            ({"deflate": True}, {"deflate": True, "deflate_level": 6}, [Deflate]),
            ({"tls": True}, {"tls_v1": True}, [Tls]),
            ({"tls": True, "snappy": True}, {"tls_v1": True, "snappy": True}, [Tls, Snappy]),
            ({"tls": True, "deflate": True}, {"tls_v1": True}, [Tls]),
            ({"snappy": True}, {"snappy": False}, []),
            ({"deflate": True}, {}, []),
            ({"auth_secret": SECRET}, {"auth_required": True}, [AUTH]),
            ({"auth_secret": SECRET}, {"auth_required": False}, []),
            ({}, {"max_rdy_count": 7, "msg_timeout": 1000}, []),
        ],
    )
    def test_each_layer_that_is_granted_and_no_other_and_auth_if_it_is_required(
        self, wanted: dict[str, Any], granted: dict[str, Any], agreed: list[Step]
    ) -> None:
        config = Config(**wanted)
        steps, reply = shake(
            config, granting(**granted), *(ALICE if step == AUTH else OK for step in agreed), OK
        )
        assert steps == [identify(config), *agreed, SUB]
        assert reply == IdentifyReply(**granted)

    def test_a_producer_subscribes_to_nothing(self) -> None:
        steps, _ = shake(Config(), granting(), subscription=None)
        assert steps == [identify(Config())]

    def test_an_old_nsqd_answers_ok_and_grants_nothing(self) -> None:
        config = Config(snappy=True)
        steps, reply = shake(config, OK, OK)
        assert steps == [identify(config), SUB]
        assert reply == IdentifyReply()


class TestRefusal:
    @pytest.mark.parametrize(
        ("answers", "error", "words"),
        [
            ([b"E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid"], BadBody, "heartbeat"),
            ([b"E_IDENTIFY_FAILED too bad"], IdentifyFailed, "too bad"),
            ([b"E_INVALID client version"], InvalidCommand, "version"),
            ([b"E_NEWS something else"], ServerError, "something else"),
            ([b"not json"], HandshakeFailed, "the answer to IDENTIFY cannot be read"),
            ([b'{"max_rdy_count": "many"}'], HandshakeFailed, "max_rdy_count"),
            ([b"[]"], HandshakeFailed, "not an object"),
            ([b'{"msg_timeout": -1}'], HandshakeFailed, "msg_timeout of -1"),
            ([b'{"max_rdy_count": -5}'], HandshakeFailed, "max_rdy_count of -5"),
            ([granting(), b"E_SUB_FAILED max consumers"], SubFailed, "max consumers"),
            ([granting(), b"E_BAD_TOPIC SUB topic name"], BadTopic, "topic"),
            ([granting(), b"E_AUTH_FIRST SUB requires auth"], AuthFirst, "requires"),
            ([granting(), b"E_UNAUTHORIZED no"], Unauthorized, "E_UNAUTHORIZED"),
            ([granting(), b"maybe"], HandshakeFailed, "SUB was answered with b'maybe' instead of OK"),
        ],
    )
    def test_an_nsqd_that_refuses_or_answers_nonsense_ends_the_handshake(
        self, answers: list[bytes], error: type[NsqError], words: str
    ) -> None:
        _, raised = refused(Config(), *answers)
        assert type(raised) is error
        assert words in str(raised)

    @pytest.mark.parametrize("answer", [granting(), granting(tls_v1=False), OK])
    def test_tls_that_is_not_granted_ends_it_before_anything_else_is_said(self, answer: bytes) -> None:
        config = Config(auth_secret=SECRET, tls=True)
        steps, raised = refused(config, answer)
        assert steps == [identify(config)]
        assert isinstance(raised, HandshakeFailed)
        assert "does not offer" in str(raised)

    @pytest.mark.parametrize(
        ("option", "grant", "name"),
        [("tls", "tls_v1", "TLS"), ("snappy", "snappy", "snappy"), ("deflate", "deflate", "deflate")],
    )
    def test_a_layer_that_is_not_confirmed_ends_the_handshake(
        self, option: str, grant: str, name: str
    ) -> None:
        agreed = granting(auth_required=True, **{grant: True})
        steps, raised = refused(Config(auth_secret=SECRET, **{option: True}), agreed, b"no")
        assert AUTH not in steps
        assert f"{name} was answered" in str(raised)

    def test_an_nsqd_that_requires_auth_is_not_used_without_a_secret(self) -> None:
        steps, raised = refused(Config(), granting(auth_required=True))
        assert isinstance(raised, AuthFirst)
        assert len(steps) == 1

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (b"E_AUTH_FAILED AUTH failed", AuthFailed),
            (b"E_AUTH_ERROR AUTH error", AuthServerError),
            (b"E_UNAUTHORIZED AUTH no authorizations found", Unauthorized),
        ],
    )
    def test_a_secret_that_nsqd_refuses_ends_the_handshake(
        self, answer: bytes, error: type[NsqError]
    ) -> None:
        steps, raised = refused(Config(auth_secret=SECRET), granting(auth_required=True), answer)
        assert type(raised) is error
        assert SUB not in steps
        assert SECRET not in str(raised)
