"""``nsq_to_http``: sends each message to an HTTP server by POST or GET; a success finishes it."""

from __future__ import annotations

from nsq.threads.stop_signals import hold_signals

if __name__ == "__main__":
    hold_signals()  # before the other imports

import base64
import dataclasses
import itertools
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote_plus, unquote, urljoin, urlsplit, urlunsplit

from nsq import Message, NsqError, Requeue
from nsq.errors import ApiError, ConfigError
from nsq.http.message import HttpReply, HttpRequest, Url, parse_url
from nsq.http.sending import KeptConnections
from nsq.tools.destinations import (
    EPSILON_GREEDY,
    HOSTPOOL,
    MULTICAST,
    ROUND_ROBIN,
    StatusLines,
    check_mode,
    choice,
)
from nsq.tools.program import (
    COMPATIBLE_VERSION,
    ConsumerFlags,
    HttpFlags,
    SignalWatch,
    duration,
    flag,
    log,
    repeated,
    run,
    run_consumers,
)

PROG = "nsq_to_http"
_DEFAULT_TYPE = "application/octet-stream"
_MOST_REDIRECTS = 10
#: Not sent to another host, nor from https to http, after a redirect.
_CONFIDENTIAL = ("authorization", "www-authenticate", "cookie", "cookie2")
#: In the address of a GET, as printf has it: %s is the message's body, %% a percent sign.
_PLACES = re.compile("%[%s]")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Headers that say where a request's body ends.
_FRAMING = ("content-length", "transfer-encoding", "trailer")
_MODES = (HOSTPOOL, ROUND_ROBIN, EPSILON_GREEDY, MULTICAST)


@dataclass(frozen=True, kw_only=True)
class ToHttpOptions(ConsumerFlags, HttpFlags):
    topic: str = flag("", "NSQ topic")
    channel: str = flag("nsq_to_http", "NSQ channel")
    post: tuple[str, ...] = repeated(
        str, "HTTP address to make a POST request to (may be given multiple times)"
    )
    get: tuple[str, ...] = repeated(
        str, "HTTP address to make a GET request to; %s is the message's body (may be given multiple times)"
    )
    header: tuple[str, ...] = repeated(
        str, "header for each request, 'Key: Value' (may be given multiple times)"
    )
    content_type: str = flag(_DEFAULT_TYPE, "the Content-Type of POST requests")
    n: int = flag(100, "number of concurrent requests", low=1, high=10_000)
    mode: str = flag(
        HOSTPOOL, f"how to choose the address of a message: {', '.join(_MODES[:3])}, or {MULTICAST} for all"
    )
    sample: float = flag(1.0, "share of the messages to send; the others are finished", low=0.0, high=1.0)
    status_every: int = flag(250, "requests between two status lines (0 for none)")
    http_client_request_timeout: float = duration(20.0, "timeout for HTTP request (0 for an hour)", low=0.0)
    round_robin: bool = flag(False, "", deprecated="use --mode=round-robin")
    throttle_fraction: float | None = flag(None, "", deprecated="use --sample")
    http_timeout: float | None = duration(None, "", deprecated="use --http-client-request-timeout")
    http_timeout_ms: int | None = flag(None, "", deprecated="use --http-client-request-timeout")

    def __post_init__(self) -> None:
        self._take_deprecated()
        if not self.topic:
            raise ConfigError("--topic required")
        if not self.get and not self.post:
            raise ConfigError("--get or --post required")
        if self.get and self.post:
            raise ConfigError("use --get or --post not both")
        if self.get and self.content_type != _DEFAULT_TYPE:
            raise ConfigError("--content-type is only for --post")
        for address in self.get:
            if _PLACES.findall(address).count("%s") != 1:
                raise ConfigError(f"--get {address}: needs exactly one %s, for the message's body")
        if not self.content_type:
            raise ConfigError("--content-type is empty")
        check_mode(self.mode, _MODES, in_go=MULTICAST)
        super().__post_init__()

    def _take_deprecated(self) -> None:
        milliseconds = None if self.http_timeout_ms is None else self.http_timeout_ms / 1000
        timeout = self.http_timeout if self.http_timeout is not None else milliseconds
        given = {
            "mode": ROUND_ROBIN if self.round_robin else None,
            "sample": self.throttle_fraction,
            "http_client_request_timeout": timeout,
            "http_client_connect_timeout": timeout,
        }
        for name, value in given.items():
            if value is not None:
                object.__setattr__(self, name, value)


def main(argv: Sequence[str] | None = None) -> int:
    return run(ToHttpOptions, argv, PROG, forward)


def forward(options: ToHttpOptions) -> int:
    sender = Sender(options)
    consumer = options.consumer(PROG, options.topic, options.channel, threads=options.n)
    consumer.add_handler(sender)
    try:
        with SignalWatch() as watch:
            run_consumers([consumer], watch, lambda: False)
    finally:
        sender.close()
    return 0


