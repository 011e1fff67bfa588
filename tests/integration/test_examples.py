"""Runs every file of examples/ as a reader would, against real daemons, and checks its output."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsq import Consumer, Producer
from nsq.errors import Unauthorized
from nsq.testing import Nsqd, Nsqlookupd, PartitionedCluster
from nsq.testing.plugin import Factory

from .authority import Authority
from .consuming import PATIENCE, Recorder, channel_of, create, numbered, publish, running, until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


class Example:
    """A running example; its output is read as it comes."""

    def __init__(self, name: str, *arguments: object, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *program(name), *map(str, arguments)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, name=f"output of {name}")
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line that has the pattern."""
        try:
            found: re.Match[str] = until(
                pattern,
                lambda: next(filter(None, (re.search(pattern, line) for line in list(self.lines))), None),
                timeout=4 * PATIENCE,  # it may have to be half-way through a lot
            )
        except AssertionError:
            raise AssertionError(f"no line has {pattern!r}: {self.lines}") from None
        return found

    def addresses(self) -> list[str]:
        """The addresses of daemons in the output so far."""
        starts = [line for line in list(self.lines) if line.startswith("nsq")]
        return re.findall(r"(?:tcp|http) (\S+)", "\n".join(starts))

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> int:
        self._process.send_signal(number)
        return self.end()

    def end(self) -> int:
        status = self._process.wait(2 * PATIENCE)
        self._reader.join(PATIENCE)
        return status

    def kill(self) -> None:
        self._process.kill()
        self.end()
        assert self._process.stdout is not None
        self._process.stdout.close()


def program(name: str) -> list[str]:
    """The arguments of Python that run an example: a file, or a folder with a ``__main__.py``."""
    path = EXAMPLES / name
    return [str(path)] if path.is_file() else ["-m", f"examples.{name}"]


@pytest.fixture
def example() -> Iterator[Callable[..., Example]]:
    started: list[Example] = []

    def start(name: str, *arguments: object, **environment: str) -> Example:
        started.append(Example(name, *arguments, **environment))
        return started[-1]

    yield start
    for each in started:
        each.kill()


Start = Callable[..., Example]


def test_every_example_is_tested() -> None:
    source = Path(__file__).read_text()
    folders = [path.parent for path in EXAMPLES.glob("*/__main__.py")]
    examples = [path.name for path in (*EXAMPLES.glob("*.py"), *folders)]
    missing = [name for name in examples if f'example("{name}"' not in source]
    assert missing == []


def test_the_script_consumer_example_runs(
    example: Start, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]
) -> None:
    nsqd = nsqd_factory(lookupd=[nsqlookupd])
    create(nsqd)
    until("registered", lambda: nsqlookupd.get("/lookup?topic=orders").status == 200)
    publish(
        nsqd, [b'{"order": 1, "amount": 20}', b'{"order": 2, "amount": 2000}', b'{"order": 3, "amount": 5}']
    )
    script = example("script_consumer.py", nsqlookupd.http_address)
    script.wait_for(r"^INFO order 1: 20 \(attempt 1\)$")
    script.wait_for(r"^INFO order 3: 5 \(attempt 1\)$")
    until("one waits", lambda: channel_of(nsqd)["deferred_count"] == 1)
    assert script.interrupt(signal.SIGTERM) == 0
    assert not [line for line in script.lines if "ERROR" in line or "WARNING" in line]


def test_the_batch_consumer_example_runs(example: Start, nsqd: Nsqd, tmp_path: Path) -> None:
    create(nsqd, channel="archive")
    publish(nsqd, numbered(250))
    path = tmp_path / "orders.db"
    script = example("batch_consumer.py", nsqd.tcp_address, path)
    until("all stored", lambda: sum(int(line.split()[1]) for line in script.lines if "stored" in line) == 250)
    assert script.interrupt() == 0
    database = sqlite3.connect(path)
    bodies = [body for (body,) in database.execute("SELECT body FROM orders")]
    database.close()
    assert sorted(bodies) == sorted(numbered(250))
    sizes = [int(line.split()[1]) for line in script.lines if "stored" in line]
    assert 1 < max(sizes) <= 100  # as many as came within half a second


def test_the_dead_letters_example_runs(example: Start, nsqd: Nsqd) -> None:
    script = example("dead_letters.py", nsqd.tcp_address)
    assert script.end() == 0, script.lines
    for line in ("INFO 1 / 4 = 0.25", "INFO 1 / 8 = 0.125", "INFO dead: 0"):
        assert line in script.lines
    assert sum(line.startswith("ERROR handler failed") for line in script.lines) == 3
    script.wait_for("^ERROR gave up on .* topic numbers.dead has it")


