"""HTTP/1.1 requests and replies as bytes: the parts that a small client needs, all with size limits.

Pure: the blocking sender and the daemons' asyncio sender both use it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from nsq.errors import ApiError, UsageError
from nsq.http.secret import HttpSecret
from nsq.transport.addresses import is_unix, join, unix_path

#: The largest head and body of a reply; the largest real bodies are the /stats of big clusters.
MAX_HEAD = 64 * 1024
DEFAULT_MAX_BODY = 64 * 1024 * 1024
_MAX_CHUNK_LINE = 1024
_VERSION = b"HTTP/1."
#: How the TCP ports of nsqd and nsqlookupd begin to refuse an HTTP request: the size of E_BAD_PROTOCOL,
#: nsqd's with a frame type. Go's send the size alone, and a reset may destroy what follows.
_REFUSALS = (b"\0\0\0\x12", b"\0\0\0\x0e")


@dataclass(frozen=True)
class Url:
    """The address of a request. ``target`` is path and query, and not in the repr: queries hold secrets. With
    ``socket_path`` the request goes to that Unix socket, not to host and port.
    """

    scheme: str
    host: str
    port: int
    target: str = field(repr=False)
    socket_path: str = ""
    #: Whether an nsqlookupd told the address, and not the user: then few of them get the secret.
    told: bool = False

    @property
    def authority(self) -> str:
        """The Host header's value."""
        full = join(self.host, self.port)
        return full.rpartition(":")[0] if self.port == _DEFAULT_PORTS[self.scheme] else full

    def __str__(self) -> str:
        path = self.target.partition("?")[0]
        if self.socket_path:
            return f"unix:{self.socket_path}:{path}"
        return f"{self.scheme}://{self.authority}{path}"


_DEFAULT_PORTS = {"http": 80, "https": 443}


def parse_url(text: str, default_port: int = 80) -> Url:
    """Parse ``http://host:port/path?query``, ``host:port/path``, which means http, or a Unix socket,
    ``unix:/path`` or ``/path``.

    An address with neither scheme nor port gets ``default_port``; with a scheme it gets the scheme's port.
    """
    if not isinstance(text, str):
        raise UsageError(f"address {text!r} must be text")
    if is_unix(text):
        return Url("http", "localhost", 80, "/", unix_path(text))
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise UsageError(f"address {_shown(text)} is not a URL: {error}") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise UsageError(f"address {_shown(text)} has the scheme {parts.scheme!r}; there are http and https")
    if port is None and "://" not in text and (parts.hostname or "").isdecimal():
        example = f"127.0.0.1:{parts.hostname}"
        raise UsageError(
            f"address {_shown(text)} is a port without a host: give HOST:PORT, such as {example}"
        )
    if not parts.hostname:
        raise UsageError(f"address {_shown(text)} names no host")
    if "@" in parts.netloc:
        raise UsageError(f"address {_shown(text)} holds a user name; those are not sent")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if any(character <= " " or character == "\x7f" for character in target):
        raise UsageError(f"address {_shown(text)} has a space or control character in its path")
    if port is None:
        port = _DEFAULT_PORTS[parts.scheme] if "://" in text else default_port
    return Url(parts.scheme, parts.hostname, port, target)


def _shown(text: str) -> str:
    """Format an address for an error message, without query and user part, which may be secret."""
    scheme, separator, rest = text.rpartition("://")
    return repr(scheme + separator + rest.partition("?")[0].rpartition("@")[2])


@dataclass(frozen=True)
class HttpRequest:
    """A request. ``headers`` and ``body`` are not in the repr: they hold secrets and messages. ``secret`` is
    sent if the URL may have it.
    """

    url: Url
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    secret: HttpSecret | None = field(default=None, repr=False)

    def encode(self) -> bytes:
        """Encode the whole request, by default for a connection that is used once."""
        headers = {"Host": self.url.authority, "Connection": "close", "Accept-Encoding": "identity"}
        if self.body or self.method != "GET":
            headers["Content-Length"] = str(len(self.body))
        headers |= self.headers
        if self.secret is not None and self.secret.may_go_to(self.url):
            headers["Authorization"] = f"Bearer {self.secret.text}"
        lines = [f"{self.method} {self.url.target} HTTP/1.1"]
        for name, value in headers.items():
            if "\r" in value or "\n" in value:
                raise UsageError(f"the header {name} contains a line break")
            lines.append(f"{name}: {value}")
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + self.body


