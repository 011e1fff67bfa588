"""Asks auth servers over HTTP what a client may do, and applies their replies."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlencode

from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.session.authorization import MAX_STEPS, AuthError, Credentials, Grant, parse_grant
from nsq.daemons.nsqd.tls import client_context
from nsq.daemons.serve.http_client import send
from nsq.daemons.serve.slices import Slices
from nsq.errors import ApiError
from nsq.http.message import HttpRequest, parse_url

_MAX_ANSWER = 4 * 1024 * 1024
#: Replies whose parsed rules are cached: similar clients get the same reply.
_MAX_KNOWN = 16


class AuthServers:
    """The ``Authority`` of a running nsqd: asks a random auth server, and the next one if that fails."""

    def __init__(self, options: NsqdOptions) -> None:
        self._options = options
        self._tasks: set[asyncio.Task[None]] = set()
        self._slices = Slices()
        self._known: dict[bytes, Grant] = {}
        self._tls: ssl.SSLContext | None = None
        self.read_certificates()

    def read_certificates(self) -> None:
        """Read --tls-root-ca-file again, which may have changed."""
        addresses = self._options.auth_http_addresses
        if "https" in {parse_url(_endpoint(address)).scheme for address in addresses}:
            self._tls = client_context(self._options)

    def ask(self, credentials: Credentials, answer: Callable[[Grant | AuthError], None]) -> None:
        self._begin(self._ask_any(credentials), answer)

    def decide(
        self, grant: Grant, topic: str, channel: str, answer: Callable[[Grant | AuthError], None]
    ) -> None:
        self._begin(self._decide(grant, topic, channel), answer)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(
        self, work: Coroutine[Any, Any, Grant | AuthError], answer: Callable[[Grant | AuthError], None]
    ) -> None:
        async def answer_in_any_case() -> None:
            # The client waits for a reply even if this fails.
            try:
                found = await work
            except Exception as error:
                found = AuthError(f"asking the auth servers failed: {error!r}")
            answer(found)

        task = asyncio.get_running_loop().create_task(answer_in_any_case())
        # The loop itself keeps only weak references to tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _decide(self, grant: Grant, topic: str, channel: str) -> Grant:
        await self._slices.result(grant.decide(topic, channel))
        return grant

    async def _ask_any(self, credentials: Credentials) -> Grant | AuthError:
        addresses = list(self._options.auth_http_addresses)
        random.shuffle(addresses)
        failures = []
        for address in addresses:
            try:
                return await self._ask_one(address, credentials)
            except (ApiError, AuthError) as error:
                failures.append(f"failed to auth against {address} - {error}")
        return AuthError("; ".join(failures))

    async def _ask_one(self, address: str, credentials: Credentials) -> Grant:
        reply = await send(
            self._request(address, credentials),
            connect_timeout=self._options.http_client_connect_timeout,
            request_timeout=self._options.http_client_request_timeout,
            tls=self._tls,
            max_body=_MAX_ANSWER,
        )
        if reply.status != 200:
            raise AuthError(f"it answered with status {reply.status}")
        known = self._known.get(reply.body)
        if known is None:
            known = await self._slices.result(parse_grant(reply.body, time.monotonic()))
            self._known[reply.body] = known
            while (
                len(self._known) > _MAX_KNOWN or sum(each.steps for each in self._known.values()) > MAX_STEPS
            ):
                del self._known[next(iter(self._known))]
        return known.renewed(time.monotonic())

    def _request(self, address: str, credentials: Credentials) -> HttpRequest:
        fields = urlencode(
            {
                "common_name": credentials.common_name,
                "remote_ip": credentials.remote_ip,
                "secret": credentials.secret,
                "tls": "true" if credentials.tls else "false",
                "auth_secret": credentials.secret,  # what old auth servers read
            },
            errors="surrogateescape",
        )
        headers = {"Accept": "application/vnd.nsq; version=1.0"}
        endpoint = _endpoint(address)
        if self._options.auth_http_request_method == "post":
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            return HttpRequest(parse_url(endpoint), "POST", headers, fields.encode())
        joint = "&" if "?" in endpoint else "?"
        return HttpRequest(parse_url(endpoint + joint + fields), "GET", headers)


def _endpoint(address: str) -> str:
    return address if "://" in address else f"http://{address}/auth"
