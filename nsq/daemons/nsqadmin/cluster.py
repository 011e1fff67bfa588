"""The nsqlookupds and nsqds behind nsqadmin: finds them, and sends them requests.

All are asked concurrently, each with its deadline. The failures of some are returned beside the replies of
the others; if all fail, UpstreamError is raised.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from nsq.daemons.nsqadmin.aggregate import Json, read_topics
from nsq.daemons.nsqadmin.options import NSQD_PORT, NsqadminOptions
from nsq.daemons.serve import http_client
from nsq.errors import ApiError, ConfigError, NsqError
from nsq.http.calls import ACCEPT, Call, endpoint, json_value
from nsq.http.cluster import Node, by_host, merge_lookups, merge_nodes, named_node, summarize
from nsq.http.message import HttpReply, HttpRequest, Url, parse_url, tls_port
from nsq.http.nsqd import parse_info as parse_nsqd_info
from nsq.http.nsqd import stats_args
from nsq.http.nsqlookupd import (
    RegisteredNode,
    beside_lookup,
    lookup_path,
    nsqlookupd_address,
    parse_channels,
    parse_lookup,
    parse_nodes,
    parse_topics,
)
from nsq.http.secret import HttpSecret, secret_of_program

T = TypeVar("T")
K = TypeVar("K")

#: Concurrent requests to one upstream. The limit is per upstream, so that one that hangs delays no other.
_CONCURRENCY = 8


class UpstreamError(NsqError):
    """Every nsqlookupd or nsqd that was asked failed."""


class Send(Protocol):
    def __call__(
        self,
        request: HttpRequest,
        *,
        connect_timeout: float,
        request_timeout: float,
        tls: ssl.SSLContext | None,
    ) -> Awaitable[HttpReply]: ...


@dataclass
class Found(Generic[T]):
    """The merged replies of several daemons, and the failures as texts."""

    value: T
    failures: list[str] = field(default_factory=list)


class Cluster:
    """Sends requests to the nsqlookupds of the options and their nsqds, or to the nsqds of the options."""

    def __init__(self, options: NsqadminOptions, *, send: Send = http_client.send) -> None:
        self.lookupds = options.lookupd_http_addresses
        self.nsqds = options.nsqd_http_addresses
        self._given = frozenset(options.lookupd_http_addresses)
        self._secret = _secret(options)
        self._connect_timeout = options.http_client_connect_timeout
        self._request_timeout = options.http_client_request_timeout
        self._options = options
        self._tls = _tls_context(options) if _has_tls_options(options) else None
        self._send = send
        self._free: WeakValueDictionary[Url, asyncio.Semaphore] = WeakValueDictionary()
        self._reading = asyncio.Lock()

    # Topics, channels and nsqds

    async def topics(self) -> Found[list[str]]:
        """Return all topics, sorted by name."""
        if not self.lookupds:
            nodes = await self.nodes()
            return Found(sorted({name for node in nodes.value for name in node.topics}), nodes.failures)
        found = await self._ask_lookupds(lambda url: get(beside_lookup(url), "/topics", {}, parse_topics))
        return Found(sorted(set(itertools.chain(*found.value.values()))), found.failures)

    async def channels(self, topic: str) -> Found[list[str]]:
        """Return the topic's channels that nsqlookupds know."""
        found = await self._ask_lookupds(
            lambda url: get(beside_lookup(url), "/channels", {"topic": topic}, parse_channels)
        )
        return Found(sorted(set(itertools.chain(*found.value.values()))), found.failures)

    async def nodes(self) -> Found[list[Node]]:
        """Return every nsqd, sorted by host name."""
        if not self.lookupds:
            return await self._named_nodes()
        found = await self._ask_lookupds(lambda url: get(beside_lookup(url), "/nodes", {}, parse_nodes))
        return Found(merge_nodes(found.value), found.failures)

    async def producers(self, topic: str) -> Found[list[Node]]:
        """Return the nsqds that a lookup of the topic returns."""
        if not self.lookupds:
            named = await self._named_nodes()
            return Found([node for node in named.value if topic in node.topics], named.failures)
        found = await self._ask_lookupds(
            lambda url: get(url, lookup_path(url), {"topic": topic}, parse_lookup)
        )
        return Found(merge_lookups(found.value.values()), found.failures)

    async def holders(self, topic: str) -> Found[list[Node]]:
        """Return all nsqds that have the topic, also tombstoned ones: an action must reach them all."""
        if not self.lookupds:
            return await self.producers(topic)
        producers, nodes = await asyncio.gather(self.producers(topic), self.nodes())
        found = {node.info.tcp_address: node for node in producers.value}
        found |= {node.info.tcp_address: node for node in nodes.value if topic in node.topics}
        failures = list(dict.fromkeys(producers.failures + nodes.failures))
        return Found(sorted(found.values(), key=by_host), failures)

    async def listed(self, lookupd: str) -> tuple[list[RegisteredNode], list[str]]:
        """Return the nsqds and the topics that one nsqlookupd knows."""
        url = self._url_of(lookupd)
        nodes, topics = await asyncio.gather(
            self.ask(get(url, "/nodes", {}, parse_nodes)),
            self.ask(get(url, "/topics", {}, parse_topics)),
        )
        return nodes, topics

    # Statistics of nsqds

    async def stats(
        self, nodes: Sequence[Node], now: float, *, topic: str = "", channel: str = "", clients: bool = False
    ) -> Found[list[Json]]:
        """Ask the nodes for their topics, in the shape of the API. UpstreamError if none of them replies."""
        args = stats_args(topic, channel, include_clients=clients)

        async def one(node: Node) -> list[Json]:
            def read(reply: HttpReply) -> list[Json]:
                return read_topics(json_value(reply), node.name, node.info.hostname, now)

            return await self.ask(get(node.url, "/stats", args, read))

        found = await self.gather("nsqd", nodes, one)
        return Found([each for topics in found.value.values() for each in topics], found.failures)

    # Posting

    async def post_lookupds(self, path: str, args: Mapping[str, str]) -> list[str]:
        """Post to every nsqlookupd; return the failures."""

        async def one(lookupd: str) -> None:
            await self.ask(post(self._url_of(lookupd), path, args))

        return (await self._each(self.lookupds, one)).failures

    async def post_nodes(self, nodes: Sequence[Node], path: str, args: Mapping[str, str]) -> list[str]:
        """Post to all of these nsqds, to partitioned ones for each partition that they lead; return the
        failures.
        """

        async def one(node: Node) -> None:
            partitions = [{"partition": each} for each in node.partitions.get(args["topic"], ())]
            for each in partitions or [{}]:
                await self.ask(post(node.url, path, {**args, **each}))

        return (await self._each(nodes, one)).failures

    # Requests

    async def ask(self, call: Call[T]) -> T:
        """Send an nsqd or nsqlookupd one request, with the secret if its address may have it."""
        request = dataclasses.replace(call.request, secret=self._secret)
        return await self.ask_other(dataclasses.replace(call, request=request))

    async def ask_other(self, call: Call[T]) -> T:
        """Send any server one request, without the secret unless it has one. If an nsqd requires TLS, repeat
        it with TLS at the port that it names.
        """
        url = call.request.url
        free = self._free.setdefault(dataclasses.replace(url, target=""), asyncio.Semaphore(_CONCURRENCY))
        try:
            async with asyncio.timeout(self._request_timeout):
                await free.acquire()
        except TimeoutError:
            raise ApiError(f"{url} is busy: {_CONCURRENCY} requests are waiting for its replies") from None
        try:
            reply = await self._exchange(call.request)
            port = tls_port(reply)
            if port is not None:
                secure = dataclasses.replace(url, scheme="https", port=port)
                reply = await self._exchange(dataclasses.replace(call.request, url=secure))
        finally:
            free.release()
        # Parsing a large reply takes long: one at a time, and the event loop serves others in between.
        async with self._reading:
            await asyncio.sleep(0)
            return call.answer(reply)

    async def _exchange(self, request: HttpRequest) -> HttpReply:
        if self._tls is None and request.url.scheme == "https":
            self._tls = _tls_context(self._options)
        return await self._send(
            request,
            connect_timeout=self._connect_timeout,
            request_timeout=self._request_timeout,
            tls=self._tls,
        )

    async def gather(
        self, kind: str, asked: Sequence[K], one: Callable[[K], Awaitable[T]]
    ) -> Found[dict[K, T]]:
        """Call ``one`` for each, concurrently; UpstreamError if all of them fail."""
        found = await self._each(asked, one)
        if not found.value:
            raise UpstreamError(f"failed to query any {kind}: " + "\n".join(found.failures))
        return found

    async def _each(self, asked: Sequence[K], one: Callable[[K], Awaitable[T]]) -> Found[dict[K, T]]:
        outcomes = await asyncio.gather(*map(one, asked), return_exceptions=True)
        found: Found[dict[K, T]] = Found({})
        for each, outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, NsqError):
                found.failures.append(str(outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                found.value[each] = outcome
        return found

    async def _ask_lookupds(self, call: Callable[[Url], Call[T]]) -> Found[dict[str, T]]:
        return await self.gather(
            "nsqlookupd", self.lookupds, lambda lookupd: self.ask(call(self._named_url(lookupd)))
        )

    def _named_url(self, lookupd: str) -> Url:
        # One that was set over HTTP may be anybody's, like those that nsqlookupds tell.
        return dataclasses.replace(nsqlookupd_address(lookupd), told=lookupd not in self._given)

    def _url_of(self, lookupd: str) -> Url:
        return beside_lookup(self._named_url(lookupd))

    async def named_node(self, address: str) -> Node:
        """Return an nsqd of --nsqd-http-address, without its topics."""
        url = parse_url(address, NSQD_PORT)
        return named_node(url, await self.ask(get(url, "/info", {}, parse_nsqd_info)))

    async def _named_nodes(self) -> Found[list[Node]]:
        """Return the nsqds of --nsqd-http-address, with their topics."""

        async def one(address: str) -> Node:
            node, partitions = await asyncio.gather(
                self.named_node(address),
                self.ask(get(parse_url(address, NSQD_PORT), "/stats", stats_args(), _partitions)),
            )
            return dataclasses.replace(node, topics=dict.fromkeys(partitions, False), partitions=partitions)

        found = await self.gather("nsqd", self.nsqds, one)
        return Found(sorted(found.value.values(), key=by_host), found.failures)


def get(base: Url, path: str, args: Mapping[str, str], parse: Callable[[HttpReply], T]) -> Call[T]:
    return Call(HttpRequest(endpoint(base, path, args), "GET", ACCEPT), parse)


def post(base: Url, path: str, args: Mapping[str, str]) -> Call[None]:
    return Call(HttpRequest(endpoint(base, path, args), "POST", ACCEPT), lambda _: None)


def _partitions(reply: HttpReply) -> dict[str, tuple[str, ...]]:
    """Return the topics of an nsqd, with the partitions that it leads; none of an original one."""
    return {name: topic.partitions for name, topic in summarize(json_value(reply), 0.0).topics.items()}


def _secret(options: NsqadminOptions) -> HttpSecret | None:
    text = secret_of_program(options.http_secret_file)
    verified = options.http_client_tls_root_ca_file and not options.http_client_tls_insecure_skip_verify
    return HttpSecret(text, options.http_secret_to, bool(verified)) if text else None


def _has_tls_options(options: NsqadminOptions) -> bool:
    files = options.http_client_tls_root_ca_file, options.http_client_tls_cert
    return any(files) or options.http_client_tls_insecure_skip_verify


def _tls_context(options: NsqadminOptions) -> ssl.SSLContext:
    """Make the TLS context for nsqds and nsqlookupds that are asked over https."""
    ca, cert = options.http_client_tls_root_ca_file, options.http_client_tls_cert
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if cert:
            context.load_cert_chain(cert, options.http_client_tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--http-client-tls-root-ca-file {ca!r}, -cert {cert!r}: {error}") from None
    if options.http_client_tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
