"""The nsqlookupd daemon: starts and stops the registry's TCP and HTTP ports."""

from __future__ import annotations

import socket
import time

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.nsqlookupd.http import may_read, routes
from nsq.daemons.nsqlookupd.options import NsqlookupdOptions
from nsq.daemons.nsqlookupd.registry import Registry
from nsq.daemons.nsqlookupd.tcp import LookupConnection, LookupSession
from nsq.daemons.serve.httpd import HttpServer
from nsq.daemons.serve.listen import Address, Listener, TcpAddress, listen, parse_address
from nsq.daemons.serve.logins import Gate
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.process import Orders
from nsq.daemons.serve.slices import Slices
from nsq.wire.lookup import PeerInfo

# How long stop() waits for the last replies to be sent.
STOP_SECONDS = 0.5


class Nsqlookupd:
    """An nsqlookupd on one event loop, started and stopped once."""

    def __init__(self, options: NsqlookupdOptions, *, log: DaemonLog | None = None) -> None:
        self._options = options
        self._log = log or DaemonLog.of(options)
        self._registry = Registry(
            inactive_after=options.inactive_producer_timeout, tombstone_lifetime=options.tombstone_lifetime
        )
        # The registry uses the monotonic clock: a step of the wall clock must not make every nsqd inactive.
        epoch = time.time() - time.monotonic()
        self._slices = Slices()
        self._gate = Gate(options.http_logins, self._log, may_read) if options.http_logins else None
        self._http = HttpServer(
            routes(self._registry, self._slices, time.monotonic, epoch, legacy_get=options.legacy_get),
            self._log,
            gates=[self._gate] if self._gate else [],
        )
        self._tcp: Listener | None = None
        self._connections: set[LookupConnection] = set()
        self._tcp_address: Address | None = None
        self._http_address: Address | None = None
        self.orders = Orders()

    @property
    def tcp_address(self) -> str | None:
        """The address that was actually bound, as host:port or a path; None before start()."""
        return None if self._tcp_address is None else str(self._tcp_address)

    @property
    def http_address(self) -> str | None:
        return None if self._http_address is None else str(self._http_address)

    async def start(self) -> None:
        """Listen on both ports, or raise ListenError with neither open."""
        try:
            self._tcp = await listen(self._connection, parse_address(self._options.tcp_address))
            self._tcp_address = self._tcp.address
            self._log.info("TCP: listening on %s", self._tcp_address)
            self._http_address = await self._http.listen(parse_address(self._options.http_address))
            self._log.info("HTTP: listening on %s", self._http_address)
            if self._gate is not None:
                self._gate.warn_of_plain_http(self._http_address)
        except BaseException:
            await self.stop()
            raise

    async def reload(self) -> None:
        """Read the logins again."""
        if self._gate is not None:
            self._gate.reload()

    def hurry(self) -> None:
        """Do nothing: a stop takes about a second."""

    async def drain(self) -> None:
        """Do nothing: nsqds stay registered with other nsqlookupds, and register again after a restart."""

    async def stop(self) -> bool:
        """Close the ports and every connection. May be called twice, or without start(). Returns True, as
        nothing can be lost.
        """
        tcp, self._tcp = self._tcp, None
        if tcp is not None:
            await tcp.close()
            self._log.info("TCP: closing %s", tcp.address)
        connections = list(self._connections)
        for connection in connections:
            connection.close(within=STOP_SECONDS)
        await self._http.close()
        for connection in connections:
            await connection.wait_closed()
        return True

    def _connection(self) -> LookupConnection:
        return LookupConnection(self._session, self._connections, time.monotonic, self._slices.run)

    def _session(self, remote_address: str) -> LookupSession:
        self._log.info("TCP: new client(%s)", remote_address)
        return LookupSession(self._registry, remote_address, self._own_info, self._log)

    def _own_info(self) -> PeerInfo:
        return PeerInfo(
            broadcast_address=self._options.broadcast_address,
            hostname=socket.gethostname(),
            http_port=_port(self._http_address),
            tcp_port=_port(self._tcp_address),
            version=COMPATIBLE_VERSION,
        )


def _port(address: Address | None) -> int:
    return address.port if isinstance(address, TcpAddress) else 0
