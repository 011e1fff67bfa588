"""--http-logins of the three daemons, and the clients that need a login."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nsq
from nsq.http.nsqd import NsqdApi
from nsq.http.nsqlookupd import NsqlookupdApi
from nsq.http.secret import HttpSecret, login_line
from nsq.testing import Nsqadmin, Nsqd, Nsqlookupd
from nsq.testing.daemons.thread import ThreadRun
from nsq.testing.plugin import Factory
from nsq.wire import lookup
from nsq.wire.lookup import PeerInfo
from tests.fakes.programs import run_python
from tests.golden import recordings
from tests.integration.authority import Authority
from tests.integration.clients import topic_stats
from tests.integration.judged import only_ours
from tests.integration.patience import eventually
from tests.integration.web import Web

pytestmark = only_ours("logins")

ROOT = Path(__file__).resolve().parents[2]
READ, ALL = "r3ad", "a11"
BEARER = {"Authorization": f"Bearer {ALL}"}


def basic(name: str, secret: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()}


@pytest.fixture
def logins(tmp_path: Path) -> Path:
    file = tmp_path / "logins"
    file.write_text(login_line("viewer", "read", READ) + "\n" + login_line("operator", "all", ALL) + "\n")
    file.chmod(0o600)
    return file


# The tables of docs/logins.md


def table(daemon: str) -> list[tuple[str, str, list[int]]]:
    """Return the rows of a daemon's table: method, target, and the status by role."""
    page = (ROOT / "docs/logins.md").read_text("utf-8")
    rows = page.partition(f"| {daemon} | no login |")[2].partition("\n\n")[0].splitlines()[2:]
    found = []
    for row in rows:
        request, *statuses = (cell.strip() for cell in row.strip("|").split("|"))
        method, target = request.strip("`").split(" ")
        found.append((method, target, [int(status) for status in statuses]))
    assert len(found) > 10
    return found


BODIES = {
    ("POST", "/pub?topic=t"): b"x",
    ("POST", "/mpub?topic=t"): b"x",
    ("PUT", "/config/log_level"): b"info",
    ("POST", "/api/tail/t"): b"{}",
    ("POST", "/api/topics"): b'{"topic": "u"}',
    ("POST", "/api/topics/t/c"): b'{"action": "pause"}',
}


def check_table(daemon: Nsqd | Nsqlookupd | Nsqadmin, name: str) -> None:
    for method, target, statuses in table(name):
        for header, wanted in zip(({}, basic("viewer", READ), BEARER), statuses, strict=True):
            reply = daemon.request(method, target, BODIES.get((method, target)), header)
            assert reply.status == wanted, (method, target, header, reply)


def test_nsqd_answers_each_role_as_its_table_says(nsqd_factory: Factory[Nsqd], logins: Path) -> None:
    nsqd = nsqd_factory(http_logins=logins)
    for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
        assert nsqd.request("POST", target, headers=BEARER).status == 200
    check_table(nsqd, "nsqd")
    eventually(lambda: not nsqd.running)


def test_nsqlookupd_answers_each_role_as_its_table_says(
    nsqlookupd_factory: Factory[Nsqlookupd], logins: Path
) -> None:
    lookupd = nsqlookupd_factory(http_logins=logins)
    assert lookupd.request("POST", "/topic/create?topic=t", headers=BEARER).status == 200
    check_table(lookupd, "nsqlookupd")


def test_nsqadmin_answers_each_role_as_its_table_says(nsqd: Nsqd, logins: Path) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    with Nsqadmin(nsqd=[nsqd], http_logins=logins) as admin:
        nsqd.post("/topic/create?topic=u")
        check_table(admin, "nsqadmin")


# Other programs against them


def topic_stats_of(nsqd: Nsqd, topic: str) -> Any:
    reply = nsqd.request("GET", f"/stats?format=json&topic={topic}", headers=BEARER)
    return reply.json()["topics"][0]


SCRAPE = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
    "Accept-Encoding": "gzip",
    "User-Agent": "Prometheus/3.5.0",
    "X-Prometheus-Scrape-Timeout-Seconds": "10",
}


