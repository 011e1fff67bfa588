"""Serves a daemon's routes over HTTP, on TCP and Unix sockets, with or without TLS.

Only this module imports aiohttp, and it uses only the low-level server: with a dictionary as router and one
write per reply it serves 1.5 times as many requests per second as aiohttp's Application.

It relies on these internals of aiohttp, which a unit test compares with the installed release:

RequestHandler       the keyword arguments in ``_Server``; ``data_received`` adds each complete head to
                     ``_messages``, with its body, and counts it in ``_request_count``; ``start`` serves the
                     connection; ``handle_error`` makes the reply to an invalid request
Server               calls ``connection_made`` and ``connection_lost``, and itself for each connection
StreamReader         ``read_nowait``, ``readany``, ``is_eof``, ``set_read_chunk_size``, ``EMPTY_PAYLOAD``
StreamResponse       a connection uses only ``prepare``, ``write_eof``, ``keep_alive``, ``force_close``
"""

from __future__ import annotations

import asyncio
import email.utils
import functools
import http
import re
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from nsq.daemons.serve.bodies import PendingBodies
from nsq.daemons.serve.listen import Address, Listener, TcpAddress, listen
from nsq.daemons.serve.logs import INFO, DaemonLog
from nsq.daemons.serve.routes import HttpError, Reply, Request, Route, Router

# The time for a request's head to arrive, and for an idle connection to be used again. Longer than clients
# keep idle connections (Go 90 s), so that the client closes first: it knows whether it is about to send.
IDLE_SECONDS = 120.0
# A peer that sends no byte of its body, or does not read its reply, for this long counts as dead.
STALL_SECONDS = 30.0
# The default limit on the size of all unfinished bodies together.
DEFAULT_PENDING_BYTES = 256 * 1024 * 1024
# The largest line and header of a request, its largest unfinished head, and the most headers. Go takes 1 MB,
# but the time to parse a head delays other clients.
MAX_HEAD = 64 * 1024
MAX_HEADERS = 256
# aiohttp parses at most a 16th of this many chunks of a body at once, and then waits until they are read: the
# chunks of a few clients must not delay all others. A body may have more bytes in memory.
READ_BUFFER = 1024
BODY_BUFFER = 256 * 1024
# With more unsent bytes than this, the connection's next request waits.
UNSENT_BYTES = 64 * 1024
# As much of a reply is written at once; a slow reader has STALL_SECONDS for each piece.
PIECE = 256 * 1024
# A connection beyond --max-connections gets a 503 if its request arrives within this time.
REFUSED_SECONDS = 5.0
TOO_MANY = "TOO_MANY_CONNECTIONS"
_CODE = re.compile("[A-Z_]+")
# After an early error reply (413) the rest of the body is read and discarded for this long: if the server
# closed at once, the client would lose the reply.
LINGER_SECONDS = 5.0
# Bytes that come after an invalid request are discarded for this long, for the same reason.
INVALID_LINGER_SECONDS = 0.5


