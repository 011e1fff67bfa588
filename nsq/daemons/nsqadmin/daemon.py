"""The nsqadmin daemon: starts and stops the HTTP port with its page and API."""

from __future__ import annotations

from nsq.daemons.nsqadmin.api import Api
from nsq.daemons.nsqadmin.cluster import Cluster
from nsq.daemons.nsqadmin.notifications import Notifications
from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.serve.httpd import HttpServer
from nsq.daemons.serve.listen import Address, parse_address
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.process import Orders

#: How long stop() waits for notifications to be sent.
STOP_SECONDS = 0.5


class Nsqadmin:
    """An nsqadmin on one event loop, started and stopped once."""

    def __init__(self, options: NsqadminOptions, *, log: DaemonLog | None = None) -> None:
        self._options = options
        self._log = log or DaemonLog.of(options)
        cluster = Cluster(options)
        self._notifications = Notifications(options.notification_http_endpoint, cluster, self._log)
        self._api = Api(options, cluster, self._notifications, self._log)
        self._http = HttpServer(self._api.routes(), self._log)
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
        self._http_address = await self._http.listen(parse_address(self._options.http_address))
        self._log.info("HTTP: listening on %s", self._http_address)
        self._api.watch()

    async def reload(self) -> None:
        """Do nothing: only the log has a file to open again."""

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