@pytest.mark.parametrize("opened", [False, True])
def test_prometheus_scrapes_with_a_login_or_where_metrics_are_open(
    opened: bool, nsqd_factory: Factory[Nsqd], logins: Path
) -> None:
    nsqd = nsqd_factory(http_logins=logins, **({"http_open": ("/metrics",)} if opened else {}))
    assert nsqd.request("GET", "/metrics", headers=SCRAPE).status == (200 if opened else 401)
    for login in (basic("viewer", READ), {"Authorization": f"Bearer {READ}"}):
        reply = nsqd.request("GET", "/metrics", headers=SCRAPE | login)
        assert reply.status == 200
        assert "nsqd_healthy 1" in reply.text
    assert nsqd.get("/stats").status == 401
    counted = nsqd.request("GET", "/metrics", headers=basic("viewer", READ)).text
    assert 'nsqd_errors_total{protocol="http",code="UNAUTHORIZED"}' in counted


def recorded(file: str) -> list[tuple[str, str, bytes | None]]:
    """The requests of a recording of Go's daemons: method, target and body."""
    found = []
    for each in recordings.load(file)["exchanges"]:
        method, target = each["request"].split(" ")
        body = each.get("request_body")
        found.append((method, target, body.encode() if isinstance(body, str) else None))
    return found


def test_requests_recorded_of_gos_nsqadmin_need_a_login(nsqd: Nsqd, logins: Path) -> None:
    """Each is refused without one, and with the role all it is answered as by an nsqadmin without logins."""
    with Nsqadmin(nsqd=[nsqd], http_logins=logins) as admin, Nsqadmin(nsqd=[nsqd]) as plain:
        for method, target, body in recorded("nsqadmin_api.json"):
            without = admin.request(method, target, body).status
            assert without == (200 if target == "/ping" else 401), target
            same = plain.request(method, target, body).status
            assert admin.request(method, target, body, basic("operator", ALL)).status == same, target


def test_requests_recorded_of_gos_daemons_are_refused_without_a_login(
    nsqd_factory: Factory[Nsqd], nsqlookupd_factory: Factory[Nsqlookupd], logins: Path
) -> None:
    """So Go's nsqadmin and tools do not work with a protected nsqd."""
    protected = {
        "nsqd_http.json": nsqd_factory(http_logins=logins),
        "nsqlookupd_http.json": nsqlookupd_factory(http_logins=logins),
    }
    for file, daemon in protected.items():
        for method, target, body in recorded(file):
            status = daemon.request(method, target, body).status
            assert status == (200 if (method, target) == ("GET", "/ping") else 401), (method, target)


# The clients of this package


