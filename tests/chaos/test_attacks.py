"""Attacks on an nsqd: bad answers on a crowded channel, and a clock that is set back."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import nsq
from nsq.testing import Nsqd
from nsq.wire import commands
from tests.integration.bystander import bystander, resident
from tests.integration.clients import dial

pytestmark = pytest.mark.chaos

PATIENCE = 60.0
#: Bytes by which an attack may make a daemon grow.
GROWTH = 150 * 1024 * 1024
SECONDS = 6.0


def test_bad_answers_on_a_crowded_channel_delay_no_other_client() -> None:
    with Nsqd(process=True) as nsqd, bystander(nsqd) as other, ExitStack() as stack:
        subscribers = [stack.enter_context(dial(nsqd.tcp_address)) for _ in range(3000)]
        for subscriber in subscribers:
            subscriber.sendall(commands.MAGIC_V2 + commands.sub("crowd", "channel"))
        before, begun = resident(nsqd), other.count
        attacker, ends = subscribers[-1], time.monotonic() + SECONDS
        attacker.setblocking(False)
        while time.monotonic() < ends:
            with suppress(BlockingIOError):
                attacker.send(b"FIN 0123456789abcdef\n" * 500)
                attacker.recv(1 << 20)
            time.sleep(0.05)
        assert other.count - begun >= 10  # while this was not mended, one took seconds
        assert resident(nsqd) - before < GROWTH


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
