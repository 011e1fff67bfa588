"""Conversations with nsqds of all kinds, without a stream: what is said, and what is negotiated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsq.connection.handshake import Answer, Negotiated, Order, Upgrade, shake_hands
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
)
from nsq.wire import commands
from nsq.wire.frames import HEARTBEAT, OK, ErrorReply, Response
from nsq.wire.identify import AuthReply, IdentifyReply, IdentifyRequest

SECRET = "s3cret"
BOTH = {"tls_v1": True, "snappy": True}
SUB = commands.sub("orders", "billing")
AUTH = commands.auth(SECRET.encode())
NOP = commands.NOP
FINE = Response(OK)
BEAT = Response(HEARTBEAT)
ALICE = Response(b'{"identity":"alice","identity_url":"","permission_count":2}')


Terms = tuple[IdentifyRequest, str, str, str]


def terms(*, secret: str = "", topic: str = "orders", **wanted: Any) -> Terms:
    request = IdentifyRequest(client_id="me", feature_negotiation=True, **wanted)
    return request, secret, topic, "billing"


def identify(asked: Terms) -> bytes:
    return commands.MAGIC_V2 + commands.identify(asked[0].encode())


def granting(**granted: Any) -> Response:
    return Response(json.dumps({"max_rdy_count": 2500, **granted}).encode())


def converse(asked: Terms, *answers: Answer) -> tuple[list[Order], Negotiated | None]:
    """All orders, and what was negotiated; None while another answer is waited for."""
    conversation = shake_hands(*asked)
    orders = [next(conversation)]
    try:
        for answer in answers:
            orders += [conversation.send(answer)]
    except StopIteration as end:
        return orders, end.value
    return orders, None


def refused(asked: Terms, *answers: Answer) -> tuple[list[Order], NsqError]:
    """The orders up to the last answer, and the error that one leads to."""
    conversation = shake_hands(*asked)
    orders = [next(conversation)]
    for answer in answers[:-1]:
        orders += [conversation.send(answer)]
    with pytest.raises(NsqError) as caught:
        conversation.send(answers[-1])
    return orders, caught.value


class TestAgreement:
    @pytest.mark.parametrize(
        ("wanted", "granted", "steps"),
        [
            ({}, {}, []),
            ({"snappy": True}, {"snappy": True}, [Upgrade.SNAPPY]),
            ({"deflate": True}, {"deflate": True, "deflate_level": 6}, [Upgrade.DEFLATE]),
            ({"tls_v1": True}, {"tls_v1": True}, [Upgrade.TLS]),
            (dict(BOTH), dict(BOTH), [Upgrade.TLS, Upgrade.SNAPPY]),
            ({"tls_v1": True, "deflate": True}, {"tls_v1": True}, [Upgrade.TLS]),
            ({"snappy": True}, {"snappy": False}, []),
            ({"deflate": True}, {}, []),
        ],
    )
    def test_each_layer_that_is_granted_and_no_other(
        self, wanted: dict[str, Any], granted: dict[str, Any], steps: list[Order]
    ) -> None:
        asked = terms(**wanted)
        orders, outcome = converse(asked, granting(**granted), *[FINE] * len(steps), FINE)
        assert orders == [identify(asked), *steps, SUB]
        assert outcome == Negotiated(IdentifyReply(**granted))

    def test_a_producer_subscribes_to_nothing(self) -> None:
        asked = terms(topic="")
        assert converse(asked, granting()) == ([identify(asked)], Negotiated(IdentifyReply()))

    def test_what_nsqd_says_of_its_limits_is_handed_on(self) -> None:
        _, outcome = converse(terms(), granting(max_rdy_count=7, msg_timeout=1000), FINE)
        assert outcome is not None
        assert (outcome.reply.max_rdy_count, outcome.reply.msg_timeout) == (7, 1000)

    def test_an_old_nsqd_answers_ok_and_grants_nothing(self) -> None:
        asked = terms(snappy=True)
        orders, outcome = converse(asked, FINE, FINE)
        assert orders == [identify(asked), SUB]
        assert outcome == Negotiated(IdentifyReply())

    def test_auth_is_sent_when_it_is_required(self) -> None:
        asked = terms(secret=SECRET)
        orders, outcome = converse(asked, granting(auth_required=True), ALICE, FINE)
        assert orders == [identify(asked), AUTH, SUB]
        assert outcome is not None
        assert outcome.auth == AuthReply(identity="alice", permission_count=2)

    def test_auth_is_not_sent_unasked(self) -> None:
        orders, outcome = converse(terms(secret=SECRET), granting(auth_required=False), FINE)
        assert AUTH not in orders
        assert outcome is not None
        assert outcome.auth is None

    def test_auth_travels_inside_the_layers(self) -> None:
        asked = terms(secret=SECRET, tls_v1=True, snappy=True)
        answers = granting(auth_required=True, tls_v1=True, snappy=True), FINE, FINE, ALICE, FINE
        orders, _ = converse(asked, *answers)
        assert orders == [identify(asked), Upgrade.TLS, Upgrade.SNAPPY, AUTH, SUB]

    def test_heartbeats_are_answered_wherever_they_come(self) -> None:
        asked = terms(secret=SECRET, snappy=True)
        agreed = granting(auth_required=True, snappy=True)
        answers = BEAT, BEAT, agreed, BEAT, FINE, BEAT, ALICE, BEAT, FINE
        orders, outcome = converse(asked, *answers)
        assert orders == [identify(asked), NOP, NOP, Upgrade.SNAPPY, NOP, AUTH, NOP, SUB, NOP]
        assert outcome is not None


class TestRefusal:
    @pytest.mark.parametrize(
        ("answers", "error", "words"),
        [
            ([ErrorReply(b"E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid")], BadBody, "heartbeat"),
            ([ErrorReply(b"E_IDENTIFY_FAILED too bad")], IdentifyFailed, "too bad"),
            ([ErrorReply(b"E_INVALID client version")], InvalidCommand, "version"),
            ([ErrorReply(b"E_NEWS something else")], ServerError, "something else"),
            ([Response(b"not json")], HandshakeFailed, "the answer to IDENTIFY cannot be read"),
            ([Response(b'{"max_rdy_count": "many"}')], HandshakeFailed, "max_rdy_count"),
            ([Response(b"[]")], HandshakeFailed, "not an object"),
            ([granting(), ErrorReply(b"E_SUB_FAILED max consumers")], SubFailed, "max consumers"),
            ([granting(), ErrorReply(b"E_BAD_TOPIC SUB topic name")], BadTopic, "topic"),
            ([granting(), ErrorReply(b"E_AUTH_FIRST SUB requires auth")], AuthFirst, "requires"),
            ([granting(), ErrorReply(b"E_UNAUTHORIZED no")], Unauthorized, "E_UNAUTHORIZED"),
            ([granting(), Response(b"maybe")], HandshakeFailed, "answered with b'maybe' instead of OK"),
            ([granting(), BEAT, Response(b"maybe")], HandshakeFailed, "SUB was answered"),
        ],
    )
    def test_without_layers(self, answers: list[Answer], error: type[NsqError], words: str) -> None:
        _, raised = refused(terms(), *answers)
        assert type(raised) is error
        assert words in str(raised)

    @pytest.mark.parametrize("answer", [granting(), granting(tls_v1=False), FINE])
    def test_tls_that_is_not_granted_ends_it_before_anything_else_is_said(self, answer: Answer) -> None:
        asked = terms(secret=SECRET, tls_v1=True)
        orders, raised = refused(asked, answer)
        assert orders == [identify(asked)]
        assert isinstance(raised, HandshakeFailed)
        assert "does not offer" in str(raised)

    @pytest.mark.parametrize("upgrade", list(Upgrade))
    def test_a_layer_that_is_not_confirmed(self, upgrade: Upgrade) -> None:
        wanted = {Upgrade.TLS: "tls_v1", Upgrade.SNAPPY: "snappy", Upgrade.DEFLATE: "deflate"}[upgrade]
        agreed = granting(auth_required=True, **{wanted: True})
        orders, raised = refused(terms(secret=SECRET, **{wanted: True}), agreed, Response(b"no"))
        assert AUTH not in orders
        assert f"{upgrade.value} was answered" in str(raised)

    def test_auth_without_a_secret(self) -> None:
        orders, raised = refused(terms(), granting(auth_required=True))
        assert isinstance(raised, AuthFirst)
        assert len(orders) == 1

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (ErrorReply(b"E_AUTH_FAILED AUTH failed"), AuthFailed),
            (ErrorReply(b"E_AUTH_ERROR AUTH error"), AuthServerError),
            (ErrorReply(b"E_UNAUTHORIZED AUTH no authorizations found"), Unauthorized),
            (Response(b"welcome"), HandshakeFailed),
        ],
    )
    def test_auth_that_fails(self, answer: Answer, error: type[NsqError]) -> None:
        orders, raised = refused(terms(secret=SECRET), granting(auth_required=True), answer)
        assert type(raised) is error
        assert SUB not in orders
        assert SECRET not in str(raised)
