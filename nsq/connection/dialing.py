"""Making a connection ready: dial, shake hands, put the layers on. Blocks, within one deadline."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from nsq.config import Config
from nsq.connection.handshake import Granted, Order, Send, Terms, Upgrade, shake_hands
from nsq.errors import BadBody, ConfigError, ConnectionLost, HandshakeFailed, LayerError, NsqError, Unanswered
from nsq.transport.base import Transport
from nsq.transport.layered import LayeredStream
from nsq.wire.frames import ErrorReply, Response, split_reply
from nsq.wire.identify import IdentifyRequest
from nsq.wire.layers import Deflate, Layer, Snappy, Tls, TlsContext


@dataclass(frozen=True)
class Ready:
    """A stream on which the next thing said is a command. ``rest`` are bytes that have already come."""

    stream: LayeredStream
    granted: Granted
    rest: bytes


def identify_request(config: Config) -> IdentifyRequest:
    """What the config asks of an nsqd."""
    size, timeout = config.output_buffer_size, round(config.output_buffer_timeout * 1000)
    if config.low_latency:
        size, timeout = -1, 0
    return IdentifyRequest(
        client_id=config.client_id,
        hostname=config.hostname,
        user_agent=config.user_agent,
        feature_negotiation=True,
        heartbeat_interval=round(config.heartbeat_interval * 1000),
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
    """A ready connection by ``deadline`` (monotonic), or the reason there is none.

    ``opened`` is handed the stream before anything is said on it: closing it ends the conversation early.
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
    """One attempt: the stream that comes of it, and what has been read from it but not understood yet."""

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
            granted = self._converse(stream, terms)
        except LayerError as fault:
            stream.close()
            raise HandshakeFailed(f"{self._address}: {fault}") from fault
        except Unanswered as fault:
            stream.close()
            raise self._too_late() from fault
        except BaseException:
            stream.close()
            raise
        return Ready(stream, granted, self._rest)

    def _converse(self, stream: LayeredStream, terms: Terms) -> Granted:
        conversation = shake_hands(terms)
        try:
            order: Order = next(conversation)
            while True:
                self._obey(stream, order)
                order = conversation.send(self._next_answer(stream))
        except StopIteration as end:
            granted: Granted = end.value
            return granted

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
                f"{self._address} is no name that a certificate is made out to: give tls_server_name"
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


def describe(address: str, fault: NsqError) -> str:
    """The fault as one line that names the address once."""
    text = str(fault)
    return text if address in text else f"{address}: {text}"