@dataclass(frozen=True)
class HttpReply:
    """A reply. The names in ``headers`` are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ReplyParser:
    """Parses one reply: call ``feed`` with received bytes, and ``end`` when the peer closes. ``reply`` is set
    when the reply is complete.
    """

    def __init__(self, *, max_body: int = DEFAULT_MAX_BODY) -> None:
        self._max_body = max_body
        self._buffer = bytearray()
        self._body = bytearray()
        self._status = 0
        self._headers: dict[str, str] | None = None
        self._left: int | None = None  # bytes of the body, or of the chunk, still to come
        self._chunked = False
        self.reply: HttpReply | None = None

    @property
    def another_may_follow(self) -> bool:
        """Whether the reply said where it ends, and the bytes end there too."""
        end = b"\r\n" if self._chunked else b""
        return self.reply is not None and (self._chunked or self._left is not None) and self._buffer == end

    def feed(self, data: bytes) -> None:
        if self.reply is not None:
            return
        self._buffer += data
        while self._headers is None and self._take_head():
            pass
        if self._headers is not None:
            self._take_body()

    def end(self) -> None:
        """Note that the peer has closed: this completes only a reply without a length."""
        if self.reply is None and self._headers is not None and self._left is None and not self._chunked:
            self._complete()
        if self.reply is None:
            raise ApiError("the connection was closed in the middle of the reply")

    def _take_head(self) -> bool:
        """Parse a head; return whether it was complete. A 1xx head is not final: another one follows."""
        end = self._buffer.find(b"\r\n\r\n")
        if end > MAX_HEAD or (end < 0 and len(self._buffer) > MAX_HEAD):
            raise ApiError(f"the reply's head is larger than {MAX_HEAD} bytes")
        if end < 0:
            # A peer that speaks another protocol may never send the end of a head.
            if not self._buffer.startswith(_VERSION[: len(self._buffer)]):
                raise _not_http(self._buffer)
            return False
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        self._status = _status(lines[0])
        if 100 <= self._status < 200:
            return True
        self._headers = _headers(lines[1:])
        self._expect_body(self._headers)
        return True

    def _expect_body(self, headers: dict[str, str]) -> None:
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        if self._status in (204, 304):
            self._left = 0
        elif not self._chunked and length is not None:
            # int() raises an error of its own for thousands of digits; no size needs twenty.
            if not (length.isascii() and length.isdigit() and len(length) < 20):
                raise ApiError(f"the reply's Content-Length is {length[:80]!r}")
            self._left = int(length)
            self._check_size(self._left)

    def _take_body(self) -> None:
        if self._chunked:
            self._take_chunks()
            return
        self._body += self._buffer
        self._buffer.clear()
        self._check_size(len(self._body))
        if self._left is not None and len(self._body) >= self._left:
            self._buffer += self._body[self._left :]
            del self._body[self._left :]
            self._complete()

    def _take_chunks(self) -> None:
        while True:
            if self._left is None:
                end = self._buffer.find(b"\r\n", 0, _MAX_CHUNK_LINE)
                if end < 0:
                    if len(self._buffer) >= _MAX_CHUNK_LINE:
                        raise ApiError("the reply has an endless chunk size")
                    return
                self._left = _chunk_size(bytes(self._buffer[:end]))
                self._check_size(len(self._body) + self._left)
                del self._buffer[: end + 2]
            if self._left == 0:
                self._complete()  # we need no trailers
                return
            if len(self._buffer) < self._left + 2:
                return
            if self._buffer[self._left : self._left + 2] != b"\r\n":
                raise ApiError("the reply has a chunk of another size than it says")
            self._body += self._buffer[: self._left]
            del self._buffer[: self._left + 2]
            self._left = None

    def _check_size(self, size: int) -> None:
        if size > self._max_body:
            raise ApiError(f"the reply's body is larger than {self._max_body} bytes")

    def _complete(self) -> None:
        self.reply = HttpReply(self._status, self._headers or {}, bytes(self._body))


def _status(line: str) -> int:
    version, _, rest = line.partition(" ")
    code = rest[:3]
    if not version.startswith(_VERSION.decode()) or not (code.isascii() and code.isdigit()):
        raise _not_http(line.encode("latin-1"))
    return int(code)


def _not_http(data: bytes | bytearray) -> ApiError:
    if data.startswith(_REFUSALS):
        return ApiError(
            "this is a TCP port of NSQ; the HTTP port is another one (4151 for nsqd, 4161 for nsqlookupd)"
        )
    return ApiError(f"the peer does not answer in HTTP but with {bytes(data[:80])!r}")


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ApiError(f"the reply has the header line {line[:80]!r}")
        headers[name.strip().lower()] = value.strip()
    return headers


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    # int alone would take a sign, underscores and 0x.
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise ApiError(f"the reply has the chunk size {line[:80]!r}")
    return int(digits, 16)


def fields_of(body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object, such as an error's body; none for any other body."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def tls_port(reply: HttpReply) -> int | None:
    """Return the HTTPS port that an nsqd names when it refuses plain HTTP; None for other replies."""
    fields = fields_of(reply.body)
    if reply.status != 403 or fields.get("message") != "TLS_REQUIRED":
        return None
    port = fields.get("https_port")
    return port if type(port) is int and 0 < port < 65536 else None
