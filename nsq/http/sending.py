"""The blocking sender of HTTP requests: plain sockets, and one deadline for everything a request takes.

Imports no other part of the client, and ssl and certifi only when an address is https.
"""

from __future__ import annotations

import dataclasses
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from nsq.errors import ApiError
from nsq.http.calls import tls_port
from nsq.http.message import DEFAULT_MAX_BODY, HttpReply, HttpRequest, ReplyParser, Url

if TYPE_CHECKING:
    import ssl

#: Opens a connection to where a URL points, within so many seconds; OSError when it cannot.
Connect = Callable[[Url, float], socket.socket]
Opened = Callable[[socket.socket], None]
Asking = Callable[[Callable[[], None]], None]

DEFAULT_TIMEOUT = 5.0
_RECEIVE = 64 * 1024


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, more than none; TimeoutError afterwards."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def send(
    request: HttpRequest,
    *,
    timeout: float,
    tls: ssl.SSLContext | None = None,
    connect: Connect | None = None,
    upgrade: bool = False,
    max_body: int = DEFAULT_MAX_BODY,
) -> HttpReply:
    """Send and return the reply, whatever its status; ApiError says why there is none.

    ``timeout`` covers everything: finding the host, connecting, TLS, sending, and the last byte of the reply.
    Without ``tls``, https is verified with certifi's authorities. ``upgrade`` sends the request again with
    TLS when an nsqd insists on it, to the port it names, within the same timeout. ``connect`` replaces
    ``connected``, which opens sockets. Redirects are not followed.
    """
    deadline = _Deadline(timeout)
    opened = connect or connected

    def exchange(request: HttpRequest) -> HttpReply:
        try:
            with _stream(request.url, opened, tls, deadline) as stream:
                return _exchanged(stream, request.encode(), deadline, max_body)
        except ApiError as error:
            raise ApiError(f"{request.url}: {error}") from None
        except TimeoutError:
            raise ApiError(f"{request.url} did not answer within {timeout:g} s") from None
        except (OSError, UnicodeError, OverflowError) as error:
            # The last two: a host that is no name, a port that is none. TLS errors are OSErrors.
            raise ApiError(f"{request.url} cannot be reached: {error}") from None

    reply = exchange(request)
    port = tls_port(reply) if upgrade and request.url.scheme == "http" else None
    if port is None:
        return reply
    url = dataclasses.replace(request.url, scheme="https", port=port, socket_path="")
    return exchange(dataclasses.replace(request, url=url))


def _exchanged(stream: socket.socket, data: bytes, deadline: _Deadline, max_body: int) -> HttpReply:
    refused: OSError | None = None
    try:
        _send(stream, data, deadline)
    except (BrokenPipeError, ConnectionResetError) as error:
        # A server that refuses a large body answers and closes before it has read all of it.
        refused = error
    parser = ReplyParser(max_body=max_body)
    try:
        return _received(stream, parser, deadline)
    except (ApiError, OSError):
        if refused is None:
            raise
        raise refused from None


def _send(stream: socket.socket, data: bytes, deadline: _Deadline) -> None:
    # Not sendall: with TLS it would grant every piece the whole timeout anew.
    rest = memoryview(data)
    while rest:
        stream.settimeout(deadline.left())
        rest = rest[stream.send(rest) :]


def _received(stream: socket.socket, parser: ReplyParser, deadline: _Deadline) -> HttpReply:
    while parser.reply is None:
        stream.settimeout(deadline.left())
        data = stream.recv(_RECEIVE)
        if data:
            parser.feed(data)
        else:
            parser.end()
    return parser.reply


# Connecting


def _stream(url: Url, connect: Connect, tls: ssl.SSLContext | None, deadline: _Deadline) -> socket.socket:
    plain = connect(url, deadline.left())
    if url.scheme != "https":
        return plain
    try:
        plain.settimeout(deadline.left())  # of the whole handshake
        # A reply that ends without TLS's own end may have been cut short by somebody.
        return (tls or _public_authorities()).wrap_socket(
            plain, server_hostname=_codecless(url.host), suppress_ragged_eofs=False
        )
    except BaseException:
        plain.close()
        raise


@cache
def _public_authorities() -> ssl.SSLContext:
    import ssl

    import certifi

    return ssl.create_default_context(cafile=certifi.where())


