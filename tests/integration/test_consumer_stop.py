"""Stops that only the system shows: dials into nowhere, names that do not resolve, signals to programs.

tests/behaviour has what a stop does to messages.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsq import Consumer
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from tests.fakes.network import silent_resolver, unreachable

from .consuming import (
    CHANNEL,
    PATIENCE,
    TOPIC,
    channel_of,
    clients_of,
    create,
    expect_drained,
    numbered,
    publish,
    until,
)

ROOT = Path(__file__).resolve().parents[2]
BUSY = "nsq-orders/billing-handler-0"
#: Seconds that a stop may take which has nothing to wait for; half of it proves that it did not wait.
LONG = 120.0


@pytest.mark.parametrize("kind", ["nsqd", "nsqlookupd"])
def test_stopping_does_not_wait_for_a_dial_into_nowhere(kind: str) -> None:
    def is_at_it(name: str) -> bool:
        return "-read-" in name or "-ask-" in name

    with unreachable() as hole:
        patient = {"dial_timeout": 300.0, "handshake_timeout": 300.0, "lookupd_poll_timeout": 300.0}
        consumer = Consumer(TOPIC, CHANNEL, **{kind: hole}, **patient).start()
        until("it dials", lambda: any(is_at_it(thread.name) for thread in threading.enumerate()))
        began = time.monotonic()
        assert consumer.stop(LONG).clean
        assert time.monotonic() - began < LONG / 2


@pytest.mark.parametrize("kind", ["nsqd", "nsqlookupd"])
def test_stopping_does_not_wait_for_a_name(kind: str) -> None:
    with silent_resolver() as asked:
        consumer = Consumer(TOPIC, CHANNEL, **{kind: "nsq.invalid:4150"}, lookupd_poll_timeout=300.0).start()
        assert asked.wait(PATIENCE)
        began = time.monotonic()
        assert consumer.stop(LONG).clean
        assert time.monotonic() - began < LONG / 2


PROGRAM = """
import os, sys, threading, nsq

told, busy = threading.Event(), threading.Event()

def listen():
    if os.read(0, 100):  # and not the end of stdin
        told.set()

def work(message):
    busy.set()
    told.wait(300)
    os.write(1, b"done " + message.body + b"\\n")  # in one piece, whatever others say

threading.Thread(target=listen, daemon=True).start()
consumer = nsq.Consumer("orders", "billing", {source}, threads=4)
consumer.add_handler(work)
{run}
"""
RUN = "report = consumer.run(timeout=60)\nprint(report, flush=True)\nsys.exit(0 if report else 3)"


class Program:
    """A consumer in a process of its own. It works on its messages until it is told that they are done."""

    def __init__(self, nsqd: Nsqd, run: str = RUN, source: str = "") -> None:
        self._nsqd = nsqd
        program = PROGRAM.format(run=run, source=source or f"nsqd={nsqd.tcp_address!r}")
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def takes_no_more(self) -> None:
        until("it takes no more", lambda: clients_of(self._nsqd)[0]["state"] == 4)

    def done(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("done\n")
        self.process.stdin.flush()

    def holds(self, count: int) -> None:
        until("the program is busy", lambda: channel_of(self._nsqd).get("in_flight_count") == count)

    def end(self, timeout: float = PATIENCE) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def start(*args: Any, **options: Any) -> Program:
        programs.append(Program(*args, **options))
        return programs[-1]

    yield start
    for each in programs:
        with each.process:
            each.process.kill()


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (signal.SIGTERM, ""),
        # nsqd knows that it has them, not that handlers have begun with all.
        (signal.SIGINT, r"(waiting for \d handlers?|stopping); press Ctrl-C again to end\n"),
    ],
)
def test_a_signal_drains_and_ends_the_program(
    nsqd: Nsqd, program: Callable[..., Program], number: signal.Signals, told: str
) -> None:
    create(nsqd)
    publish(nsqd, numbered(3))
    started = program(nsqd)
    started.holds(3)
    started.process.send_signal(number)
    started.takes_no_more()
    started.done()
    status, out, err = started.end()
    assert status == 0
    assert re.fullmatch(told, err)
    assert sorted(out.splitlines()[:3]) == [f"done message {each}" for each in range(3)]
    expect_drained(nsqd)


def test_one_signal_lets_a_stop_of_its_own_go_on(nsqd: Nsqd, program: Callable[..., Program]) -> None:
    create(nsqd)
    publish(nsqd, [b"m"])
    stopping = "threading.Thread(target=lambda: busy.wait(300) and consumer.stop()).start()\n"
    started = program(nsqd, stopping + RUN)
    started.holds(1)
    started.takes_no_more()
    started.process.send_signal(signal.SIGTERM)
    started.done()
    status, out, err = started.end()
    assert (status, err) == (0, "")
    assert "done m" in out
    expect_drained(nsqd)


def test_a_second_signal_does_not_wait(nsqd_factory: Factory[Nsqd], program: Callable[..., Program]) -> None:
    nsqd = nsqd_factory(msg_timeout=20.0)
    create(nsqd)
    publish(nsqd, [b"m"])
    started = program(nsqd, RUN.replace("60", "300"))
    started.holds(1)
    started.process.send_signal(signal.SIGTERM)
    started.takes_no_more()
    time.sleep(1.2)  # those within a second count as one
    started.process.send_signal(signal.SIGTERM)
    status, out, _ = started.end()  # whose patience is shorter than the stop's, and than the handler's
    assert status == 3
    assert "in_flight=1" in out
    assert BUSY.removesuffix("0") in out  # one of four
    until("nsqd has it again", lambda: channel_of(nsqd)["in_flight_count"] == 0)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), 16)
    return bool(mask >> (number - 1) & 1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_signal_before_there_is_any_connection(
    nsqd_factory: Factory[Nsqd], nsqlookupd: Nsqlookupd, program: Callable[..., Program]
) -> None:
    nsqd = nsqd_factory()
    source = f"nsqlookupd={nsqlookupd.http_address!r}"
    run = "consumer.start(); print('started', flush=True)\n" + RUN
    started = program(nsqd, run, source)
    assert started.process.stdout is not None
    assert started.process.stdout.readline() == "started\n"
    until("it listens to SIGTERM", lambda: catches(started.process.pid, signal.SIGTERM))
    started.process.send_signal(signal.SIGTERM)
    status, out, err = started.end()
    assert status == 0
    assert err == "" or err.startswith("no nsqlookupd lists an nsqd with topic")  # if it was asked by then
    assert "clean=True" in out


def test_a_program_may_end_without_stopping_its_consumer(
    nsqd_factory: Factory[Nsqd], program: Callable[..., Program]
) -> None:
    nsqd = nsqd_factory(msg_timeout=3.0)
    create(nsqd)
    publish(nsqd, [b"m"])
    run = "consumer.start(); busy.wait(60)"
    status, _, err = program(nsqd, run).end()
    assert (status, err) == (0, "")
    until("nsqd has it again", lambda: channel_of(nsqd)["in_flight_count"] == 0)
