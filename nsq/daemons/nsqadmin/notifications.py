"""Posts every administrative action to a URL in the background, as Go's nsqadmin does."""

from __future__ import annotations

import asyncio
import base64
import binascii
import socket

from nsq.daemons.nsqadmin.aggregate import Json
from nsq.daemons.nsqadmin.cluster import Cluster
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.routes import Request, go_json
from nsq.errors import NsqError
from nsq.http.calls import Call
from nsq.http.message import HttpRequest, parse_url


class Notifications:
    """Posts to ``endpoint``, or does nothing if it is empty."""

    def __init__(self, endpoint: str, cluster: Cluster, log: DaemonLog) -> None:
        self._endpoint = endpoint
        self._cluster = cluster
        self._log = log
        self._sending: set[asyncio.Task[None]] = set()

    def notify(
        self, action: str, request: Request, now: float, *, topic: str, channel: str = "", node: str = ""
    ) -> None:
        self._log.info("%s topic=%r channel=%r node=%r by %s", action, topic, channel, node, request.remote)
        if not self._endpoint:
            return
        notice = describe(action, request, now, topic=topic, channel=channel, node=node)
        task = asyncio.get_running_loop().create_task(self._send(notice), name="notification")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def close(self, within: float) -> None:
        """Wait for running posts, at most ``within`` seconds."""
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=within)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _send(self, notice: Json) -> None:
        headers = {"Content-Type": "application/json"}
        request = HttpRequest(parse_url(self._endpoint), "POST", headers, go_json(notice))
        try:
            await self._cluster.ask_other(Call(request, lambda _: None))
        except NsqError as error:
            self._log.error("notification of %s failed: %s", notice["action"], error)


def describe(
    action: str, request: Request, now: float, *, topic: str, channel: str = "", node: str = ""
) -> Json:
    """Return the JSON of one action."""
    user = request.login.name if request.login else _user(request.headers.get("Authorization", ""))
    host = request.headers.get("Host", "")
    return {
        "action": action,
        "topic": topic,
        **({"channel": channel} if channel else {}),
        **({"node": node} if node else {}),
        "timestamp": int(now),
        **({"user": user} if user else {}),
        "remote_ip": request.remote,
        "user_agent": request.headers.get("User-Agent", ""),
        "url": f"http://{host}{request.target}",
        "via": socket.gethostname(),
    }


def _user(authorization: str) -> str:
    """Return the user's name in a Basic authorization header."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(encoded, validate=True).decode("utf-8").partition(":")[0]
    except (binascii.Error, ValueError):
        return ""
