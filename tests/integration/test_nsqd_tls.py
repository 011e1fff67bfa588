"""nsqd with certificates: TCP and HTTPS, required TLS, and clients that do it wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq.errors import LayerError
from nsq.testing import Nsqd, V2Client
from nsq.testing.plugin import Factory, factory
from nsq.testing.v2 import PeerClosed
from nsq.wire import commands
from tests.integration.authority import Authority
from tests.integration.clients import connected, dial, finish_all, subscribe
from tests.integration.judged import only_ours
from tests.integration.patience import eventually

HOST = "127.0.0.1"
REFUSED = (LayerError, PeerClosed)
"""How a client learns of it: an alert, or the end of the connection if that came first."""

VERSIONS = pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority that is not trusted."""
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def nsqd(authority: Authority) -> Iterator[Nsqd]:
    """An nsqd with a certificate that does not require TLS."""
    with factory(Nsqd) as make:
        yield make(**authority.server_options)


@pytest.fixture(scope="module")
def demanding(authority: Authority) -> Iterator[dict[str, Nsqd]]:
    """An nsqd with --tls-required."""
    with factory(Nsqd) as make:
        yield {
            required: make(**authority.server_options, tls_required=required)
            for required in ("true", "tcp-https")
        }


@pytest.fixture(scope="module")
def strict(authority: Authority) -> Iterator[dict[str, Nsqd]]:
    """An nsqd with --tls-client-auth-policy."""
    with factory(Nsqd) as make:
        yield {
            policy: make(
                **authority.server_options,
                tls_client_auth_policy=policy,
                tls_root_ca_file=authority.certificate,
            )
            for policy in ("require", "require-verify")
        }


@contextlib.contextmanager
def encrypted(nsqd: Nsqd, context: ssl.SSLContext, **identify: object) -> Iterator[V2Client]:
    with connected(nsqd, tls_v1=True, **identify) as client:
        client.start_tls(context, HOST)
        yield client


def https(
    nsqd: Nsqd, context: ssl.SSLContext, method: str, target: str, body: bytes | None = None
) -> tuple[int, bytes]:
    assert nsqd.https_address is not None
    connection = http.client.HTTPSConnection(nsqd.https_address, context=context, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, target, body)
        response = connection.getresponse()
        return response.status, response.read()


class TestRequired:
    @pytest.mark.parametrize("target", ["GET /ping", "POST /pub?topic=t", "GET /stats", "GET /nothing"])
    def test_plain_http_gets_an_error_that_names_the_https_port(
        self, demanding: dict[str, Nsqd], target: str
    ) -> None:
        nsqd = demanding["true"]
        method, path = target.split()
        reply = nsqd.request(method, path, b"x" if method == "POST" else None)
        assert nsqd.https_address is not None
        port = int(nsqd.https_address.rpartition(":")[2])
        assert (reply.status, reply.json()) == (403, {"message": "TLS_REQUIRED", "https_port": port})
        assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
        assert reply.headers["X-NSQ-Content-Type"] == "nsq; version=1.0"

    def test_plain_http_stays_open_if_asked(self, demanding: dict[str, Nsqd]) -> None:
        nsqd = demanding["tcp-https"]
        assert nsqd.get("/ping")[::2] == (200, b"OK")
        assert nsqd.post("/pub?topic=open", b"x")[::2] == (200, b"OK")


POLICY = pytest.mark.parametrize("policy", ["require", "require-verify"])


class TestClientCertificates:
    @POLICY
    @VERSIONS
    def test_a_client_with_a_certificate_is_served(
        self, strict: dict[str, Nsqd], authority: Authority, policy: str, version: str
    ) -> None:
        nsqd, topic = strict[policy], f"known-{version}"
        context = authority.client_context(known_by=authority, version=version)
        assert https(nsqd, context, "POST", f"/pub?topic={topic}", b"body") == (200, b"OK")
        with encrypted(nsqd, context) as client:
            subscribe(client, topic)
            message = client.expect_message()
            finish_all(client, [message])
        assert message.body == b"body"

    @POLICY
    @VERSIONS
    def test_a_client_without_a_certificate_is_refused(
        self, strict: dict[str, Nsqd], authority: Authority, policy: str, version: str
    ) -> None:
        self._refuses(strict[policy], authority.client_context(version=version))

    @VERSIONS
    def test_a_certificate_of_another_authority_is_refused(
        self, strict: dict[str, Nsqd], authority: Authority, stranger: Authority, version: str
    ) -> None:
        context = authority.client_context(known_by=stranger, version=version)
        self._refuses(strict["require-verify"], context)

    @only_ours("Python's TLS cannot demand a certificate without verifying it")
    def test_require_refuses_a_certificate_of_another_authority_too(
        self, strict: dict[str, Nsqd], authority: Authority, stranger: Authority
    ) -> None:
        self._refuses(strict["require"], authority.client_context(known_by=stranger))

    def test_a_client_needs_no_certificate_without_a_policy(
        self, nsqd_factory: Factory[Nsqd], authority: Authority, stranger: Authority
    ) -> None:
        nsqd = nsqd_factory(**authority.server_options, tls_root_ca_file=authority.certificate)
        for context in (authority.client_context(), authority.client_context(known_by=stranger)):
            assert https(nsqd, context, "GET", "/ping") == (200, b"OK")
            with encrypted(nsqd, context) as client:
                client.send(commands.pub("t", b"x"))
                client.expect_ok()

    @POLICY
    def test_a_policy_implies_that_tls_is_required(self, strict: dict[str, Nsqd], policy: str) -> None:
        assert strict[policy].get("/ping").status == 403
        with connected(strict[policy]) as client:
            client.send(commands.pub("t", b"x"))
            client.expect_error("E_INVALID")

    def _refuses(self, nsqd: Nsqd, context: ssl.SSLContext) -> None:
        with pytest.raises(REFUSED), encrypted(nsqd, context):
            pass
        with pytest.raises(OSError):  # noqa: PT011 - an alert, a reset or an end, as the race may have it
            https(nsqd, context, "GET", "/ping")


