"""The HTTP server of the daemons over real sockets, with correct and misbehaving clients."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import io
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme

from nsq.daemons.serve import httpd
from nsq.daemons.serve.httpd import HttpServer
from nsq.daemons.serve.listen import Address, ListenError, TcpAddress, parse_address
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.routes import EMPTY, OK, HttpError, Reply, Request, Route

LIMIT = 300_000


def on_an_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **given: Any) -> None:
        asyncio.run(test(*arguments, **given))

    return run


async def echo(request: Request) -> Reply:
    body = await request.read(LIMIT, "MSG_TOO_BIG")
    return Reply(body, "text/plain; charset=utf-8")


def panic(request: Request) -> Reply:
    raise KeyError("nothing there")


async def forever(request: Request) -> Reply:
    await asyncio.Event().wait()
    return OK


ROUTES = [
    Route("GET", "/ping", lambda request: OK, plain=True),
    Route("POST", "/echo", echo, logged=False),
    Route("POST", "/empty", lambda request: EMPTY),
    Route("GET", "/panic", panic),
    Route("GET", "/plain/panic", panic, plain=True),
    Route("GET", "/forever", forever),
    Route("GET", "/big", lambda request: Reply(b"x" * 10_000_000)),
    Route("GET", "/pieces", lambda request: Reply(b"0", rest=(b"1" * 3_000_000, b"2" * 2_000_000))),
    Route("GET", "/config/:opt", lambda request: Reply.json({**request.params, **request.args})),
]


class Served:
    def __init__(self, routes: Sequence[Route] = ROUTES) -> None:
        self._log = io.StringIO()
        self.server = HttpServer(routes, DaemonLog(level="debug", stream=self._log))

    @property
    def log(self) -> str:
        return self._log.getvalue()


@contextlib.asynccontextmanager
async def serving(
    address: str = "127.0.0.1:0", tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Served, Address]]:
    served = Served()
    bound = await served.server.listen(parse_address(address), tls)
    try:
        yield served, bound
    finally:
        await served.server.close()
        assert "Traceback" not in served.log or "panic in HTTP handler" in served.log


@contextlib.asynccontextmanager
async def connected(
    address: Address, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    if isinstance(address, TcpAddress):
        name = None if tls is None else "localhost"
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=tls, server_hostname=name
        )
    else:
        reader, writer = await asyncio.open_unix_connection(address.path)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def exchange(
    address: Address, request: bytes, tls: ssl.SSLContext | None = None
) -> tuple[bytes, dict[str, str], bytes]:
    """One request on a connection of its own: the status line, the headers but Date, the body."""
    async with connected(address, tls) as (reader, writer), asyncio.timeout(60):
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = dict(line.decode().split(": ", 1) for line in lines)
    headers.pop("Date", None)
    return status, headers, body


def request(method: str, target: str, body: bytes = b"", *more: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: x", "Connection: close", *more]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


JSON = {"X-Nsq-Content-Type": "nsq; version=1.0", "Content-Type": "application/json; charset=utf-8"}
TEXT = {"Content-Type": "text/plain; charset=utf-8"}
CLOSE = {"Connection": "close"}


@pytest.mark.parametrize(
    ("asked", "status", "headers", "body"),
    [
        (request("GET", "/ping"), b"200 OK", TEXT, b"OK"),
        (request("POST", "/empty"), b"200 OK", {"X-Nsq-Content-Type": "nsq; version=1.0"}, b""),
        (request("GET", "/config/a%20b?x=1"), b"200 OK", JSON, b'{"opt":"a b","x":"1"}'),
        (request("GET", "/config/a?x=%zz"), b"400 Bad Request", JSON, b'{"message":"INVALID_REQUEST"}'),
        (
            request("GET", "/pieces"),
            b"200 OK",
            {"X-Nsq-Content-Type": "nsq; version=1.0"},
            b"0" + b"1" * 3_000_000 + b"2" * 2_000_000,
        ),
        (request("GET", "/nope"), b"404 Not Found", JSON, b'{"message":"NOT_FOUND"}'),
        (
            request("GET", "/echo"),
            b"405 Method Not Allowed",
            {**JSON, "Allow": "OPTIONS, POST"},
            b'{"message":"METHOD_NOT_ALLOWED"}',
        ),
        (request("OPTIONS", "/ping"), b"200 OK", {"Allow": "GET, OPTIONS"}, b""),
        (request("GET", "/ping/?a=1"), b"301 Moved Permanently", {"Location": "/ping?a=1"}, b""),
        (request("POST", "/echo/"), b"308 Permanent Redirect", {"Location": "/echo"}, b""),
        (request("GET", "/panic"), b"500 Internal Server Error", JSON, b'{"message":"INTERNAL_ERROR"}'),
        (request("GET", "/plain/panic"), b"500 Internal Server Error", TEXT, b"INTERNAL_ERROR"),
        (b"\x16\x03\x01\x02\x00 not HTTP\r\n\r\n", b"400 Bad Request", TEXT, b"400 Bad Request"),
        (
            request("POST", "/echo", b"", "Transfer-Encoding: chunked") + b"1\r\nx\r\nzz\r\n",
            b"400 Bad Request",
            TEXT,
            b"400 Bad Request",
        ),
        (b"  V2", b"400 Bad Request", TEXT, b"400 Bad Request"),
    ],
)
@on_an_event_loop
async def test_replies_have_status_headers_and_body_as_gos_have(
    asked: bytes, status: bytes, headers: dict[str, str], body: bytes
) -> None:
    async with serving() as (_, address):
        expected = {**headers, **CLOSE, "Content-Length": str(len(body))}
        assert await exchange(address, asked) == (b"HTTP/1.1 " + status, expected, body)


@on_an_event_loop
async def test_head_gets_the_length_without_the_body() -> None:
    async with serving() as (_, address):
        status, headers, body = await exchange(address, request("HEAD", "/ping"))
        assert (status, headers["Content-Length"], body) == (
            b"HTTP/1.1 405 Method Not Allowed",
            "32",
            b"",
        )


@pytest.mark.parametrize("size", [1, 5000, LIMIT])
@on_an_event_loop
async def test_bodies_of_every_size_arrive_as_they_are(size: int) -> None:
    body = gzip.compress(b"x") * (size // 21 + 1)
    body = body[:size]
    async with serving() as (_, address):
        for more in ([], ["Content-Encoding: gzip"], ["Expect: 100-continue"]):
            answer = await exchange(address, request("POST", "/echo", body, *more))
            assert answer[2].removeprefix(b"HTTP/1.1 200 OK")[-size:] == body


@pytest.mark.parametrize(
    ("target", "status"), [("/echo", b"413 Request Entity Too Large"), ("/nope", b"404 Not Found")]
)
@on_an_event_loop
async def test_the_connection_is_closed_after_a_body_that_was_not_asked_for(
    target: str, status: bytes
) -> None:
    """Otherwise the client's next request would be read as that body."""
    async with (
        serving() as (_, address),
        connected(address) as (reader, writer),
        asyncio.timeout(60),
    ):
        head = f"POST {target} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        writer.write(f"{head}Content-Length: {LIMIT + 1}\r\n\r\n".encode())
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert b"\r\nConnection: close\r\n" in answer


