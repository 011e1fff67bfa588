"""The nsqd daemon: starts, drains and stops the broker and its TCP, HTTP and HTTPS ports."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.nsqd.connection import Connection
from nsq.daemons.nsqd.core.bound import Bound
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.core.clock import LoopClock
from nsq.daemons.nsqd.http import Context, may_read, routes, tls_gate
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.registration import Registration
from nsq.daemons.nsqd.session.session import Environment, Session
from nsq.daemons.nsqd.stats import Memory
from nsq.daemons.nsqd.statsd import StatsdSender, statsd_push
from nsq.daemons.nsqd.storage.storage import Storage
from nsq.daemons.nsqd.tls import server_context
from nsq.daemons.serve.httpd import HttpServer
from nsq.daemons.serve.listen import Address, Listener, TcpAddress, listen, parse_address
from nsq.daemons.serve.logins import Gate
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.process import Orders
from nsq.errors import NsqError
from nsq.wire.lookup import PeerInfo

if TYPE_CHECKING:
    from nsq.daemons.nsqd.authd import AuthServers

#: How long stop() waits for clients to read their last bytes.
_STOP_SECONDS = 2.0
#: While draining: seconds between two counts of the messages left, and between two progress lines.
_COUNT_EVERY = 0.25
_LOG_EVERY = 5.0
#: The shortest time of a drain. A publisher that is busy must learn of it from a refusal: if nsqd just closed
#: the connection, the publisher could not know whether its last messages are stored.
_LEAST_SECONDS = 0.5
#: The most log lines about queues whose messages stay on disk.
_LINES = 20


class Nsqd:
    """An nsqd on one event loop, started and stopped once."""

    def __init__(self, options: NsqdOptions, *, log: DaemonLog | None = None) -> None:
        self._options = options
        self._log = log or DaemonLog.of(options)
        self._tls = server_context(options, self._log)
        self._logins: Gate | None = None
        if options.http_logins:
            self._logins = Gate(
                options.http_logins,
                self._log,
                may_read,
                open_paths=options.http_open,
                origins=options.allow_pub_origins,
            )
        self._environment: Environment | None = None
        self._connections: set[Connection] = set()
        self._all_gone: asyncio.Event | None = None
        self._listener: Listener | None = None
        self._http: HttpServer | None = None
        self._https: HttpServer | None = None
        self._http_bound: Address | None = None
        self._https_bound: Address | None = None
        self._broker: Broker | None = None
        self._storage: Storage | None = None
        self._registration: Registration | None = None
        self._auth: AuthServers | None = None
        self._memory = Memory()
        self._statsd: StatsdSender | None = None
        self._hurried = asyncio.Event()
        self.orders = Orders()

    # The actual addresses as text; None while it does not listen there.

    @property
    def tcp_address(self) -> str | None:
        return str(self._listener.address) if self._listener else None

    @property
    def http_address(self) -> str | None:
        return str(self._http_bound) if self._http_bound else None

    @property
    def https_address(self) -> str | None:
        return str(self._https_bound) if self._https_bound else None

    # Lifecycle.

    async def start(self) -> None:
        options, log = self._options, self._log
        log.info("ID: %d", options.node_id)
        clock = LoopClock(asyncio.get_running_loop())
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._storage = Storage(options, clock, log)
        most = options.max_channel_depth
        self._broker = Broker(
            clock,
            node_id=options.node_id,
            bound=Bound(most, clock, lambda text: log.warning("%s", text)) if most else None,
            backlogs=self._storage,
            max_channel_consumers=options.max_channel_consumers,
            latency_percentiles=options.e2e_processing_latency_percentiles,
            latency_window=options.e2e_processing_latency_window_time,
        )
        self._registration = Registration(self._broker, options, log)
        self._broker.observer = self._registration
        if options.auth_http_addresses:
            from nsq.daemons.nsqd.authd import AuthServers

            self._auth = AuthServers(options)
        self._memory.start()
        try:
            self._storage.start(self._broker)
            if self._broker.bound is not None:
                self._broker.bound.look_at_start(self._broker.topics.values())
            self._environment = environment = Environment(
                options,
                self._broker,
                clock,
                log,
                tls=self._tls,
                authority=self._auth,
                sync_notifier=self._storage.publish_committer,
            )
            await self._listen(environment, self._registration, self._storage)
            self._registration.start(self._identity(), options.lookupd_tcp_addresses)
            self._statsd = statsd_push(options, self._http_port, self._broker, self._memory, log)
        except BaseException:
            await self.stop()
            raise

    async def _listen(self, environment: Environment, registration: Registration, storage: Storage) -> None:
        options, log = self._options, self._log
        self._listener = await listen(
            lambda: Connection(environment, self._connected, self._disconnected),
            parse_address(options.tcp_address),
        )
        log.info("TCP: listening on %s", self._listener.address)
        table = routes(
            Context(
                environment,
                registration,
                sessions=self._sessions,
                ports=lambda: (self._tcp_port, self._http_port),
                start_time=int(time.time()),
                memory=self._memory,
                storage=storage,
                orders=self.orders,
            )
        )
        serve = functools.partial(
            HttpServer,
            table,
            log,
            bodies=environment.bodies,
            errors=environment.http_errors,
            max_connections=options.max_connections,
        )
        gates = [self._logins] if self._logins is not None else []
        if self._tls is not None and options.https_address:
            self._https = serve(gates=gates)
            self._https_bound = await self._https.listen(parse_address(options.https_address), self._tls)
            log.info("HTTPS: listening on %s", self._https_bound)
        if options.http_address:
            refusing = [tls_gate(lambda: _port(self._https_bound))] if options.requires_https else []
            self._http = serve(gates=[*refusing, *gates])
            self._http_bound = await self._http.listen(parse_address(options.http_address))
            log.info("HTTP: listening on %s", self._http_bound)
            if self._logins is not None and not refusing:
                self._logins.warn_of_plain_http(self._http_bound)

    async def reload(self) -> None:
        """Read the logins and the certificates again, for new connections. On an error keep those in use."""
        if self._logins is not None:
            self._logins.reload()
        if self._tls is None or self._environment is None:
            return
        try:
            tls = server_context(self._options, self._log)
            if self._auth is not None:
                self._auth.read_certificates()
            if self._https is not None and tls is not None:
                await self._https.use_certificate(tls)
        except (NsqError, OSError) as error:
            self._log.error("%s; keeping the current certificate", error)
            return
        self._tls = self._environment.tls = tls
        self._log.info("--tls-cert %s: reloaded", self._options.tls_cert)

    async def drain(self) -> None:
        """Refuse publishes, leave the nsqlookupds, and wait: for publishes that are stored in part, and until
        consumers have finished their messages.
        """
        if self._broker is None or self._registration is None:
            return
        self._broker.draining = True
        await self._registration.close()
        await wait_until_drained(self._broker, self._log, self._options.drain_timeout)

    async def stop(self) -> bool:
        """Stop listening, disconnect everybody, write all messages to disk and end every task. Returns
        whether all of them are on disk.
        """
        try:
            await self._disconnect_everybody()
        finally:
            all_on_disk = await self._persist()
        return all_on_disk

    async def _disconnect_everybody(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()
            self._log.info("nsqd: stopping")
        if self._storage is not None and self._storage.publish_committer is not None:
            await self._unless_hurried(self._storage.settle())  # first: publishes over HTTP wait for it
        for server in (self._http, self._https):
            if server is not None:
                await server.close()
        self._http = self._https = self._http_bound = self._https_bound = None
        if self._auth is not None:
            await self._auth.close()
        if self._registration is not None:
            await self._registration.close()
        await self._disconnect_clients()
        if self._statsd is not None:
            await self._unless_hurried(self._statsd.close())

    def hurry(self) -> None:
        self._hurried.set()
        if self._storage is not None:
            self._log.warning("nsqd: %s; only SIGKILL ends this, and loses the rest", self._storage.progress)

    async def _unless_hurried(self, waiting: Coroutine[Any, Any, object]) -> None:
        """Wait until it is done, or until ``hurry`` is called."""
        loop = asyncio.get_running_loop()
        task, hurried = loop.create_task(waiting), loop.create_task(self._hurried.wait())
        try:
            await asyncio.wait({task, hurried}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            hurried.cancel()
            await asyncio.gather(task, hurried, return_exceptions=True)

    async def _persist(self) -> bool:
        self._memory.stop()
        broker, self._broker = self._broker, None
        if broker is None or self._storage is None:
            return True
        errors = await self._storage.stop(broker.close())
        for error in errors:
            self._log.error("%s", error)
        return not errors

    async def _disconnect_clients(self) -> None:
        for session in list(self._sessions()):
            session.close()
        if self._all_gone is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._unless_hurried(self._all_gone.wait())
        for connection in list(self._connections):
            connection.abort()
        await self._all_gone.wait()

    # Clients.

    def _connected(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._all_gone is not None:
            self._all_gone.clear()

    def _disconnected(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections and self._all_gone is not None:
            self._all_gone.set()

    def _sessions(self) -> Iterator[Session]:
        return (connection.session for connection in self._connections if connection.session is not None)

    # Facts about this nsqd for nsqlookupds and clients.

    @property
    def _tcp_port(self) -> int:
        return self._options.broadcast_tcp_port or _port(self._listener.address if self._listener else None)

    @property
    def _http_port(self) -> int:
        return self._options.broadcast_http_port or _port(self._http_bound)

    def _identity(self) -> PeerInfo:
        return PeerInfo(
            version=COMPATIBLE_VERSION,
            tcp_port=self._tcp_port,
            http_port=self._http_port,
            hostname=socket.gethostname(),
            broadcast_address=self._options.broadcast_address,
            topology_region=self._options.topology_region,
            topology_zone=self._options.topology_zone,
        )


def _port(address: Address | None) -> int:
    return address.port if isinstance(address, TcpAddress) else 0


# Draining. It waits only for channels with a consumer. Messages of other channels stay on disk, as at every
# stop: no new consumer can find an nsqd that has left its nsqlookupds.


@dataclass(frozen=True)
class Remaining:
    """The messages left to drain; ``staying`` lists the queues without a consumer and their depths."""

    waiting: int = 0
    in_flight: int = 0
    deferred: int = 0
    channels: int = 0
    staying: tuple[tuple[str, int], ...] = ()

    @property
    def nothing(self) -> bool:
        return not (self.waiting or self.in_flight or self.deferred)

    def __str__(self) -> str:
        return (
            f"{self.waiting} messages wait, {self.in_flight} are in flight, {self.deferred} deferred, "
            f"in {self.channels} channels"
        )


def count_remaining(broker: Broker) -> Remaining:
    """Count the messages that current consumers can still get, and those that stay on disk."""
    waiting = in_flight = deferred = channels = 0
    staying: list[tuple[str, int]] = []
    for topic in broker.topics.values():
        consumed = [
            channel for channel in topic.channels.values() if channel.subscribers and not channel.paused
        ]
        if consumed and topic.flows:
            waiting += topic.depth
        elif topic.depth:
            staying.append((topic.name, topic.depth))
        for channel in topic.channels.values():
            if channel in consumed:
                waiting += channel.depth
                in_flight += channel.in_flight_count
                deferred += channel.deferred_count
                channels += bool(_total(channel))
            elif _total(channel):
                staying.append((f"{topic.name}/{channel.name}", _total(channel)))
    return Remaining(waiting, in_flight, deferred, channels, tuple(staying))


def _total(channel: Channel) -> int:
    return channel.depth + channel.in_flight_count + channel.deferred_count


async def wait_until_drained(broker: Broker, log: DaemonLog, at_most: float) -> None:
    """Wait until no publish is stored in part and consumers have finished all messages they can get, or
    ``at_most`` seconds (0: no limit).
    """
    loop = asyncio.get_running_loop()
    began = logged_at = loop.time()
    at_least = min(_LEAST_SECONDS, at_most or _LEAST_SECONDS)
    left = count_remaining(broker)
    log.info("draining: %s", left)
    while broker.unfinished or not left.nothing or loop.time() - began < at_least:
        if at_most and loop.time() - began >= at_most:
            log.warning("draining: --drain-timeout is over, the rest stays on disk: %s", left)
            break
        await asyncio.sleep(_COUNT_EVERY)
        left = count_remaining(broker)
        if loop.time() - logged_at >= _LOG_EVERY:
            logged_at = loop.time()
            log.info("draining: %s", left)
    for name, messages in left.staying[:_LINES]:
        log.warning("draining: %d messages of %s stay on disk: there is no consumer", messages, name)
    if len(left.staying) > _LINES:
        log.warning("draining: so do messages of %d other queues", len(left.staying) - _LINES)
    log.info("draining: done after %.1f s", loop.time() - began)
