"""The blocking sender of HTTP requests: one deadline for everything that a request takes.

It dials through a Transport, as connections to nsqds do.
"""

from __future__ import annotations

import dataclasses
import time
from functools import cache
from typing import TYPE_CHECKING

from nsq.errors import ApiError, ConnectionFailed, ConnectionLost, DialFailed, LayerError, Unanswered
from nsq.http.calls import tls_port
from nsq.http.message import DEFAULT_MAX_BODY, HttpReply, HttpRequest, ReplyParser, Url
from nsq.transport.addresses import join
from nsq.transport.base import Stream, Transport, WrappedStream
from nsq.transport.dialing import OwnTransport, default_transport
from nsq.transport.layered import LayeredStream
from nsq.transport.tls import client_context
from nsq.wire.layers import Tls

if TYPE_CHECKING:
    import ssl

DEFAULT_TIMEOUT = 5.0


class _Deadline:
    def __init__(self, seconds: float) -> None:
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
    dialer = transport or default_transport

    def exchange(request: HttpRequest) -> HttpReply:
        url = request.url
        address = f"unix:{url.socket_path}" if url.socket_path else join(url.host, url.port)
        try:
            stream = LayeredStream(dialer.connect(address, timeout=deadline.left()))
            try:
                if url.scheme == "https":
                    _shake_hands(stream, url, tls or _public_authorities(), deadline)
                return _exchanged(stream, request.encode(), deadline, max_body)
            finally:
                stream.close()
        except ApiError as error:
            raise ApiError(f"{url}: {error}") from None
        except (DialFailed, ConnectionFailed, LayerError) as error:
            if deadline.over or isinstance(error, Unanswered):
                raise ApiError(f"{url} did not answer within {timeout:g} s") from None
            reason = str(error).removeprefix(f"cannot connect to {address}: ").removeprefix(f"{address}: ")
            raise ApiError(f"{url} cannot be reached: {reason}") from None

    reply = exchange(request)
    port = tls_port(reply) if upgrade and request.url.scheme == "http" else None
    if port is None:
        return reply
    url = dataclasses.replace(request.url, scheme="https", port=port, socket_path="")
    return exchange(dataclasses.replace(request, url=url))


def _shake_hands(stream: LayeredStream, url: Url, tls: ssl.SSLContext, deadline: _Deadline) -> None:
    stream.push(Tls(tls, server_side=False, server_hostname=url.host))
    stream.handshake(deadline.left())


@cache
def _public_authorities() -> ssl.SSLContext:
    return client_context()


def _exchanged(stream: LayeredStream, data: bytes, deadline: _Deadline, max_body: int) -> HttpReply:
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


def _received(stream: LayeredStream, parser: ReplyParser, deadline: _Deadline) -> HttpReply:
    while parser.reply is None:
        stream.read_timeout = deadline.left()
        data = stream.read()
        if data:
            parser.feed(data)
        elif stream.truncated:
            raise ApiError("an EOF that TLS did not announce: the reply may have been cut short")
        else:
            parser.end()
    return parser.reply


class InterruptibleTransport:
    """Dials and connections that another thread can end, all at once."""

    def __init__(self) -> None:
        self._own = OwnTransport(None)
        self._streams: set[Stream] = set()
        self._interrupted = False

    def connect(self, address: str, *, timeout: float) -> Stream:
        stream = _Listed(self._own.connect(address, timeout=timeout), self._streams)
        if self._interrupted:  # behind its entry in the list: ``interrupt`` sees it there, or we see this
            stream.close()
            raise DialFailed(f"cannot connect to {address}: interrupted")
        return stream

    def interrupt(self) -> None:
        """End what is under way at once, and refuse what is to come. Does not wait."""
        self._interrupted = True
        self._own.interrupt()
        for stream in list(self._streams):
            stream.close()

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's."""
        self._own.abandon()
        for stream in list(self._streams):
            stream.abandon()


class _Listed(WrappedStream):
    """Is in the list until it is closed."""

    def __init__(self, stream: Stream, listed: set[Stream]) -> None:
        super().__init__(stream)
        self._listed = listed
        listed.add(self)

    def close(self) -> None:
        self._listed.discard(self)
        super().close()

    def abandon(self) -> None:
        self._listed.discard(self)
        super().abandon()
