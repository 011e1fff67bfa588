"""Asks auth servers over HTTP what a client may do."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from urllib.parse import urlencode

from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.session.authorization import AuthError, Credentials, Grant, parse_grant
from nsq.daemons.nsqd.tls import client_context
from nsq.errors import ApiError
from nsq.http.asynchronous import send
from nsq.http.message import HttpRequest, parse_url

_MAX_ANSWER = 1024 * 1024


class AuthServers:
    """The ``Authority`` of a running nsqd: any one of its auth servers decides, the next if that one
    fails.
    """

    def __init__(self, options: NsqdOptions) -> None:
        self._options = options
        self._requests: set[asyncio.Task[None]] = set()
        self._tls: ssl.SSLContext | None = None
        if "https" in {parse_url(_endpoint(address)).scheme for address in options.auth_http_addresses}:
            self._tls = client_context(options)

    def ask(self, credentials: Credentials, answer: Callable[[Grant | AuthError], None]) -> None:
        task = asyncio.get_running_loop().create_task(self._ask_any_or_fail(credentials, answer))
        # The loop itself keeps only weak references to tasks.
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def close(self) -> None:
        for task in list(self._requests):
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    async def _ask_any_or_fail(
        self, credentials: Credentials, answer: Callable[[Grant | AuthError], None]
    ) -> None:
        """The client waits for an answer whatever happens here."""
        try:
            await self._ask_any(credentials, answer)
        except Exception as error:
            answer(AuthError(f"asking the auth servers failed: {error!r}"))

    async def _ask_any(self, credentials: Credentials, answer: Callable[[Grant | AuthError], None]) -> None:
        addresses = list(self._options.auth_http_addresses)
        random.shuffle(addresses)
        failures = []
        for address in addresses:
            try:
                grant = await self._ask_one(address, credentials)
            except (ApiError, AuthError) as error:
                failures.append(f"failed to auth against {address} - {error}")
            else:
                answer(grant)
                return
        answer(AuthError("; ".join(failures)))

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
        return parse_grant(reply.body, time.monotonic())

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
