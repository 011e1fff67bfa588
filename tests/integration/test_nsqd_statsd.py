"""Packets that nsqd pushes to statsd, over a real socket."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.integration.clients import consumer, finish_all, publish
from tests.integration.judged import only_ours
from tests.integration.patience import eventually

pytestmark = only_ours("Go's nsqd pushes only after whole intervals, and not when it ends")


class Statsd:
    """Collects what it is sent."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.packets: list[bytes] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._sock.getsockname()[1]}"

    def receive(self) -> list[str]:
        """The lines of the next packet."""
        self.packets.append(self._sock.recv(65536))
        return self.packets[-1].decode().splitlines()

    def receive_until(self, line: str) -> list[str]:
        lines: list[str] = []
        while not any(re.fullmatch(line, each) for each in lines):
            lines += self.receive()
        return lines

    def receive_rest(self) -> list[str]:
        """Everything that has come, once the nsqd is gone."""
        lines: list[str] = []
        self._sock.setblocking(False)
        try:
            while True:
                lines += self.receive()
        except BlockingIOError:
            return lines


@pytest.fixture
def statsd() -> Iterator[Statsd]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(60)
        yield Statsd(sock)


def test_statistics_are_pushed_at_every_interval(statsd: Statsd, nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(
        statsd_address=statsd.address,
        statsd_interval=0.05,
        broadcast_address="nsqd.example",
        e2e_processing_latency_percentiles=(0.99,),
    )
    prefix = f"nsq.nsqd_example_{nsqd.http_address.rpartition(':')[2]}."
    stem = re.escape(prefix)
    statsd.receive_until(rf"{stem}mem\.heap_in_use_bytes:\d{{7,}}\|g")
    with consumer(nsqd, "orders", "billing", rdy=2) as client:
        publish(nsqd, "orders", [b"one", b"two"])
        held = [client.expect_message(), client.expect_message()]
        lines = statsd.receive_until(rf"{stem}topic\.orders\.channel\.billing\.in_flight_count:2\|g")
        assert f"{prefix}topic.orders.message_count:2|c" in lines
        assert f"{prefix}topic.orders.message_bytes:6|c" in lines
        finish_all(client, held)
        statsd.receive_until(
            rf"{stem}topic\.orders\.channel\.billing\.e2e_processing_latency_99:[1-9]\d{{3,}}\|g"
        )
    assert all(len(packet) <= 508 for packet in statsd.packets)


def test_the_end_is_pushed_too(statsd: Statsd, nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(
        statsd_address=statsd.address,
        statsd_prefix="x",
        statsd_mem_stats=False,
        statsd_exclude_ephemeral=True,
    )
    publish(nsqd, "orders", [b"one", b"two", b"three"])
    publish(nsqd, "gone#ephemeral", [b"one"])
    nsqd.stop()
    assert statsd.receive_rest() == [
        "x.topic.orders.message_count:3|c",
        "x.topic.orders.message_bytes:11|c",
        "x.topic.orders.depth:3|g",
        "x.topic.orders.backend_depth:0|g",
    ]


def test_a_name_server_that_does_not_answer_holds_up_nothing(
    nsqd_factory: Factory[Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, asked = threading.Event(), []
    resolve = socket.getaddrinfo

    def slow(host: object, *args: object, **flags: object) -> object:
        if host == "statsd.example" and not flags.get("flags"):
            asked.append(host)
            answered.wait(200)
            raise socket.gaierror("no such host")
        if host == "statsd.example":
            raise socket.gaierror("not a number")
        return resolve(host, *args, **flags)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    nsqd = nsqd_factory(statsd_address="statsd.example:8125", statsd_interval=0.01)
    for _ in range(20):
        assert nsqd.get("/ping").status == 200
    eventually(lambda: asked)
    nsqd.stop()
    assert len(asked) == 1
    assert "statsd.example:8125 cannot be found - no answer" in nsqd.log
    answered.set()
