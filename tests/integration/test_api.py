"""NsqdApi and NsqlookupdApi against our daemons, and the blocking sender against servers that misbehave."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nsq.errors import ApiError, ApiRefused, DialFailed
from nsq.http.message import HttpRequest, parse_url
from nsq.http.nsqd import NsqdApi
from nsq.http.nsqlookupd import NsqlookupdApi
from nsq.http.sending import send
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from nsq.transport import SocketTransport
from tests.fakes.forks import in_child

from .authority import Authority
from .patience import eventually

TIMEOUT = 0.4
"""For what is meant to time out."""
PATIENCE = 30.0
"""A call with TIMEOUT has failed when it takes this long, however busy the machine is."""
ENOUGH = 60.0
"""For what is not meant to time out."""

Behaviour = Callable[[socket.socket], None]


@contextmanager
def serving(behave: Behaviour, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server that does this with every connection, one after the other."""
    listener = socket.create_server(("127.0.0.1", 0))
    current: list[socket.socket] = []

    def run() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                current.append(connection)
                with connection, suppress(OSError):
                    stream = tls.wrap_socket(connection, server_side=True) if tls else connection
                    with stream:
                        current.append(stream)
                        behave(stream)

    thread = threading.Thread(target=run, name="misbehaving-server")
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        # shutdown wakes the accept and whatever the behaviour waits for; close alone would not.
        for each in (listener, *current):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(ENOUGH)


def answering(data: bytes) -> Behaviour:
    def behave(stream: socket.socket) -> None:
        stream.recv(65536)
        stream.sendall(data)

    return behave


def repeating(piece: bytes, pause: float = 0.0, first: bytes = b"") -> Behaviour:
    """Answers and never ends."""

    def behave(stream: socket.socket) -> None:
        stream.recv(65536)
        stream.sendall(first)
        while True:
            stream.sendall(piece)
            time.sleep(pause)

    return behave


def silent(stream: socket.socket) -> None:
    while stream.recv(65536):
        pass


def failure(address: str, timeout: float = TIMEOUT, **options: Any) -> str:
    """The ApiError of a request to a server, which must come in time."""
    started = time.monotonic()
    with pytest.raises(ApiError) as caught:
        send(HttpRequest(parse_url(f"{address}/path?secret=hunter2")), timeout=timeout, **options)
    assert time.monotonic() - started < timeout + PATIENCE
    assert "hunter2" not in str(caught.value)
    assert address.removeprefix("http://") in str(caught.value)
    return str(caught.value)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def client_tls(authority: Authority) -> ssl.SSLContext:
    return authority.client_context()


@pytest.fixture
def tls_options(authority: Authority) -> dict[str, Path]:
    """Options of an nsqd with a certificate of the authority."""
    return authority.server_options


@pytest.fixture
def server_tls(tls_options: dict[str, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*tls_options.values())
    return context


class TestNsqd:
    def test_messages_are_published_and_emptied(self, nsqd: Nsqd) -> None:
        api = NsqdApi(nsqd.http_address)
        api.create_topic("t")
        api.create_channel("t", "c")
        api.publish("t", b"one")
        api.multi_publish("t", [b"two\nlines", b"\0\xff"])
        api.publish("t", b"later", defer=60.0)
        # A topic hands its messages on in its own time.
        eventually(
            lambda: api.stats("t", include_clients=False)["topics"][0]["channels"][0],
            lambda channel: (channel["depth"], channel["deferred_count"]) == (3, 1),
        )
        api.empty_channel("t", "c")
        api.empty_topic("t")
        assert api.stats("t")["topics"][0]["channels"][0]["depth"] == 0

    def test_a_setting_can_be_read_and_changed(self, nsqd: Nsqd) -> None:
        api = NsqdApi(nsqd.http_address)
        before = api.get_config("log_level")
        assert api.set_config("log_level", "error") == api.get_config("log_level") != before
        assert api.get_config("nsqlookupd_tcp_addresses") == []
        with pytest.raises(ApiRefused, match="INVALID_OPTION"):
            api.get_config("no_such_option")

    def test_a_message_that_is_too_big_is_refused_although_nsqd_reads_only_part_of_it(
        self, nsqd: Nsqd
    ) -> None:
        with pytest.raises(ApiRefused) as caught:
            NsqdApi(nsqd.http_address).publish("t", b"x" * (32 * 1024 * 1024))
        assert (caught.value.status, caught.value.code) == (413, "MSG_TOO_BIG")

    def test_an_api_can_be_used_over_a_unix_socket(self, nsqd_factory: Factory[Nsqd], tmp_path: Path) -> None:
        path = tmp_path / "http.sock"
        nsqd_factory(http_address=str(path))
        for address in (f"unix:{path}", str(path)):
            api = NsqdApi(address)
            api.ping()
            assert str(path) in repr(api)

    def test_https_can_be_used_and_is_verified_by_default(
        self, nsqd_factory: Factory[Nsqd], tls_options: dict[str, Path], client_tls: ssl.SSLContext
    ) -> None:
        nsqd = nsqd_factory(**tls_options)
        assert NsqdApi(f"https://{nsqd.https_address}", tls=client_tls).info().version
        with pytest.raises(ApiError, match="certificate verify failed"):
            NsqdApi(f"https://{nsqd.https_address}").ping()

    def test_an_nsqd_that_requires_tls_is_asked_again_with_it(
        self, nsqd_factory: Factory[Nsqd], tls_options: dict[str, Path], client_tls: ssl.SSLContext
    ) -> None:
        nsqd = nsqd_factory(**tls_options)
        port = int(str(nsqd.https_address).rpartition(":")[2])
        refusal = json.dumps({"message": "TLS_REQUIRED", "https_port": port}).encode()
        with serving(answering(b"HTTP/1.1 403 Forbidden\r\n\r\n" + refusal)) as address:
            api = NsqdApi(address, tls=client_tls)
            api.publish("t", b"x")
            assert api.stats()["topics"][0]["message_count"] == 1
            request = HttpRequest(parse_url(f"{address}/info"))
            assert send(request, timeout=ENOUGH).status == 403  # not without being told to


class TestNsqlookupd:
    def test_an_nsqd_that_registers_and_is_tombstoned(
        self, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]
    ) -> None:
        nsqd = nsqd_factory(lookupd=[nsqlookupd])
        NsqdApi(nsqd.http_address).create_topic("orders")
        api = NsqlookupdApi(nsqlookupd.http_address)
        found = eventually(lambda: "orders" in api.topics() and api.lookup("orders").producers)
        assert [node.tcp_address for node in found] == [nsqd.tcp_address]
        assert [node.http_address for node in found] == [nsqd.http_address]
        api.tombstone("orders", found[0].http_address)
        assert api.lookup("orders").producers == ()
        (node,) = api.nodes()
        assert (node.topics, node.tombstoned) == (("orders",), frozenset({"orders"}))
        assert [entry["tombstoned"] for entry in api.debug()["topic:orders:"]] == [True]


