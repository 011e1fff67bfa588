"""The nsqadmin daemon: starts and stops the HTTP port with its page and API."""

from __future__ import annotations

import ssl

from nsq.daemons.nsqadmin.api import NsqadminApi
from nsq.daemons.nsqadmin.cluster import Cluster
from nsq.daemons.nsqadmin.notifications import Notifications
from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.serve.httpd import HttpServer
from nsq.daemons.serve.listen import Address, parse_address
from nsq.daemons.serve.logins import Gate, is_reading
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.process import Orders
from nsq.errors import ConfigError, NsqError

#: How long stop() waits for notifications to be sent.
STOP_SECONDS = 0.5


class Nsqadmin:
    """An nsqadmin on one event loop, started and stopped once."""

    def __init__(self, options: NsqadminOptions, *, log: DaemonLog | None = None) -> None:
        self._options = options
        self._log = log or DaemonLog.of(options)
        cluster = Cluster(options)
        self._notifications = Notifications(options.notification_http_endpoint, cluster, self._log)
        self._api = NsqadminApi(options, cluster, self._notifications, self._log)
        self._gate: Gate | None = None
        if options.http_logins:
            # What changes something, or shows messages, is for admins: ``Guard`` looks at the role.
            ping = {f"{options.prefix}/ping"}
            self._gate = Gate(options.http_logins, self._log, is_reading, open_paths=ping)
        self._tls = _tls_context(options)
        self._http = HttpServer(self._api.routes(), self._log, gates=[self._gate] if self._gate else [])
        self._http_address: Address | None = None
        self.orders = Orders()

    @property
    def tcp_address(self) -> None:
        """None: nsqadmin has no TCP port."""
        return None

    @property
    def http_address(self) -> str | None:
        """The address that was actually bound, as host:port or a path; None before start()."""
        return None if self._http_address is None else str(self._http_address)

    async def start(self) -> None:
        """Listen, or raise ListenError."""
        self._http_address = await self._http.listen(parse_address(self._options.http_address), self._tls)
        self._log.info("HTTP%s: listening on %s", "S" if self._tls else "", self._http_address)
        if self._gate is not None and self._tls is None:
            self._gate.warn_of_plain_http(self._http_address)
        self._api.watch()

    async def reload(self) -> None:
        """Read logins and the certificate again. On an error keep those in use."""
        if self._gate is not None:
            self._gate.reload()
        if self._tls is None:
            return
        try:
            tls = _tls_context(self._options)
            if tls is not None:
                await self._http.use_certificate(tls)
                self._tls = tls
                self._log.info("--tls-cert %s: reloaded", self._options.tls_cert)
        except (NsqError, OSError) as error:
            self._log.error("%s; keeping the current certificate", error)

    def hurry(self) -> None:
        """Do nothing: a stop takes about a second."""

    async def drain(self) -> None:
        """Do nothing: nsqadmin has no messages."""

    async def stop(self) -> bool:
        """Close the port and end all work. May be called twice, or without start()."""
        await self._http.close()
        await self._api.close()
        await self._notifications.close(STOP_SECONDS)
        return True


def _tls_context(options: NsqadminOptions) -> ssl.SSLContext | None:
    """Make the context for browsers; None without --tls-cert."""
    if not options.tls_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"--tls-cert {options.tls_cert!r}, --tls-key {options.tls_key!r}: {error}"
        ) from None
    return context
