"""Misbehaving clients over real sockets: nsqd slows or disconnects them; other clients are not affected."""

from __future__ import annotations

import contextlib
import gc
import http.client
import random
import resource
import socket
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from nsq.testing import Nsqd, V2Client
from nsq.testing.plugin import Factory
from nsq.testing.v2 import PeerClosed
from nsq.wire import commands
from tests.integration.bystander import bystander, descriptors, resident
from tests.integration.clients import channel_stats, connected, consumer, dial, publish, stats, topic_stats
from tests.integration.judged import only_ours
from tests.integration.patience import eventually

pytestmark = [
    only_ours("bounds of Go's nsqd are other ones"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc"),
]

MB = 1_000_000
MODES = pytest.mark.parametrize("durable", [False, True], ids=["normal", "durable"])


@pytest.fixture
def nsqd(nsqd_factory: Factory[Nsqd]) -> Nsqd:
    return nsqd_factory(process=True, mem_queue_size=100, log_level="warning")


def raw(nsqd: Nsqd) -> socket.socket:
    made = dial(nsqd.tcp_address)
    made.sendall(commands.MAGIC_V2)
    return made


def swallow(client: socket.socket, data: bytes) -> int:
    """The number of bytes that nsqd reads before it stops or hangs up."""
    client.settimeout(1.0)
    view, sent = memoryview(data), 0
    with contextlib.suppress(TimeoutError, ConnectionError):
        while sent < len(data):
            sent += client.send(view[sent : sent + 256 * 1024])
    return sent


def ends(client: socket.socket, within: float = 60.0) -> bytes:
    """The bytes that arrive before the connection ends, which must be soon."""
    client.settimeout(within)
    said = b""
    with contextlib.suppress(ConnectionError):
        while data := client.recv(65536):
            said += data
    return said


def expect_the_end(client: V2Client) -> None:
    """Read until the connection ends."""
    with contextlib.suppress(PeerClosed):
        while client.frame(timeout=60):
            pass


class TestAClientThatDoesNotRead:
    def test_is_given_no_more_messages_than_a_socket_holds(self, nsqd: Nsqd) -> None:
        with consumer(nsqd, "t", rdy=0):
            pass
        for _ in range(10):
            publish(nsqd, "t", [b"x" * 4000] * 1000)
        before = resident(nsqd)
        with bystander(nsqd), raw(nsqd) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(commands.sub("t", "channel") + commands.rdy(2500))
            with consumer(nsqd, "t", rdy=10) as other:
                for _ in range(50):
                    other.send(commands.fin(other.expect_message().id))
            time.sleep(0.3)
            assert resident(nsqd) - before < 40 * MB
        eventually(lambda: channel_stats(nsqd, "t")["in_flight_count"], lambda count: count == 0)
        assert channel_stats(nsqd, "t")["depth"] >= 10_000 - 60

    def test_can_still_finish_messages(self, nsqd: Nsqd) -> None:
        """Else those behind a slow link time out although their handlers were quick."""
        with consumer(nsqd, "t", rdy=0):
            pass
        for _ in range(4):
            publish(nsqd, "t", [b"x" * 4000] * 1000)
        with raw(nsqd) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(commands.sub("t", "channel") + commands.rdy(2500))
            eventually(lambda: channel_stats(nsqd, "t")["in_flight_count"])  # as many as sockets hold
            begins = slow.recv(10 + 34, socket.MSG_WAITALL)  # an OK, and a message up to the end of its id
            slow.sendall(commands.fin(begins[-16:]))
            eventually(lambda: channel_stats(nsqd, "t")["clients"][0]["finish_count"], within=10)
            assert channel_stats(nsqd, "t")["depth"]

    def test_is_not_listened_to_either(self, nsqd: Nsqd) -> None:
        """Else its answers would pile up."""
        orders = commands.pub("t", b"x") * 4_000_000
        before = resident(nsqd)
        with bystander(nsqd), raw(nsqd) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            assert swallow(deaf, orders) < len(orders) * 0.9
            assert resident(nsqd) - before < 80 * MB

    def test_is_cut_off_when_it_is_silent_for_two_heartbeats(self, nsqd: Nsqd) -> None:
        with connected(nsqd, heartbeat_interval=1000, msg_timeout=60_000) as client:
            client.send(commands.sub("t", "channel") + commands.rdy(1))
            client.expect_ok()
            publish(nsqd, "t", [b"a"])
            client.expect_message()
            with consumer(nsqd, "t") as other:
                message = other.expect_message(timeout=60)  # long before its timeout of a minute
                assert (message.body, message.attempts) == (b"a", 2)
            expect_the_end(client)

    def test_half_a_command_does_not_count_as_a_heartbeat(self, nsqd: Nsqd) -> None:
        with connected(nsqd, heartbeat_interval=1000) as client:
            client.send(commands.pub("t", b"x" * 1000)[:500])
            expect_the_end(client)
        assert topic_stats(nsqd, "t") == {}


def begin_body(nsqd: Nsqd, way: str) -> socket.socket:
    """A client that has sent all of a body of 5 MB but the last byte."""
    if way == "tcp":
        client = raw(nsqd)
        client.sendall(commands.mpub("t", [b"x" * MB] * 5)[:-1])
        return client
    client = dial(nsqd.http_address)
    client.sendall(b"POST /mpub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n")
    client.sendall(b"x" * (5 * MB - 1))
    return client


class TestBodiesThatDoNotCome:
    @pytest.mark.parametrize("way", ["http", "tcp"])
    def test_a_body_that_was_cut_off_leaves_no_memory(self, nsqd_factory: Factory[Nsqd], way: str) -> None:
        """The garbage collector is off: it might run only after the next body."""
        nsqd = nsqd_factory(log_level="fatal")  # in this process, whose collector is switched off
        begin_body(nsqd, way).close()
        gc.collect()
        before = resident()
        gc.disable()
        try:
            for _ in range(50):
                begin_body(nsqd, way).close()
            eventually(lambda: resident() - before, lambda grown: grown < 60 * MB)
        finally:
            gc.enable()


class TestGarbage:
    @pytest.mark.parametrize(
        "garbage",
        [
            random.Random(1).randbytes(2_000_000),
            b"x" * 2_000_000,
            b"PUB t\n\x7f\xff\xff\xff" + b"x" * 2_000_000,
            b"MPUB t\n\x00\x10\x00\x00\x7f\xff\xff\xff" + b"x" * 2_000_000,
            b"IDENTIFY\n\x00\x10\x00\x00" + b"[" * (1 << 20),
            b"PUB " + b"t " * 1_000_000,
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        ],
        ids=["random", "no line", "huge size", "huge count", "deep json", "many words", "http"],
    )
    def test_ends_the_connection(self, nsqd: Nsqd, garbage: bytes) -> None:
        before = resident(nsqd)
        with bystander(nsqd), raw(nsqd) as client:
            swallow(client, garbage)
            assert b"E_" in ends(client) or len(garbage) > 100_000  # a reset may overtake the answer
            assert resident(nsqd) - before < 30 * MB

    def test_a_connection_reset_is_not_logged_as_an_error(self, nsqd: Nsqd) -> None:
        for _ in range(50):
            with raw(nsqd) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                client.sendall(b"NONSENSE\n")
        assert nsqd.get("/ping").status == 200
        assert "Traceback" not in nsqd.log


class TestWhatExplodes:
    def deflated(self, nsqd: Nsqd) -> V2Client:
        client = V2Client(nsqd.tcp_address)
        client.identify(deflate=True, heartbeat_interval=60_000)
        client.start_deflate()
        return client

    def bomb(self, piece: bytes, times: int) -> bytes:
        squeezer = zlib.compressobj(9, wbits=-15)
        parts = [squeezer.compress(piece * 1000) for _ in range(times // 1000)]
        return b"".join(parts) + squeezer.flush(zlib.Z_SYNC_FLUSH)

    @pytest.mark.parametrize("how", ["MPUB", "/mpub?topic=t", "/mpub?topic=t&binary=true"])
    def test_a_publish_of_many_tiny_messages_does_not_block_others(self, nsqd: Nsqd, how: str) -> None:
        channels = ("a", "b", "c")
        nsqd.post("/topic/create?topic=t")
        for channel in channels:
            nsqd.post(f"/channel/create?topic=t&channel={channel}")
        bodies = [b"x"] * 300_000
        packed = b"x\n" * len(bodies) if how == "/mpub?topic=t" else commands.pack_bodies(bodies)
        with bystander(nsqd) as other, connected(nsqd) as client:
            count = other.count
            if how == "MPUB":
                client.send(commands.mpub("t", bodies))
                client.expect_ok(timeout=60)
            else:
                assert nsqd.post(how, packed, timeout=60).status == 200
            assert other.count > count + 4
        for channel in channels:
            assert channel_stats(nsqd, "t", channel)["depth"] == len(bodies)

    def test_a_line_without_end_is_cut_off(self, nsqd: Nsqd) -> None:
        wire = self.bomb(b"\0" * 1000, 200_000)
        before = resident(nsqd)
        with bystander(nsqd), self.deflated(nsqd) as client:
            with contextlib.suppress(ConnectionError):
                client._socket.sendall(wire)
            expect_the_end(client)
            assert resident(nsqd) - before < 60 * MB

    def test_a_huge_body_in_a_few_bytes_is_refused_before_it_is_there(self, nsqd: Nsqd) -> None:
        before = resident(nsqd)
        with bystander(nsqd), self.deflated(nsqd) as client:
            wire = zlib.compressobj(9, wbits=-15)
            order = wire.compress(b"PUB t\n\x3f\xff\xff\xff") + wire.compress(b"\0" * 100_000_000)
            with contextlib.suppress(ConnectionError):
                client._socket.sendall(order + wire.flush(zlib.Z_SYNC_FLUSH))
            client.expect_error("E_BAD_MESSAGE")
            assert resident(nsqd) - before < 60 * MB


@contextlib.contextmanager
def crowd(nsqd: Nsqd, count: int) -> Iterator[list[socket.socket]]:
    """This many consumers of a hundred channels."""
    made: list[socket.socket] = []
    try:
        for number in range(count):
            made.append(raw(nsqd))
            made[-1].sendall(commands.sub("crowd", f"channel{number % 100}") + commands.rdy(1))
        for client in made:
            assert client.recv(100)[8:] == b"OK"
        yield made
    finally:
        for client in made:
            client.close()


@pytest.mark.parametrize(
    "count", [300, pytest.param(10_000, marks=[pytest.mark.chaos, pytest.mark.timeout(300)])]
)
def test_many_clients_at_once_are_served(nsqd: Nsqd, count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 500:
        pytest.skip(f"{count} connections need more than the {hard} files that are allowed")
    if soft < count + 500:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 500, hard))
        resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE, (count + 500, hard))
    before, open_before = resident(nsqd), descriptors(nsqd)
    with bystander(nsqd), crowd(nsqd, count) as everyone:
        publish(nsqd, "crowd", [b"to every channel"])
        listening = {client.fileno(): client for client in everyone}
        assert len(listening) == count
        waiting = stats(nsqd, "&topic=crowd&include_clients=false")["topics"][0]["channels"]
        assert sum(channel["client_count"] for channel in waiting) == count
        assert resident(nsqd) - before < 20 * MB + count * 40_000
    eventually(lambda: descriptors(nsqd), lambda now: now <= open_before + 5, within=60)


def test_connected_clients_are_served_without_free_descriptors(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(process=True, mem_queue_size=10_000, log_level="warning")
    resource.prlimit(nsqd.pid, resource.RLIMIT_NOFILE, (40, 40))
    with bystander(nsqd) as other:
        outside = [raw(nsqd) for _ in range(60)]
        try:
            count = other.count
            eventually(lambda: other.count, lambda seen: seen > count + 20)
        finally:
            for client in outside:
                client.close()

        def publish_one() -> bool:
            with contextlib.suppress(OSError):
                return nsqd.post("/pub?topic=t", b"a").status == 200
            return False

        eventually(publish_one)
    eventually(lambda: nsqd.get("/ping").status, lambda status: status == 200)


@MODES
@pytest.mark.parametrize(
    "count", [500, pytest.param(10_000, marks=[pytest.mark.chaos, pytest.mark.timeout(300)])]
)
def test_thousands_of_topics_can_be_served(nsqd_factory: Factory[Nsqd], durable: bool, count: int) -> None:
    others: dict[str, Any] = {"durable": True} if durable else {"mem_queue_size": 0}
    nsqd = nsqd_factory(process=True, log_level="warning", sync_timeout=0.5, stop_timeout=60, **others)
    before = resident(nsqd)
    with bystander(nsqd), connected(nsqd, heartbeat_interval=-1) as client:
        for start in range(0, count, 100):
            client.send(
                b"".join(commands.pub(f"topic{number}", b"a") for number in range(start, start + 100))
            )
            for _ in range(100):
                client.expect_ok(timeout=60)
        assert len(nsqd.get("/stats?format=json&include_clients=false").json()["topics"]) >= count
        assert resident(nsqd) - before < 20 * MB + count * 30_000
    nsqd.restart()
    with consumer(nsqd, f"topic{count - 1}") as client:
        assert client.expect_message().body == b"a"
    depths = [topic["depth"] for topic in stats(nsqd)["topics"] if topic["topic_name"].startswith("topic")]
    assert sum(depths) == count - 1


def test_a_tcp_connection_beyond_the_limit_gets_an_error(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(max_connections=2, log_level="fatal")
    with connected(nsqd) as first, connected(nsqd) as second:
        with raw(nsqd) as third:
            assert b"E_TOO_MANY_CONNECTIONS nsqd has as many clients as --max-connections allows (2)" in ends(
                third
            )
        for client in (first, second):
            client.send(commands.pub("t", b"x"))
            client.expect_ok()
    eventually(lambda: connects(nsqd))


def connects(nsqd: Nsqd) -> bool:
    with contextlib.suppress(PeerClosed), connected(nsqd):
        return True
    return False


def test_an_http_connection_beyond_the_limit_gets_503(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(max_connections=1, log_level="fatal")
    host, _, port = nsqd.http_address.rpartition(":")
    first, second = (http.client.HTTPConnection(host, int(port), timeout=60) for _ in range(2))
    try:
        first.request("GET", "/ping")
        assert first.getresponse().read() == b"OK"
        second.request("GET", "/ping")
        refused = second.getresponse()
        assert (refused.status, refused.read()) == (503, b'{"message":"TOO_MANY_CONNECTIONS"}')
        assert refused.headers["Connection"] == "close"
        first.request("GET", "/metrics")
        assert (
            b'nsqd_errors_total{protocol="http",code="TOO_MANY_CONNECTIONS"} 1' in first.getresponse().read()
        )
    finally:
        first.close()
        second.close()
    eventually(lambda: nsqd.get("/ping").status, lambda status: status == 200)