class TestVersion:
    def test_a_tls_version_below_the_minimum_is_refused(
        self, nsqd_factory: Factory[Nsqd], authority: Authority
    ) -> None:
        nsqd = nsqd_factory(**authority.server_options, tls_min_version="tls1.3")
        old, new = (authority.client_context(version=each) for each in ("TLSv1_2", "TLSv1_3"))
        with pytest.raises(REFUSED), encrypted(nsqd, old):
            pass
        with pytest.raises(ssl.SSLError):
            https(nsqd, old, "GET", "/ping")
        assert https(nsqd, new, "GET", "/ping") == (200, b"OK")
        with encrypted(nsqd, new) as client:
            client.send(commands.pub("t", b"x"))
            client.expect_ok()


class TestNoHandshake:
    @pytest.mark.parametrize(
        "instead",
        [b"GET / HTTP/1.1\r\nHost: nsqd\r\n\r\n", commands.pub("t", b"x"), b"\x16\x03\x01\x00\x05AAAAA"],
        ids=["HTTP", "a command", "a broken record"],
    )
    def test_bytes_that_are_no_handshake_end_the_connection(self, nsqd: Nsqd, instead: bytes) -> None:
        with asked_for_tls(nsqd) as sock:
            sock.sendall(instead)
            until_closed(sock)
        assert nsqd.get("/ping").status == 200

    def test_bytes_that_are_no_handshake_end_an_https_connection(self, nsqd: Nsqd) -> None:
        assert nsqd.https_address is not None
        with dial(nsqd.https_address) as sock:
            sock.sendall(b"GET /ping HTTP/1.1\r\nHost: nsqd\r\n\r\n" * 10)
            until_closed(sock)
        assert nsqd.get("/ping").status == 200


@contextlib.contextmanager
def asked_for_tls(nsqd: Nsqd) -> Iterator[socket.socket]:
    """A connection on which nsqd expects a handshake."""
    with dial(nsqd.tcp_address) as sock:
        wish = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
        sock.sendall(commands.MAGIC_V2 + commands.identify(wish))
        granted = sock.recv(4096)
        assert json.loads(granted[8:])["tls_v1"] is True
        yield sock


def until_closed(sock: socket.socket) -> None:
    """Read whatever comes (an alert, an error) until the other side hangs up."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(4096):
            pass


def serial_number(nsqd: Nsqd, trusted: Authority) -> object:
    """The serial number of the certificate for HTTPS clients."""
    context = trusted.client_context()
    assert nsqd.https_address is not None
    with (
        dial(nsqd.https_address) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as secured,
        encrypted(nsqd, context),
    ):
        certificate = secured.getpeercert()
    assert certificate is not None
    return certificate["serialNumber"]


@only_ours("Go's nsqd ends at SIGHUP")
def test_sighup_brings_new_certificates(
    nsqd_factory: Factory[Nsqd], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first, second = (Authority(tmp_path_factory.mktemp("authority")) for _ in range(2))
    files = {name: tmp_path / name for name in ("tls_cert", "tls_key")}

    def install(authority: Authority, *names: str) -> None:
        for name in names:
            shutil.copy(authority.server_options[name], files[name])

    install(first, *files)
    nsqd = nsqd_factory(process=True, **files)
    before = serial_number(nsqd, first)
    with encrypted(nsqd, first.client_context()) as early:
        install(second, "tls_cert")  # without its key
        os.kill(nsqd.pid, signal.SIGHUP)
        eventually(lambda: "keeping the current certificate" in nsqd.log)
        assert serial_number(nsqd, first) == before
        install(second, "tls_key")
        os.kill(nsqd.pid, signal.SIGHUP)
        eventually(lambda: "reloaded" in nsqd.log)
        assert serial_number(nsqd, second) != before
        with (
            pytest.raises(LayerError, match="certificate"),
            encrypted(nsqd, first.client_context()),
        ):
            pass
        early.send(commands.pub("t", b"of a connection that was open"))
        early.expect_ok()
