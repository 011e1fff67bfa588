"""HTTP/1.1 requests and replies as bytes: what a small client needs of it, and bounds on all of it.

Pure: the blocking sender and the asyncio sender both drive it. Imports only errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from nsq.errors import ApiError, UsageError

#: Head and body of a reply may be this large; the largest real ones are the /stats of big clusters.
MAX_HEAD = 64 * 1024
DEFAULT_MAX_BODY = 64 * 1024 * 1024


@dataclass(frozen=True)
class Url:
    """Where a request goes. ``target`` is path and query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The Host header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target.partition('?')[0]}"


_DEFAULT_PORTS = {"http": 80, "https": 443}


def parse_url(text: str) -> Url:
    """``http://host:port/path?query``, or ``host:port/path``, which means http."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as fault:
        raise UsageError(f"address {text!r} is not a URL: {fault}") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise UsageError(f"address {text!r} has the scheme {parts.scheme!r}; there are http and https")
    if not parts.hostname:
        raise UsageError(f"address {text!r} names no host")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if any(character <= " " or character == "\x7f" for character in target):
        raise UsageError(f"address {text!r} has a space or control character in its path")
    port = port if port is not None else _DEFAULT_PORTS[parts.scheme]
    return Url(parts.scheme, parts.hostname, port, target)


@dataclass(frozen=True)
class HttpRequest:
    url: Url
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def encode(self) -> bytes:
        """The whole request, for a connection used once."""
        headers = {"Host": self.url.authority, "Connection": "close", "Accept-Encoding": "identity"}
        if self.body or self.method != "GET":
            headers["Content-Length"] = str(len(self.body))
        headers |= self.headers
        lines = [f"{self.method} {self.url.target} HTTP/1.1"]
        for name, value in headers.items():
            if "\r" in value or "\n" in value:
                raise UsageError(f"the header {name} contains a line break")
            lines.append(f"{name}: {value}")
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + self.body


@dataclass(frozen=True)
class HttpReply:
    """``headers`` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ReplyParser:
    """Collects one reply: ``feed`` what comes, ``end`` when the peer closes; ``reply`` is there when
    it is whole.
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

    def feed(self, data: bytes) -> None:
        if self.reply is not None:
            return
        self._buffer += data
        if self._headers is None:
            self._take_head()
        if self._headers is not None:
            self._take_body()

    def end(self) -> None:
        """The peer closed: complete only when nothing told the body's length."""
        if self.reply is None and self._headers is not None and self._left is None and not self._chunked:
            self._complete()
        if self.reply is None:
            raise ApiError("the connection was closed in the middle of the reply")

    def _take_head(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end > MAX_HEAD or (end < 0 and len(self._buffer) > MAX_HEAD):
            raise ApiError(f"the reply's head is larger than {MAX_HEAD} bytes")
        if end < 0:
            return
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        self._status = _status(lines[0])
        self._headers = {}
        if 100 <= self._status < 200:
            self._headers = None
            self._take_head()
            return
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise ApiError(f"the reply has the header line {line[:80]!r}")
            self._headers[name.strip().lower()] = value.strip()
        self._expect_body(self._headers)

    def _expect_body(self, headers: dict[str, str]) -> None:
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        if self._status in (204, 304):
            self._left = 0
        elif not self._chunked and length is not None:
            if not (length.isascii() and length.isdigit()):
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
            del self._body[self._left :]
            self._complete()

    def _take_chunks(self) -> None:
        while True:
            if self._left is None:
                line, newline, _ = self._buffer[:MAX_HEAD].partition(b"\r\n")
                if not newline:
                    if len(line) > 1024:
                        raise ApiError("the reply has an endless chunk size")
                    return
                self._left = _chunk_size(bytes(line))
                self._check_size(len(self._body) + self._left)
                del self._buffer[: len(line) + 2]
            if self._left == 0:
                self._complete()  # trailers, if any, say nothing we need
                return
            if len(self._buffer) < self._left + 2:
                return
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
    if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit()):
        raise ApiError(f"the peer does not answer in HTTP but with {line[:80]!r}")
    return int(code)


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise ApiError(f"the reply has the chunk size {line[:80]!r}") from None
