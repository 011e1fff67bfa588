"""Fake nsqlookupds and nsqds for nsqadmin, without a network; they record their requests."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
from collections.abc import Mapping
from typing import Any

from nsq.daemons.nsqadmin.api import NsqadminApi
from nsq.daemons.nsqadmin.cluster import Cluster
from nsq.daemons.nsqadmin.notifications import Notifications
from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.routes import HttpError, Reply, Request, Router
from nsq.errors import ApiError
from nsq.http.message import HttpReply, HttpRequest

LOOKUPD, SECOND = "lookupd1:4161", "lookupd2:4161"
NSQD1, NSQD2 = "nsqd1:4151", "nsqd2:4151"


def node(name: str, topics: tuple[str, ...] = ("orders",), hidden: bool = False) -> dict[str, Any]:
    host = name.partition(":")[0]
    return {
        "remote_address": f"{host}:1",
        "hostname": host,
        "broadcast_address": host,
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
        "topics": list(topics),
        "tombstones": [hidden] * len(topics),
    }


def channel(name: str = "billing", **counts: Any) -> dict[str, Any]:
    zero = dict.fromkeys(
        ("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count", "requeue_count"), 0
    )
    more = {"timeout_count": 0, "client_count": 0, "clients": None, "paused": False}
    return {"channel_name": name, **zero, **more, **counts}


def topic(name: str = "orders", *channels: dict[str, Any], **counts: Any) -> dict[str, Any]:
    zero = dict.fromkeys(("depth", "backend_depth", "message_count"), 0)
    return {"topic_name": name, "channels": list(channels), **zero, "paused": False, **counts}


def stats(*topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": list(topics), **more}


class Upstreams:
    """``answers`` are by ``host:port/path``: a JSON value, a status, or an error to raise. Others get 200."""

    def __init__(self, **options: Any) -> None:
        self.answers: dict[str, Any] = {
            f"{LOOKUPD}/topics": {"topics": ["orders"]},
            f"{LOOKUPD}/nodes": {"producers": [node(NSQD1), node(NSQD2)]},
            f"{LOOKUPD}/lookup": {"channels": ["billing"], "producers": [node(NSQD1), node(NSQD2)]},
            f"{NSQD1}/stats": stats(topic("orders", channel(depth=2))),
            f"{NSQD2}/stats": stats(topic("orders", channel(depth=3))),
        }
        self.asked: list[str] = []
        self.bodies: list[Any] = []
        self.options = NsqadminOptions(**({"lookupd_http_addresses": (LOOKUPD,)} | options))
        self.log = io.StringIO()

    async def send(
        self,
        request: HttpRequest,
        *,
        connect_timeout: float,
        request_timeout: float,
        tls: ssl.SSLContext | None,
    ) -> HttpReply:
        where = f"{request.url.host}:{request.url.port}"
        self.asked.append(f"{request.method} {where}{request.url.target}")
        if request.body:
            self.bodies.append(json.loads(request.body))
        answer = self.answers.get(where + request.url.target.partition("?")[0], {})
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            answer = {}
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return HttpReply(answer, {"content-type": "application/json"}, b'{"message":"TOPIC_NOT_FOUND"}')
        return HttpReply(200, {"content-type": "application/json"}, json.dumps(answer).encode())

    def posted(self) -> list[str]:
        """The requests that changed something, in their order."""
        return [each.removeprefix("POST ") for each in self.asked if each.startswith("POST")]

    def ask(
        self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and JSON of one request to nsqadmin's API."""
        reply = asyncio.run(self._ask(method, target, body, headers or {}))
        try:
            return reply.status, json.loads(reply.body)
        except ValueError:
            return reply.status, reply.body

    async def _ask(self, method: str, target: str, body: Any, headers: Mapping[str, str]) -> Reply:
        cluster = Cluster(self.options, send=self.send)
        log = DaemonLog(stream=self.log)
        notifications = Notifications(self.options.notification_http_endpoint, cluster, log)
        api = NsqadminApi(self.options, cluster, notifications, log)
        router = Router(api.routes())
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = Request(method, target, body=raw, headers=headers)
        route, request.params = router.find(method, request.path)
        if route is None:
            return router.without(request)
        try:
            made = route.handler(request)
            return made if isinstance(made, Reply) else await made
        except HttpError as refusal:
            return Reply.error(refusal.status, refusal.code)
        finally:
            await notifications.close(1.0)
            await api.close()


DOWN = ApiError("http://nsqd2:4151/stats did not answer within 5 s")
