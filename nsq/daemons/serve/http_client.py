"""The asyncio sender of HTTP requests: it never blocks the loop of a daemon."""

from __future__ import annotations

import asyncio
import ssl

from nsq.errors import ApiError
from nsq.http.message import DEFAULT_MAX_BODY, HttpReply, HttpRequest, ReplyParser, Url


async def send(
    request: HttpRequest,
    *,
    connect_timeout: float,
    request_timeout: float,
    tls: ssl.SSLContext | None = None,
    max_body: int = DEFAULT_MAX_BODY,
) -> HttpReply:
    """Send and return the reply, whatever its status; ApiError says why there is none.

    ``request_timeout`` covers the whole exchange, connecting included.
    """
    url = request.url
    try:
        async with asyncio.timeout(request_timeout):
            async with asyncio.timeout(connect_timeout):
                reader, writer = await _open(url, tls)
            try:
                writer.write(request.encode())
                return await _read(reader, max_body)
            finally:
                writer.close()
    except ApiError as error:
        raise ApiError(f"{url}: {error}") from None
    except TimeoutError:
        raise ApiError(f"{url} did not answer within {request_timeout:g} s") from None
    except (OSError, ValueError, OverflowError) as error:
        # An nsqd may have registered a host or a port that is none: ValueError, OverflowError. TLS errors are
        # OSErrors.
        raise ApiError(f"{url} cannot be reached: {error}") from None


async def _open(url: Url, tls: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if url.socket_path:
        return await asyncio.open_unix_connection(url.socket_path)
    context = (tls or ssl.create_default_context()) if url.scheme == "https" else None
    return await asyncio.open_connection(url.host, url.port, ssl=context)


async def _read(reader: asyncio.StreamReader, max_body: int) -> HttpReply:
    parser = ReplyParser(max_body=max_body)
    while parser.reply is None:
        data = await reader.read(64 * 1024)
        if data:
            parser.feed(data)
        else:
            parser.end()
    return parser.reply
