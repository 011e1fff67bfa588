"""Opens a connection: dial, IDENTIFY, a layer for each upgrade that nsqd granted, AUTH, SUB.

Every step waits for its answer, so that every error shows before the first message, and AUTH travels only
inside the TLS that the options ask for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from nsq.config import Config
from nsq.connection.subscription import Subscription
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
from nsq.transport.base import Stream, Transport
from nsq.transport.layered import LayeredStream
from nsq.wire import commands
from nsq.wire.frames import HEARTBEAT, OK, ErrorReply, Response, split_reply
from nsq.wire.identify import BadJson, IdentifyReply, IdentifyRequest
from nsq.wire.layers import Deflate, Layer, Snappy, Tls, TlsContext


@dataclass(frozen=True)
class Ready:
    """A stream that is ready for commands, and nsqd's answer to IDENTIFY."""

    stream: LayeredStream
    reply: IdentifyReply
    rest: bytes  # what nsqd has sent after its last reply


def dial(
    address: str,
    config: Config,
    transport: Transport,
    context: TlsContext | None,
    subscription: Subscription | None = None,
    *,
    deadline: float,
    opened: Callable[[LayeredStream], None] = lambda _: None,
) -> Ready:
    """Return a ready connection by ``deadline`` (monotonic), or raise the reason for the failure.

    ``opened`` is called with the stream before the first byte is sent: closing it ends the dial early.
    """

    def attempt(config: Config) -> Ready:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _too_late(address)
        stream = LayeredStream(transport.connect(address, timeout=min(left, config.dial_timeout)))
        nsqd = Greeting(address, stream, deadline)
        try:
            opened(stream)
            reply = shake_hands(nsqd, config, context, subscription)
        except BaseException as error:
            stream.close()
            if isinstance(error, LayerError):
                raise HandshakeFailed(f"{address}: {error}") from error
            if isinstance(error, Unanswered):
                raise _too_late(address) from error
            raise
        return Ready(stream, reply, nsqd.rest)

    try:
        return attempt(config)
    except BadBody:
        if config.low_latency or config.output_buffer_timeout <= 0:
            raise
        # Most likely nsqd's --min-output-buffer-timeout is above our value: take nsqd's default.
        return attempt(replace(config, output_buffer_timeout=0.0))


def shake_hands(
    nsqd: Greeting, config: Config, context: TlsContext | None, subscription: Subscription | None
) -> IdentifyReply:
    """Return nsqd's answer to IDENTIFY, or raise the error."""
    more = {} if subscription is None else subscription.identify
    data = nsqd.ask(commands.MAGIC_V2 + commands.identify(identify_request(config).encode(more)))
    try:
        # An nsqd too old to negotiate says OK: it grants nothing and does not tell its limits.
        reply = IdentifyReply() if data == OK else IdentifyReply.decode(data)
    except BadJson as error:
        raise HandshakeFailed(f"the answer to IDENTIFY cannot be read: {error}") from error
    for limit in ("max_rdy_count", "msg_timeout", "max_msg_timeout"):
        if (value := getattr(reply, limit)) < 0:
            raise HandshakeFailed(f"the answer to IDENTIFY has a {limit} of {value}: this is no working nsqd")
    if config.tls:
        if not reply.tls_v1:
            raise HandshakeFailed("TLS was asked for, and this nsqd does not offer it")
        _expect_ok(nsqd.put_on(_tls(nsqd.address, config, context)), "TLS")
    if reply.snappy:
        _expect_ok(nsqd.put_on(Snappy()), "snappy")
    elif reply.deflate:
        _expect_ok(nsqd.put_on(Deflate(config.deflate_level)), "deflate")
    if reply.auth_required:
        if not config.auth_secret:
            raise AuthFirst("this nsqd requires AUTH: give auth_secret")
        nsqd.ask(commands.auth(config.auth_secret.encode()))  # raises if nsqd refuses
    if subscription is not None:
        _expect_ok(nsqd.ask(subscription.command()), "SUB")
    return reply


def _milliseconds(seconds: float) -> int:
    """Convert seconds; -1 switches a feature off, in Config as in IDENTIFY."""
    return -1 if seconds < 0 else round(seconds * 1000)


def identify_request(config: Config) -> IdentifyRequest:
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


def _expect_ok(data: bytes, what: str) -> None:
    if data != OK:
        raise HandshakeFailed(f"{what} was answered with {data[:80]!r} instead of OK")


def _tls(address: str, config: Config, context: TlsContext | None) -> Tls:
    if context is None:
        raise HandshakeFailed(f"{address}: there is no TLS context to go on with")
    host, colon, _ = address.rpartition(":")
    name = config.tls_server_name or (host.strip("[]") if colon and "/" not in address else None)
    if name is None and context.check_hostname:
        raise ConfigError(
            f"{address} is not a name that a certificate can be made out to: give tls_server_name"
        )
    return Tls(context, server_side=False, server_hostname=name)


class ReplyStream:
    """A stream read reply by reply, until ``deadline`` (monotonic). It answers heartbeats."""

    when = ""  # for errors

    def __init__(self, address: str, stream: Stream, deadline: float = math.inf) -> None:
        self.address = address
        self.deadline = deadline
        self.rest = b""  # received and not parsed yet
        self.stream = stream

    def next_frame(self) -> Response | ErrorReply:
        """Return the next reply, or a heartbeat, which has been answered."""
        while (found := split_reply(self.rest)) is None:
            self.stream.read_timeout = self.time_left()
            data = self.stream.read()
            if not data:
                raise ConnectionLost(f"{self.address} closed the connection{self.when}")
            self.rest += data
        frame, self.rest = found
        if frame.data == HEARTBEAT:
            self.stream.write(commands.NOP, self.time_left())
        return frame

    def time_left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Unanswered(f"{self.address} has not answered in time")
        return left


class Greeting(ReplyStream):
    """The stream of a new connection, whose commands are each answered before the next is sent."""

    when = " during the handshake"

    def __init__(self, address: str, stream: LayeredStream, deadline: float) -> None:
        super().__init__(address, stream, deadline)
        self._layered = stream

    def ask(self, command: bytes) -> bytes:
        """Send a command and return nsqd's reply; raise the reply if it is an error."""
        self.stream.write(command, self.time_left())
        return self._reply()

    def put_on(self, layer: Layer) -> bytes:
        """Push a layer onto the stream, and return the first reply that comes through it."""
        if self.rest and isinstance(layer, Tls):
            # A server sends nothing before the client's hello: a third party has injected these bytes.
            raise HandshakeFailed(f"{self.address} sent {len(self.rest)} bytes of plain text before TLS")
        # The server may use the layer at once: bytes that we have already belong to the layer.
        rest, self.rest = self.rest, b""
        self._layered.push(layer, rest)
        if isinstance(layer, Tls):
            self._layered.handshake(self.time_left())
        return self._reply()

    def _reply(self) -> bytes:
        while (frame := self.next_frame()).data == HEARTBEAT:
            pass
        if isinstance(frame, ErrorReply):
            raise server_error(frame.data)
        return frame.data


def _too_late(address: str) -> Unanswered:
    return Unanswered(f"{address} did not complete the handshake in time")


def describe(address: str, error: NsqError) -> str:
    """Return the error as one line that names the address once."""
    text = str(error)
    return text if address in text else f"{address}: {text}"
