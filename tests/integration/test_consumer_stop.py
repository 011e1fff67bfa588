"""Ends that only the system shows: during dials into nowhere and lookups of names, and of a program.

tests/behaviour has what a stop does to messages, test_pairs_of_signals.py what signals do to programs.
"""

from __future__ import annotations

import threading
import time

import pytest

from nsq import Consumer
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.fakes.network import silent_resolver, unreachable
from tests.fakes.programs import run_python

from .consuming import (
    CHANNEL,
    PATIENCE,
    TOPIC,
    channel_of,
    create,
    publish,
    until,
)

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


def test_a_program_may_end_without_stopping_its_consumer(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(msg_timeout=3.0)
    create(nsqd)
    publish(nsqd, [b"m"])
    program = f"""
import threading, nsq

busy = threading.Event()

def work(message):
    busy.set()
    threading.Event().wait(300)

nsq.Consumer({TOPIC!r}, {CHANNEL!r}, nsqd={nsqd.tcp_address!r}).add_handler(work).start()
busy.wait(60)
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    until("nsqd has it again", lambda: channel_of(nsqd)["in_flight_count"] == 0)