def connected(
    url: Url, timeout: float, opened: Opened = lambda _: None, asking: Asking = lambda _: None
) -> socket.socket:
    """A plain connection to a URL's Unix socket, or to the first of its host's addresses that accepts.

    ``opened`` is called with each socket before it connects; what it raises ends the attempt. ``asking`` is
    given what ends the wait for a name's addresses, before that begins.
    """
    deadline = _Deadline(timeout)
    if url.socket_path:
        return _connected_to(socket.AF_UNIX, url.socket_path, deadline.left(), opened)
    found = _addresses(url.host, url.port, deadline, asking)
    fault: OSError = OSError(f"{url.host} has no address")
    for tried, (family, _, _, _, where) in enumerate(found):
        # Shared out, so that an address that swallows everything leaves time for the next.
        share = deadline.left() / (len(found) - tried)
        try:
            return _connected_to(family, where, share, opened)
        except OSError as failed:
            fault = failed
    raise fault


def _connected_to(family: int, where: Any, timeout: float, opened: Opened) -> socket.socket:
    stream = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened(stream)
        stream.settimeout(timeout)
        stream.connect(where)
    except BaseException:
        stream.close()
        raise
    return stream


def _addresses(host: str, port: int, deadline: _Deadline, asking: Asking) -> list[Any]:
    with suppress(socket.gaierror):
        return socket.getaddrinfo(
            _codecless(host), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    return _looked_up(host, port, deadline, asking)


def _looked_up(host: str, port: int, deadline: _Deadline, asking: Asking) -> list[Any]:
    """A name's addresses. The system's resolver knows no deadline, so a thread waits for it."""
    answers: queue.SimpleQueue[list[Any] | Exception | None] = queue.SimpleQueue()
    asking(lambda: answers.put(None))

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(_codecless(host), port, type=socket.SOCK_STREAM))
        except Exception as error:
            answers.put(error)

    # A daemon: nothing can end it before the resolver itself gives up, and nobody waits for it then.
    thread = threading.Thread(target=ask, name=f"nsq-resolve-{host}", daemon=True)
    thread.start()
    try:
        answer = answers.get(timeout=deadline.left())
    except queue.Empty:
        raise TimeoutError from None
    if answer is None:
        raise OSError("interrupted")
    thread.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _codecless(host: str) -> str | bytes:
    """For text Python imports the idna codec, at its first use. A child that is forked while another thread
    does that has half a codec: for as long as it lives, no lookup would succeed."""
    return host.encode("ascii") if host.isascii() else host


# Cutting requests short


class Interrupter:
    """``interrupt`` ends at once whatever is looked up, connecting, sent or awaited, then and later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the three below
        self._handles: set[socket.socket] = set()
        self._lookups: set[Callable[[], None]] = set()
        self._interrupted = False

    @contextmanager
    def connecting(self) -> Iterator[Connect]:
        """The ``connect`` for one request, to be left when the request is over."""
        handles: list[socket.socket] = []
        lookups: list[Callable[[], None]] = []

        def asking(end: Callable[[], None]) -> None:
            lookups.append(end)
            self._note(end)

        def connect(url: Url, timeout: float) -> socket.socket:
            return connected(url, timeout, lambda stream: handles.append(self._watch(stream)), asking)

        try:
            yield connect
        finally:
            for handle in handles:
                self._unwatch(handle)
            with self._lock:
                self._lookups.difference_update(lookups)

    def interrupt(self) -> None:
        with self._lock:
            self._interrupted = True
            for end in self._lookups:
                end()
            for handle in self._handles:
                # Never blocks. An OSError: the peer was faster.
                with suppress(OSError):
                    handle.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """In a forked child: the requests are its parent's. Takes no lock: it may be held for ever."""
        handles, self._handles = self._handles, set()
        for handle in handles:
            handle.close()

    def _note(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._lookups.add(end)
            if self._interrupted:
                end()

    def _watch(self, stream: socket.socket) -> socket.socket:
        # A duplicate, as TLS takes the descriptor away from the stream itself.
        handle = stream.dup()
        with self._lock:
            if not self._interrupted:
                self._handles.add(handle)
                return handle
        handle.close()
        raise OSError("interrupted")

    def _unwatch(self, handle: socket.socket) -> None:
        # Under the lock: nobody must shut down a descriptor that by then is somebody else's.
        with self._lock:
            self._handles.discard(handle)
            handle.close()