class Destination:
    """An address from the command line, and the request for a message."""

    def __init__(self, address: str, headers: dict[str, str], method: str) -> None:
        try:
            parts = urlsplit(address if "://" in address else f"http://{address}")
        except ValueError as error:
            raise ConfigError(f"--{method.lower()} {address}: {error}") from None
        user, at, host = parts.netloc.rpartition("@")
        if at:
            name, _, password = user.partition(":")
            secret = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
            headers = {"Authorization": f"Basic {secret}", **headers}
        self.name = urlunsplit(parts._replace(netloc=host))
        self._url = parse_url(self.name)
        self._method = method
        self._headers = headers

    def request(self, body: bytes) -> HttpRequest:
        if self._method == "POST":
            return HttpRequest(self._url, "POST", self._headers, body)
        url = parse_url(_PLACES.sub(lambda found: quote_plus(body) if found[0] == "%s" else "%", self.name))
        return HttpRequest(url, "GET", self._headers)

    def accepts(self, status: int) -> bool:
        return 200 <= status < 300 if self._method == "POST" else status == 200


class Sender:
    """A handler, called by many threads."""

    def __init__(self, options: ToHttpOptions) -> None:
        headers = {"User-Agent": f"{PROG} v{COMPATIBLE_VERSION}", **headers_of(options.header)}
        if options.post:
            headers.setdefault("Content-Type", options.content_type)
        method = "POST" if options.post else "GET"
        several = [Destination(address, headers, method) for address in (*options.post, *options.get)]
        self._destinations = {each.name: each for each in several}
        names = list(self._destinations)
        self._multicast = names if options.mode == MULTICAST else []
        self._choice = choice(options.mode, names)
        self._connections = KeptConnections(connect_timeout=options.connect_timeout)
        self._timeout = options.request_timeout
        self._sample = options.sample
        self._status = StatusLines(names, options.status_every, lambda line: log.info("%s", line))

    def __call__(self, message: Message) -> None:
        if self._sample < 1.0 and random.random() >= self._sample:
            return
        for name in self._multicast or [self._choice.choose()]:
            began = time.monotonic()
            try:
                self._send(self._destinations[name], message.body)
            except NsqError as error:
                self._choice.mark(name, None)
                log.error("%r is requeued: %s", message, error)
                raise Requeue() from None
            took = time.monotonic() - began
            self._choice.mark(name, took)
            self._status.add(name, took)

    def _send(self, destination: Destination, body: bytes) -> None:
        request = destination.request(body)
        for redirects in itertools.count():
            reply = self._connections.send(request, timeout=self._timeout)
            if reply.status not in (301, 302, 303, 307, 308) or "location" not in reply.headers:
                break
            if redirects == _MOST_REDIRECTS:
                raise ApiError(f"{request.url}: more than {_MOST_REDIRECTS} redirects")
            request = redirected(request, reply)
        if not destination.accepts(reply.status):
            raise ApiError(f"{request.url} answered {reply.status}")

    def close(self) -> None:
        self._connections.close()


def headers_of(given: Sequence[str]) -> dict[str, str]:
    """Parse headers. Names are spelled as in Go, ``X-Key``, so that none is sent in two spellings."""
    headers: dict[str, str] = {}
    for each in given:
        name, _, value = each.partition(":")
        name, value = name.strip(), value.strip()
        if not _HEADER_NAME.fullmatch(name) or not value or any(character in each for character in "\r\n"):
            raise ConfigError(f"--header {each!r} is not of the form 'Key: Value'")
        if name.lower() in _FRAMING:
            raise ConfigError(f"--header {each!r}: {PROG} sends this header itself")
        headers["-".join(map(str.capitalize, name.split("-")))] = value
    return headers


def redirected(request: HttpRequest, reply: HttpReply) -> HttpRequest:
    """The request that follows a redirect, as Go's client makes it: after 301 to 303 a GET without a body."""
    base = f"{request.url.scheme}://{request.url.authority}{request.url.target}"
    try:
        url = parse_url(urljoin(base, reply.headers["location"]).partition("#")[0])
    except ValueError as error:
        raise ApiError(f"{request.url} redirects to an invalid address: {error}") from None
    headers = dict(request.headers)
    if not _same_site(url, request.url):
        headers = {name: value for name, value in headers.items() if name.lower() not in _CONFIDENTIAL}
    if reply.status in (307, 308):
        return dataclasses.replace(request, url=url, headers=headers)
    headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
    return HttpRequest(url, "GET", headers)


def _same_site(url: Url, before: Url) -> bool:
    if before.scheme == "https" != url.scheme:
        return False
    return url.host == before.host or url.host.endswith(f".{before.host}")


if __name__ == "__main__":
    sys.exit(main())
