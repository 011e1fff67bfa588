"""How a connection begins: dial, IDENTIFY, a layer for each upgrade that was granted, AUTH, SUB.

The conversation is pure: ``shake_hands`` yields orders, bytes to send or a layer to put on, and is sent
answers. ``dial`` obeys it over a stream.
Every step waits for its answer, so that whatever is wrong is known before the first message, and AUTH travels
only inside the TLS that was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from enum import Enum

from nsq.config import Config
from nsq.errors import (
    AuthFirst,
    BadBody,
    ConfigError,
    ConnectionLost,
    HandshakeFailed,
    LayerError,
    NsqError,
    Unanswered,
    server_error,
)
from nsq.transport.base import Transport
from nsq.transport.layered import LayeredStream
from nsq.wire import commands
from nsq.wire.frames import HEARTBEAT, OK, ErrorReply, Response, split_reply
from nsq.wire.identify import AuthReply, BadJson, IdentifyReply, IdentifyRequest
from nsq.wire.layers import Deflate, Layer, Snappy, Tls, TlsContext


class Upgrade(Enum):
    """Put this layer on; the next answer comes through it."""

    TLS = "TLS"
    SNAPPY = "snappy"
    DEFLATE = "deflate"


Order = bytes | Upgrade
Answer = Response | ErrorReply
Conversation = Generator[Order, Answer, "Negotiated"]


@dataclass(frozen=True)
class Negotiated:
    """Nsqd's answers to IDENTIFY and AUTH."""

    reply: IdentifyReply
    auth: AuthReply | None = None


def shake_hands(request: IdentifyRequest, secret: str, topic: str, channel: str) -> Conversation:
    """Yield orders, take the next frame for each, return what was negotiated; raise what went wrong.

    Without a topic it does not subscribe.
    """
    reply = yield from _identify(request)
    if request.tls_v1:
        if not reply.tls_v1:
            raise HandshakeFailed("TLS was asked for, and this nsqd does not offer it")
        yield from _expect_ok(Upgrade.TLS, "TLS")
    if reply.snappy:
        yield from _expect_ok(Upgrade.SNAPPY, "snappy")
    elif reply.deflate:
        yield from _expect_ok(Upgrade.DEFLATE, "deflate")
    auth = (yield from _authenticate(secret)) if reply.auth_required else None
    if topic:
        yield from _expect_ok(commands.sub(topic, channel), "SUB")
    return Negotiated(reply, auth)


def _identify(request: IdentifyRequest) -> Generator[Order, Answer, IdentifyReply]:
    data = yield from _ask(commands.MAGIC_V2 + commands.identify(request.encode()))
    if data == OK:
        # An nsqd too old to negotiate: it grants nothing and does not say its limits.
        return IdentifyReply()
    try:
        return IdentifyReply.decode(data)
    except BadJson as error:
        raise HandshakeFailed(f"the answer to IDENTIFY cannot be read: {error}") from error


def _authenticate(secret: str) -> Generator[Order, Answer, AuthReply]:
    if not secret:
        raise AuthFirst("this nsqd requires AUTH: give auth_secret")
    data = yield from _ask(commands.auth(secret.encode()))
    try:
        return AuthReply.decode(data)
    except BadJson as error:
        raise HandshakeFailed(f"the answer to AUTH cannot be read: {error}") from error


def _expect_ok(order: Order, what: str) -> Generator[Order, Answer, None]:
    data = yield from _ask(order)
    if data != OK:
        raise HandshakeFailed(f"{what} was answered with {data[:80]!r} instead of OK")


def _ask(order: Order) -> Generator[Order, Answer, bytes]:
    answer = yield order
    while answer == Response(HEARTBEAT):
        answer = yield commands.NOP
    if isinstance(answer, ErrorReply):
        raise server_error(answer.data)
    return answer.data


@dataclass(frozen=True)
class Ready:
    """A stream that is ready for commands. ``rest`` are bytes that nsqd has sent already."""

    stream: LayeredStream
    negotiated: Negotiated
    rest: bytes


def _milliseconds(seconds: float) -> int:
    """-1 switches the thing off, in Config as in IDENTIFY."""
    return -1 if seconds < 0 else round(seconds * 1000)


def identify_request(config: Config) -> IdentifyRequest:
    """IDENTIFY as the config wants it."""
    size, timeout = config.output_buffer_size, _milliseconds(config.output_buffer_timeout)
    if config.low_latency:
        size, timeout = -1, 0
    return IdentifyRequest(
        client_id=config.client_id,
        hostname=config.hostname,
        user_agent=config.user_agent,
        feature_negotiation=True,
        heartbeat_interval=_milliseconds(config.heartbeat_interval),
        output_buffer_size=size or 0,
        output_buffer_timeout=timeout,
        tls_v1=bool(config.tls),
        deflate=config.deflate,
        deflate_level=config.deflate_level if config.deflate else 0,
        snappy=config.snappy,
        sample_rate=config.sample_rate,
        msg_timeout=round(config.msg_timeout * 1000),
        topology_region=config.topology_region,
        topology_zone=config.topology_zone,
    )


