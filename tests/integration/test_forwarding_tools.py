"""nsq_to_http and nsq_to_nsq: what they deliver, and how they answer messages that they cannot deliver."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from nsq.tools import nsq_to_http, nsq_to_nsq
from tests.integration.consuming import channel_of, create, drained, numbered, publish, until
from tests.integration.running_tools import signalled_when, tool_process

ARGUMENTS = ["--topic=orders", "--channel=billing"]
QUICK = ["--consumer-opt=default_requeue_delay,0", "--consumer-opt=max_backoff_duration,0"]


class Web:
    """An HTTP server that remembers what it was asked, and answers with ``status``, or as ``answer`` says."""

    def __init__(self, protocol: str = "HTTP/1.1") -> None:
        self.asked: list[tuple[str, str, bytes, dict[str, str]]] = []
        self.clients: set[Any] = set()
        self.status = 200
        self.headers: dict[str, str] = {}
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = protocol
            timeout = 30

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                web.asked.append((self.command, self.path, body, headers))
                web.clients.add(self.client_address)
                redirected = web.status in (302, 307) and self.path == "/"
                self.send_response(web.status if redirected or web.status >= 400 else 200)
                if redirected:
                    self.send_header("Location", "/moved")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"OK")

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Web:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def bodies(self) -> list[bytes]:
        return [body for _, _, body, _ in list(self.asked)]


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as server:
        yield server


def to_http(nsqd: Nsqd, *arguments: str) -> int:
    with signalled_when(drained(nsqd)):
        return nsq_to_http.main([*ARGUMENTS, f"--nsqd-tcp-address={nsqd.tcp_address}", *QUICK, *arguments])


class TestToHttp:
    def test_bodies_are_posted_over_few_connections(
        self, nsqd: Nsqd, web: Web, capfd: pytest.CaptureFixture[str]
    ) -> None:
        create(nsqd)
        publish(nsqd, numbered(100))
        flags = [f"--post={web.address}/in", "--n=4", "--header=X-Key: k", "--status-every=50"]
        assert to_http(nsqd, *flags) == 0
        assert sorted(web.bodies()) == sorted(numbered(100))
        assert len(web.clients) <= 4
        method, path, _, headers = web.asked[0]
        assert (method, path, headers["x-key"]) == ("POST", "/in", "k")
        assert headers["content-type"] == "application/octet-stream"
        assert headers["user-agent"] == "nsq_to_http v1.3.0"
        assert "finished 100 - 99th: " in capfd.readouterr().err

    def test_bodies_go_into_the_address_of_a_get(self, nsqd: Nsqd, web: Web) -> None:
        create(nsqd)
        publish(nsqd, [b"a b&c"])
        assert to_http(nsqd, f"--get={web.address}/?q=%s") == 0
        assert [asked[:2] for asked in web.asked] == [("GET", "/?q=a+b%26c")]

    @pytest.mark.parametrize(
        ("status", "then"), [(302, ("GET", "/moved", b"")), (307, ("POST", "/moved", b"one"))]
    )
    def test_redirects_are_followed(
        self, nsqd: Nsqd, web: Web, status: int, then: tuple[str, str, bytes]
    ) -> None:
        create(nsqd)
        publish(nsqd, [b"one"])
        web.status = status
        assert to_http(nsqd, f"--post={web.address}/") == 0
        assert [asked[:3] for asked in web.asked] == [("POST", "/", b"one"), then]

    def test_a_failing_message_is_requeued_more_often_than_go_nsqs_five_times(
        self, nsqd: Nsqd, web: Web
    ) -> None:
        create(nsqd)
        publish(nsqd, [b"one"])
        web.status = 500

        def until_seven() -> bool:
            if len(web.asked) >= 7:
                web.status = 200
            return drained(nsqd)()

        with signalled_when(until_seven):
            arguments = [f"--nsqd-tcp-address={nsqd.tcp_address}", f"--post={web.address}/", *QUICK]
            assert nsq_to_http.main([*ARGUMENTS, *arguments]) == 0
        assert set(web.bodies()) == {b"one"}
        assert len(web.asked) > 7

    def test_a_server_that_closes_idle_connections(self, nsqd: Nsqd) -> None:
        create(nsqd)
        publish(nsqd, numbered(20))
        with Web("HTTP/1.0") as web:
            assert to_http(nsqd, f"--post={web.address}/", "--n=2") == 0
            assert sorted(web.bodies()) == sorted(numbered(20))
        assert channel_of(nsqd)["requeue_count"] == 0

    @pytest.mark.parametrize(("mode", "each"), [("round-robin", 5), ("multicast", 10)])
    def test_mode_chooses_the_destinations(self, nsqd: Nsqd, web: Web, mode: str, each: int) -> None:
        create(nsqd)
        publish(nsqd, numbered(10))
        with Web() as other:
            assert to_http(nsqd, f"--post={web.address}/", f"--post={other.address}/", f"--mode={mode}") == 0
            assert [len(web.asked), len(other.asked)] == [each, each]

    def test_a_pool_goes_on_without_a_server_that_is_gone(self, nsqd: Nsqd, web: Web) -> None:
        create(nsqd)
        publish(nsqd, numbered(10))
        assert to_http(nsqd, "--post=http://127.0.0.1:1/", f"--post={web.address}/", "--n=1") == 0
        assert sorted(web.bodies()) == sorted(numbered(10))
        assert channel_of(nsqd)["requeue_count"] == 1

    def test_messages_left_out_by_sample_are_finished(self, nsqd: Nsqd, web: Web) -> None:
        create(nsqd)
        publish(nsqd, numbered(10))
        assert to_http(nsqd, f"--post={web.address}/", "--sample=0") == 0
        assert web.asked == []


class TestToNsq:
    def test_everything_reaches_the_other_side(
        self, nsqd_factory: Factory[Nsqd], capfd: pytest.CaptureFixture[str]
    ) -> None:
        source, *others = (nsqd_factory() for _ in range(3))
        create(source)
        for other in others:
            create(other, "copy")
        publish(source, numbered(1000))
        with signalled_when(drained(source)):
            targets = [f"--destination-nsqd-tcp-address={other.tcp_address}" for other in others]
            flags = [*ARGUMENTS, f"--nsqd-tcp-address={source.tcp_address}", "--destination-topic=copy"]
            assert nsq_to_nsq.main([*flags, *targets, "--mode=round-robin"]) == 0
        counts = [channel_of(other, "copy")["message_count"] for other in others]
        assert sum(counts) == 1000
        assert min(counts) > 0
        assert "[aggregate]: finished 1000 - 99th" in capfd.readouterr().err

    def test_a_message_that_is_refused_does_not_keep_the_others(self, nsqd_factory: Factory[Nsqd]) -> None:
        source, target = nsqd_factory(), nsqd_factory(max_msg_size=20)
        create(source)
        create(target)
        publish(source, [*numbered(10), b"x" * 21, *numbered(10)])
        with signalled_when(lambda: channel_of(source)["requeue_count"] > 1):
            flags = [f"--nsqd-tcp-address={source.tcp_address}", *QUICK]
            destination = f"--destination-nsqd-tcp-address={target.tcp_address}"
            assert nsq_to_nsq.main([*ARGUMENTS, *flags, destination]) == 0
        assert channel_of(target)["message_count"] == 20
        assert channel_of(source)["depth"] == 1

    @pytest.mark.parametrize("first", [True, False])
    @pytest.mark.parametrize("mode", ["hostpool", "round-robin"])
    def test_messages_for_a_destination_that_refuses_go_to_the_other_at_once(
        self, nsqd_factory: Factory[Nsqd], mode: str, first: bool
    ) -> None:
        source, target = nsqd_factory(), nsqd_factory()
        create(source)
        create(target)
        publish(source, numbered(1000))
        with socket.socket() as refusing, signalled_when(drained(source)):
            refusing.bind(("127.0.0.1", 0))  # and does not listen
            both = [f"127.0.0.1:{refusing.getsockname()[1]}", target.tcp_address]
            targets = [f"--destination-nsqd-tcp-address={each}" for each in (both if first else both[::-1])]
            flags = [f"--nsqd-tcp-address={source.tcp_address}", f"--mode={mode}"]
            assert nsq_to_nsq.main([*ARGUMENTS, *flags, *targets]) == 0
        assert channel_of(target)["message_count"] == 1000
        assert channel_of(source)["requeue_count"] == 0

    def test_a_destination_that_disappears_costs_nothing(self, nsqd_factory: Factory[Nsqd]) -> None:
        source, target = nsqd_factory(), nsqd_factory()
        create(source)
        create(target)
        publish(source, numbered(50))
        target.stop(keep_data=True)
        came_back: list[float] = []

        def back_and_drained() -> bool:
            if channel_of(source)["requeue_count"] and not came_back:
                came_back.append(time.monotonic())
                target.start()
            return drained(source)()

        with signalled_when(back_and_drained):
            flags = [f"--nsqd-tcp-address={source.tcp_address}", *QUICK, "--producer-opt=publish_timeout,200"]
            destination = f"--destination-nsqd-tcp-address={target.tcp_address}"
            assert nsq_to_nsq.main([*ARGUMENTS, *flags, destination]) == 0
        assert channel_of(target)["message_count"] == 50

    def test_a_second_signal_ends_it_though_the_destination_hangs(self, nsqd: Nsqd) -> None:
        create(nsqd)
        publish(nsqd, numbered(50))
        with socket.create_server(("127.0.0.1", 0)) as silent:
            flags = [*ARGUMENTS, f"--nsqd-tcp-address={nsqd.tcp_address}"]
            destination = f"--destination-nsqd-tcp-address=127.0.0.1:{silent.getsockname()[1]}"
            with tool_process("nsq_to_nsq", *flags, destination, stderr=subprocess.PIPE) as process:
                assert process.stderr is not None
                until("in flight", lambda: channel_of(nsqd)["in_flight_count"] == 50)
                began = time.monotonic()
                for _ in range(2):
                    process.send_signal(signal.SIGTERM)
                    time.sleep(1.2)  # those within a second count as one
                assert process.wait(60) == 0
                assert time.monotonic() - began < 15
                assert b"a second signal" in process.stderr.read()
        until("nothing is lost", lambda: channel_of(nsqd)["depth"] == 50)