CHUNK = b"7530\r\n" + b"x" * 30_000 + b"\r\n"


@on_an_event_loop
async def test_a_body_of_unknown_length_is_read_no_further_than_the_limit() -> None:
    async with serving() as (_, address):
        head = request("POST", "/echo", b"", "Transfer-Encoding: chunked")
        assert (await exchange(address, head + CHUNK * 10 + b"0\r\n\r\n"))[2] == b"x" * LIMIT
        async with connected(address) as (reader, writer):
            writer.write(head + CHUNK * 11)
            assert await reader.readline() == b"HTTP/1.1 413 Request Entity Too Large\r\n"


@pytest.mark.parametrize(("target", "status"), [("/echo", b"200 OK"), ("/nope", b"404 Not Found")])
@on_an_event_loop
async def test_a_body_of_many_small_chunks_does_not_block_other_clients(target: str, status: bytes) -> None:
    """The event loop makes a round after a few chunks, whether the body is wanted or discarded."""
    chunks = 20_000
    async with serving() as (_, address), connected(address) as (reader, writer), asyncio.timeout(60):
        head = f"POST {target} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode() + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n" + request("GET", "/ping"))
        answered = asyncio.create_task(reader.read())
        rounds = 0
        while not answered.done():
            await asyncio.sleep(0)
            rounds += 1
        first, _, second = answered.result().partition(b"HTTP/1.1 200 OK\r\nContent-Type")
        assert first.startswith(b"HTTP/1.1 " + status)
        assert second.endswith(b"OK")
        assert rounds > chunks / 500