class HttpServer:
    """Serves a daemon's routes on any number of addresses.

    ``gates`` see every request first, one after the other, and may return the reply (an nsqd that requires
    TLS, a login).
    ``bodies`` counts the bytes of incomplete requests; beyond its limit they get 503.
    ``errors`` counts error replies by code. Connections beyond ``max_connections`` get 503 and are closed.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        log: DaemonLog,
        *,
        gates: Sequence[Callable[[Request], Reply | None]] = (),
        bodies: PendingBodies | None = None,
        errors: Counter[str] | None = None,
        max_connections: int = 0,
    ) -> None:
        self._router = Router(routes)
        self._log = log
        self._gates = gates
        self._bodies = bodies or PendingBodies(DEFAULT_PENDING_BYTES)
        self._errors: Counter[str] = Counter() if errors is None else errors
        self._max_connections = max_connections
        self._listeners: list[Listener] = []
        self._server: _Server | None = None

    async def listen(self, address: Address, tls: ssl.SSLContext | None = None) -> Address:
        """Serve on this address; return the address that was actually bound. Raises ListenError."""
        if self._server is None:
            self._server = _Server(self._serve, self._log, self._max_connections)
        listener = await listen(self._server, address, tls=tls)
        self._listeners.append(listener)
        return listener.address

    async def use_certificate(self, tls: ssl.SSLContext) -> None:
        """Use this certificate for new connections on every address."""
        for listener in self._listeners:
            await listener.serve(tls)

    async def close(self, grace: float = 0.4) -> None:
        """Stop accepting; close idle connections at once, busy ones after ``grace`` seconds."""
        listeners, self._listeners = self._listeners, []
        server, self._server = self._server, None
        if server is not None:
            server.refuse_new()
        for listener in listeners:
            await listener.close()
        if server is not None:
            server.pre_shutdown()
            await server.shutdown(grace)
            await asyncio.sleep(0)

    async def _serve(self, raw: web.BaseRequest) -> web.StreamResponse:
        began = time.perf_counter()
        request = _WireRequest(raw, self._bodies)
        route: Route | None = None
        reply = None
        if self._server is not None and not self._server.note_request(raw.protocol):
            self._errors[TOO_MANY] += 1
            return _Response(Reply.error(503, TOO_MANY), marked=True, last=True)
        for gate in self._gates:
            reply = gate(request)
            if reply is not None:
                self._errors[http.HTTPStatus(reply.status).name] += 1
                break
        marked = True
        if reply is None:
            route, request.params = self._router.find(request.method, request.path)
            if route is None:
                reply = self._router.without(request)
                marked = bool(reply.body)
                if reply.status >= 400:
                    self._errors[http.HTTPStatus(reply.status).name] += 1
            else:
                reply = await self._call(route, request)
                marked = not route.plain
        if self._log.level <= INFO and (route is None or route.logged):
            took = (time.perf_counter() - began) * 1000
            said = (reply.status, request.method, request.target, request.remote, took)
            self._log.info("%d %s %s (%s) %.3fms", *said)
        return _Response(reply, marked, last=self._server is None or request.withheld)

    async def _call(self, route: Route, request: Request) -> Reply:
        try:
            made = route.handler(request)
            return made if isinstance(made, Reply) else await made
        except HttpError as refusal:
            status, code = refusal.status, refusal.code
        except Exception as error:
            self._log.error("panic in HTTP handler %s %s", route.method, route.path, exc=error)
            status, code = 500, "INTERNAL_ERROR"
        # A text may hold what the caller wrote: counted by the text, the counter would grow without end.
        self._errors[code if _CODE.fullmatch(code) else http.HTTPStatus(status).name] += 1
        return Reply.text(code, status) if route.plain else Reply.error(status, code)


class _WireRequest(Request):
    __slots__ = ("_bodies", "_raw", "withheld")

    def __init__(self, raw: web.BaseRequest, bodies: PendingBodies) -> None:
        super().__init__(raw.method, raw.raw_path)
        self._raw = raw
        self._bodies = bodies
        # Whether the client sends the body only after a 100 Continue.
        self.withheld = not raw.content.is_eof() and raw.headers.get("Expect", "").lower() == "100-continue"

    @property
    def headers(self) -> Mapping[str, str]:
        return self._raw.headers

    @property
    def remote(self) -> str:
        transport = self._raw.transport
        peer = None if transport is None else transport.get_extra_info("peername")
        return str(TcpAddress(peer[0], peer[1])) if isinstance(peer, tuple) else "@"

    async def read(self, limit: int, too_big: str) -> bytes:
        raw = self._raw
        if (raw.content_length or 0) > limit:
            raise HttpError(413, too_big)
        try:
            if raw.content.is_eof():
                # The usual case: the whole body came with the head, so no timer and no loop are needed.
                body = raw.content.read_nowait()
                if len(body) > limit:
                    raise HttpError(413, too_big)
                return body
            if self.withheld:
                self.withheld = False
                await raw.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return await self._read_slowly(limit, too_big)
        except TimeoutError:
            raise HttpError(408, "REQUEST_TIMEOUT") from None
        except (web.RequestPayloadError, ConnectionError) as error:
            # The client has closed. aiohttp stores this error in the body; its traceback would form a
            # reference cycle that keeps the body in memory until the next garbage collection.
            error.__traceback__ = None
            raise HttpError(400, "INVALID_REQUEST") from None

    async def _read_slowly(self, limit: int, too_big: str) -> bytes:
        body = bytearray()
        try:
            while True:
                async with asyncio.timeout(STALL_SECONDS):
                    piece = await _some(self._raw.content)
                if not piece:
                    return bytes(body)
                if len(body) + len(piece) > limit:
                    raise HttpError(413, too_big)
                if not self._bodies.take(len(piece)):
                    raise HttpError(503, "TOO_MANY_BODIES")
                body += piece
        finally:
            self._bodies.give_back(len(body))
            # An error's traceback holds this frame, which must not keep the body in memory.
            del body


async def _some(content: StreamReader) -> bytes:
    """Read what has come of a body. Other clients are served before more of it is parsed."""
    piece = await content.readany()
    await asyncio.sleep(0)
    return piece


class _Connection(web.RequestHandler):
    """aiohttp's connection; replies to invalid HTTP as Go does, without a traceback in the log."""

    __slots__ = ("_content", "_unfinished_head")

    def __init__(self, manager: _Server, **limits: Any) -> None:
        super().__init__(manager, **limits)
        self._content: StreamReader = EMPTY_PAYLOAD  # of the last request
        self._unfinished_head = 0

    def data_received(self, data: bytes) -> None:
        if len(data) > READ_BUFFER and self._content.is_eof():
            # The head first, so that the body has its larger buffer when it is parsed.
            head, end, body = data.partition(b"\r\n\r\n")
            if body:
                self._parse(head + end)
                data = body
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse the data. aiohttp limits each line of a head; this limits the head."""
        if self._unfinished_head > MAX_HEAD:
            return
        known, was_head = self._request_count, self._content.is_eof()
        super().data_received(data)
        if self._request_count != known:
            self._unfinished_head, self._content = 0, self._messages[-1][1]
            self._content.set_read_chunk_size(BODY_BUFFER)
        elif was_head:
            self._unfinished_head += len(data)
            if self._unfinished_head > MAX_HEAD:
                super().data_received(b"\0")  # not allowed in a head: aiohttp calls handle_error

    async def start(self) -> None:
        # This runs as a task: the connection may have ended before the task starts.
        if self.transport is not None:
            await super().start()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= 500:
            self.logger.error("answering %s failed", request.remote, exc_info=exc)
        else:
            self.logger.debug("not HTTP, from %s: %s", request.remote, message)
            if isinstance(exc, LineTooLong) or self._unfinished_head > MAX_HEAD:
                status = 431
        self.close()  # after this reply; discards what is received from now on
        return _InvalidRequestResponse(
            Reply.text(f"{status} {_phrase(status)}", status), marked=False, last=True
        )


class _Server(web.Server):
    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        log: DaemonLog,
        max_connections: int,
    ) -> None:
        super().__init__(handler)
        self._limits: dict[str, Any] = {
            "loop": asyncio.get_running_loop(),
            "logger": log.logger,
            "access_log": None,
            "keepalive_timeout": IDLE_SECONDS,
            "lingering_time": 0,
            "auto_decompress": False,
            "read_bufsize": READ_BUFFER,
            "max_line_size": MAX_HEAD,
            "max_field_size": MAX_HEAD,
            "max_headers": MAX_HEADERS,
        }

        self._refuses_new = False
        self._log = log
        self._max_connections = max_connections
        self._admitted: set[web.RequestHandler] = set()
        # aiohttp has no timeout for a head that does not end.
        self._first_request_timers: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, **self._limits)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if self._refuses_new:
            transport.abort()
            return
        admitted = not self._max_connections or len(self._admitted) < self._max_connections
        if admitted:
            self._admitted.add(handler)
        else:
            self._log.warning("HTTP: client refused: --max-connections is %d", self._max_connections)
        loop = asyncio.get_running_loop()
        self._first_request_timers[handler] = loop.call_later(
            IDLE_SECONDS if admitted else REFUSED_SECONDS, transport.abort
        )

    def refuse_new(self) -> None:
        """Abort every new connection from now on."""
        self._refuses_new = True

    def note_request(self, handler: web.RequestHandler) -> bool:
        """Record the connection's first request. Returns False if it exceeds --max-connections."""
        timer = self._first_request_timers.pop(handler, None)
        if timer is not None:
            timer.cancel()
        return handler in self._admitted

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self.note_request(handler)
        self._admitted.discard(handler)
        super().connection_lost(handler, exc)


