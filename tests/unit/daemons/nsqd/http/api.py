"""nsqd's HTTP API without a network: requests go straight from the table of routes to the handlers."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from nsq.daemons.nsqd.http import Context, routes
from nsq.daemons.nsqd.registration import Registration
from nsq.daemons.nsqd.stats import Memory
from nsq.daemons.serve.process import Orders
from nsq.daemons.serve.routes import HttpError, Reply, Request, Router
from nsq.errors import ConfigError
from tests.fakes.session import Client, World


class FakeRegistration:
    """Records the nsqlookupds that it was given."""

    def __init__(self) -> None:
        self.addresses: list[str] = ["lookup.example:4160"]

    def set_addresses(self, addresses: Iterable[str]) -> None:
        wanted = list(addresses)
        if any(":" not in address for address in wanted):
            raise ConfigError("not an address")
        self.addresses = wanted


class FakeStorage:
    """A disk that works without delay."""

    health = "OK"

    def __init__(self, committer: Any) -> None:
        self.publish_committer = committer


class Api:
    def __init__(self, *, committer: Any = None, **options: Any) -> None:
        self.world = World(**options)
        self.clients: list[Client] = []
        self.orders = Orders()
        context = Context(
            self.world.environment,
            cast(Registration, FakeRegistration()),
            sessions=lambda: (client.session for client in self.clients),
            ports=lambda: (4150, 4151),
            start_time=1_700_000_000,
            memory=Memory(),
            storage=FakeStorage(committer),
            orders=self.orders,
        )
        self.routes = routes(context)
        self.router = Router(self.routes)

    def client(self, **client: Any) -> Client:
        self.clients.append(self.world.client(**client))
        return self.clients[-1]

    def ask(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        request = Request(method, target, body=body, headers=headers or {"Content-Length": str(len(body))})
        route, request.params = self.router.find(method, request.path)
        assert route is not None, f"no route for {method} {request.path}"
        answer = route.handler(request)
        if not isinstance(answer, Reply):
            assert inspect.iscoroutine(answer)
            answer = asyncio.run(answer)
        return replace(answer, body=answer.body + b"".join(answer.rest), rest=())

    def refused(self, method: str, target: str, body: bytes = b"") -> tuple[int, str]:
        try:
            reply = self.ask(method, target, body)
        except HttpError as refusal:
            return refusal.status, refusal.code
        raise AssertionError(f"{method} {target} was answered with {reply}")

    def json(self, target: str) -> Any:
        reply = self.ask("GET", target)
        assert reply.content_type == "application/json; charset=utf-8"
        return json.loads(reply.body)

    def text(self, target: str) -> str:
        reply = self.ask("GET", target)
        assert reply.content_type == "text/plain; charset=utf-8"
        return reply.body.decode()