@on_an_event_loop
async def test_a_body_that_does_not_end_gets_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpd, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(httpd, "LINGER_SECONDS", 0.05)
    async with serving() as (_, address):
        status, _, body = await exchange(address, request("POST", "/echo", b"123")[:-1])
        assert (status, body) == (b"HTTP/1.1 408 Request Timeout", b'{"message":"REQUEST_TIMEOUT"}')


@pytest.mark.parametrize("start", [b"", b"GET /ping HTTP/1.1\r\nHost: x\r\nX-Slow: "])
@on_an_event_loop
async def test_a_head_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    monkeypatch.setattr(httpd, "IDLE_SECONDS", 0.1)
    async with serving() as (_, address), connected(address) as (reader, writer), asyncio.timeout(60):
        writer.write(start)
        ended = asyncio.create_task(reader.read())
        while start and not ended.done():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        with contextlib.suppress(ConnectionError):
            assert await ended == b""


LONG = "x" * 60_000


@pytest.mark.parametrize(
    "asked",
    [
        request("GET", "/ping", b"", f"Cookie: {LONG}"),
        request("GET", f"/ping?a={LONG}"),
        request("GET", "/ping", b"", *(f"X-{number}: 1" for number in range(250))),
    ],
)
@on_an_event_loop
async def test_a_large_head_is_read(asked: bytes) -> None:
    async with serving() as (_, address):
        status, _, body = await exchange(address, asked)
        assert (status, body) == (b"HTTP/1.1 200 OK", b"OK")


@pytest.mark.parametrize(
    "asked",
    [
        b"GET /ping HTTP/1.1\r\nX: " + b"x" * 100_000,
        b"GET /ping?" + b"x" * 100_000,
        b"GET /ping HTTP/1.1\r\n"
        + b"".join(b"X-%d: %b\r\n" % (number, b"x" * 9_000) for number in range(100)),
    ],
)
@on_an_event_loop
async def test_an_endless_head_is_refused(asked: bytes) -> None:
    async with serving() as (_, address), asyncio.timeout(60):
        for request_before in (b"", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"):
            async with connected(address) as (reader, writer):
                writer.write(request_before)
                if request_before:
                    await reader.readuntil(b"\r\n\r\nx")
                with contextlib.suppress(ConnectionError):
                    writer.write(asked)
                    await writer.drain()
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
                assert body == b"431 Request Header Fields Too Large"


@on_an_event_loop
async def test_a_client_that_does_not_read_its_reply_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpd, "STALL_SECONDS", 0.05)
    async with serving() as (served, address), connected(address) as (reader, writer):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
        # The server has left when the test reads at last, however late that is.
        server = served.server._server
        assert server is not None
        async with asyncio.timeout(60):
            while not server.requests_count or server.connections:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) < 10_000_000