class _Response(web.StreamResponse):
    """Sends a short Reply in one write. The base class is not initialised: it is slow with headers."""

    def __init__(self, reply: Reply, marked: bool, last: bool) -> None:
        self._reply = reply
        self._marked = marked
        self._last = last
        self._kept = False

    @property
    def keep_alive(self) -> bool:
        return self._kept

    async def prepare(self, request: web.BaseRequest) -> None:
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self._kept = request.keep_alive and not self._last
        for data in (self._encoded(request), *(self._reply.rest if request.method != "HEAD" else ())):
            for start in range(0, len(data), PIECE):
                await self._send(data[start : start + PIECE], request, transport)
        if not request.content.is_eof() and (self._kept or not self._last):
            await _discard(request)

    async def _send(self, data: bytes, request: web.BaseRequest, transport: asyncio.Transport) -> None:
        """Send a piece; return when most of it has been sent."""
        if transport.is_closing():
            raise ConnectionResetError("the client is gone")
        transport.write(data)
        if transport.get_write_buffer_size() <= UNSENT_BYTES:
            return
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await request.writer.drain()
        except TimeoutError:
            transport.abort()
            raise ConnectionResetError("the client does not read") from None

    async def write_eof(self, data: bytes = b"") -> None:
        pass

    def force_close(self) -> None:
        self._kept = False

    def _encoded(self, request: web.BaseRequest) -> bytes:
        reply = self._reply
        if not self._kept:
            connection = "close"
        else:
            connection = "keep-alive" if request.version.minor == 0 else ""
        length = len(reply.body) + sum(map(len, reply.rest))
        form = (reply.status, reply.content_type, length, reply.headers)
        head = _head(*form, self._marked, connection, int(time.time()))
        return head if request.method == "HEAD" else head + reply.body