def test_tools_and_nsqadmin_work_on_a_protected_cluster(
    nsqd_factory: Factory[Nsqd], nsqlookupd_factory: Factory[Nsqlookupd], logins: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(ALL + "\n")
    lookupd = nsqlookupd_factory(http_logins=logins)
    nsqd = nsqd_factory(http_logins=logins, http_secret_file=secret, lookupd=[lookupd])
    address = f"--address={lookupd.http_address}"
    eventually(lambda: lookupd.request("GET", "/nodes", headers=BEARER).json()["producers"])

    refused = run_python("-m", "nsq", "topics", address)
    assert refused.returncode == 1
    assert "401 UNAUTHORIZED (it wants a login: give the http_secret, or --http-secret-file" in refused.stderr
    wrong = run_python("-m", "nsq", "topics", address, environment={"NSQ_HTTP_SECRET": "wr0ng"})
    assert "it does not know this http_secret" in wrong.stderr
    for environment, flags in (({"NSQ_HTTP_SECRET": ALL}, ()), ({}, (f"--http-secret-file={secret}",))):
        done = run_python("-m", "nsq", "create", "orders/billing", address, *flags, environment=environment)
        assert done.returncode == 0, done.stderr
        listed = run_python("-m", "nsq", "channels", "orders", address, *flags, environment=environment)
        assert "billing" in listed.stdout
    assert topic_stats_of(nsqd, "orders")["channels"][0]["channel_name"] == "billing"

    with Nsqadmin(lookupd=[lookupd], http_secret_file=secret) as admin:
        assert admin.get("/api/topics").json()["topics"] == ["orders"]
        paused = admin.request("POST", "/api/topics/orders/billing", b'{"action": "pause"}')
        assert (paused.status, paused.json()["message"]) == (200, "")
    assert topic_stats_of(nsqd, "orders")["channels"][0]["paused"]
    with Nsqadmin(lookupd=[lookupd]) as admin:
        assert "401 UNAUTHORIZED" in admin.get("/api/topics").text

    for config in (nsq.Config(http_secret=READ), nsq.Config(http_secret=READ, auth_secret="another")):
        api = NsqlookupdApi.of(lookupd.http_address, config)
        assert [node.http_address for node in api.nodes()] == [nsqd.http_address]
    assert NsqdApi(nsqd.http_address, secret=READ).info().tcp_port > 0


def test_a_new_topic_learns_its_channels_from_a_protected_nsqlookupd(
    nsqd_factory: Factory[Nsqd], nsqlookupd_factory: Factory[Nsqlookupd], logins: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(READ)
    lookupd = nsqlookupd_factory(http_logins=logins, broadcast_address="127.0.0.1")
    lookupd.request("POST", "/channel/create?topic=orders&channel=billing", headers=BEARER)
    knowing, ignorant = (
        nsqd_factory(lookupd=[lookupd], **more) for more in ({"http_secret_file": secret}, {})
    )
    for nsqd in (knowing, ignorant):
        eventually(lambda nsqd=nsqd: "peer info" in nsqd.log)
        nsqd.post("/pub?topic=orders", b"x")
    assert [each["channel_name"] for each in topic_stats(knowing, "orders")["channels"]] == ["billing"]
    assert topic_stats(ignorant, "orders")["channels"] == []
    assert "channels of topic orders unknown - it wants a login: give --http-secret-file" in ignorant.log


# Where the secret must not go


class Stranger(Web):
    """Answers as an nsqd, and keeps the headers of the requests."""

    def __init__(self) -> None:
        health = {"health": "OK", "version": "1.3.0", "topics": [], "tcp_port": 1}
        super().__init__(json.dumps(health).encode())

    @property
    def secrets(self) -> list[str | None]:
        return [headers.get("authorization") for *_, headers in self.asked]

    def register(self, lookupd: Nsqlookupd) -> socket.socket:
        # 0.0.0.0 reaches this machine, but not by an address that the rule takes for this machine.
        info = PeerInfo(
            broadcast_address="0.0.0.0", hostname="stranger", tcp_port=1, http_port=self.port, version="1.3.0"
        )
        host, _, port = lookupd.tcp_address.rpartition(":")
        connection = socket.create_connection((host, int(port)), 60)
        connection.sendall(lookup.MAGIC + lookup.identify(info) + lookup.register("t"))
        eventually(lambda: lookupd.request("GET", "/nodes", headers=BEARER).json()["producers"])
        return connection


@pytest.fixture
def stranger(nsqlookupd: Nsqlookupd) -> Iterator[Stranger]:
    with Stranger() as made, made.register(nsqlookupd):
        yield made


@pytest.mark.parametrize(("to", "wanted"), [("given", {None}), ("any", {f"Bearer {ALL}"})])
def test_an_nsqd_that_registers_itself_gets_the_secret_only_if_the_user_says_so(
    to: str, wanted: set[str | None], stranger: Stranger, nsqlookupd: Nsqlookupd, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(ALL)
    address, flags = nsqlookupd.http_address, (f"--http-secret-file={secret}", f"--http-secret-to={to}")
    for command in (("nsq", "topics"), ("nsq", "doctor"), ("nsq", "create", "t/c"), ("nsq", "peek", "t")):
        before = len(stranger.secrets)
        run_python("-m", *command, f"--address={address}", *flags)
        assert len(stranger.secrets) > before, command
    run_python(
        *("-m", "nsq.tools.nsq_stat", f"--lookupd-http-address={address}", "--topic=t", "--channel=c"),
        *("--count=1", "--interval=10ms", *flags),
    )
    with Nsqadmin(lookupd=[nsqlookupd], http_secret_file=secret, http_secret_to=to) as admin:
        admin.get("/api/overview")
        admin.request("POST", "/api/topics/t", b'{"action": "pause"}')
    assert set(stranger.secrets) == wanted

    stranger.asked.clear()
    NsqdApi(f"0.0.0.0:{stranger.port}", secret=HttpSecret(ALL, to), told=True).stats()
    assert set(stranger.secrets) == wanted
    NsqdApi(f"0.0.0.0:{stranger.port}", secret=ALL).stats()
    assert stranger.secrets[-1] == f"Bearer {ALL}"


def test_over_https_the_secret_goes_where_the_users_own_authority_vouches(
    nsqd_factory: Factory[Nsqd], logins: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    nsqd = nsqd_factory(http_logins=logins, tls_required="true", **authority.server_options)
    trusting = authority.client_context()
    for told in (False, True):
        # nsqd refuses plain HTTP before it asks for a login; the client then asks again over https.
        for address in (f"https://{nsqd.https_address}", nsqd.http_address):
            assert NsqdApi(address, secret=READ, tls=trusting, told=told).info().tcp_port > 0
            with pytest.raises(nsq.ApiRefused, match="401 UNAUTHORIZED"):
                NsqdApi(address, tls=trusting, told=told).info()


def test_other_servers_of_nsqadmin_get_no_secret(nsqd: Nsqd, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(ALL)
    with Stranger() as stranger:
        url = f"http://127.0.0.1:{stranger.port}"
        options: dict[str, Any] = {
            "graphite_url": url,
            "proxy_graphite": True,
            "notification_http_endpoint": url,
        }
        with Nsqadmin(nsqd=[nsqd], http_secret_file=secret, **options) as admin:
            admin.get("/render?target=x")
            admin.request("POST", "/api/topics", b'{"topic": "t"}')
            eventually(lambda: len(stranger.secrets) >= 2)
        assert set(stranger.secrets) == {None}


# Daemons


def test_sighup_reads_the_logins_again(nsqd_factory: Factory[Nsqd], logins: Path) -> None:
    nsqd = nsqd_factory(process=True, http_logins=logins)
    logins.write_text(login_line("viewer", "read", "new") + "\n")
    os.kill(nsqd.pid, signal.SIGHUP)
    login = basic("viewer", "new")
    eventually(lambda: nsqd.request("GET", "/stats", headers=login).status, lambda status: status == 200)
    assert nsqd.request("GET", "/stats", headers=BEARER).status == 401


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd", "nsqadmin"])
def test_a_daemon_with_bad_logins_does_not_start(program: str, logins: Path) -> None:
    logins.chmod(0o620)
    more = ["--nsqd-http-address=127.0.0.1:1"] if program == "nsqadmin" else ["--tcp-address=127.0.0.1:0"]
    flags = [f"--http-logins={logins}", "--http-address=127.0.0.1:0", *more]
    done = run_python("-m", f"nsq.daemons.{program}", *flags)
    assert done.returncode == 1
    assert "can be written by others than its owner: chmod go-w" in done.stderr


def test_nsqadmin_serves_https_with_its_own_login(nsqd: Nsqd, logins: Path, tmp_path: Path) -> None:
    from nsq.daemons.nsqadmin.daemon import Nsqadmin as Program
    from nsq.daemons.nsqadmin.options import NsqadminOptions

    authority = Authority(tmp_path)
    files = {name: str(path) for name, path in authority.server_options.items()}
    options = NsqadminOptions(
        http_address="127.0.0.1:0", nsqd_http_addresses=(nsqd.http_address,), http_logins=str(logins), **files
    )
    run = ThreadRun(lambda _: Program(options), "nsqadmin")
    run.start(60)
    try:
        assert run.addresses.http is not None
        host, _, port = run.addresses.http.rpartition(":")
        for login, wanted in (({}, 401), (basic("viewer", READ), 200)):
            connection = http.client.HTTPSConnection(
                host, int(port), timeout=60, context=authority.client_context()
            )
            connection.request("GET", "/api/topics", headers=login)
            assert connection.getresponse().status == wanted
            connection.close()
    finally:
        run.stop(60)


def test_nsq_secret_makes_a_line_that_a_daemon_takes(nsqd_factory: Factory[Nsqd], tmp_path: Path) -> None:
    done = run_python("-m", "nsq", "secret", "prometheus", "--role=read")
    found = re.fullmatch(r"secret: (\S{43})\nline:   (prometheus:read:[0-9a-f]{64})\n", done.stdout)
    assert found is not None, done
    logins = tmp_path / "made"
    logins.write_text(found[2] + "\n")
    logins.chmod(0o600)
    nsqd = nsqd_factory(http_logins=logins)
    assert nsqd.request("GET", "/stats", headers=basic("prometheus", found[1])).status == 200
    assert run_python("-m", "nsq", "secret", "a b").returncode == 1
