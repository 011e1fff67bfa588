"""nsqlookupd over real sockets, and as a program."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from nsq.daemons.nsqlookupd import tcp
from nsq.daemons.nsqlookupd.daemon import Nsqlookupd
from nsq.daemons.nsqlookupd.options import NsqlookupdOptions
from nsq.daemons.serve.listen import ListenError
from nsq.daemons.serve.logs import DaemonLog
from nsq.wire import lookup
from nsq.wire.lookup import LookupReplyParser, PeerInfo
from tests.integration.clients import dial
from tests.integration.test_httpd import on_an_event_loop

ROOT = Path(__file__).resolve().parents[2]
NSQD = PeerInfo(broadcast_address="g1.example", hostname="g1", http_port=4151, tcp_port=4150, version="9.9.9")


@asynccontextmanager
async def running(
    tcp_address: str = "127.0.0.1:0", http_address: str = "127.0.0.1:0"
) -> AsyncIterator[Nsqlookupd]:
    log = DaemonLog(stream=io.StringIO())
    daemon = Nsqlookupd(
        NsqlookupdOptions(
            tcp_address=tcp_address, http_address=http_address, broadcast_address="lookup.example"
        ),
        log=log,
    )
    await daemon.start()
    try:
        yield daemon
    finally:
        await daemon.stop()


class Client:
    """The nsqd's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._parser = LookupReplyParser()

    async def ask(self, data: bytes, answers: int = 1) -> list[bytes]:
        self.writer.write(data)
        replies: list[bytes] = []
        while len(replies) < answers and (received := await self.reader.read(65536)):
            replies += self._parser.feed(received)
        return replies

    async def ended(self) -> bool:
        return await self.reader.read() == b""


async def opened(address: str | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    assert address is not None
    if "/" in address:
        return await asyncio.open_unix_connection(address)
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port))


@asynccontextmanager
async def connected(address: str | None) -> AsyncIterator[Client]:
    reader, writer = await opened(address)
    try:
        writer.write(lookup.MAGIC)
        yield Client(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


async def get(address: str | None, target: str) -> object:
    """Over whatever kind of address, without an HTTP library's idea of what an answer should be."""
    reader, writer = await opened(address)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    answer: object = json.loads(body)
    return answer


async def eventually(address: str | None, target: str, answer: object) -> None:
    """The daemon learns of a closed connection a moment after the client has closed it."""
    async with asyncio.timeout(60):
        while await get(address, target) != answer:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
@on_an_event_loop
async def test_an_nsqd_registers_is_found_and_leaves(host: str) -> None:
    async with running(f"{host}:0", f"{host}:0") as daemon:
        async with connected(daemon.tcp_address) as nsqd:
            (reply,) = await nsqd.ask(lookup.identify(NSQD))
            own = lookup.parse_peer_info(reply)
            assert (own.broadcast_address, own.version) == ("lookup.example", "1.3.0")
            assert f"{host}:{own.tcp_port}" == daemon.tcp_address
            assert f"{host}:{own.http_port}" == daemon.http_address
            assert await nsqd.ask(lookup.register("orders", "archive")) == [b"OK"]
            found = await get(daemon.http_address, "/lookup?topic=orders")
            local = nsqd.writer.get_extra_info("sockname")
            assert isinstance(found, dict)
            assert found["channels"] == ["archive"]
            assert [one["broadcast_address"] for one in found["producers"]] == ["g1.example"]
            assert found["producers"][0]["remote_address"] == f"{host}:{local[1]}"
        await eventually(
            daemon.http_address, "/lookup?topic=orders", {"channels": ["archive"], "producers": []}
        )


@on_an_event_loop
async def test_nsqlookupd_listens_on_unix_sockets(tmp_path: Path) -> None:
    tcp, web = tmp_path / "tcp.sock", tmp_path / "http.sock"
    async with running(str(tcp), str(web)) as daemon:
        assert (daemon.tcp_address, daemon.http_address) == (str(tcp), str(web))
        async with connected(str(tcp)) as nsqd:
            await nsqd.ask(lookup.identify(NSQD))
            await nsqd.ask(lookup.register("orders"))
            assert await get(str(web), "/topics") == {"topics": ["orders"]}
        with pytest.raises(ListenError, match=f"cannot listen on {tcp}: address already in use"):
            async with running(str(tcp)):
                pass
        assert await get(str(web), "/info") == {"version": "1.3.0"}
    assert not tcp.exists()
    assert not web.exists()


@on_an_event_loop
async def test_a_socket_file_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with running(http_address=str(path)):
        assert await get(str(path), "/info") == {"version": "1.3.0"}


@on_an_event_loop
async def test_a_port_in_use_is_named_and_nothing_stays_open() -> None:
    async with running() as first:
        with pytest.raises(
            ListenError, match=f"cannot listen on {first.http_address}: address already in use"
        ):
            async with running(http_address=str(first.http_address)):
                pass


@on_an_event_loop
async def test_a_client_that_sends_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as daemon, connected(daemon.tcp_address) as nsqd:
        await nsqd.ask(lookup.identify(NSQD))
        # Not before: a busy machine may take longer for an introduction.
        monkeypatch.setattr(tcp, "IDENTIFY_SECONDS", 0.05)
        async with connected(daemon.tcp_address) as other:
            assert await other.ended()
            assert await nsqd.ask(lookup.ping()) == [b"OK"]


def flood(address: str) -> None:
    """Introduce an nsqd and then send without ever reading, until the other side has had enough."""
    with dial(address) as sock:
        sock.sendall(lookup.MAGIC + lookup.identify(NSQD))
        while True:
            sock.sendall(b"PING\n" * 20_000)


@on_an_event_loop
async def test_a_client_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "UNREAD_SECONDS", 0.05)
    async with running() as daemon:
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(flood, str(daemon.tcp_address))
        await eventually(daemon.http_address, "/nodes", {"producers": []})