class _InvalidRequestResponse(_Response):
    """The reply to an invalid request, after which nothing can be read."""

    async def write_eof(self, data: bytes = b"") -> None:
        await asyncio.sleep(INVALID_LINGER_SECONDS)


async def _discard(request: web.BaseRequest) -> None:
    """Discard the rest of the body, for as long as the connection is open and this takes not too long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while not request.content.is_eof() and request.transport is not None:
                await _some(request.content)


# Most replies within a second have the same head: that of OK.
@functools.lru_cache(maxsize=64)
def _head(
    status: int,
    content_type: str | None,
    length: int,
    headers: tuple[tuple[str, str], ...],
    marked: bool,
    connection: str,
    second: int,
) -> bytes:
    lines = [f"HTTP/1.1 {status} {_phrase(status)}"]
    if marked:
        lines.append("X-Nsq-Content-Type: nsq; version=1.0")
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    lines.extend(f"{name}: {value}" for name, value in headers)
    if connection:
        lines.append(f"Connection: {connection}")
    date = email.utils.formatdate(second, usegmt=True)
    lines.append(f"Date: {date}\r\nContent-Length: {length}\r\n\r\n")
    return "\r\n".join(lines).encode("latin-1")


def _phrase(status: int) -> str:
    """Return Go's phrase for a status; Python's phrases differ between versions."""
    if status == http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return "Request Entity Too Large"
    return http.HTTPStatus(status).phrase if status in set(http.HTTPStatus) else ""
