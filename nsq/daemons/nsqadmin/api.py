"""The HTTP API of nsqadmin: the table of its routes and their handlers.

The replies have the shapes of Go's nsqadmin. Only ours has /api/overview, which the page polls, /api/peek,
/api/tail and /api/charts, and the action redrive.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Iterable
from typing import Any

from nsq.daemons.nsqadmin import aggregate
from nsq.daemons.nsqadmin.actions import Actions
from nsq.daemons.nsqadmin.aggregate import Json
from nsq.daemons.nsqadmin.cluster import Cluster
from nsq.daemons.nsqadmin.graphite import Graphite
from nsq.daemons.nsqadmin.guard import MAX_BODY, Guard, finished, reply_with
from nsq.daemons.nsqadmin.live import Live
from nsq.daemons.nsqadmin.notifications import Notifications
from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.nsqadmin.overview import Overview
from nsq.daemons.nsqadmin.page import Page
from nsq.daemons.nsqadmin.peek import peek
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.routes import OK, Handler, HttpError, Reply, Request, Route
from nsq.flags import config_key, is_duration
from nsq.http.cluster import Node, newest_version
from nsq.http.nsqlookupd import nsqlookupd_address

#: Routes that an open page polls: they are not logged.
_POLLED = (("GET", "/api/overview"), ("GET", "/api/tail/:topic/:id"))
#: The age in seconds that a page's first figures may have.
_OPENING = 10.0
_VIEWS: tuple[str, ...] = (
    "/",
    "/topics",
    "/topics/:topic",
    "/topics/:topic/:channel",
    "/nodes",
    "/nodes/:node",
)
_VIEWS += ("/counter", "/lookup")


class NsqadminApi:
    def __init__(
        self, options: NsqadminOptions, cluster: Cluster, notifications: Notifications, log: DaemonLog
    ) -> None:
        self._guard = Guard(options)
        self._page = Page(options, self._guard)
        self._options = options
        self._cluster = cluster
        self._log = log
        self._live = Live(options, cluster)
        self._actions = Actions(cluster, self._live, notifications)
        self._graphite = Graphite(options, cluster, log)
        self._overview = Overview(cluster)
        self._settings = {config_key(field): field for field in dataclasses.fields(options)}

    def watch(self) -> None:
        """Begin to record the figures that pages draw as curves."""
        self._overview.watch()

    async def close(self) -> None:
        """End polls and tails."""
        await self._overview.close()
        await self._live.close()

    def routes(self) -> list[Route]:
        admin, config, named = self._guard.admin_only, self._guard.config_only, self._guard.named
        actions, live, graphite = self._actions, self._live, self._graphite
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/api/topics", self.topics),
            ("GET", "/api/topics/:topic", self.topic),
            ("GET", "/api/topics/:topic/:channel", self.channel),
            ("GET", "/api/nodes", self.nodes),
            ("GET", "/api/nodes/:node", self.node),
            ("POST", "/api/topics", admin(actions.create)),
            ("POST", "/api/topics/:topic", admin(actions.act)),
            ("POST", "/api/topics/:topic/:channel", admin(actions.act)),
            ("DELETE", "/api/topics/:topic", admin(actions.delete)),
            ("DELETE", "/api/topics/:topic/:channel", admin(actions.delete)),
            ("DELETE", "/api/nodes/:node", admin(actions.tombstone)),
            ("GET", "/api/counter", self.counter),
            ("GET", "/api/graphite", graphite.rate),
            ("GET", "/config/:opt", config(self.get_setting)),
            ("PUT", "/config/:opt", config(self.put_setting)),
            ("GET", "/api/overview", self.overview),
            ("GET", "/api/charts", graphite.charts),
            ("POST", "/api/tail/:topic", admin(live.open_tail)),
            ("GET", "/api/tail/:topic/:id", admin(live.tail)),
            ("DELETE", "/api/tail/:topic/:id", admin(live.close_tail)),
            ("GET", "/api/peek/:topic", admin(self.peek)),
            ("GET", "/api/peek/:topic/:channel", admin(self.peek)),
        ]
        plain: list[tuple[str, Handler]] = [
            *((view, self.view) for view in _VIEWS),
            ("/static/:asset", self._page.asset),
            ("/fonts/:asset", self._page.asset),
        ]
        if self._options.proxy_graphite:
            plain.append(("/render", graphite.render))
        prefix = self._options.prefix
        routes = [Route("GET", f"{prefix}/ping", finished(lambda _: OK), plain=True)]
        for method, path, handler in table:
            logged = (method, path) not in _POLLED
            routes.append(Route(method, prefix + path, finished(named(handler)), logged=logged))
        for path, handler in plain:
            routes.append(Route("GET", prefix + path, finished(named(handler)), plain=True))
        return routes

    # Viewing

    def view(self, request: Request) -> Reply:
        """Serve the page, and prepare the overview that it will request when it is loaded."""
        self._overview.prepare(_OPENING)
        return self._page.view(request)

    async def topics(self, request: Request) -> Reply:
        found = await self._cluster.topics()
        if request.args.get("inactive") != "true":
            return reply_with({"topics": found.value}, found.failures)
        if not self._cluster.lookupds:
            return reply_with({"topics": {}}, found.failures)
        nodes = await self._cluster.nodes()
        active = {name for node in nodes.value for name, hidden in node.topics.items() if not hidden}
        inactive = [name for name in found.value if name not in active]
        channels = await asyncio.gather(*(self._cluster.channels(name) for name in inactive))
        named = {name: each.value or None for name, each in zip(inactive, channels, strict=True)}
        return reply_with({"topics": named}, found.failures + nodes.failures)

    async def topic(self, request: Request) -> Reply:
        name = request.params["topic"]
        topics, failures = await self._stats_of(name)
        return reply_with(aggregate.merge_topics(name, topics), failures)

    async def channel(self, request: Request) -> Reply:
        topic, channel = request.params["topic"], request.params["channel"]
        topics, failures = await self._stats_of(topic, channel)
        parts = [
            each
            for topic_stats in topics
            for each in topic_stats["channels"]
            if each["channel_name"] == channel
        ]
        merged = aggregate.merge_channels(topic, channel, parts) if parts else {}
        return reply_with(merged, failures)

    async def _stats_of(self, topic: str, channel: str = "") -> tuple[list[Json], list[str]]:
        producers = await self._cluster.producers(topic)
        found = await self._cluster.stats(
            producers.value, time.time(), topic=topic, channel=channel, clients=bool(channel)
        )
        topics = [each for each in found.value if each["topic_name"] == topic]
        return topics, producers.failures + found.failures

    async def nodes(self, request: Request) -> Reply:
        found = await self._cluster.nodes()
        newest = newest_version(found.value)
        return reply_with(
            {"nodes": [aggregate.node_shown(node, newest) for node in found.value]}, found.failures
        )

    async def node(self, request: Request) -> Reply:
        found = await self._cluster.nodes()
        node = _named(found.value, request.params["node"])
        stats = await self._cluster.stats([node], time.time(), clients=True)
        shown = {
            "node": node.name,
            "topics": stats.value,
            "total_messages": sum(topic["message_count"] for topic in stats.value),
            "total_clients": sum(
                len(channel["clients"] or ()) for topic in stats.value for channel in topic["channels"]
            ),
        }
        return reply_with(shown, found.failures + stats.failures)

    async def counter(self, request: Request) -> Reply:
        nodes = await self._cluster.nodes()
        found = await self._cluster.stats(nodes.value, time.time())
        return reply_with({"stats": aggregate.counters(found.value)}, nodes.failures + found.failures)

    async def overview(self, request: Request) -> Reply:
        """Serve the overview. With ?opening=true an older one is enough, as the page polls again at once, and
        it has the figures of the last minutes.
        """
        if request.args.get("opening") == "true":
            overview = await self._overview.look(_OPENING)
            return Reply.json({**overview, "history": self._overview.history.shown()})
        return Reply.json(await self._overview.look())

    async def peek(self, request: Request) -> Reply:
        return await peek(self._cluster, request)

    # Settings

    def get_setting(self, request: Request) -> Reply:
        return self._setting(request.params["opt"])

    async def put_setting(self, request: Request) -> Reply:
        # As in Go's nsqadmin, an empty body also counts as too large.
        body = await request.read(MAX_BODY, "INVALID_VALUE")
        if not 0 < len(body) <= MAX_BODY:
            raise HttpError(413, "INVALID_VALUE")
        name = request.params["opt"]
        try:
            if name == "nsqlookupd_http_addresses":
                self._cluster.lookupds = _addresses(json.loads(body))
            elif name == "log_level":
                self._log.level = body.decode("utf-8", "replace")
            else:
                raise HttpError(400, "INVALID_OPTION")
        except (ValueError, RecursionError):
            raise HttpError(400, "INVALID_VALUE") from None
        return self._setting(name)

    def _setting(self, name: str) -> Reply:
        field = self._settings.get(name)
        if field is None or field.name == "client_opts":  # it may hold a secret
            raise HttpError(400, "INVALID_OPTION")
        setting = getattr(self._options, field.name)
        if name == "nsqlookupd_http_addresses":
            setting = self._cluster.lookupds
        elif name == "log_level":
            setting = self._log.level
        elif is_duration(field):
            setting = round(setting * 1_000_000_000)
        return Reply.text(setting) if isinstance(setting, str) else Reply.json(setting)


def _named(nodes: Iterable[Node], name: str) -> Node:
    for node in nodes:
        if node.name == name:
            return node
    raise HttpError(404, "NODE_NOT_FOUND")


def _addresses(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(each, str) for each in given):
        raise ValueError
    for each in given:
        nsqlookupd_address(each)
    return tuple(given)
