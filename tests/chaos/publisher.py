"""A program that publishes in every possible way until its input ends or asks it to close.

    python -m tests.chaos.publisher '{"name": …}'

A message whose publish failed or is uncertain is published again, under the same number. An error that is
not of the package is in the last report, and fails the test.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import nsq
from nsq.testing import leaks
from tests.chaos.records import CONFIRMED, Record, Recorder

_WINDOW = 40
_LONGEST = 60.0


class Publisher:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.recorder = Recorder(plan["file"])
        self.producer = nsq.Producer(*plan["nsqd"], **plan["options"])
        self.topic = plan["topic"]
        self.pace = plan["pace"]
        self.first = plan["incarnation"] << 32
        self.random = random.Random(plan["seed"])
        self.stopping = threading.Event()
        self.faults: list[str] = []
        self.errors: Counter[str] = Counter()
        self._number = 0
        self._lock = threading.Lock()  # guards the number and the errors
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=work.__name__)
            for work in (self.batches, self.singles, self.futures)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, timeout: float) -> dict[str, Any]:
        """Close the producer while its threads publish: they get errors."""
        self.stopping.set()
        began = time.monotonic()
        left = self.producer.close(timeout).unanswered
        elapsed = time.monotonic() - began
        for thread in self._threads:
            thread.join(60)
        hanging = [thread.name for thread in self._threads if thread.is_alive()]
        self.recorder.close()
        return {"elapsed": elapsed, "left": left, "hanging": hanging, "errors": self.errors}

    def _run(self, work: Callable[[], None]) -> None:
        try:
            while not self.stopping.is_set():
                work()
                self.stopping.wait(self.pace * self.random.uniform(0.5, 1.5))
        except Exception:
            self.faults.append(traceback.format_exc())

    # Ways to publish.

    def batches(self) -> None:
        messages = self._messages(self.random.choice([1, 50, 100, 200]))
        bodies = [self._body(each) for each in messages]
        self._insist(messages, lambda: self.producer.multi_publish(self.topic, bodies))

    def singles(self) -> None:
        for message in self._messages(3):
            body, defer = self._body(message), self.random.choice([None, None, 0.05, 0.8])
            self._insist([message], lambda b=body, d=defer: self.producer.publish(self.topic, b, defer=d))  # type: ignore[misc]

    def futures(self) -> None:
        waiting = []
        try:
            for message in self._messages(_WINDOW):
                future = self.producer.publish_async(self.topic, self._body(message))
                waiting.append((message, future))
        except nsq.NsqError as error:
            self._note(error)
        failed = [message for message, future in waiting if not self._confirmed(message, future)]
        for message in failed:
            body = self._body(message)
            self._insist([message], lambda b=body: self.producer.publish(self.topic, b))  # type: ignore[misc]

    def _confirmed(self, message: int, future: Any) -> bool:
        try:
            future.result(_LONGEST)
        except nsq.NsqError as error:
            self._note(error)
            return False
        self._record([message])
        return True

    def _insist(self, messages: list[int], publish: Callable[[], None]) -> None:
        while not self.stopping.is_set():
            try:
                publish()
            except nsq.NsqError as error:
                self._note(error)
                self.stopping.wait(0.05)
            else:
                self._record(messages)
                return

    def _note(self, error: nsq.NsqError) -> None:
        with self._lock:
            self.errors[type(error).__name__] += 1

    # Messages.

    def _messages(self, count: int) -> list[int]:
        with self._lock:
            begin = self._number
            self._number += count
        return [self.first + number for number in range(begin, begin + count)]

    def _body(self, message: int) -> bytes:
        return b"%d %s" % (message, b"." * (message * 7 % 90))

    def _record(self, messages: list[int]) -> None:
        self.recorder.write(Record(CONFIRMED, message) for message in messages)


def time_to_stop() -> float:
    """Wait for the timeout of the stop that a line of the input asks for; it is 1 s at the input's end."""
    line = sys.stdin.readline()
    return float(line) if line.strip() else 1.0


def take_turns_as_asked() -> None:
    """See tests/conftest.py."""
    sys.setswitchinterval(float(os.environ.get("NSQ_TEST_SWITCH_INTERVAL", sys.getswitchinterval())))


def main() -> None:
    take_turns_as_asked()
    plan = json.loads(sys.argv[1])
    before = leaks.snapshot()
    publisher = Publisher(plan)
    publisher.start()
    timeout = time_to_stop()
    report = publisher.close(timeout)
    left = leaks.leftovers(before, grace=30.0)
    report |= {"timeout": timeout, "leaks": leaks.describe(left), "faults": publisher.faults}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
