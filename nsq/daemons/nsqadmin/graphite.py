"""Charts from Graphite: makes nsqadmin's formulas over nsqd's statsd names, and queries Graphite."""

from __future__ import annotations

import dataclasses
from typing import Any
from urllib.parse import urlencode

from nsq.daemons.nsqadmin.cluster import Cluster, UpstreamError
from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.routes import HttpError, Reply, Request
from nsq.errors import NsqError
from nsq.http.calls import Call, json_value
from nsq.http.message import HttpRequest, parse_url

_TOPIC = (("depth", False), ("message_count", True))
_CHANNEL = (
    ("depth", False),
    ("in_flight_count", False),
    ("deferred_count", False),
    ("clients", False),
    ("message_count", True),
    ("requeue_count", True),
    ("timeout_count", True),
)
_NODE = (("mem.heap_in_use_bytes", False), ("mem.gc_pause_usec_99", False), ("mem.gc_runs", True))
#: Characters that Graphite would read as a pattern or as the end of a name.
_UNSAFE = frozenset("*?[]{}(),'\" ")


class Graphite:
    """The API's handlers for Graphite."""

    def __init__(self, options: NsqadminOptions, cluster: Cluster, log: DaemonLog) -> None:
        self._options = options
        self._cluster = cluster
        self._log = log
        self._charts = Charts(options)

    def charts(self, request: Request) -> Reply:
        """Return the formulas for ?topic=, ?channel= and ?node=; none without --graphite-url."""
        args = request.args
        topic, channel, node = args.get("topic", ""), args.get("channel", ""), args.get("node", "")
        if not self._options.graphite_url:
            charts = []
        elif channel:
            charts = self._charts.of_channel(topic, channel, node)
        elif topic:
            charts = self._charts.of_topic(topic, node)
        else:
            charts = self._charts.of_node(node)
        return Reply.json({"charts": charts})

    async def rate(self, request: Request) -> Reply:
        if request.args.get("metric") != "rate":
            raise HttpError(400, "INVALID_ARG_METRIC")
        target = request.args.get("target", "")
        if not target:
            raise HttpError(400, "INVALID_ARG_TARGET")
        try:
            answer = await self._ask(self._charts.rate_query(target), json_value)
        except NsqError as error:
            self._log.error("failed to query Graphite: %s", error)
            raise HttpError(500, "INTERNAL_ERROR") from None
        return Reply.json({"rate": self._charts.rate(answer)})

    async def render(self, request: Request) -> Reply:
        """Fetch a chart from Graphite for a browser that cannot reach it."""
        try:
            reply = await self._ask(request.query, lambda found: found)
        except NsqError as error:
            raise HttpError(502, str(error)) from None
        kind = reply.headers.get("content-type", "")
        if not kind.startswith(("image/png", "application/json")):
            raise HttpError(502, "Graphite's reply is neither a picture nor JSON")
        return Reply(reply.body, kind)

    async def _ask(self, query: str, parse: Any) -> Any:
        if not self._options.graphite_url:
            raise UpstreamError("there is no --graphite-url")
        base = parse_url(self._options.graphite_url)
        url = dataclasses.replace(base, target=f"{base.target.rstrip('/')}/render?{query}")
        call: Call[Any] = Call(HttpRequest(url), parse)
        return await self._cluster.ask_other(call)


class Charts:
    """Makes the formulas and queries for Graphite. Counters are shown per second. Pure."""

    def __init__(self, options: NsqadminOptions) -> None:
        self._options = options

    def of_topic(self, topic: str, node: str = "") -> list[dict[str, str]]:
        return [self._chart(name, f"topic.{topic}.{name}", counts, node) for name, counts in _TOPIC]

    def of_channel(self, topic: str, channel: str, node: str = "") -> list[dict[str, str]]:
        stem = f"topic.{topic}.channel.{channel}."
        return [self._chart(name, stem + name, counts, node) for name, counts in _CHANNEL]

    def of_node(self, node: str) -> list[dict[str, str]]:
        return [self._chart(name.removeprefix("mem."), name, counts, node) for name, counts in _NODE]

    def _chart(self, title: str, name: str, counts: bool, node: str) -> dict[str, str]:
        return {"title": title, "target": self.target(name, counts=counts, node=node)}

    def target(self, name: str, *, counts: bool, node: str = "") -> str:
        """Return the formula for a counter or gauge of one nsqd, or for the sum over all."""
        options = self._options
        host = node.replace(".", "_").replace(":", "_") if node else "*"
        prefix = options.statsd_prefix.replace("%s", host)
        prefix += "." if prefix and not prefix.endswith(".") else ""
        form = options.statsd_counter_format if counts else options.statsd_gauge_format
        series = form.replace("%s", prefix + "".join("_" if each in _UNSAFE else each for each in name))
        total = f"sumSeries({series})"
        return f"scale({total},{1 / options.statsd_interval:.10g})" if counts else total

    def rate_query(self, target: str) -> str:
        """Return the query for the last complete interval of a counter."""
        seconds = int(self._options.statsd_interval)
        span = {"from": f"-{2 * seconds}sec", "until": f"-{seconds}sec"}
        return urlencode({**span, "format": "json", "target": target})

    def rate(self, answer: Any) -> str:
        """Read the rate per second from Graphite's reply; N/A if it has no value."""
        try:
            point = answer[0]["datapoints"][0][0]
        except (LookupError, TypeError):
            return "N/A"
        if type(point) not in (int, float):
            return "N/A"
        return f"{point / self._options.statsd_interval:.2f}"
