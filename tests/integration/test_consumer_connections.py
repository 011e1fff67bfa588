"""Connections of a consumer: TLS, compression, AUTH, Unix sockets, IPv6.

What is not granted, or not proven, is refused, and says so.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nsq import Consumer
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.interop.auth_server import running_auth_server

from .authority import Authority
from .consuming import (
    CHANNEL,
    TOPIC,
    Recorder,
    clients_of,
    create,
    expect_drained,
    log_of,
    make_consumer,
    numbered,
    publish,
    running,
    until,
)

SECRET = "open-sesame-4711"


def exchange(nsqd: Nsqd, **options: Any) -> dict[str, Any]:
    """Have a consumer receive small and large messages; what nsqd says of the connection."""
    create(nsqd)
    bodies = [*numbered(500), b"x" * 300_000, bytes(range(1, 10)) * 50_000]
    seen = Recorder()
    with running(make_consumer(nsqd, max_in_flight=50, **options).add_handler(seen)):
        publish(nsqd, bodies)
        seen.wait_for(len(bodies))
        expect_drained(nsqd)
        (client,) = clients_of(nsqd)
    assert sorted(seen.bodies) == sorted(bodies)
    return client


def expect_refusal(consumer: Consumer, *parts: str) -> None:
    """It never connects; log and health say why, naming the address and these parts, and no secret."""
    consumer.add_handler(Recorder())
    with log_of() as log:
        consumer.start()
        try:
            log.wait_for("WARNING", "no connection to an nsqd", *parts)
            until("health says so", lambda: all(part in str(consumer.health().discovery) for part in parts))
            assert consumer.stats().connections == 0
            assert "open-sesame" not in str(log.lines) + str(consumer.health()) + repr(consumer)
        finally:
            assert consumer.stop().clean


# TLS and compression.


class Certificates(NamedTuple):
    """Files. ``server`` is for 127.0.0.1 and ::1, ``elsewhere`` for another host, ``client`` for a client."""

    authority: Path
    stranger: Path  # another authority
    server: tuple[Path, Path]
    elsewhere: tuple[Path, Path]
    client: tuple[Path, Path]
    strange_client: tuple[Path, Path]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    authority, stranger = (Authority(tmp_path_factory.mktemp(name)) for name in ("authority", "stranger"))
    return Certificates(
        authority.certificate,
        stranger.certificate,
        server=authority.issue("server", "127.0.0.1", "::1"),
        elsewhere=authority.issue("elsewhere", "nsqd.example.org"),
        client=authority.issue("client", "worker@example.org"),
        strange_client=stranger.issue("client", "stranger@example.org"),
    )


def own(pair: tuple[Path, Path], **options: Any) -> dict[str, Any]:
    """The options of an nsqd with this certificate."""
    return {"tls_cert": pair[0], "tls_key": pair[1], **options}


def demanding(certificates: Certificates) -> dict[str, Any]:
    """Of one that wants to see a client's certificate."""
    return own(
        certificates.server,
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=certificates.authority,
        tls_required="tcp-https",
    )


def trusting(authority: Path, **options: Any) -> dict[str, Any]:
    return {"tls": True, "tls_ca_file": authority, **options}


def showing(certificates: Certificates, pair: tuple[Path, Path]) -> dict[str, Any]:
    return trusting(certificates.authority, tls_cert_file=pair[0], tls_key_file=pair[1])


