"""A program that consumes until its input ends or asks it to stop, with handlers that sometimes fail.

    python -m tests.chaos.subscriber '{"name": …}'

What a handler does with a message follows from the message's number, and is done at its first attempt only:
raise, requeue, touch, or be too late.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import suppress
from typing import Any

import nsq
from nsq.testing import leaks
from tests.chaos.publisher import take_turns_as_asked, time_to_stop
from tests.chaos.records import HANDLED, Record, Recorder


class Refused(Exception):
    """An error that a handler raises on purpose."""


class Subscriber:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.recorder = Recorder(plan["file"])
        self.numbers = {address: number for number, address in enumerate(plan["nsqd"])}
        self.late_by = plan["msg_timeout"] * 1.2
        rewritten = dict(zip(plan["real"], plan["nsqd"], strict=True))
        source: dict[str, Any] = {"nsqd": plan["nsqd"]}
        if plan["nsqlookupd"]:
            source = {"nsqlookupd": plan["nsqlookupd"], "rewrite_address": rewritten.__getitem__}
        self.consumer = nsq.Consumer(plan["topic"], plan["channel"], threads=4, **source, **plan["options"])
        self.consumer.add_handler(self.handle)

    def handle(self, message: nsq.Message) -> None:
        number, first = int(message.body.split(b" ", 1)[0]), message.attempts == 1
        if first and number % 97 == 1:
            raise Refused(f"message {number} is refused once")
        if first and number % 101 == 2:
            with suppress(nsq.AlreadyResponded):  # its connection is lost: it comes again all the same
                message.requeue(0.2, backoff=False)
            return
        if first and number % 503 == 4:
            with suppress(nsq.AlreadyResponded):
                message.touch()
        if first and number % 2003 == 3:
            time.sleep(self.late_by)  # a delivery that comes here meanwhile is finished with this one
        nsqd = self.numbers[message.nsqd_address]
        self.recorder.write([Record(HANDLED, number, nsqd, message.received_at)])

    def stop(self, timeout: float) -> dict[str, Any]:
        began = time.monotonic()
        report = self.consumer.stop(timeout)
        elapsed = time.monotonic() - began
        return {
            "elapsed": elapsed,
            "timeout": timeout,
            "clean": report.clean,
            "in_flight": report.in_flight,
            "cut_off": report.cut_off,
            "unfinished": report.unfinished_threads,
        }


def log_what_matters() -> None:
    """Log to stderr, without the errors that handlers raise on purpose."""
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: record.exc_info is None or record.exc_info[0] is not Refused)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def main() -> None:
    take_turns_as_asked()
    log_what_matters()
    plan = json.loads(sys.argv[1])
    before = leaks.snapshot()
    subscriber = Subscriber(plan)
    subscriber.consumer.start()
    timeout = time_to_stop()
    report = subscriber.stop(timeout)
    # A handler that is still at work, or a dial, is let end.
    left = leaks.leftovers(before, lambda: _without_recorder(subscriber), grace=30.0)
    stats = subscriber.consumer.stats()
    report |= {
        "leaks": leaks.describe(left),
        "still": {"in_flight": stats.in_flight, "waiting": stats.waiting, "connections": stats.connections},
        "handled": stats.finished,
    }
    print(json.dumps(report))


def _without_recorder(subscriber: Subscriber) -> leaks.Snapshot:
    """Ignore the recorder's file: handlers may write to the end."""
    seen = leaks.snapshot()
    ours = {each for each in seen.descriptors if each[0] == subscriber.recorder.descriptor}
    return leaks.Snapshot(seen.threads, seen.descriptors - ours, seen.children, seen.files)


if __name__ == "__main__":
    main()