def test_the_tls_consumer_example_runs(example: Start, nsqd_factory: Factory[Nsqd], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    nsqd = nsqd_factory(
        **authority.server_options,
        tls_required="tcp-https",
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=authority.certificate,
    )
    certificates = authority.certificate, *authority.issue("client", "worker@example.org")
    script = example("tls_consumer.py", nsqd.tcp_address, *certificates)
    assert script.end() == 0, script.lines
    assert script.lines == [f"received the combination is 4711 from {nsqd.tcp_address}"]


def test_the_auth_server_example_runs(example: Start, nsqd_factory: Factory[Nsqd]) -> None:
    server = example("auth_server.py", "127.0.0.1:0")
    address = server.wait_for(r"listening on (.*)")[1]
    nsqd = nsqd_factory(auth_http_addresses=[address])
    create(nsqd)
    seen = Recorder()
    consumer = Consumer("orders", "billing", nsqd=nsqd.tcp_address, auth_secret="billing-secret")
    with (
        Producer(nsqd.tcp_address, auth_secret="producer-secret") as producer,
        running(consumer.add_handler(seen)),
    ):
        producer.publish("orders", b"hello")
        seen.wait_for(1)
        with pytest.raises(Unauthorized):
            producer.publish("salaries", b"hello")
    with Producer(nsqd.tcp_address, auth_secret="guess") as stranger, pytest.raises(Unauthorized):
        stranger.ping()
    for identity in ("shop", "billing", "nobody"):
        server.wait_for(f"127.0.0.1 is {identity}$")
    assert "secret" not in "\n".join(server.lines)
    assert server.interrupt() == 0


def test_the_producer_example_runs(example: Start, nsqd_factory: Factory[Nsqd]) -> None:
    nsqds = [nsqd_factory(), nsqd_factory()]
    script = example("producer.py", *(nsqd.tcp_address for nsqd in nsqds))
    assert script.end() == 0, script.lines
    counts = {
        address: int(count)
        for address, count in re.findall(r"(\S+): (\d+) messages", "\n".join(script.lines))
    }
    assert sum(counts.values()) == 202
    for nsqd in nsqds:
        (topic,) = nsqd.get("/stats?format=json&topic=orders").json()["topics"] or [{"message_count": 0}]
        assert topic["message_count"] == counts.get(nsqd.tcp_address, 0)


def test_the_custom_transport_example_runs(example: Start, nsqd: Nsqd) -> None:
    script = example("custom_transport.py", nsqd.tcp_address)
    assert script.end() == 0, script.lines
    script.wait_for("nsqd says .*max_rdy_count")
    script.wait_for(rf"{nsqd.tcp_address}: [1-9]\d* bytes received")
    script.wait_for(rf"{nsqd.tcp_address}: [1-9]\d* bytes sent")


def test_the_example_of_tests_in_memory_passes(example: Start) -> None:
    script = example("memory_nsqd.py")
    assert script.end() == 0, script.lines
    assert [line.partition(": ")[2] for line in script.lines] == ["passed", "passed"]


def test_the_ordered_example_handles_all_in_sequence(example: Start) -> None:
    script = example("ordered.py")
    assert script.end() == 0, script.lines
    assert script.lines[-1] == "40 of 40 orders were handled completely and in sequence"
    assert sum("moves to" in line for line in script.lines) == 4
    assert "attempt 1 at b'order-7 paid' failed: the bank does not answer for order-7" in script.lines
    assert "Traceback" not in "".join(script.lines)


def test_the_ordered_example_runs_against_another_cluster(
    example: Start, partitioned_cluster: PartitionedCluster
) -> None:
    partitioned_cluster.create_topic("order-steps", partitions=2, ordered=True, channels=["shipping"])
    script = example("ordered.py", *partitioned_cluster.lookup_addresses)
    assert script.end() == 0, script.lines


def test_the_demo_kept_goes_on_with_a_light_load_and_leaves_nothing(example: Start, tmp_path: Path) -> None:
    script = example("demo", "--orders", "500", "--keep", TMPDIR=str(tmp_path))
    page = script.wait_for("^nsqadmin    (http://.*/)$")[1]
    script.wait_for("^everything runs until Ctrl-C")
    first = [line.partition(" ")[0] for line in script.lines]
    assert first.index("nsqadmin") < first.index("a")  # its address is shown before "a web shop ..."
    addresses = script.addresses()
    until("shown again", lambda: len(script.addresses()) == 2 * len(set(addresses)))
    assert [address for address in addresses if not is_listening(address)] == []
    assert_nothing_is_lost(script, tmp_path)

    def overview() -> Any:
        with urllib.request.urlopen(f"{page}api/overview", timeout=60) as reply:
            return json.load(reply)["topics"][0]

    began = overview()["messages"]
    until("a light load", lambda: overview()["messages"] > began + 20)
    until("consumed", lambda: all(each["clients"] == 2 for each in overview()["channels"]))
    assert script.interrupt() == 0
    assert [address for address in addresses if is_listening(address)] == []
    assert list(tmp_path.iterdir()) == []


def assert_nothing_is_lost(script: Example, directory: Path) -> None:
    script.wait_for("^half-way: nsqd .* is killed")
    script.wait_for("^it is back after")
    script.wait_for("^2,000 events published in")
    for channel in ("billing", "archive"):
        script.wait_for(rf"^{channel} +2,000 .* 0$")
    script.wait_for(r"^0 lost, [\d,]+ twice")
    (archive,) = directory.glob("*.jsonl")
    assert {json.loads(line)["event"] for line in archive.read_text().splitlines()} == set(range(2000))


@pytest.mark.parametrize(("line", "number"), [("^nsqd ", signal.SIGTERM), ("^half-way", signal.SIGINT)])
def test_the_demo_interrupted_leaves_nothing(
    example: Start, tmp_path: Path, line: str, number: signal.Signals
) -> None:
    script = example("demo", "--orders", "5000", TMPDIR=str(tmp_path))
    script.wait_for(line)
    addresses = script.addresses()
    assert script.interrupt(number) == 128 + number, script.lines
    assert script.lines[-1] == "stopped; nothing is left behind"
    assert list(tmp_path.iterdir()) == []
    assert [address for address in addresses if is_listening(address)] == []


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0


@pytest.mark.parametrize(
    "name", ["batch_consumer.py", "dead_letters.py", "tls_consumer.py", "custom_transport.py"]
)
def test_an_example_without_arguments_prints_its_usage(example: Start, name: str) -> None:
    script = example(name)
    assert script.end() == 1, script.lines
    script.wait_for("usage: ")
