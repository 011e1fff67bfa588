"""One client attacks a daemon while another uses it: the other is hardly slower, and the daemon's memory
stays small.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nsq
from nsq.testing import Nsqadmin, Nsqd, Nsqlookupd
from nsq.wire import commands
from tests.integration.bystander import resident
from tests.integration.clients import dial

pytestmark = pytest.mark.chaos

PATIENCE = 60.0
#: Seconds that /ping may take. Go's daemons need 0.02 to 0.1 here; ours took 3 to 22 before they were mended.
#: The rest is for a busy machine.
SLOW = 2.0
#: Bytes by which an attack may make a daemon grow.
GROWTH = 150 * 1024 * 1024
SECONDS = 6.0
SIZE = struct.Struct(">I")


@contextlib.contextmanager
def under_attack(attack: Callable[[], object]) -> Iterator[None]:
    """Call ``attack`` again and again on a thread, during the block."""
    over = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    attack()
        except OSError:
            pass  # the daemon may hang up
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="attack")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE)
    assert failures == []


def expect_well(daemon: Nsqd | Nsqlookupd | Nsqadmin, before: int) -> None:
    slowest = 0.0
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        began = time.monotonic()
        assert daemon.get("/ping").body == b"OK"
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.02)
    assert slowest < SLOW
    assert resident(daemon) - before < GROWTH


@pytest.mark.parametrize("kind", [Nsqd, Nsqlookupd, Nsqadmin])
def test_one_byte_chunks_delay_no_other_request(kind: type[Nsqd | Nsqlookupd | Nsqadmin]) -> None:
    with contextlib.ExitStack() as stack:
        options = {"nsqd": [stack.enter_context(Nsqd())]} if kind is Nsqadmin else {}
        daemon = stack.enter_context(kind(process=True, **options))
        before = resident(daemon)
        connections = [stack.enter_context(dial(daemon.http_address)) for _ in range(100)]
        for connection in connections:
            connection.sendall(b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            connection.setblocking(False)

        def drip() -> None:
            for connection in connections:
                with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                    connection.send(b"1\r\nx\r\n" * 1000)

        with under_attack(drip):
            expect_well(daemon, before)


def test_bodies_that_drip_stop_no_publish() -> None:
    """Most of a 5 MB MPUB of one-byte messages, then a few bytes a second, on eight connections."""
    messages = 900_000
    body = SIZE.pack(messages) + (SIZE.pack(1) + b"x") * messages
    command = b"MPUB dripping\n" + SIZE.pack(len(body)) + body
    with (
        Nsqd(process=True) as nsqd,
        contextlib.ExitStack() as stack,
        nsq.Producer(nsqd.tcp_address) as producer,
    ):
        before = resident(nsqd)
        connections = [stack.enter_context(dial(nsqd.tcp_address)) for _ in range(8)]
        for connection in connections:
            connection.sendall(commands.MAGIC_V2 + command[:-1_000_000])

        def drip() -> None:
            for connection in connections:
                connection.send(command[-1_000_000:][:2500])
            time.sleep(1.0)

        with under_attack(drip):
            ends = time.monotonic() + SECONDS
            while time.monotonic() < ends:
                producer.publish("orders", b"x" * 200, timeout=PATIENCE / 2)
            expect_well(nsqd, before)


def test_bad_answers_on_a_crowded_channel_delay_nothing() -> None:
    with Nsqd(process=True) as nsqd, contextlib.ExitStack() as stack:
        subscribers = [stack.enter_context(dial(nsqd.tcp_address)) for _ in range(3000)]
        for subscriber in subscribers:
            subscriber.sendall(commands.MAGIC_V2 + commands.sub("crowd", "channel"))
        before = resident(nsqd)
        attacker = subscribers[-1]
        attacker.setblocking(False)

        def answer() -> None:
            with contextlib.suppress(BlockingIOError):
                attacker.send(b"FIN 0123456789abcdef\n" * 500)
                attacker.recv(1 << 20)
            time.sleep(0.05)

        with under_attack(answer), nsq.Producer(nsqd.tcp_address) as producer:
            for _ in range(200):
                producer.publish("crowd", b"x", timeout=PATIENCE / 2)
            expect_well(nsqd, before)


def test_confirmed_messages_survive_a_clock_that_was_set_back(tmp_path: Path) -> None:
    """Ten restarts of a durable nsqd, each an hour earlier than the one before, with deferred messages."""
    confirmed: set[bytes] = set()
    (tmp_path / "data").mkdir()
    for hours in range(10):
        with Nsqd(
            data_path=str(tmp_path / "data"), durable=True, binary=clock_set_back(tmp_path, hours)
        ) as nsqd:
            with nsq.Producer(nsqd.tcp_address) as producer:
                bodies = [b"%d-%d" % (hours, number) for number in range(500)]
                producer.multi_publish("clock", bodies)
                producer.publish("clock", b"deferred %d" % hours, defer=5.0)
                confirmed.update([*bodies, b"deferred %d" % hours])
            nsqd.kill()
    seen: set[bytes] = set()
    with Nsqd(process=True, data_path=str(tmp_path / "data"), durable=True) as nsqd:
        consumer = nsq.Consumer("clock", "channel", nsqd=nsqd.tcp_address, max_in_flight=500)
        consumer.add_handler(lambda message: seen.add(message.body))
        with consumer:
            ends = time.monotonic() + PATIENCE
            while seen != confirmed and time.monotonic() < ends:
                time.sleep(0.05)
    assert confirmed - seen == set()


def clock_set_back(directory: Path, hours: int) -> Path:
    """Write the program of an nsqd whose wall clock is so many hours behind."""
    program = directory / f"nsqd-{hours}"
    program.write_text(
        f"#!{sys.executable}\n"
        "import time\n"
        "real, real_ns = time.time, time.time_ns\n"
        f"time.time = lambda: real() - {hours * 3600}\n"
        f"time.time_ns = lambda: real_ns() - {hours * 3600} * 10**9\n"
        "from nsq.daemons.nsqd.__main__ import main\n"
        "raise SystemExit(main())\n"
    )
    program.chmod(0o755)
    return program
