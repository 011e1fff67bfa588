"""A light load after the demonstration, so that nsqadmin has something to show."""

from __future__ import annotations

import itertools
import random
import threading
import time

import nsq

from .cluster import CHANNELS, TOPIC
from .services import FAILING, consumer
from .shop import event

A_SECOND = 20
SLOWEST = 0.1


class Load:
    """Publishes some events a second, which one consumer on each channel handles."""

    def __init__(self, nsqds: list[str], nsqlookupd: str) -> None:
        self._closing = threading.Event()
        self._producer = nsq.Producer(*nsqds)
        self._consumers = [consumer(channel, nsqlookupd) for channel in CHANNELS]
        for each in self._consumers:
            each.add_handler(handle, threads=4).start()
        self._shop = threading.Thread(target=self._publish, name="light-load")
        self._shop.start()

    def close(self) -> None:
        self._closing.set()
        self._producer.close(timeout=1.0)
        self._shop.join()
        for each in self._consumers:
            each.stop(timeout=5.0)

    def _publish(self) -> None:
        for order in itertools.count():
            if self._closing.wait(random.expovariate(A_SECOND)):
                return
            try:
                self._producer.publish(TOPIC, event(order, "placed", 999))
            except nsq.NsqError:
                continue  # the user may have stopped an nsqd to see what happens


def handle(_: nsq.Message) -> None:
    time.sleep(random.uniform(0.0, SLOWEST))
    if random.random() < FAILING:
        raise nsq.Requeue(delay=0.2, backoff=False)
