"""Moves messages of one topic to another, such as dead letters back to their topic. ``nsq redrive`` and
nsqadmin use it. A dead letter with a reason gets there without it, as the message that it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from nsq import Message, Producer, Requeue
from nsq.wire.envelope import without_reason

#: The delay of a message that is not needed unless the publish of another one fails, in seconds.
_DELAY = 1.0


class Mover:
    """A handler that publishes messages to ``topic``, at most ``limit`` of them; any number of threads.

    A message is finished after it was published: an interruption loses none, and may publish one twice.
    ``over`` is set, and ``ended`` called, when ``limit`` messages are moved. ``error`` is the last failure.
    """

    def __init__(
        self, producer: Producer, topic: str, limit: int, *, ended: Callable[[], None] = lambda: None
    ) -> None:
        self.moved = 0
        self.error = ""
        self.over = threading.Event()
        self._producer = producer
        self._topic = topic
        self._limit = limit
        self._ended = ended
        self._lock = threading.Lock()
        self._claimed = 0  # moved, or being published

    def __call__(self, message: Message) -> None:
        with self._lock:
            if self._claimed >= self._limit or self.over.is_set():
                raise Requeue(0.0 if self.over.is_set() else _DELAY, backoff=False)
            self._claimed += 1
        try:
            self._producer.publish(self._topic, without_reason(message.body))
        except BaseException as error:
            with self._lock:
                self._claimed -= 1
                self.error = str(error)
            raise
        with self._lock:
            self.moved += 1
            last = self.moved == self._limit
        if last:
            self.end()

    def end(self) -> None:
        """Move no more messages."""
        self.over.set()
        self._ended()
