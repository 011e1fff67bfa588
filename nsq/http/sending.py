"""The blocking sender of HTTP requests: one deadline for everything that a request takes.

It dials through a Transport, as connections to nsqds do.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from nsq.errors import ApiError, ConnectionFailed, ConnectionLost, DialFailed, LayerError, Unanswered
from nsq.http.message import DEFAULT_MAX_BODY, HttpReply, HttpRequest, ReplyParser, Url, tls_port
from nsq.transport.addresses import join
from nsq.transport.base import Transport
from nsq.transport.dialing import default_transport
from nsq.transport.layered import LayeredStream
from nsq.transport.tls import public_authorities
from nsq.wire.layers import Tls

if TYPE_CHECKING:
    import ssl

DEFAULT_TIMEOUT = 5.0


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._at

    def left(self) -> float:
        """Seconds, more than none; Unanswered afterwards."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise Unanswered("the time is up")
        return left


def send(
    request: HttpRequest,
    *,
    timeout: float,
    tls: ssl.SSLContext | None = None,
    transport: Transport | None = None,
    upgrade: bool = False,
    max_body: int = DEFAULT_MAX_BODY,
) -> HttpReply:
    """Send and return the reply, whatever its status; ApiError says why there is none.

    ``timeout`` covers everything: finding the host, connecting, TLS, sending, and the last byte of the reply.
    Without ``tls``, https is verified with certifi's authorities. ``upgrade`` sends the request again with
    TLS when an nsqd insists on it, to the port it names, within the same timeout. Redirects are not followed.
    """
    deadline = _Deadline(timeout)

    def exchange(request: HttpRequest) -> HttpReply:
        with _errors_named(request.url, deadline):
            stream = _opened(request.url, tls, transport or default_transport, deadline, deadline.left())
            try:
                return _exchanged(stream, request.encode(), deadline, max_body)[0]
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

    A request takes a connection that is idle, or makes one: there are as many as there are requests at once.
    """

    def __init__(self, *, connect_timeout: float, transport: Transport | None = None) -> None:
        self._connect_timeout = connect_timeout
        self._dialer = transport or default_transport
        self._idle: dict[tuple[str, str, int, str], list[LayeredStream]] = {}
        self._closed = False

    def send(self, request: HttpRequest, *, timeout: float) -> HttpReply:
        """Like ``send``. A server may close an idle connection at any moment: then a new one is used."""
        deadline, url = _Deadline(timeout), request.url
        data = dataclasses.replace(request, headers={"Connection": "keep-alive", **request.headers}).encode()
        idle = self._idle.setdefault((url.scheme, url.host, url.port, url.socket_path), [])
        with _errors_named(url, deadline):
            if (stream := _taken(idle)) is not None:
                with suppress(ConnectionLost, _Closed):
                    return self._exchanged(stream, data, deadline, idle)
            connect_by = min(deadline.left(), self._connect_timeout)
            stream = _opened(url, None, self._dialer, deadline, connect_by)
            return self._exchanged(stream, data, deadline, idle)

    def close(self) -> None:
        """Close what is idle; a request that is under way closes its connection itself."""
        self._closed = True
        for idle in list(self._idle.values()):
            while (stream := _taken(idle)) is not None:
                stream.close()

    def _exchanged(
        self, stream: LayeredStream, data: bytes, deadline: _Deadline, idle: list[LayeredStream]
    ) -> HttpReply:
        keep = False
        try:
            reply, keep = _exchanged(stream, data, deadline, DEFAULT_MAX_BODY)
            keep = keep and reply.headers.get("connection", "").lower() != "close"
            return reply
        finally:
            if keep:
                idle.append(stream)
            if not keep or (self._closed and _taken(idle, stream)):
                stream.close()


def _taken(idle: list[LayeredStream], wanted: LayeredStream | None = None) -> LayeredStream | None:
    try:
        if wanted is None:
            return idle.pop()
        idle.remove(wanted)
        return wanted
    except (IndexError, ValueError):
        return None


@contextmanager
def _errors_named(url: Url, deadline: _Deadline) -> Iterator[None]:
    """Every error becomes an ApiError that names the URL."""
    address = _address(url)
    try:
        yield
    except ApiError as error:
        raise ApiError(f"{url}: {error}") from None
    except (DialFailed, ConnectionFailed, LayerError) as error:
        if deadline.over or isinstance(error, Unanswered):
            raise ApiError(f"{url} did not answer within {deadline.seconds:g} s") from None
        reason = str(error).removeprefix(f"cannot connect to {address}: ").removeprefix(f"{address}: ")
        raise ApiError(f"{url} cannot be reached: {reason}") from None


def _address(url: Url) -> str:
    return f"unix:{url.socket_path}" if url.socket_path else join(url.host, url.port)


def _opened(
    url: Url, tls: ssl.SSLContext | None, dialer: Transport, deadline: _Deadline, connect_timeout: float
) -> LayeredStream:
    stream = LayeredStream(dialer.connect(_address(url), timeout=connect_timeout))
    if url.scheme == "https":
        try:
            context = tls or public_authorities()
            stream.push(Tls(context, server_side=False, server_hostname=url.host))
            stream.handshake(deadline.left())
        except BaseException:
            stream.close()
            raise
    return stream


class _Closed(ApiError):
    """The peer closed before it answered anything."""


def _exchanged(
    stream: LayeredStream, data: bytes, deadline: _Deadline, max_body: int
) -> tuple[HttpReply, bool]:
    """The reply, and whether another request may follow it on the connection."""
    refused: ConnectionLost | None = None
    try:
        stream.write(data, deadline.left())
    except ConnectionLost as error:
        # A server that refuses a large body answers and closes before it has read all of it.
        refused = error
    parser = ReplyParser(max_body=max_body)
    try:
        return _received(stream, parser, deadline)
    except (ApiError, ConnectionLost):
        if refused is None:
            raise
        raise refused from None


def _received(stream: LayeredStream, parser: ReplyParser, deadline: _Deadline) -> tuple[HttpReply, bool]:
    begun = False
    while parser.reply is None:
        stream.read_timeout = deadline.left()
        data = stream.read()
        if data:
            begun = True
            parser.feed(data)
        elif stream.truncated:
            raise ApiError("an EOF that TLS did not announce: the reply may have been cut short")
        elif not begun:
            raise _Closed("the connection was closed in the middle of the reply")
        else:
            parser.end()
    return parser.reply, parser.another_may_follow
