"""The blocking sender of HTTP requests: one deadline covers the whole request.

It dials through a Transport, as connections to nsqds do.
"""

from __future__ import annotations

import dataclasses
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nsq.errors import ApiError, ConnectionFailed, ConnectionLost, DialFailed, LayerError, Unanswered
from nsq.http.message import HttpReply, HttpRequest, ReplyParser, Url, tls_port
from nsq.transport.addresses import join
from nsq.transport.base import Transport
from nsq.transport.dialing import default_transport
from nsq.transport.layered import LayeredStream
from nsq.transport.tls import public_authorities
from nsq.wire.layers import Tls

DEFAULT_TIMEOUT = 5.0


def send(
    request: HttpRequest,
    *,
    timeout: float,
    tls: ssl.SSLContext | None = None,
    transport: Transport | None = None,
    upgrade: bool = False,
) -> HttpReply:
    """Send a request and return the reply, whatever its status; raise ApiError if there is none.

    ``timeout`` covers everything: finding the host, connecting, TLS, sending, and the last byte of the reply.
    Without ``tls``, certifi's authorities verify https. ``upgrade`` repeats the request with TLS if an nsqd
    insists on it, at the port that nsqd names, within the same timeout. Does not follow redirects.
    """
    deadline = time.monotonic() + timeout

    def exchange(request: HttpRequest) -> HttpReply:
        with _errors_named(request.url, timeout, deadline):
            stream = _opened(request.url, tls, transport, deadline, _left(deadline))
            try:
                return _exchanged(stream, request.encode(), deadline)[0]
            finally:
                stream.close()

    reply = exchange(request)
    port = tls_port(reply) if upgrade and request.url.scheme == "http" else None
    if port is None:
        return reply
    url = dataclasses.replace(request.url, scheme="https", port=port, socket_path="")
    return exchange(dataclasses.replace(request, url=url))


class KeptConnections:
    """Sends requests over connections that stay open between them; any number of threads may share it.

    A request takes an idle connection or opens one, so each request under way has its own.
    """

    def __init__(self, *, connect_timeout: float, transport: Transport | None = None) -> None:
        self._connect_timeout = connect_timeout
        self._transport = transport
        self._idle: dict[tuple[str, str, int, str], list[LayeredStream]] = {}
        self._closed = False

    def send(self, request: HttpRequest, *, timeout: float) -> HttpReply:
        """Do as ``send`` does. If the server has closed an idle connection, use a new one."""
        deadline, url = time.monotonic() + timeout, request.url
        data = dataclasses.replace(request, headers={"Connection": "keep-alive", **request.headers}).encode()
        idle = self._idle.setdefault((url.scheme, url.host, url.port, url.socket_path), [])
        with _errors_named(url, timeout, deadline):
            if (stream := _taken(idle)) is not None:
                with suppress(ConnectionLost):
                    return self._exchanged(stream, data, deadline, idle)
            connect_timeout = min(_left(deadline), self._connect_timeout)
            stream = _opened(url, None, self._transport, deadline, connect_timeout)
            return self._exchanged(stream, data, deadline, idle)

    def close(self) -> None:
        """Close idle connections; a request that is under way closes its own."""
        self._closed = True
        for idle in list(self._idle.values()):
            while (stream := _taken(idle)) is not None:
                stream.close()

    def _exchanged(
        self, stream: LayeredStream, data: bytes, deadline: float, idle: list[LayeredStream]
    ) -> HttpReply:
        keep = False
        try:
            reply, keep = _exchanged(stream, data, deadline)
            keep = keep and reply.headers.get("connection", "").lower() != "close"
            return reply
        finally:
            if keep:
                idle.append(stream)
            else:
                stream.close()
            if self._closed:  # after ``append``: ``close`` sees the connection, or we see the flag
                self.close()


def _taken(idle: list[LayeredStream]) -> LayeredStream | None:
    try:
        return idle.pop()
    except IndexError:
        return None


def _left(deadline: float) -> float:
    """Return the seconds left, or raise Unanswered if there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise Unanswered("the time is up")
    return left


@contextmanager
def _errors_named(url: Url, timeout: float, deadline: float) -> Iterator[None]:
    """Turn every error into an ApiError that names the URL."""
    try:
        yield
    except ApiError as error:
        raise ApiError(f"{url}: {error}") from None
    except (DialFailed, ConnectionFailed, LayerError) as error:
        if isinstance(error, Unanswered) or time.monotonic() >= deadline:
            raise ApiError(f"{url} did not answer within {timeout:g} s") from None
        address = _address(url)
        reason = str(error).removeprefix(f"cannot connect to {address}: ").removeprefix(f"{address}: ")
        raise ApiError(f"{url} cannot be reached: {reason}") from None


def _address(url: Url) -> str:
    return f"unix:{url.socket_path}" if url.socket_path else join(url.host, url.port)


def _opened(
    url: Url,
    tls: ssl.SSLContext | None,
    transport: Transport | None,
    deadline: float,
    connect_timeout: float,
) -> LayeredStream:
    dialer = transport or default_transport
    stream = LayeredStream(dialer.connect(_address(url), timeout=connect_timeout))
    if url.scheme == "https":
        try:
            context = tls or public_authorities()
            stream.push(Tls(context, server_side=False, server_hostname=url.host))
            stream.handshake(_left(deadline))
        except BaseException:
            stream.close()
            raise
    return stream


def _exchanged(stream: LayeredStream, data: bytes, deadline: float) -> tuple[HttpReply, bool]:
    """Return the reply, and whether another request may follow; ConnectionLost if no reply has begun."""
    refused: ConnectionLost | None = None
    try:
        stream.write(data, _left(deadline))
    except ConnectionLost as error:
        # A server that refuses a large body answers and closes before it has read all of it.
        refused = error
    parser, begun = ReplyParser(), False
    try:
        while parser.reply is None:
            stream.read_timeout = _left(deadline)
            chunk = stream.read()
            if chunk:
                begun = True
                parser.feed(chunk)
            elif stream.truncated:
                raise ApiError("an EOF that TLS did not announce: the reply may have been cut short")
            elif not begun:
                raise ConnectionLost("the connection was closed before the reply")
            else:
                parser.end()
    except (ApiError, ConnectionLost):
        if refused is None:
            raise
        raise refused from None
    return parser.reply, parser.another_may_follow