def dial(
    address: str,
    config: Config,
    transport: Transport,
    context: TlsContext | None,
    *,
    topic: str = "",
    channel: str = "",
    deadline: float,
    opened: Callable[[LayeredStream], None] = lambda _: None,
) -> Ready:
    """Return a ready connection by ``deadline`` (monotonic), or raise why there is none.

    ``opened`` gets the stream before the first byte: closing the stream ends the dial early.
    """

    def attempt(request: IdentifyRequest) -> Ready:
        conversation = shake_hands(request, config.auth_secret, topic, channel)
        return _Dialing(address, config, context, deadline).run(transport, opened, conversation)

    request = identify_request(config)
    try:
        return attempt(request)
    except BadBody:
        if request.output_buffer_timeout <= 0:
            raise
        # Its --min-output-buffer-timeout is above what we ask for, most likely: take its own default.
        return attempt(replace(request, output_buffer_timeout=0))


@dataclass
class _Dialing:
    """One attempt; ``_rest`` are the bytes that were read and not parsed yet."""

    _address: str
    _config: Config
    _context: TlsContext | None
    _deadline: float
    _rest: bytes = b""

    def run(
        self, transport: Transport, opened: Callable[[LayeredStream], None], conversation: Conversation
    ) -> Ready:
        timeout = min(self._time_left(), self._config.dial_timeout)
        stream = LayeredStream(transport.connect(self._address, timeout=timeout))
        try:
            opened(stream)
            negotiated = self._converse(stream, conversation)
        except LayerError as error:
            stream.close()
            raise HandshakeFailed(f"{self._address}: {error}") from error
        except Unanswered as error:
            stream.close()
            raise self._too_late() from error
        except BaseException:
            stream.close()
            raise
        return Ready(stream, negotiated, self._rest)

    def _converse(self, stream: LayeredStream, conversation: Conversation) -> Negotiated:
        try:
            order = next(conversation)
            while True:
                self._obey(stream, order)
                order = conversation.send(self._next_answer(stream))
        except StopIteration as end:
            negotiated: Negotiated = end.value
            return negotiated

    def _obey(self, stream: LayeredStream, order: Order) -> None:
        if isinstance(order, bytes):
            stream.write(order, self._time_left())
        elif order is Upgrade.TLS:
            self._start_tls(stream)
        elif order is Upgrade.SNAPPY:
            self._push(stream, Snappy())
        else:
            self._push(stream, Deflate(self._config.deflate_level))

    def _push(self, stream: LayeredStream, layer: Layer) -> None:
        # The server may speak through the layer at once: what has come already is the layer's.
        rest, self._rest = self._rest, b""
        stream.push(layer, rest)

    def _start_tls(self, stream: LayeredStream) -> None:
        if self._rest:
            # A server says nothing before the client's hello: a third party in between has put it there.
            raise HandshakeFailed(f"{self._address} sent {len(self._rest)} bytes of plain text before TLS")
        if self._context is None:
            raise HandshakeFailed(f"{self._address}: there is no TLS context to go on with")
        name = self._server_name()
        if name is None and self._context.check_hostname:
            raise ConfigError(
                f"{self._address} is not a name that a certificate can be made out to: give tls_server_name"
            )
        stream.push(Tls(self._context, server_side=False, server_hostname=name))
        stream.handshake(self._time_left())

    def _server_name(self) -> str | None:
        if self._config.tls_server_name:
            return self._config.tls_server_name
        host, colon, _ = self._address.rpartition(":")
        return host.strip("[]") if colon and "/" not in self._address else None

    def _next_answer(self, stream: LayeredStream) -> Response | ErrorReply:
        while (found := split_reply(self._rest)) is None:
            stream.read_timeout = self._time_left()
            data = stream.read()
            if not data:
                raise ConnectionLost(f"{self._address} closed the connection during the handshake")
            self._rest += data
        answer, self._rest = found
        return answer

    def _time_left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._too_late()
        return left

    def _too_late(self) -> Unanswered:
        return Unanswered(f"{self._address} did not complete the handshake in time")


def describe(address: str, error: NsqError) -> str:
    """The error in one line that names the address once."""
    text = str(error)
    return text if address in text else f"{address}: {text}"
