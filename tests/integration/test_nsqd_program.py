"""nsqd as a program: flags, config file, exit statuses, signals, and first steps."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsq import Consumer, Producer
from nsq.http.nsqd import NsqdApi
from nsq.testing import Nsqd, V2Client
from nsq.testing.plugin import Factory
from nsq.testing.v2 import PeerClosed
from nsq.wire import commands
from tests.fakes.programs import run_python
from tests.integration.clients import consumer, finish_all
from tests.integration.judged import ANY_PORTS, command, only_ours, run
from tests.integration.patience import eventually

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def process(nsqd_factory: Factory[Nsqd]) -> Callable[..., Nsqd]:
    """Makes nsqds that run as programs."""
    return functools.partial(nsqd_factory, process=True)


def setting(nsqd: Nsqd, key: str) -> str:
    """An option as the running nsqd has it, by its key in the config file."""
    reply = nsqd.get(f"/config/{key}")
    assert reply.status == 200
    return reply.text


def config(directory: Path, text: str) -> str:
    path = directory / "nsqd.cfg"
    path.write_text(text)
    return f"--config={path}"


class TestFlags:
    @pytest.mark.parametrize(
        ("flags", "named"),
        [
            (["--node-id=1024"], "node-id"),
            (["--node-id=-1"], "node-id"),
            (["--max-deflate-level=10"], "max-deflate-level"),
            (["--max-deflate-level=0"], "max-deflate-level"),
            (["--tls-required"], "TLS|tls"),
            (["--tls-cert=/nowhere/cert", "--tls-key=/nowhere/key"], "/nowhere/cert"),
            (["--config=/nowhere/nsqd.cfg"], "/nowhere/nsqd.cfg"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_an_invalid_value_is_status_1_and_one_line(
        self, tmp_path: Path, flags: list[str], named: str
    ) -> None:
        done = run("nsqd", *ANY_PORTS, *flags, cwd=tmp_path)
        assert done.returncode == 1
        assert re.search(named, last_line(done.stderr))
        assert "Traceback" not in done.stderr


@only_ours("Go's nsqd ends with status 0 whatever it could not write")
def test_a_stop_that_loses_messages_is_status_1(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    argv = [*command("nsqd"), *ANY_PORTS, f"--data-path={data}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment) as nsqd:
        assert nsqd.stderr is not None
        address = next(line for line in nsqd.stderr if "HTTP: listening on" in line).split()[-1]
        NsqdApi(address).publish("orders", b"one")
        data.rename(tmp_path / "away")
        nsqd.send_signal(signal.SIGTERM)
        _, log = nsqd.communicate(timeout=60)
    assert nsqd.returncode == 1
    assert re.search("1 messages of .*orders.* are lost", log)


def last_line(text: str) -> str:
    return text.rstrip("\n").rpartition("\n")[2]


class TestConfigFile:
    def test_a_flag_beats_the_file_and_the_file_the_default(
        self, process: Callable[..., Nsqd], tmp_path: Path
    ) -> None:
        lines = "max_rdy_count = 7\nmsg_timeout = 2500\nsnappy = false\nid = 17\n"
        file = config(tmp_path, lines + 'nsqlookupd_tcp_addresses = ["127.0.0.1:1", "127.0.0.1:2"]\n')
        nsqd = process(flags=[file, "-max-rdy-count", "8", "--max-rdy-count=9"])
        expected = {
            "max_rdy_count": "9",
            "msg_timeout": "2500000000",
            "snappy": "false",
            "max_msg_timeout": "900000000000",
            "id": "17",
        }
        assert {key: setting(nsqd, key) for key in expected} == expected
        assert sorted(nsqd.get("/config/nsqlookupd_tcp_addresses").json()) == ["127.0.0.1:1", "127.0.0.1:2"]


class TestPorts:
    @pytest.mark.parametrize("which", ["tcp", "http"])
    def test_an_address_in_use_is_status_1_and_is_named(self, tmp_path: Path, which: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            done = run("nsqd", *ANY_PORTS, f"--{which}-address={address}", cwd=tmp_path)
        assert done.returncode == 1
        assert address in last_line(done.stderr)
        assert "address already in use" in last_line(done.stderr)
        assert "Traceback" not in done.stderr

    def test_nsqd_listens_on_unix_sockets(self, process: Callable[..., Nsqd], tmp_path: Path) -> None:
        tcp, web = tmp_path / "tcp.sock", tmp_path / "http.sock"
        nsqd = process(tcp_address=str(tcp), http_address=str(web))
        assert nsqd.post("/pub?topic=t", b"body").status == 200
        with consumer(nsqd, "t") as client:
            assert client.expect_message().body == b"body"
        assert nsqd.terminate() == 0
        assert not tcp.exists()
        assert not web.exists()


class TestEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_it_in_good_order_whatever_its_clients_do(
        self, process: Callable[..., Nsqd], number: signal.Signals
    ) -> None:
        nsqd = process()
        with consumer(nsqd, "t", rdy=100) as busy, consumer(nsqd, "t", "idle", rdy=0), publishing(nsqd, "t"):
            for _ in range(50):
                finish_all(busy, [busy.expect_message()])
            os.kill(nsqd.pid, number)
            assert status(nsqd) == 0
            read_until_closed(busy)
        assert not re.search("Traceback|panic:|never retrieved|never awaited", nsqd.log)

    def test_the_ports_of_a_stopped_nsqd_are_free_at_once(self, process: Callable[..., Nsqd]) -> None:
        nsqd = process()
        with consumer(nsqd, "t"):
            assert nsqd.terminate() == 0
        nsqd.start()
        assert nsqd.get("/ping").status == 200


def read_until_closed(client: V2Client) -> None:
    with contextlib.suppress(PeerClosed):
        while True:
            client.frame()


def status(nsqd: Nsqd) -> int:
    """The exit status of a process that was asked to stop, within its deadline."""
    eventually(lambda: not nsqd.running)
    return nsqd.terminate()


@contextlib.contextmanager
def publishing(nsqd: Nsqd, topic: str) -> Iterator[None]:
    """Publish without a pause until nsqd hangs up."""

    def publish() -> None:
        with V2Client(nsqd.tcp_address) as client, contextlib.suppress(PeerClosed):
            while True:
                client.send(commands.pub(topic, b"x" * 100))
                client.expect_ok()

    publisher = threading.Thread(target=publish, name="publisher", daemon=True)
    publisher.start()
    try:
        yield
    finally:
        publisher.join(60)
        assert not publisher.is_alive()


@only_ours("they have an extra")
@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
@pytest.mark.parametrize(
    ("flags", "status", "out", "error"),
    [
        (["--version"], 0, "PROGRAM v1.3.0 (built w/python3.", ""),
        (["--help"], 0, "Usage of PROGRAM:\n", ""),
        (["--no-such-flag"], 2, "", "flag provided but not defined: -no-such-flag\n"),
        ([], 1, "", "PROGRAM needs the server extra: pip install 'nsq[server]'\n"),
    ],
    ids=["version", "help", "a wrong flag", "a start"],
)
def test_without_the_server_extra_a_start_tells_how_to_install_it(
    program: str, flags: list[str], status: int, out: str, error: str, tmp_path: Path
) -> None:
    """With only the standard library and nsq to import from."""
    done = run_python("-S", "-m", f"nsq.daemons.{program}", *flags, cwd=tmp_path)
    assert done.returncode == status
    for said, expected in ((done.stdout, out), (done.stderr, error)):
        assert said.startswith(expected.replace("PROGRAM", program))
        assert bool(said) == bool(expected)


@only_ours("the event loop is Python's")
@pytest.mark.parametrize("durable", [False, True], ids=["normal", "durable"])
def test_nsqd_delivers_and_restarts_without_uvloop(
    durable: bool, nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> None:
    binary = tmp_path / "nsqd"
    binary.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nsys.modules['uvloop'] = None\n"
        "from nsq.daemons.nsqd.__main__ import main\nsys.exit(main())\n"
    )
    binary.chmod(0o755)
    nsqd = nsqd_factory(binary=binary, **({"durable": True} if durable else {}))
    with Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("orders", [b"one", b"two"])
    nsqd.restart()
    seen: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with Consumer("orders", "billing", nsqd=nsqd.tcp_address).add_handler(
        lambda message: seen.put(message.body)
    ):
        assert sorted(seen.get(timeout=60) for _ in range(2)) == [b"one", b"two"]
