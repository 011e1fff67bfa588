"""The shop: places, pays, packs and ships every order, and publishes each step as an event."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import nsq

from .cluster import TOPIC

STEPS = ("placed", "paid", "packed", "shipped")
TILLS = 8
BATCH = 25


class Shop:
    """Several tills share one producer; each publishes one step of a batch of its orders at a time."""

    def __init__(self, nsqds: list[str], orders: int) -> None:
        self.events = orders * len(STEPS)
        self.published = 0
        self.uncertain = 0
        self._orders = orders
        self._producer = nsq.Producer(*nsqds)
        self._lock = threading.Lock()  # guards the counters
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(TILLS, thread_name_prefix="till")
        self._tills: list[Future[None]] = []

    def open(self) -> None:
        self._tills = [self._pool.submit(self._serve, till) for till in range(TILLS)]

    @property
    def sold_out(self) -> bool:
        """Whether everything is published; raises the error of a till."""
        done = [till for till in self._tills if till.done()]
        for till in done:
            till.result()
        return len(done) == TILLS

    def close(self) -> None:
        self._closing.set()
        self._producer.close(timeout=1.0)
        self._pool.shutdown()

    def _serve(self, till: int) -> None:
        for bodies in batches(range(till, self._orders, TILLS), random.Random(till)):
            if not self._publish(bodies):
                return

    def _publish(self, bodies: list[bytes]) -> bool:
        """Publish until an nsqd has confirmed the batch, or the shop closes."""
        while not self._closing.is_set():
            try:
                self._producer.multi_publish(TOPIC, bodies)
            except nsq.PublishUncertain:
                # Sent and not answered: publish again, because a duplicate can be recognized and a lost event
                # cannot.
                with self._lock:
                    self.uncertain += len(bodies)
            except nsq.PublishFailed:
                pass  # not stored: no nsqd was reachable within the timeout
            except nsq.Closed:
                break
            else:
                with self._lock:
                    self.published += len(bodies)
                return True
        return False


def batches(orders: range, chance: random.Random) -> Iterator[list[bytes]]:
    """Yield the events of these orders in batches, in the order of the steps."""
    for start in range(0, len(orders), BATCH):
        baskets = [(order, chance.randrange(500, 20_000)) for order in orders[start : start + BATCH]]
        for step in STEPS:
            yield [event(order, step, cents) for order, cents in baskets]


def event(order: int, step: str, cents: int) -> bytes:
    number = order * len(STEPS) + STEPS.index(step)
    return json.dumps({"event": number, "order": order, "step": step, "cents": cents}).encode()
