"""A well-behaved client that other clients must not disturb, and the memory of a daemon."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nsq.testing import Nsqadmin, Nsqd, Nsqlookupd, V2Client
from nsq.testing.v2 import Message
from nsq.wire import commands
from nsq.wire.frames import FRAME_MESSAGE, FRAME_RESPONSE, HEARTBEAT
from tests.integration.clients import connected, finish_all, subscribe

_PAUSE = 0.02
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Bystander:
    """Publishes and consumes one message after the other, in a thread; ``slowest`` is the longest time."""

    def __init__(self, nsqd: Nsqd) -> None:
        self.count = 0
        self.slowest = 0.0
        self._nsqd = nsqd
        self._fault: BaseException | None = None
        self._ended = threading.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bystander")
        self._thread.start()
        assert self._begun.wait(60), "the bystander could not begin"

    def _run(self) -> None:
        try:
            # No heartbeats for the publisher: they would come between the answers.
            with connected(self._nsqd, heartbeat_interval=-1) as producer, connected(self._nsqd) as listener:
                subscribe(listener, "bystander", rdy=1)
                while not self._ended.wait(_PAUSE):
                    self._begun.set()
                    body = b"message %d" % self.count
                    began = time.monotonic()
                    producer.send(commands.pub("bystander", body))
                    producer.expect_ok(timeout=60)
                    message = _next_message(listener)
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    assert (message.body, message.attempts) == (body, 1)
                    finish_all(listener, [message])
                    self.count += 1
        except BaseException as error:
            self._fault = error
            self._begun.set()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(100)
        if self._fault is not None:
            raise AssertionError(f"the bystander was disturbed: {self._fault!r}") from self._fault


def _next_message(listener: V2Client) -> Message:
    while (frame := listener.frame(timeout=60)) == (FRAME_RESPONSE, HEARTBEAT):
        listener.send(commands.NOP)
    assert frame.type == FRAME_MESSAGE, frame
    return frame.message


@contextmanager
def bystander(nsqd: Nsqd, within: float = 20.0) -> Iterator[Bystander]:
    """Check that in the block all its messages arrive, and none takes longer than this."""
    made = Bystander(nsqd)
    try:
        yield made
    finally:
        made.stop()
    assert made.count > 0
    assert made.slowest < within, f"a message took {made.slowest:.2f} s"


def resident(nsqd: Nsqd | Nsqlookupd | Nsqadmin | None = None) -> int:
    """Return the resident memory of a daemon's process, or of this one, in bytes."""
    return int(Path(f"/proc/{nsqd.pid if nsqd else 'self'}/statm").read_text().split()[1]) * _PAGE


def descriptors(nsqd: Nsqd) -> int:
    return len(os.listdir(f"/proc/{nsqd.pid}/fd"))
