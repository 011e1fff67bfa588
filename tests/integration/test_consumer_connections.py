"""Over what a consumer reaches an nsqd: TLS, compression, AUTH, Unix sockets, IPv6.

What is not granted, or not proven, is refused, and says so.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from nsq import Consumer
from nsq.errors import ConfigError
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.interop.auth_server import running_auth_server

from .consuming import (
    CHANNEL,
    PATIENCE,
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


def expect_refusal(consumer: Consumer, *parts: str) -> str:
    """It never connects; log and health say why, naming the address and these parts, and no secret."""
    consumer.add_handler(Recorder())
    with log_of() as log:
        consumer.start()
        try:
            line = log.wait_for("WARNING", "no connection to an nsqd", *parts)
            until("health says so", lambda: all(part in str(consumer.health().discovery) for part in parts))
            assert consumer.stats().connections == 0
            assert SECRET not in str(log.lines) + str(consumer.health()) + repr(consumer)
        finally:
            assert consumer.stop().clean
    return line


# TLS.


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
    directory = tmp_path_factory.mktemp("tls")
    authority, stranger = trustme.CA(), trustme.CA()

    def issue(name: str, issuer: trustme.CA, *identities: str) -> tuple[Path, Path]:
        made = issuer.issue_cert(*identities)
        chain, key = directory / f"{name}.pem", directory / f"{name}.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(key))
        return chain, key

    files = directory / "authority.pem", directory / "stranger.pem"
    for issuer, path in zip((authority, stranger), files, strict=True):
        issuer.cert_pem.write_to_path(str(path))
    return Certificates(
        *files,
        server=issue("server", authority, "127.0.0.1", "::1"),
        elsewhere=issue("elsewhere", authority, "nsqd.example.org"),
        client=issue("client", authority, "worker@example.org"),
        strange_client=issue("strange", stranger, "stranger@example.org"),
    )


MakeTls = Callable[..., Nsqd]


@pytest.fixture
def tls_nsqd(nsqd_factory: Factory[Nsqd], certificates: Certificates) -> MakeTls:
    def make(pair: tuple[Path, Path] = certificates.server, **options: Any) -> Nsqd:
        return nsqd_factory(tls_cert=pair[0], tls_key=pair[1], **options)

    return make


def test_tls_verifies_the_server(tls_nsqd: MakeTls, certificates: Certificates) -> None:
    nsqd = tls_nsqd(tls_required="tcp-https")
    client = exchange(nsqd, tls=True, tls_ca_file=certificates.authority)
    assert client["tls"]
    assert client["tls_version"].endswith(("1.2", "1.3"))


def test_tls_takes_a_context(tls_nsqd: MakeTls, certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=certificates.authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert exchange(tls_nsqd(), tls=context)["tls_version"].endswith("1.2")


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_tls_and_compression(tls_nsqd: MakeTls, certificates: Certificates, compression: str) -> None:
    options: dict[str, Any] = {compression: True}
    client = exchange(tls_nsqd(), tls=True, tls_ca_file=certificates.authority, **options)
    assert client["tls"]
    assert client[compression]


def test_an_unknown_authority_is_refused(tls_nsqd: MakeTls, certificates: Certificates) -> None:
    nsqd = tls_nsqd()
    consumer = make_consumer(nsqd, tls=True, tls_ca_file=certificates.stranger)
    expect_refusal(consumer, nsqd.tcp_address, "certificate verify failed")


def test_the_public_authorities_are_the_default(tls_nsqd: MakeTls) -> None:
    nsqd = tls_nsqd()
    expect_refusal(make_consumer(nsqd, tls=True), nsqd.tcp_address, "certificate verify failed")


def test_a_certificate_of_another_host_is_refused(tls_nsqd: MakeTls, certificates: Certificates) -> None:
    nsqd = tls_nsqd(certificates.elsewhere)
    consumer = make_consumer(nsqd, tls=True, tls_ca_file=certificates.authority)
    expect_refusal(consumer, nsqd.tcp_address, "certificate is not valid for '127.0.0.1'")


def test_the_name_in_the_certificate_can_be_told(tls_nsqd: MakeTls, certificates: Certificates) -> None:
    nsqd = tls_nsqd(certificates.elsewhere)
    exchange(nsqd, tls=True, tls_ca_file=certificates.authority, tls_server_name="nsqd.example.org")


def test_verifying_can_be_switched_off(tls_nsqd: MakeTls, certificates: Certificates) -> None:
    assert exchange(tls_nsqd(certificates.elsewhere), tls=True, tls_verify=False)["tls"]


def test_a_client_certificate_is_shown(tls_nsqd: MakeTls, certificates: Certificates) -> None:
    nsqd = tls_nsqd(
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=certificates.authority,
        tls_required="tcp-https",
    )
    chain, key = certificates.client
    assert exchange(
        nsqd, tls=True, tls_ca_file=certificates.authority, tls_cert_file=chain, tls_key_file=key
    )["tls"]


@pytest.mark.parametrize("shown", ["none", "strange"])
def test_without_the_right_client_certificate_nothing_is_received(
    tls_nsqd: MakeTls, certificates: Certificates, shown: str
) -> None:
    nsqd = tls_nsqd(
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=certificates.authority,
        tls_required="tcp-https",
    )
    options: dict[str, Any] = {}
    if shown == "strange":
        options["tls_cert_file"], options["tls_key_file"] = certificates.strange_client
    consumer = make_consumer(nsqd, tls=True, tls_ca_file=certificates.authority, **options)
    expect_refusal(consumer, nsqd.tcp_address)


def test_tls_that_is_not_offered_is_an_error(nsqd: Nsqd) -> None:
    consumer = make_consumer(nsqd, tls=True, auth_secret=SECRET)
    expect_refusal(consumer, nsqd.tcp_address, "TLS was asked for", "does not offer it")


def test_tls_that_is_required_and_not_asked_for(tls_nsqd: MakeTls) -> None:
    nsqd = tls_nsqd(tls_required="tcp-https")
    expect_refusal(make_consumer(nsqd), nsqd.tcp_address, "E_INVALID")


def test_a_tls_version_too_old_is_refused(tls_nsqd: MakeTls, certificates: Certificates) -> None:
    nsqd = tls_nsqd(tls_min_version="tls1.3")
    context = ssl.create_default_context(cafile=certificates.authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    expect_refusal(make_consumer(nsqd, tls=context), nsqd.tcp_address, "rotocol version")


def test_files_that_are_no_certificates_are_refused_at_once(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    with pytest.raises(ConfigError, match=r"tls_ca_file .*empty\.pem"):
        Consumer(TOPIC, CHANNEL, nsqd="127.0.0.1:4150", tls=True, tls_ca_file=empty)
    with pytest.raises(ConfigError, match=r"tls_cert_file .*missing\.pem"):
        Consumer(TOPIC, CHANNEL, nsqd="127.0.0.1:4150", tls=True, tls_cert_file=tmp_path / "missing.pem")


# Compression.


@pytest.mark.parametrize(
    "options", [{"snappy": True}, {"deflate": True}, {"deflate": True, "deflate_level": 1}]
)
def test_compression(nsqd: Nsqd, options: dict[str, Any]) -> None:
    client = exchange(nsqd, **options)
    assert client["deflate"] is options.get("deflate", False)
    assert client["snappy"] is options.get("snappy", False)


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_compression_that_is_not_offered_is_done_without(
    nsqd_factory: Factory[Nsqd], compression: str
) -> None:
    options: dict[str, Any] = {compression: True}
    client = exchange(nsqd_factory(**{compression: False}), **options)
    assert client[compression] is False


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


def test_a_bad_secret_is_refused(guarded: Nsqd) -> None:
    create(guarded)
    consumer = make_consumer(guarded, auth_secret="wrong-horse")
    line = expect_refusal(consumer, guarded.tcp_address, "E_UNAUTHORIZED")
    assert "wrong-horse" not in line


def test_without_a_secret_it_says_what_is_missing(guarded: Nsqd) -> None:
    create(guarded)
    expect_refusal(make_consumer(guarded), guarded.tcp_address, "requires AUTH: give auth_secret")


def test_a_secret_is_for_its_channels_only(guarded: Nsqd) -> None:
    create(guarded)
    consumer = Consumer(TOPIC, "another", nsqd=guarded.tcp_address, auth_secret=SECRET)
    expect_refusal(consumer, guarded.tcp_address, "E_UNAUTHORIZED")


def test_an_auth_server_that_is_down_is_tried_again(nsqd_factory: Factory[Nsqd]) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        nsqd = nsqd_factory(auth_http_addresses=[f"127.0.0.1:{reserved.getsockname()[1]}"])
        create(nsqd)
        expect_refusal(make_consumer(nsqd, auth_secret=SECRET), nsqd.tcp_address, "E_AUTH_FAILED")


def test_an_nsqd_without_auth_ignores_the_secret(nsqd: Nsqd) -> None:
    assert not exchange(nsqd, auth_secret=SECRET).get("authed")


def test_a_secret_travels_inside_tls(certificates: Certificates, nsqd_factory: Factory[Nsqd]) -> None:
    grant = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe"]}
    with running_auth_server({SECRET: [grant]}) as address:
        chain, key = certificates.server
        nsqd = nsqd_factory(auth_http_addresses=[address], tls_cert=chain, tls_key=key)
        client = exchange(nsqd, auth_secret=SECRET, tls=True, tls_ca_file=certificates.authority, snappy=True)
        assert (client["authed"], client["tls"], client["snappy"]) == (True, True, True)


# What nsqd refuses for other reasons.


def test_a_channel_that_is_full(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(max_channel_consumers=1)
    create(nsqd)
    seen = Recorder()
    with running(make_consumer(nsqd).add_handler(Recorder())) as first:
        second = make_consumer(nsqd, reconnect_initial=0.05).add_handler(seen)
        with log_of() as log:
            second.start()
            log.wait_for("WARNING", nsqd.tcp_address, "E_SUB_FAILED")
        assert first.stop().clean
        assert second.wait_until_connected(PATIENCE)
        publish(nsqd, [b"m"])
        seen.wait_for(1)
        assert second.stop().clean


def test_a_message_timeout_nsqd_does_not_allow(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(max_msg_timeout=60.0)
    create(nsqd)
    expect_refusal(make_consumer(nsqd, msg_timeout=120.0), nsqd.tcp_address, "E_BAD_BODY", "msg timeout")


def test_an_nsqd_whose_shortest_buffer_timeout_is_above_our_default(nsqd_factory: Factory[Nsqd]) -> None:
    exchange(nsqd_factory(min_output_buffer_timeout=0.1))


def test_a_message_timeout_of_our_own(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"m"])
    seen = Recorder(lambda message: message.time_left)
    with running(make_consumer(nsqd, msg_timeout=90.0).add_handler(seen)):
        (message,) = seen.wait_for(1)
        assert 80 < message.expires_at - message.received_at <= 90


def test_what_a_client_says_of_itself(nsqd: Nsqd) -> None:
    create(nsqd)
    options = {"client_id": "worker 7", "hostname": "pod-7", "user_agent": "billing/1.2"}
    with running(make_consumer(nsqd, **options).add_handler(Recorder())):
        (client,) = clients_of(nsqd)
    assert {name: client[name] for name in options} == options


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
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_ipv6(tls_nsqd: MakeTls, certificates: Certificates, encrypted: bool) -> None:
    nsqd = tls_nsqd(tcp_address="[::1]:0")
    assert nsqd.tcp_address.startswith("[::1]:")
    options = {"tls": True, "tls_ca_file": certificates.authority} if encrypted else {}
    exchange(nsqd, **options)


def test_an_address_to_connect_from(nsqd: Nsqd) -> None:
    client = exchange(nsqd, local_address="127.0.0.2")
    assert client["remote_address"].startswith("127.0.0.2:")


def test_a_host_name(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"m"])
    seen = Recorder()
    address = f"localhost:{nsqd.tcp_address.rpartition(':')[2]}"
    with running(make_consumer(address).add_handler(seen)):
        assert seen.wait_for(1)[0].nsqd_address == address