# The program


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error", "-m", "nsq.daemons.nsqlookupd", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def listening(process: subprocess.Popen[str]) -> list[str]:
    """The TCP and the HTTP address, once both are in the log."""
    assert process.stderr is not None
    addresses: list[str] = []
    for line in process.stderr:
        found = re.search(r"INFO: (?:TCP|HTTP): listening on (\S+)$", line)
        addresses += [found[1]] if found else []
        if len(addresses) == 2:
            break
    return addresses


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_program_in_order(number: signal.Signals) -> None:
    with program("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0") as process:
        tcp_address, http_address = listening(process)
        client = http.client.HTTPConnection(http_address)
        client.request("GET", "/ping")
        assert client.getresponse().read() == b"OK"
        with dial(tcp_address) as peer:
            process.send_signal(number)
            _, log = process.communicate(timeout=60)
            assert peer.recv(1) == b""
        client.close()
        assert process.returncode == 0
        assert f"received {number.name}, stopping" in log
        assert re.search("ERROR|FATAL|Traceback|Warning|Unclosed", log) is None


def test_a_warning_names_arguments_that_are_ignored() -> None:
    addresses = "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"
    with program(*addresses, "stray", "--log-level=debug") as process:
        assert process.stderr is not None
        assert (
            "WARNING: ignored, as 'stray' is not a flag: stray --log-level=debug" in process.stderr.readline()
        )
        listening(process)
        process.terminate()
        assert process.wait(60) == 0


def test_registrations_sent_at_once_take_turns_with_others() -> None:
    topics = [f"topic-{number:06}" for number in range(200_000)]
    with program("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0") as process:
        tcp_address, http_address = listening(process)
        client = http.client.HTTPConnection(http_address, timeout=60)
        with dial(tcp_address) as nsqd:
            nsqd.sendall(lookup.MAGIC + lookup.identify(NSQD))
            assert len(LookupReplyParser().feed(nsqd.recv(65536))) == 1
            lines, answers = b"".join(map(lookup.register, topics)), lookup.reply(lookup.OK) * len(topics)
            with ThreadPoolExecutor() as threads:
                threads.submit(nsqd.sendall, lines)
                reading = threads.submit(nsqd.makefile("rb").read, len(answers))
                pings = 0
                while not reading.done():
                    client.request("GET", "/ping")
                    assert client.getresponse().read() == b"OK"
                    pings += 1
            assert reading.result() == answers
        client.close()
        assert pings > 20
