"""TLS without a socket: OpenSSL between two buffers."""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from nsq.errors import ConfigError, LayerError
from nsq.wire.layers.base import MAX_OUTPUT, Breakable

#: The type of the context, for modules that need nothing else of ssl.
TlsContext = ssl.SSLContext

_TLS_RECORD = 16384
T = TypeVar("T")


class Tls(Breakable):
    """TLS over memory buffers; ``pending`` and ``unwrap`` carry the handshake.

    A reading and a writing thread may share it. The context decides what is verified.
    """

    _name = "tls"

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None,
        max_output: int = MAX_OUTPUT,
    ) -> None:
        self._max_output = max_output
        if context.check_hostname and not server_side and not server_hostname:
            # SSLSocket refuses this; SSLObject would accept a certificate of any name.
            raise ConfigError("tls: the context checks host names, so server_hostname must be given")
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        try:
            name = codecless(server_hostname)
            self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side, name)
        except (ValueError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls: the context or {server_hostname=} is unusable: {reason(error)}"
            ) from error
        # Guards the SSL object and both buffers; never held during I/O.
        self._lock = threading.Lock()
        self._closed = False
        self.handshake_done = False
        self.peer_closed = False
        self.more = False
        self.has_pending = False
        self.unwrap(b"")  # a client speaks first: this leaves its hello pending

    def wrap(self, data: bytes) -> bytes:
        with self._lock:
            self.refuse_if_broken()
            if not self.handshake_done or self._closed:
                state = "is closed" if self._closed else "handshake is not done"
                raise LayerError(f"tls: {state}; {len(data)} bytes cannot be wrapped")
            rest = memoryview(data)
            try:
                while rest:  # write may take less than it is given
                    rest = rest[self._ssl.write(rest) :]
            except ssl.SSLError as error:
                self.has_pending = self._outgoing.pending > 0
                raise self.broken(f"write failed: {reason(error)}") from error
            return self._drain()

    def unwrap(self, data: bytes) -> bytes:
        with self._lock:
            self.refuse_if_broken()
            if data:
                self._incoming.write(data)
            try:
                if not self.handshake_done:
                    self._ssl.do_handshake()
                    self.handshake_done = True
                return self._read()
            except ssl.SSLWantReadError:
                return b""
            except ssl.SSLError as error:
                stage = "read" if self.handshake_done else "handshake"
                raise self.broken(f"{stage} failed: {reason(error)}") from error
            finally:
                self.has_pending = self._outgoing.pending > 0

    def pending(self) -> bytes:
        with self._lock:
            return self._drain()

    def close(self) -> bytes:
        with self._lock:
            if self.handshake_done and not self._closed and self._failure is None:
                self._say_goodbye()
            self._closed = True
            return self._drain()

    def _read(self) -> bytes:
        """Read whole records, so that ``_incoming`` holds everything that is left."""
        records: list[bytes] = []
        room = self._max_output
        # Without this check, an exception would end every chunk.
        while self._incoming.pending and room >= _TLS_RECORD and not self.peer_closed:
            try:
                record = self._ssl.read(_TLS_RECORD)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                record = b""
            self.peer_closed = not record
            records.append(record)
            room -= len(record)
        if self.peer_closed:
            self._incoming.read()  # what follows a close_notify must be ignored
        self.more = room < _TLS_RECORD and self._incoming.pending > 0
        return records[0] if len(records) == 1 else b"".join(records)

    def _say_goodbye(self) -> None:
        # After its close_notify, OpenSSL reads the peer's, and fails on data: so hide the unread input.
        unread = self._incoming.read()
        with suppress(ssl.SSLError):  # usually "want read": the peer has not answered yet
            self._ssl.unwrap()
        self._incoming.write(unread)

    def _drain(self) -> bytes:
        self.has_pending = False
        return self._outgoing.read()

    def _agreed(self, ask: Callable[[ssl.SSLObject], T]) -> T | None:
        """Ask for a result of the handshake; None before it is done."""
        with self._lock:
            return ask(self._ssl) if self.handshake_done else None

    @property
    def version(self) -> str | None:
        """The version, such as ``TLSv1.3``."""
        return self._agreed(ssl.SSLObject.version)

    @property
    def cipher(self) -> str | None:
        """OpenSSL's name of the cipher suite."""
        suite = self._agreed(ssl.SSLObject.cipher)
        return suite[0] if suite else None

    @property
    def selected_alpn(self) -> str | None:
        return self._agreed(ssl.SSLObject.selected_alpn_protocol)

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """The fields of the peer's certificate, if it sent one; empty when the context did not verify it."""
        return self._agreed(lambda each: each.getpeercert())

    @property
    def peer_common_name(self) -> str:
        """The subject's common name in the peer's verified certificate, or an empty string."""
        subject = (self.peer_certificate or {}).get("subject", ())
        names = (value for part in subject for key, value in part if key == "commonName")
        return str(next(names, ""))


def codecless(name: str | None) -> str | bytes | None:
    """Encode a host name to bytes. For text, ssl has Python import the idna codec at its first use; in a
    child that is forked during that import the codec stays half imported, and no handshake begins.
    """
    return name.encode("ascii") if name is not None and name.isascii() else name


def reason(error: Exception) -> str:
    """OpenSSL's or the system's text without the place in CPython's source. It shows no content of a file."""
    return re.sub(r" \(_ssl\.c:\d+\)$", "", getattr(error, "strerror", None) or str(error))
