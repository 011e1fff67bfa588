"""Registers this nsqd's topics and channels with every nsqlookupd, and keeps them registered.

One task per nsqlookupd connects, registers everything, then sends every change, and reconnects when the
connection fails. For a new topic all nsqlookupds are asked which channels it has on other nsqds, so that
those channels miss no message.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.core.topic import Topic
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.serve.http_client import send
from nsq.daemons.serve.listen import Address, UnixAddress, peer_address_of
from nsq.daemons.serve.logs import DaemonLog
from nsq.errors import ApiError, NsqError, WireError
from nsq.http.message import HttpRequest, Url
from nsq.http.secret import HttpSecret, secret_of_program
from nsq.pauses import doubled
from nsq.wire import lookup
from nsq.wire.lookup import PeerInfo
from nsq.wire.names import is_ephemeral, valid_channel

_PING_EVERY = 15.0
_ANSWER_WITHIN = 5.0
_FIRST_RETRY = 0.1
_LAST_RETRY = 15.0
#: The most commands sent before reading their replies. One by one, a hundred thousand topics would take as
#: many round trips.
_BATCH = 500


class Registration:
    """The broker's observer, and one ``Peer`` per nsqlookupd."""

    def __init__(self, broker: Broker, options: NsqdOptions, log: DaemonLog) -> None:
        self._broker = broker
        self._options = options
        self._log = log
        self._secret: HttpSecret | None = None
        if secret := secret_of_program(options.http_secret_file):
            self._secret = HttpSecret(secret)
        self._peers: dict[str, _Peer] = {}
        self._identity: PeerInfo | None = None
        self._asking: set[asyncio.Task[None]] = set()

    def start(self, identity: PeerInfo, addresses: Iterable[str]) -> None:
        self._identity = identity
        self.set_addresses(addresses)

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Register with exactly these nsqlookupds from now on. ConfigError for an invalid address."""
        wanted = {address: peer_address_of("--lookupd-tcp-address", address) for address in addresses}
        if self._identity is None:
            return
        for address in self._peers.keys() - wanted.keys():
            self._log.info("LOOKUPD(%s): removing peer", address)
            self._peers.pop(address).cancel()
        for address in wanted.keys() - self._peers.keys():
            self._log.info("LOOKUPD(%s): adding peer", address)
            self._peers[address] = _Peer(wanted[address], self._identity, self._everything, self._log)

    @property
    def addresses(self) -> list[str]:
        return list(self._peers)

    async def close(self) -> None:
        """Disconnect from every nsqlookupd and end all tasks."""
        self._identity = None
        peers = list(self._peers.values())
        self._peers.clear()
        for task in [*self._asking, *(peer.task for peer in peers)]:
            task.cancel()
        await asyncio.gather(*self._asking, *(peer.task for peer in peers), return_exceptions=True)

    def _everything(self) -> Iterator[bytes]:
        """Yield the commands that register all topics and channels. Later changes are sent after them."""
        for topic in list(self._broker.topics.values()):
            yield lookup.register(topic.name)
            for name in list(topic.channels):
                yield lookup.register(topic.name, name)

    def _tell(self, command: bytes) -> None:
        for peer in self._peers.values():
            peer.tell(command)

    # The broker's observer.

    def topic_created(self, topic: Topic) -> None:
        self._log.info("TOPIC(%s): created", topic.name)
        self._tell(lookup.register(topic.name))
        # An nsqlookupd that was set over HTTP may be anybody's: it does not get the secret.
        given = self._options.lookupd_tcp_addresses
        apis = [
            Url("http", *peer.http, "", told=address not in given)
            for address, peer in self._peers.items()
            if peer.http is not None
        ]
        if not apis:
            topic.start()
            return
        task = asyncio.get_running_loop().create_task(self._learn_channels(topic, apis))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        # Start the topic however the task ends, because publishers wait for it. A callback, since a task
        # that is cancelled before it begins does not run its ``finally``.
        task.add_done_callback(lambda _: topic.start())

    def topic_deleted(self, topic: Topic) -> None:
        self._log.info("TOPIC(%s): deleted", topic.name)
        self._tell(lookup.unregister(topic.name))

    def channel_created(self, channel: Channel) -> None:
        self._log.info("TOPIC(%s): new channel(%s)", channel.topic_name, channel.name)
        self._tell(lookup.register(channel.topic_name, channel.name))

    def channel_deleted(self, channel: Channel) -> None:
        self._log.info("TOPIC(%s): deleted channel(%s)", channel.topic_name, channel.name)
        self._tell(lookup.unregister(channel.topic_name, channel.name))

    async def _learn_channels(self, topic: Topic, apis: list[Url]) -> None:
        """Make the channels that the topic has on other nsqds, before its first message."""
        answers = await asyncio.gather(*(self._channels_of(topic.name, api) for api in apis))
        if self._broker.topics.get(topic.name) is not topic:
            return  # deleted meanwhile; its channels must not be registered again
        for name in sorted(set().union(*answers)):
            if valid_channel(name) and not is_ephemeral(name):
                try:
                    topic.channel(name)
                except StorageFailed as error:
                    self._log.error("TOPIC(%s): channel(%s) cannot be created: %s", topic.name, name, error)

    async def _channels_of(self, topic: str, api: Url) -> set[str]:
        url = dataclasses.replace(api, target=f"/channels?topic={quote(topic, safe='')}")
        accept = {"Accept": "application/vnd.nsq; version=1.0"}
        try:
            reply = await send(
                HttpRequest(url, headers=accept, secret=self._secret),
                connect_timeout=self._options.http_client_connect_timeout,
                request_timeout=self._options.http_client_request_timeout,
            )
            if reply.status == 401:
                raise ApiError("it wants a login: give --http-secret-file")
            return set(map(str, json.loads(reply.body)["channels"])) if reply.status == 200 else set()
        except (ApiError, ValueError, KeyError, TypeError) as error:
            self._log.warning("LOOKUPD(%s): channels of topic %s unknown - %s", url, topic, error)
            return set()


class _Peer:
    """One nsqlookupd: the commands to send it next, and the task that sends them."""

    def __init__(
        self,
        address: Address,
        identity: PeerInfo,
        everything: Callable[[], Iterator[bytes]],
        log: DaemonLog,
    ) -> None:
        self._address = address
        self._identity = identity
        self._everything = everything
        self._log = log
        self._news: asyncio.Queue[bytes] = asyncio.Queue()
        self._connected = False
        self.http: tuple[str, int] | None = None
        name = f"nsqd-lookupd-{address}"
        self.task = asyncio.get_running_loop().create_task(self._stay_registered(), name=name)

    def tell(self, command: bytes) -> None:
        # Nothing is queued without a connection: a new connection registers everything first.
        if self._connected:
            self._news.put_nowait(command)

    def cancel(self) -> None:
        self.task.cancel()

    async def _stay_registered(self) -> None:
        failures = 0
        while True:
            try:
                await self._session()
            except (OSError, NsqError, EOFError) as error:
                self._log.error("LOOKUPD(%s): %s", self._address, str(error) or type(error).__name__)
            except Exception as error:
                # A bug in nsqd must not end the task: consumers would not find this nsqd any more.
                self._log.error("LOOKUPD(%s): %r, a bug in nsqd", self._address, error)
            failures = 0 if self._connected else failures + 1
            self._connected = False
            pause = doubled(_FIRST_RETRY, _LAST_RETRY, failures)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _session(self) -> None:
        """Connect, IDENTIFY, register everything, then send every change, or PING when there is none."""
        self._log.info("LOOKUPD connecting to %s", self._address)
        async with asyncio.timeout(_ANSWER_WITHIN):
            reader, writer = await _connect(self._address)
        try:
            exchange = _Exchange(reader, writer)
            answer = await exchange.ask(lookup.MAGIC + lookup.identify(self._identity))
            self._learn(lookup.parse_peer_info(answer))
            self._connected = True
            while not self._news.empty():
                self._news.get_nowait()
            everything = self._everything()
            while batch := list(itertools.islice(everything, _BATCH)):
                await exchange.confirm(batch)
            while True:
                await exchange.confirm(await self._next_commands())
        finally:
            writer.close()

    async def _next_commands(self) -> list[bytes]:
        try:
            async with asyncio.timeout(_PING_EVERY):
                commands = [await self._news.get()]
        except TimeoutError:
            return [lookup.ping()]
        while len(commands) < _BATCH and not self._news.empty():
            commands.append(self._news.get_nowait())
        return commands

    def _learn(self, peer: PeerInfo) -> None:
        self._log.info("LOOKUPD(%s): peer info %s", self._address, peer)
        self.http = (peer.broadcast_address, peer.http_port) if peer.broadcast_address else None


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(address, UnixAddress):
        return await asyncio.open_unix_connection(address.path)
    return await asyncio.open_connection(address.host, address.port)


class _Exchange:
    """Sends commands over one connection and reads their replies, each within ``_ANSWER_WITHIN``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = lookup.LookupReplyParser()

    async def ask(self, command: bytes) -> bytes:
        return (await self._replies([command]))[0]

    async def confirm(self, commands: list[bytes]) -> None:
        for command, answer in zip(commands, await self._replies(commands), strict=False):
            if answer != lookup.OK:
                raise WireError(f"{command!r} was answered with {answer!r}")

    async def _replies(self, commands: list[bytes]) -> list[bytes]:
        """Send the commands and read their replies; after an error reply no further ones come."""
        if self._writer.is_closing():
            # The connection ended while it was idle. With uvloop, write() would raise RuntimeError.
            raise ConnectionResetError("nsqlookupd has reset the connection")
        self._writer.write(b"".join(commands))
        replies: list[bytes] = []
        while len(replies) < len(commands) and not (replies and replies[-1].startswith(b"E_")):
            async with asyncio.timeout(_ANSWER_WITHIN):
                data = await self._reader.read(4096)
            if not data:
                raise EOFError("nsqlookupd closed the connection")
            replies += self._parser.feed(data)
        return replies