@on_an_event_loop
async def test_a_connection_serves_many_requests_even_if_they_are_pipelined() -> None:
    async with serving() as (_, address), connected(address) as (reader, writer):
        one = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
        writer.write(b"".join(one + b"%05d" % number for number in range(200)))
        for number in range(200):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"Connection:" not in head
            assert await reader.readexactly(5) == b"%05d" % number
        writer.write(b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert b"Connection: keep-alive\r\n" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(2) == b"OK"
        writer.write(b"GET /ping HTTP/1.0\r\n\r\n")
        assert b"Connection: close\r\n" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b"OK"


@on_an_event_loop
async def test_closing_ends_idle_and_busy_connections_soon() -> None:
    served = Served()
    address = await served.server.listen(parse_address("127.0.0.1:0"))
    async with contextlib.AsyncExitStack() as clients:
        (idle, idle_writer), (busy, busy_writer), (fresh, _) = [
            await clients.enter_async_context(connected(address)) for _ in range(3)
        ]
        idle_writer.write(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        await idle.readuntil(b"\r\n\r\nOK")
        busy_writer.write(b"GET /forever HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.05)
        async with asyncio.timeout(60):
            await served.server.close(grace=0.1)
            assert [await stream.read() for stream in (idle, busy, fresh)] == [b"", b"", b""]
    await served.server.close()
    assert "Traceback" not in served.log
    assert len(asyncio.all_tasks()) == 1


@on_an_event_loop
async def test_the_gate_comes_before_every_route() -> None:
    refusal = Reply.json({"message": "TLS_REQUIRED", "https_port": 4152}, 403)
    gate = {"/ping": None}
    server = HttpServer(
        ROUTES, DaemonLog(stream=io.StringIO()), gates=[lambda asked: gate.get(asked.path, refusal)]
    )
    address = await server.listen(parse_address("127.0.0.1:0"))
    assert (await exchange(address, request("GET", "/ping")))[2] == b"OK"
    for target in ("/config/x", "/nope", "/ping/"):
        status, headers, body = await exchange(address, request("GET", target))
        assert (status, body) == (
            b"HTTP/1.1 403 Forbidden",
            b'{"message":"TLS_REQUIRED","https_port":4152}',
        )
        assert headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
    await server.close()


@on_an_event_loop
async def test_requests_are_logged_as_they_were_sent() -> None:
    async with serving() as (served, address):
        await exchange(address, request("GET", "/config/a%0ab"))
        await exchange(address, request("POST", "/echo", b"x"))
        await exchange(address, request("GET", "/panic"))
    lines = served.log.splitlines()
    assert " INFO: 200 GET /config/a%0ab (127.0.0.1:" in lines[0]
    assert lines[1].endswith("ERROR: panic in HTTP handler GET /panic")
    assert "/echo" not in served.log


def test_errors_are_counted_by_codes_and_not_by_what_a_caller_wrote() -> None:
    def refuse(request: Request) -> Reply:
        raise HttpError(403, f"UNKNOWN_HOST: {request.headers['Host']}")

    def refuse_plainly(request: Request) -> Reply:
        raise HttpError(403, "UNKNOWN_HOST")

    counted: Counter[str] = Counter()
    routes = [Route("GET", "/peek", refuse), Route("GET", "/other", refuse_plainly)]

    async def run() -> None:
        server = HttpServer(routes, DaemonLog(stream=io.StringIO()), errors=counted)
        address = await server.listen(parse_address("127.0.0.1:0"))
        for host in ("a.example", "b.example"):
            given = request("GET", "/peek").replace(b"Host: x", f"Host: {host}".encode())
            _, _, body = await exchange(address, given)
            assert host.encode() in body
        await exchange(address, request("GET", "/other"))
        await server.close()

    asyncio.run(run())
    assert counted == {"FORBIDDEN": 2, "UNKNOWN_HOST": 1}


@on_an_event_loop
async def test_a_server_listens_on_a_unix_socket_and_on_ipv6(tmp_path: Path) -> None:
    for where in (str(tmp_path / "http.sock"), "[::1]:0", ":0"):
        async with serving(where) as (served, address):
            assert (await exchange(address, request("GET", "/ping")))[2] == b"OK"
        assert f"({'@' if '/' in where else '['}" in served.log


def certified() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts for a server, and for clients that trust only its authority."""
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    return server_side, client_side


@on_an_event_loop
async def test_a_new_certificate_for_a_unix_socket_needs_a_restart(tmp_path: Path) -> None:
    server_side, _ = certified()
    async with serving(str(tmp_path / "sock"), server_side) as (served, _):
        with pytest.raises(ListenError, match="needs a restart"):
            await served.server.use_certificate(server_side)
