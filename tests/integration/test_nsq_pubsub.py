"""nsq_pubsub: topics over HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from nsq.tools import nsq_pubsub
from tests.integration.consuming import channel_of, clients_of, create, numbered, publish, until
from tests.integration.running_tools import signalled_when
from tests.integration.test_work import free_port
from tests.interop.auth_server import running_auth_server


class Client:
    def __init__(self, address: str) -> None:
        self.address = address

    @contextmanager
    def ask(
        self, method: str, target: str, body: bytes | None = None, **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            connection.request(method, target, body, headers)
            with connection.getresponse() as reply:
                yield reply
        finally:
            connection.close()

    def answer(
        self, method: str, target: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        with self.ask(method, target, body, **headers) as reply:
            return reply.status, reply.read()

    def is_there(self) -> bool:
        try:
            return self.answer("GET", "/ping") == (200, b"OK")
        except OSError:
            return False


def with_pubsub(nsqd: Nsqd, use: Callable[[Client], None]) -> int:
    """Serve while a thread of the test's uses it; the exit status."""
    client = Client(f"127.0.0.1:{free_port()}")
    used = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            until("listening", client.is_there)
            use(client)
        except BaseException as error:
            failures.append(error)
        finally:
            used.set()

    thread = threading.Thread(target=run, name="client")
    thread.start()
    with signalled_when(used.is_set):
        status = nsq_pubsub.main(
            [f"--nsqd-tcp-address={nsqd.tcp_address}", f"--http-address={client.address}"]
        )
    thread.join()
    if failures:
        raise failures[0]
    return status


def test_a_posted_message_is_published_and_streamed(nsqd: Nsqd) -> None:
    create(nsqd)

    def use(client: Client) -> None:
        assert client.answer("POST", "/pub?topic=orders", b"one") == (200, b"OK")
        assert channel_of(nsqd)["depth"] == 1
        publish(nsqd, numbered(100))
        with client.ask("GET", "/sub?topic=orders&channel=billing") as reply:
            assert [reply.readline() for _ in range(101)] == [
                body + b"\n" for body in [b"one", *numbered(100)]
            ]
            stats: dict[str, Any] = json.loads(client.answer("GET", "/stats")[1])
            assert stats["published"] == 1
            assert stats["subscriptions"][0]["topic"] == "orders"
        until("the client's end is noticed", lambda: not clients_of(nsqd))
        counts = channel_of(nsqd)
        assert (counts["depth"], counts["in_flight_count"], counts["requeue_count"]) == (0, 0, 0)

    assert with_pubsub(nsqd, use) == 0


def test_a_stop_ends_the_streams_and_finishes_written_messages(nsqd: Nsqd) -> None:
    create(nsqd)
    rest: list[bytes] = []
    readers: list[threading.Thread] = []

    def use(client: Client) -> None:
        def read() -> None:
            with client.ask("GET", "/sub?topic=orders&channel=billing") as reply:
                rest.extend(reply.readlines())

        readers.append(threading.Thread(target=read, name="reader"))
        readers[0].start()
        publish(nsqd, [b"one"])
        until("streamed", lambda: clients_of(nsqd) and not channel_of(nsqd)["depth"])

    assert with_pubsub(nsqd, use) == 0
    readers[0].join()
    assert rest == [b"one\n"]
    assert channel_of(nsqd)["depth"] == channel_of(nsqd)["in_flight_count"] == 0


def test_nsq_pubsub_refuses_requests_that_it_cannot_serve(nsqd: Nsqd) -> None:
    def use(client: Client) -> None:
        expected = {
            ("POST", "/pub", b"one"): 400,
            ("POST", "/pub?topic=a%20b", b"one"): 400,
            ("POST", "/pub?topic=t", b""): 400,
            ("POST", "/pub?topic=t", b"x" * (5 * 2**20 + 1)): 413,
            ("GET", "/sub?topic=t", None): 400,
            ("GET", "/nowhere", None): 404,
        }
        found = {}
        for method, target, body in expected:
            try:
                found[method, target, body] = client.answer(method, target, body)[0]
            except (BrokenPipeError, ConnectionResetError):
                found[method, target, body] = 413  # answered, and closed before the body was read
        assert found == expected

    assert with_pubsub(nsqd, use) == 0


def test_a_stream_ends_if_every_nsqd_refuses_it(
    nsqd_factory: Factory[Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsq_pubsub, "_REFUSED_EVERY", 0.1)

    def use(client: Client) -> None:
        assert client.answer("GET", "/sub?topic=orders&channel=billing") == (200, b"")

    with running_auth_server({}) as address:
        assert with_pubsub(nsqd_factory(auth_http_addresses=(address,)), use) == 0


def test_a_page_of_another_site_publishes_and_consumes_nothing(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"one"])
    pub, sub = ("POST", "/pub?topic=orders", b"two"), ("GET", "/sub?topic=orders&channel=billing", None)

    def use(client: Client) -> None:
        for foreign in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://shop.example"}):
            for request in (pub, sub):
                assert client.answer(*request, **foreign)[0] == 403
        for own in (
            {"Sec-Fetch-Site": "none"},
            {"Origin": f"http://{client.address}"},
            # Through proxies: one for TLS, and one that replaces the Host.
            {"Origin": f"https://{client.address}"},
            {"Origin": "http://pub.example", "X-Forwarded-Host": "pub.example"},
        ):
            assert client.answer(*pub, **own) == (200, b"OK")
        assert channel_of(nsqd)["depth"] == 5

    assert with_pubsub(nsqd, use) == 0


@pytest.mark.parametrize(("listens", "reached"), [("[::1]:{}", "[::1]:{}"), (":{}", "127.0.0.1:{}")])
def test_nsq_pubsub_listens_on_ipv6_and_on_every_interface(nsqd: Nsqd, listens: str, reached: str) -> None:
    port = free_port()
    client = Client(reached.format(port))
    with signalled_when(client.is_there):
        arguments = [f"--nsqd-tcp-address={nsqd.tcp_address}", f"--http-address={listens.format(port)}"]
        assert nsq_pubsub.main(arguments) == 0


@pytest.mark.parametrize(
    ("request_", "answered"),
    [
        (b"Content-Length: 10\r\n\r\nhalf", b""),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"HTTP/1.0 411 "),
    ],
)
def test_half_a_body_or_one_in_chunks_is_not_published(nsqd: Nsqd, request_: bytes, answered: bytes) -> None:
    create(nsqd)

    def use(client: Client) -> None:
        host, _, port = client.address.partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(b"POST /pub?topic=orders HTTP/1.1\r\n" + request_)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(13) == answered
        assert channel_of(nsqd)["message_count"] == 0

    assert with_pubsub(nsqd, use) == 0


def test_nsq_pubsub_names_an_address_that_is_taken(nsqd: Nsqd, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--nsqd-tcp-address={nsqd.tcp_address}", f"--http-address={nsqd.http_address}"]
    assert nsq_pubsub.main(arguments) == 1
    assert "--http-address" in capfd.readouterr().err
