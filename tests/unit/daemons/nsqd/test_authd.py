from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from nsq.daemons.nsqd import authd
from nsq.daemons.nsqd.authd import AuthServers
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.session.authorization import AuthError, Credentials, Grant
from nsq.errors import ApiError, ConfigError, UsageError
from nsq.http.message import HttpReply, HttpRequest

WHO = Credentials("s p&c=\udcff", "10.0.0.7", True, "orders")
GRANTED = HttpReply(200, {}, b'{"ttl": 5, "identity": "worker"}')


class Network:
    """Answers each host as scripted, and records the requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: HttpReply | Exception) -> None:
        self._answers = answers
        self.requests: list[HttpRequest] = []
        self.trust: list[ssl.SSLContext | None] = []
        monkeypatch.setattr(authd, "send", self._send)
        monkeypatch.setattr(random, "shuffle", lambda addresses: None)

    async def _send(self, request: HttpRequest, **limits: Any) -> HttpReply:
        assert (limits["connect_timeout"], limits["request_timeout"]) == (1.0, 3.0)
        self.requests.append(request)
        self.trust.append(limits["tls"])
        answer = self._answers[request.url.host]
        if isinstance(answer, Exception):
            raise answer
        return answer


def ask(*addresses: str, method: str = "get", root_ca_file: str = "") -> Grant | AuthError:
    options = NsqdOptions(
        auth_http_addresses=addresses,
        auth_http_request_method=method,
        tls_root_ca_file=root_ca_file,
        http_client_connect_timeout=1.0,
        http_client_request_timeout=3.0,
    )

    async def wait() -> Grant | AuthError:
        answer: asyncio.Future[Grant | AuthError] = asyncio.get_running_loop().create_future()
        servers = AuthServers(options)
        servers.ask(WHO, answer.set_result)
        assert not answer.done()  # never from within
        try:
            return await answer
        finally:
            await servers.close()

    return asyncio.run(wait())


def test_a_get_carries_everything_in_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch, a=GRANTED)
    answer = ask("a:80")
    assert isinstance(answer, Grant)
    assert answer.identity == "worker"
    (request,) = network.requests
    assert (request.method, request.body) == ("GET", b"")
    query = "common_name=orders&remote_ip=10.0.0.7&secret=s+p%26c%3D%FF&tls=true&auth_secret=s+p%26c%3D%FF"
    assert request.url.target == f"/auth?{query}"
    assert request.headers == {"Accept": "application/vnd.nsq; version=1.0"}


def test_a_post_has_the_parameters_in_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch, a=GRANTED)
    ask("http://a/own/path?key=1", method="post")
    (request,) = network.requests
    assert (request.method, request.url.target) == ("POST", "/own/path?key=1")
    assert b"secret=s+p%26c%3D%FF" in request.body
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_an_address_may_bring_a_query_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch, a=GRANTED)
    ask("https://a/auth?key=1")
    assert network.requests[0].url.target.startswith("/auth?key=1&common_name=")


def test_the_next_server_is_asked_when_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(
        monkeypatch, a=ApiError("refused"), b=HttpReply(403, {}, b""), c=HttpReply(200, {}, b"?"), d=GRANTED
    )
    assert isinstance(ask("a:1", "b:1", "c:1", "d:1", "a:1"), Grant)
    assert [request.url.host for request in network.requests] == ["a", "b", "c", "d"]


def test_the_error_of_all_auth_servers_names_reasons_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    Network(monkeypatch, a=ApiError("refused"), b=HttpReply(403, {}, b""))
    answer = ask("a:1", "b:1")
    assert isinstance(answer, AuthError)
    assert "against a:1 - refused" in str(answer)
    assert "against b:1 - it answered with status 403" in str(answer)
    assert "s p" not in str(answer)
    assert "s+p" not in str(answer)


def test_an_https_server_must_be_vouched_for_by_the_root_ca_file_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority, file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    network = Network(monkeypatch, a=GRANTED)
    ask("https://a/auth", root_ca_file=str(file))
    ask("https://a/auth")
    own, systems = network.trust
    assert own is not None
    assert systems is not None
    assert own.get_ca_certs(binary_form=True) == [
        ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode())
    ]
    assert own.get_ca_certs() != systems.get_ca_certs()
    for context in (own, systems):
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_root_ca_file_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match=r"--tls-root-ca-file .*ca\.pem"):
        AuthServers(NsqdOptions(auth_http_addresses=("https://a/auth",), tls_root_ca_file=missing))


def test_an_address_that_is_none_is_refused_at_the_start() -> None:
    with pytest.raises(UsageError):
        AuthServers(NsqdOptions(auth_http_addresses=("ftp://a",)))


def test_thousands_of_rules_are_read_and_tried_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"channels": ["(a+)+$"], "permissions": ["publish"]}
    rules = [{"topic": f"^team-{number}[.]", **rule} for number in range(8000)]
    answer = HttpReply(200, {}, json.dumps({"ttl": 5, "authorizations": rules}).encode())
    Network(monkeypatch, host=answer)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def both() -> None:
        limits = {"http_client_connect_timeout": 1.0, "http_client_request_timeout": 3.0}
        servers = AuthServers(NsqdOptions(auth_http_addresses=("http://host",), **limits))

        async def answered(begin: Callable[..., None], *asked: object) -> Any:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            begin(*asked, answer.set_result)
            return await answer

        beside = asyncio.create_task(others())
        grant = await answered(servers.ask, WHO)
        assert turns > 20
        await answered(servers.decide, grant, "team-7999.orders", "")
        assert grant.decisions == {("team-7999.orders", ""): False}
        assert (await answered(servers.ask, WHO)).rules is grant.rules, "read again"
        beside.cancel()
        await servers.close()

    asyncio.run(both())
