"""How a connection begins, as a conversation without a socket: orders out, answers in.

IDENTIFY, then each layer that was granted, then AUTH, then SUB; every step waits for its answer, so that
whatever is wrong is known before the first message, and AUTH travels only inside the TLS that was asked for.
Pure.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum

from nsq.errors import AuthFirst, HandshakeFailed, server_error
from nsq.wire import commands
from nsq.wire.frames import HEARTBEAT, OK, ErrorReply, Response
from nsq.wire.identify import AuthReply, BadJson, IdentifyReply, IdentifyRequest


class Upgrade(Enum):
    """Put this layer on: the next answer comes through it."""

    TLS = "TLS"
    SNAPPY = "snappy"
    DEFLATE = "deflate"


@dataclass(frozen=True)
class Send:
    data: bytes


Order = Send | Upgrade
Answer = Response | ErrorReply


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is asked for. Without a topic nothing is subscribed."""

    identify: IdentifyRequest
    secret: str = ""
    topic: str = ""
    channel: str = ""

    def __repr__(self) -> str:
        return f"Terms({self.identify!r}, topic={self.topic!r}, channel={self.channel!r})"


@dataclass(frozen=True)
class Granted:
    """What came of it."""

    reply: IdentifyReply
    auth: AuthReply | None = None


def shake_hands(terms: Terms) -> Generator[Order, Answer, Granted]:
    """Yields what to do, is sent the next frame that comes, returns what was granted; raises what
    went wrong.
    """
    reply = yield from _identify(terms)
    if terms.identify.tls_v1:
        if not reply.tls_v1:
            raise HandshakeFailed("TLS was asked for, and this nsqd does not offer it")
        yield from _upgrade(Upgrade.TLS)
    if reply.snappy:
        yield from _upgrade(Upgrade.SNAPPY)
    elif reply.deflate:
        yield from _upgrade(Upgrade.DEFLATE)
    auth = (yield from _authenticate(terms)) if reply.auth_required else None
    if terms.topic:
        yield from _expect_ok(Send(commands.sub(terms.topic, terms.channel)), "SUB")
    return Granted(reply, auth)


def _identify(terms: Terms) -> Generator[Order, Answer, IdentifyReply]:
    request = Send(commands.MAGIC_V2 + commands.identify(terms.identify.encode()))
    data = yield from _ask(request)
    if data == OK:
        # An nsqd too old to negotiate: it has granted nothing and says nothing of its limits.
        return IdentifyReply()
    try:
        return IdentifyReply.decode(data)
    except BadJson as fault:
        raise HandshakeFailed(f"IDENTIFY was answered with what is no answer: {fault}") from fault


def _authenticate(terms: Terms) -> Generator[Order, Answer, AuthReply]:
    if not terms.secret:
        raise AuthFirst("this nsqd requires AUTH: give auth_secret")
    data = yield from _ask(Send(commands.auth(terms.secret.encode())))
    try:
        return AuthReply.decode(data)
    except BadJson as fault:
        raise HandshakeFailed(f"AUTH was answered with what is no answer: {fault}") from fault


def _upgrade(upgrade: Upgrade) -> Generator[Order, Answer, None]:
    yield from _expect_ok(upgrade, upgrade.value)


def _expect_ok(order: Order, what: str) -> Generator[Order, Answer, None]:
    data = yield from _ask(order)
    if data != OK:
        raise HandshakeFailed(f"{what} was answered with {data[:80]!r} instead of OK")


def _ask(order: Order) -> Generator[Order, Answer, bytes]:
    answer = yield order
    while answer == Response(HEARTBEAT):
        answer = yield Send(commands.NOP)
    if isinstance(answer, ErrorReply):
        raise server_error(answer.data)
    return answer.data