class TestDeadlines:
    """One for the whole request: a server cannot stretch it by sending a little now and then."""

    @pytest.mark.parametrize(
        "behave",
        [
            silent,
            repeating(b"H", 0.05, b"HTTP/1.1 200 OK\r\n"),
            repeating(b"x", 0.05, b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
            repeating(b"1\r\nx\r\n", 0.05, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            repeating(b"HTTP/1.1 100 Continue\r\n\r\n", 0.05),
        ],
        ids=["silence", "a dripping head", "a dripping body", "dripping chunks", "endless announcements"],
    )
    def test_a_reply_that_does_not_end_is_cut_off(self, behave: Behaviour) -> None:
        with serving(behave) as address:
            assert failure(address).endswith(f"did not answer within {TIMEOUT:g} s")

    def test_a_tls_handshake_that_drips_is_cut_off(self, client_tls: ssl.SSLContext) -> None:
        record = b"\x16\x03\x03\x40\x00"  # the beginning of a handshake record of 16 KiB
        with serving(repeating(b"\x02", 0.05, record)) as address:
            failure(f"https://{address}", tls=client_tls)

    def test_a_reply_that_drips_over_tls_is_cut_off(
        self, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
    ) -> None:
        with serving(repeating(b"x", 0.05, b"HTTP/1.1 200 OK\r\n"), server_tls) as address:
            assert "did not answer" in failure(f"https://{address}", 1.0, tls=client_tls)

    def test_a_server_that_reads_nothing_is_given_up(self) -> None:
        stop = threading.Event()

        def deaf(_: socket.socket) -> None:
            stop.wait(2 * PATIENCE)

        with serving(deaf) as address:
            body = b"x" * (64 * 1024 * 1024)
            started = time.monotonic()
            with pytest.raises(ApiError, match="did not answer within"):
                send(HttpRequest(parse_url(address), "POST", body=body), timeout=TIMEOUT)
            assert time.monotonic() - started < PATIENCE
            stop.set()


class TestBadServers:
    def test_the_tcp_port_of_nsqd_is_recognized(self, nsqd: Nsqd) -> None:
        with pytest.raises(ApiError, match="a TCP port of NSQ"):
            NsqdApi(nsqd.tcp_address).ping()

    def test_http_and_https_are_not_taken_for_each_other(
        self, nsqd: Nsqd, nsqd_factory: Factory[Nsqd], tls_options: dict[str, Path]
    ) -> None:
        with pytest.raises(ApiError, match="cannot be reached"):
            NsqdApi(f"https://{nsqd.http_address}").ping()
        with pytest.raises(ApiError):
            NsqdApi(str(nsqd_factory(**tls_options).https_address)).ping()

    def test_an_end_that_tls_did_not_vouch_for(
        self, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
    ) -> None:
        # Without a length the end of the connection ends the body, and anybody can end a connection.
        with serving(answering(b"HTTP/1.1 200 OK\r\n\r\ncut sho"), server_tls) as address:
            assert "EOF" in failure(f"https://{address}", ENOUGH, tls=client_tls)


def test_a_forked_child_lets_go_of_requests_under_way() -> None:
    transport = SocketTransport(interrupt_streams=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        stream = transport.connect(f"{host}:{port}", timeout=ENOUGH)
        with listener.accept()[0] as peer:
            assert in_child(lambda: (transport.abandon(), transport.interrupt())) == 0
            stream.write(b"still there", ENOUGH)
            assert peer.recv(100) == b"still there"
            transport.interrupt()
            assert peer.recv(100) == b""
        with pytest.raises(DialFailed, match="interrupted"):
            transport.connect(f"{host}:{port}", timeout=ENOUGH)
