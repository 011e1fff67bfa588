"""Two services that consume: billing, which sometimes fails, and the archive, which writes a file."""

from __future__ import annotations

import json
import os
import random
import tempfile
import threading
from collections import Counter
from pathlib import Path

import nsq

from .cluster import TOPIC

FAILING = 0.05


class Tally:
    """Counts what one channel has handled: every event at least once."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.retries = 0
        self._times: Counter[int] = Counter()
        self._lock = threading.Lock()  # several workers use it

    def count(self, event: int) -> None:
        with self._lock:
            self._times[event] += 1

    def count_retry(self) -> None:
        with self._lock:
            self.retries += 1

    @property
    def handled(self) -> int:
        """Return the number of distinct events."""
        return len(self._times)

    @property
    def lost(self) -> int:
        return self.expected - self.handled

    @property
    def duplicates(self) -> int:
        with self._lock:
            return self._times.total() - len(self._times)


class Billing:
    """Four workers; sometimes a payment fails."""

    name = "billing"
    work = "4 workers; now and then a payment fails and is tried again"

    def __init__(self, nsqlookupd: str, expected: int) -> None:
        self.tally = Tally(expected)
        self._consumer = consumer(self.name, nsqlookupd).add_handler(self.bill, threads=4)
        self._consumer.start()

    def bill(self, message: nsq.Message) -> None:
        event = json.loads(message.body)
        if event["step"] == "paid" and random.random() < FAILING:
            self.tally.count_retry()
            raise nsq.Requeue(delay=0.2, backoff=False)
        self.tally.count(event["event"])

    def close(self) -> None:
        self._consumer.stop(timeout=5.0)


class Archive:
    """One worker appends to a file. A duplicate event is in it twice."""

    name = "archive"
    work = "1 worker, which writes a file"

    def __init__(self, nsqlookupd: str, expected: int) -> None:
        self.tally = Tally(expected)
        descriptor, name = tempfile.mkstemp(prefix="orders-", suffix=".jsonl")
        self.path = Path(name)
        self._file = os.fdopen(descriptor, "wb")
        self._consumer = consumer(self.name, nsqlookupd).add_handler(self.write)
        self._consumer.start()

    def write(self, message: nsq.Message) -> None:
        self._file.write(message.body + b"\n")
        self.tally.count(json.loads(message.body)["event"])

    def close(self) -> None:
        self._consumer.stop(timeout=5.0)
        self._file.close()

    def discard(self) -> None:
        self.path.unlink()


def consumer(channel: str, nsqlookupd: str) -> nsq.Consumer:
    # The handlers are much faster than a round trip, so allow many messages in flight. max_attempts=0 gives
    # no event up, however often it fails.
    return nsq.Consumer(
        TOPIC,
        channel,
        nsqlookupd=nsqlookupd,
        max_in_flight=500,
        max_attempts=0,
        lookupd_poll_interval=1.0,
        reconnect_max=1.0,
    )