def at_most_tls_1_2(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


Options = Callable[[Certificates], dict[str, Any]]

INTRODUCTION = {"client_id": "worker 7", "hostname": "pod-7", "user_agent": "billing/1.2"}
#: Options of the nsqd, options of the consumer, and what nsqd then says of the connection.
GRANTED: dict[str, tuple[Options, Options, dict[str, Any]]] = {
    "TLS, verified": (
        lambda c: own(c.server, tls_required="tcp-https"),
        lambda c: trusting(c.authority),
        {"tls": True},
    ),
    "a TLS context of its own": (
        lambda c: own(c.server),
        lambda c: {"tls": at_most_tls_1_2(c)},
        {"tls": True, "tls_version": "TLS1.2"},
    ),
    "TLS and snappy": (
        lambda c: own(c.server),
        lambda c: trusting(c.authority, snappy=True),
        {"tls": True, "snappy": True},
    ),
    "the name in the certificate": (
        lambda c: own(c.elsewhere),
        lambda c: trusting(c.authority, tls_server_name="nsqd.example.org"),
        {"tls": True},
    ),
    "TLS, not verified": (
        lambda c: own(c.elsewhere),
        lambda c: {"tls": True, "tls_verify": False},
        {"tls": True},
    ),
    "a client's certificate": (demanding, lambda c: showing(c, c.client), {"tls": True}),
    "snappy": (lambda c: {}, lambda c: {"snappy": True}, {"snappy": True, "deflate": False}),
    "deflate": (lambda c: {}, lambda c: {"deflate": True}, {"snappy": False, "deflate": True}),
    "no snappy on offer": (lambda c: {"snappy": False}, lambda c: {"snappy": True}, {"snappy": False}),
    "no deflate on offer": (lambda c: {"deflate": False}, lambda c: {"deflate": True}, {"deflate": False}),
    "a secret that nsqd does not ask for": (
        lambda c: {},
        lambda c: {"auth_secret": SECRET},
        {"authed": False},
    ),
    "a shortest buffer timeout above our default": (
        lambda c: {"min_output_buffer_timeout": 0.1},
        lambda c: {},
        {},
    ),
    "an address to connect from": (lambda c: {}, lambda c: {"local_address": "127.0.0.2"}, {}),
    "what it says of itself": (lambda c: {}, lambda c: dict(INTRODUCTION), INTRODUCTION),
}


@pytest.mark.parametrize("case", GRANTED)
def test_nsqd_grants_what_the_options_ask_for(
    nsqd_factory: Factory[Nsqd], certificates: Certificates, case: str
) -> None:
    daemon, options, expected = GRANTED[case]
    client = exchange(nsqd_factory(**daemon(certificates)), **(asked := options(certificates)))
    assert {name: client.get(name, False) for name in expected} == expected
    assert client["remote_address"].startswith(f"{asked.get('local_address', '127.0.0.1')}:")


#: Options of the nsqd, options of the consumer, and what the error says.
REFUSED: dict[str, tuple[Options, Options, list[str]]] = {
    "an unknown authority": (
        lambda c: own(c.server),
        lambda c: trusting(c.stranger),
        ["certificate verify failed"],
    ),
    "another host's certificate": (
        lambda c: own(c.elsewhere),
        lambda c: trusting(c.authority),
        ["certificate is not valid for '127.0.0.1'"],
    ),
    "no client's certificate": (demanding, lambda c: trusting(c.authority), []),
    "a stranger's certificate": (demanding, lambda c: showing(c, c.strange_client), []),
    "TLS that is not offered": (
        lambda c: {},
        lambda c: {"tls": True, "auth_secret": SECRET},
        ["TLS was asked for", "does not offer it"],
    ),
    "no TLS where it is required": (
        lambda c: own(c.server, tls_required="tcp-https"),
        lambda c: {},
        ["E_INVALID"],
    ),
    "a TLS version too old": (
        lambda c: own(c.server, tls_min_version="tls1.3"),
        lambda c: {"tls": at_most_tls_1_2(c)},
        ["rotocol version"],
    ),
    "a message timeout too long": (
        lambda c: {"max_msg_timeout": 60.0},
        lambda c: {"msg_timeout": 120.0},
        ["E_BAD_BODY", "msg timeout"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_connection_that_is_refused_says_why(
    nsqd_factory: Factory[Nsqd], certificates: Certificates, case: str
) -> None:
    daemon, options, parts = REFUSED[case]
    nsqd = nsqd_factory(**daemon(certificates))
    create(nsqd)
    expect_refusal(make_consumer(nsqd, **options(certificates)), nsqd.tcp_address, *parts)


# AUTH.


@pytest.fixture
def guarded(nsqd_factory: Factory[Nsqd]) -> Iterator[Nsqd]:
    """An nsqd that knows one secret, which allows to subscribe to the channel."""
    grant = {"topic": TOPIC, "channels": [CHANNEL], "permissions": ["subscribe"]}
    with running_auth_server({SECRET: [grant]}) as address:
        yield nsqd_factory(auth_http_addresses=[address])


def test_a_good_secret_authorizes(guarded: Nsqd) -> None:
    client = exchange(guarded, auth_secret=SECRET)
    assert client["authed"]
    assert client["auth_identity"] == "tester"


@pytest.mark.parametrize(
    ("channel", "secret", "said"),
    [
        (CHANNEL, "open-sesame-4712", "E_UNAUTHORIZED"),
        (CHANNEL, "", "requires AUTH: give auth_secret"),
        ("another", SECRET, "E_UNAUTHORIZED"),
    ],
    ids=["a wrong secret", "no secret", "a secret for another channel"],
)
def test_a_subscription_without_the_right_secret_is_refused(
    guarded: Nsqd, channel: str, secret: str, said: str
) -> None:
    create(guarded)
    consumer = Consumer(TOPIC, channel, nsqd=guarded.tcp_address, auth_secret=secret)
    expect_refusal(consumer, guarded.tcp_address, said)


# What nsqd refuses for other reasons.


def test_a_channel_that_is_full_is_consumed_from_as_soon_as_it_has_room(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(max_channel_consumers=1)
    create(nsqd)
    seen = Recorder()
    with (
        running(make_consumer(nsqd).add_handler(Recorder())) as first,
        log_of() as log,
        make_consumer(nsqd, reconnect_initial=0.05).add_handler(seen),
    ):
        log.wait_for("WARNING", nsqd.tcp_address, "E_SUB_FAILED")
        assert first.stop().clean
        publish(nsqd, [b"m"])
        seen.wait_for(1)


# Other ways to an nsqd.


def test_a_unix_socket(nsqd_factory: Factory[Nsqd], tmp_path: Path) -> None:
    path = tmp_path / "nsqd.sock"
    nsqd = nsqd_factory(tcp_address=str(path))
    create(nsqd)
    for address in (f"unix:{path}", str(path)):
        publish(nsqd, [b"m"])
        seen = Recorder()
        with running(make_consumer(address).add_handler(seen)) as consumer:
            assert seen.wait_for(1)[0].nsqd_address == address
            expect_drained(nsqd)
            assert consumer.health().connections[0].nsqd_address == address


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
def test_ipv6(nsqd_factory: Factory[Nsqd], certificates: Certificates) -> None:
    nsqd = nsqd_factory(**own(certificates.server, tcp_address="[::1]:0"))
    assert nsqd.tcp_address.startswith("[::1]:")
    exchange(nsqd, **trusting(certificates.authority))
