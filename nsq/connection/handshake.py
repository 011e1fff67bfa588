"""How a connection begins: dial, IDENTIFY, a layer for each upgrade that was granted, AUTH, SUB.

The conversation is pure: ``shake_hands`` yields orders and is sent answers. ``dial`` obeys it over a stream.
Every step waits for its answer, so that whatever is wrong is known before the first message, and AUTH travels
only inside the TLS that was asked for.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Send:
    data: bytes


Order = Send | Upgrade
Answer = Response | ErrorReply


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the client asks for. Without a topic it does not subscribe."""

    identify: IdentifyRequest
    secret: str = ""
    topic: str = ""
    channel: str = ""

    def __repr__(self) -> str:
        return f"Terms({self.identify!r}, topic={self.topic!r}, channel={self.channel!r})"


@dataclass(frozen=True)
class Negotiated:
    """What nsqd answered."""

    reply: IdentifyReply
    auth: AuthReply | None = None


def shake_hands(terms: Terms) -> Generator[Order, Answer, Negotiated]:
    """Yield orders, take the next frame for each, return what was negotiated; raise what went wrong."""
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
    return Negotiated(reply, auth)


def _identify(terms: Terms) -> Generator[Order, Answer, IdentifyReply]:
    request = Send(commands.MAGIC_V2 + commands.identify(terms.identify.encode()))
    data = yield from _ask(request)
    if data == OK:
        # An nsqd too old to negotiate: it grants nothing and does not say its limits.
        return IdentifyReply()
    try:
        return IdentifyReply.decode(data)
    except BadJson as error:
        raise HandshakeFailed(f"the answer to IDENTIFY cannot be read: {error}") from error


def _authenticate(terms: Terms) -> Generator[Order, Answer, AuthReply]:
    if not terms.secret:
        raise AuthFirst("this nsqd requires AUTH: give auth_secret")
    data = yield from _ask(Send(commands.auth(terms.secret.encode())))
    try:
        return AuthReply.decode(data)
    except BadJson as error:
        raise HandshakeFailed(f"the answer to AUTH cannot be read: {error}") from error


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
    request = identify_request(config)
    terms = Terms(identify=request, secret=config.auth_secret, topic=topic, channel=channel)
    try:
        return _Dialing(address, transport, context, config, deadline, opened).run(terms)
    except BadBody:
        if request.output_buffer_timeout <= 0:
            raise
        # Its --min-output-buffer-timeout is above what we ask for, most likely: take its own default.
        milder = dataclasses.replace(request, output_buffer_timeout=0)
        terms = dataclasses.replace(terms, identify=milder)
        return _Dialing(address, transport, context, config, deadline, opened).run(terms)


class _Dialing:
    """One attempt: its stream, and the bytes that were read and not parsed yet."""

    def __init__(
        self,
        address: str,
        transport: Transport,
        context: TlsContext | None,
        config: Config,
        deadline: float,
        opened: Callable[[LayeredStream], None],
    ) -> None:
        self._address = address
        self._transport = transport
        self._context = context
        self._config = config
        self._deadline = deadline
        self._opened = opened
        self._rest = b""

    def run(self, terms: Terms) -> Ready:
        timeout = min(self._time_left(), self._config.dial_timeout)
        stream = LayeredStream(self._transport.connect(self._address, timeout=timeout))
        try:
            self._opened(stream)
            negotiated = self._converse(stream, terms)
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

    def _converse(self, stream: LayeredStream, terms: Terms) -> Negotiated:
        conversation = shake_hands(terms)
        try:
            order: Order = next(conversation)
            while True:
                self._obey(stream, order)
                order = conversation.send(self._next_answer(stream))
        except StopIteration as end:
            negotiated: Negotiated = end.value
            return negotiated

    def _obey(self, stream: LayeredStream, order: Order) -> None:
        if isinstance(order, Send):
            stream.write(order.data, self._time_left())
        elif order is Upgrade.TLS:
            self._start_tls(stream)
        elif order is Upgrade.SNAPPY:
            self._push(stream, Snappy())
        else:
            self._push(stream, Deflate(self._config.deflate_level))

    def _start_tls(self, stream: LayeredStream) -> None:
        if self._rest:
            # A server says nothing before the client's hello: somebody in between has put it there.
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

    def _push(self, stream: LayeredStream, layer: Layer) -> None:
        # The server may speak through the layer at once: what has come already is the layer's.
        rest, self._rest = self._rest, b""
        stream.push(layer, rest)

    def _next_answer(self, stream: LayeredStream) -> Response | ErrorReply:
        while True:
            found = split_reply(self._rest)
            if found is not None:
                answer, self._rest = found
                return answer
            self._rest += self._read(stream)

    def _read(self, stream: LayeredStream) -> bytes:
        stream.read_timeout = self._time_left()
        data = stream.read()
        if not data:
            raise ConnectionLost(f"{self._address} closed the connection during the handshake")
        return data

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
