"""Ends that only the system shows: during dials into nowhere, and of a program.

tests/behaviour has what a stop does to messages, test_pairs_of_signals.py what signals do to programs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from nsq import Consumer, Producer
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.fakes.network import unreachable
from tests.fakes.nsqlookupd import black_hole
from tests.fakes.programs import run_python

from .consuming import CHANNEL, TOPIC, channel_of, create, publish, until

#: Seconds that a stop may take which has nothing to wait for; half of it proves that it did not wait.
LONG = 120.0
PATIENT = {"dial_timeout": 300.0, "handshake_timeout": 300.0, "lookupd_poll_timeout": 300.0}


def is_dialing() -> bool:
    return any("-read-" in each.name or "-ask-" in each.name for each in threading.enumerate())


#: Whose address takes no connection, or takes one and does not answer.
NOWHERE = pytest.mark.parametrize(
    ("kind", "nowhere"),
    [("nsqd", unreachable), ("nsqd", black_hole), ("nsqlookupd", unreachable), ("nsqlookupd", black_hole)],
)


@NOWHERE
def test_a_stop_does_not_wait_for_a_dial_into_nowhere(
    kind: str, nowhere: Callable[[], AbstractContextManager[str]]
) -> None:
    with nowhere() as hole:
        consumer = Consumer(TOPIC, CHANNEL, **{kind: hole}, **PATIENT).start()
        until("it dials", is_dialing)
        began = time.monotonic()
        assert consumer.stop(LONG).clean
        assert time.monotonic() - began < LONG / 2


@NOWHERE
def test_a_close_does_not_wait_for_a_dial_into_nowhere(
    kind: str, nowhere: Callable[[], AbstractContextManager[str]]
) -> None:
    with nowhere() as hole:
        producer = Producer(**{kind: hole}, **PATIENT)
        future = producer.publish_async(TOPIC, b"body")
        until("it dials", is_dialing)
        report = producer.close(0.0)
        assert (report.unanswered, report.unfinished_threads) == (1, [])
        assert "closed" in str(future.exception(LONG))


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
