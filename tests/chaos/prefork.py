"""A program that forks while it publishes, like a prefork server: its children are killed and replaced.

    python -m tests.chaos.prefork '{"nsqd": …, "directory": …, "seed": …, "kills": …, "children": 8}'

The parent's producer is inherited by every child. Parent and children publish without a pause; what is
confirmed is recorded. An error of the parent's or of a child that was not killed is a fault.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import nsq
from tests.chaos.records import CONFIRMED, Record, Recorder


class Worker:
    """Publishes numbered messages until it is asked to end; ``number`` marks them as its own."""

    def __init__(self, producer: nsq.Producer, topic: str, directory: Path, number: int) -> None:
        self._producer, self._topic = producer, topic
        self._recorder = Recorder(directory / f"worker-{number}.records")
        self._first = number << 32
        self.published = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            message = self._first + self.published
            if message % 5:
                self._producer.publish(self._topic, b"%d" % message)
                self._record([message])
            else:
                self._producer.multi_publish(self._topic, [b"%d" % message, b"%d" % (message + 1)])
                self._record([message, message + 1])
            self.ended.wait(0.001)

    def _record(self, messages: list[int]) -> None:
        self.published += len(messages)
        self._recorder.write(Record(CONFIRMED, message) for message in messages)


class Children:
    """Forks children, and kills and ends them."""

    def __init__(self, producer: nsq.Producer, plan: dict[str, Any]) -> None:
        self._producer, self._plan = producer, plan
        self._numbers = iter(range(1, 1_000_000))
        self.pids: list[int] = []

    def fork(self) -> None:
        number = next(self._numbers)
        # SIGTERM must not end the child before it handles that signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        child = os.fork()
        if not child:
            self._live(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self.pids.append(child)

    def _live(self, number: int) -> None:
        """Run the child; never returns."""
        status = 1
        try:
            worker = Worker(self._producer, self._plan["topic"], Path(self._plan["directory"]), number)
            signal.signal(signal.SIGTERM, lambda *_: worker.ended.set())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            worker.run()
            status = 0 if self._producer.close(60.0) else 2
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def kill(self, child: int) -> None:
        self.pids.remove(child)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    def end(self) -> list[int]:
        """End the children; return their exit statuses."""
        for child in self.pids:
            os.kill(child, signal.SIGTERM)
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in self.pids]


def main() -> None:
    plan = json.loads(sys.argv[1])
    chance = random.Random(plan["seed"])
    faults: list[str] = []
    with nsq.Producer(*plan["nsqd"]) as producer:
        parent = Worker(producer, plan["topic"], Path(plan["directory"]), 0)

        def publish() -> None:
            try:
                parent.run()
            except BaseException:
                faults.append(traceback.format_exc())

        thread = threading.Thread(target=publish, name="parent")
        thread.start()
        children = Children(producer, plan)
        for _ in range(plan["children"]):
            children.fork()
        for _ in range(plan["kills"]):
            time.sleep(chance.uniform(0.0, 0.1))
            children.kill(chance.choice(children.pids))
            children.fork()
        statuses = children.end()
        parent.ended.set()
        thread.join(100)
        faults += ["the parent hangs"] if thread.is_alive() else []
    print(json.dumps({"faults": faults, "statuses": statuses, "published": parent.published}))


if __name__ == "__main__":
    main()
